"""`raypool simulate`: scenario files run on the broker's own decision core, in virtual time, without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raypool.cli import output
from raypool.cli.values import config_in
from raypool.errors import RaypoolError, SpecError

if TYPE_CHECKING:
    from raypool.simulation import SimulationReport, Step
    from raypool.spec import BrokerConfig

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@click.option("--pools", type=_FILE, help="Pools and policies to test, in the place of the scenarios' own.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JUnit XML, too.")
@click.option("--quiet", is_flag=True, help="Print only what failed.")
def simulate(files: tuple[Path, ...], pools: Path | None, as_json: bool, junit: Path | None, quiet: bool) -> None:
    """Run scenario files in virtual time, without Ray.

    Prints what happens and when, and which expectations fail.

    Exit codes: 0 every expectation holds, 1 one fails, 2 a file is not a scenario.
    """
    config = config_in(pools) if pools is not None else None
    reports: list[SimulationReport] = []
    with output.progress(f"running {_files(len(files))}", len(files)) as progress:
        for at, file in enumerate(files):
            reports += _run(file, config)
            progress(at + 1)
    failed = [report for report in reports if not report.passed]
    if junit is not None:
        _write_junit(junit, reports)
    if as_json:
        output.data({"scenarios": [report.as_dict() for report in reports]}, "json")
    else:
        for report in failed if quiet else reports:
            _print_report(report, with_table=not quiet)
        if not quiet:
            noun = "scenario" if len(reports) == 1 else "scenarios"
            passed = len(reports) - len(failed)
            click.echo(f"{len(reports)} {noun}: {passed} passed, {len(failed)} failed")
    if failed:
        click.get_current_context().exit(1)


def _files(count: int) -> str:
    return f"{count} {'file' if count == 1 else 'files'}"


def _run(file: Path, config: BrokerConfig | None) -> list[SimulationReport]:
    """Under `config`, if there is one. Raises SpecError, naming the file, if a document of it is not a scenario."""
    from raypool.simulation import read_scenarios, simulate

    reports = []
    for scenario in list(read_scenarios(file)):
        if config is not None:
            scenario = scenario.model_copy(update={"pools": config.pools, "policies": config.policies})
        try:
            reports.append(replace(simulate(scenario), file=str(file)))
        except SpecError as error:
            raise SpecError(f"{file}: scenario '{scenario.name}': {error}", error.problems) from None
    return reports


def _write_junit(file: Path, reports: list[SimulationReport]) -> None:
    from raypool.simulation.junit import junit_of

    try:
        file.write_text(junit_of(reports), encoding="utf-8")
    except OSError as error:
        raise RaypoolError(f"{file} was not written: {error.strerror}") from None


def _rows(step: Step) -> Iterator[list[str]]:
    """A row for each change, and one for what was refused."""
    for change in step.transitions:
        what = change.to if change.old is None else f"{change.old} -> {change.to}"
        yield [f"{change.at:g} s", change.request, what, change.pool or "-", change.reason or ""]
    if step.refused is not None:
        yield [f"{step.at:g} s", "-", "refused", "-", step.refused]


def _print_report(report: SimulationReport, with_table: bool) -> None:
    click.echo(f"{'passed' if report.passed else 'FAILED'}  {report.name}  ({report.file})")
    rows = [row for step in report.steps for row in _rows(step)]
    if with_table and rows:
        output.table(["AT", "REQUEST", "WHAT", "POOL", "WHY"], rows)
    for failure in report.failures:
        click.echo(f"  {failure}")
    if with_table:
        click.echo()
