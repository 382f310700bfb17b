"""`raypool replay`: a workload trace through the decision core, in virtual time, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from raypool.cli import output
from raypool.cli.values import config_in
from raypool.errors import RaypoolError, SpecError

if TYPE_CHECKING:
    from raypool.simulation.traces import Trace
    from raypool.simulation.workload import AfterPreemption, Workload
    from raypool.simulation.workload_report import WorkloadReport

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("trace", type=_FILE)
@click.option("--pools", required=True, type=_FILE, help="The pools and policies to try, YAML.")
@click.option("--compare", type=_FILE, help="Others, to see side by side.")
@click.option("--mapping", type=_FILE, help="Which column is what: needed for a CSV.")
@click.option("--skip-bad", is_flag=True, help="Leave out lines that cannot be read, and count them.")
@click.option(
    "--preempted",
    type=click.Choice(["restart", "resume"]),
    default="restart",
    show_default=True,
    help="What becomes of a preempted job: it starts from nothing, or goes on from where it was.",
)
@click.option(
    "--resume-seconds",
    type=click.FloatRange(min=0),
    help="Work that is done again at each resumption, with --preempted resume. Default: 0.",
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots, too.")
@output.output_option
def replay(
    trace: Path,
    pools: Path,
    compare: Path | None,
    mapping: Path | None,
    skip_bad: bool,
    preempted: str,
    resume_seconds: float | None,
    html: Path | None,
    form: str,
) -> None:
    """Run a workload TRACE under pools and policies, in virtual time, without Ray.

    Reports waits, use, preemptions and what they cost, per component. TRACE is a .csv (with --mapping), a .swf (the
    Standard Workload Format) or a .jsonl (`raypool journal export`), each also with .gz.

    Exit codes: 0 done, 2 the trace, the mapping or the pools are not written correctly.
    """
    from raypool.simulation.mapping import read_mapping
    from raypool.simulation.traces import Trace
    from raypool.simulation.workload import AfterPreemption
    from raypool.simulation.workload_report import report_of

    if resume_seconds is not None and preempted != "resume":
        raise click.UsageError("--resume-seconds goes with --preempted resume")
    after = AfterPreemption("resume", resume_seconds or 0.0) if preempted == "resume" else AfterPreemption()
    read = Trace(trace, read_mapping(mapping) if mapping is not None else None, skip_bad)
    runs: list[tuple[WorkloadReport, Workload]] = []
    files = [pools] if compare is None else [pools, compare]
    for file, name in zip(files, _names(files), strict=True):
        workload = _run(read, file, after)
        runs.append((report_of(workload, trace.name, read.counts, name), workload))
    for sentence in read.counts.told:
        click.echo(f"left out: {sentence}", err=True)
    if read.counts.bad > len(read.counts.told):
        click.echo(f"left out: and {read.counts.bad - len(read.counts.told)} more", err=True)
    _show([report for report, _ in runs], form)
    if html is not None:
        from raypool.simulation.page import page_of

        try:
            html.write_text(page_of(runs), encoding="utf-8")
        except OSError as error:
            raise RaypoolError(f"{html} was not written: {error.strerror}") from None


def _names(files: list[Path]) -> list[str]:
    """File names; with their folders, where they are the same."""
    names = [file.name for file in files]
    return names if len(set(names)) == len(names) else [str(file) for file in files]


def _run(trace: Trace, pools: Path, after: AfterPreemption) -> Workload:
    from raypool.simulation.workload import replay_workload

    config = config_in(pools)
    with output.progress(f"{trace.file.name} under {pools.name}", trace.size) as trace.progress:
        try:
            return replay_workload(trace, config, after)
        except SpecError as error:
            raise SpecError(_of(pools, str(error)), error.problems) from None


def _of(pools: Path, sentence: str) -> str:
    """A fault of the pools names their file, as one of the trace names its own."""
    return f"{pools}: {sentence}" if sentence.startswith("pools, policies:") else sentence


def _show(reports: list[WorkloadReport], form: str) -> None:
    from raypool.simulation.workload_report import facts_of, tables_of

    if form != "table":
        output.data({"reports": [report.as_dict() for report in reports]}, form)
        return
    output.facts(facts_of(reports))
    for title, headings, rows in tables_of(reports):
        click.echo(f"\n{title}")
        output.table(headings, rows)
