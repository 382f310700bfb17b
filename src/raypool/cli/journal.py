"""`raypool journal export`, `replay`: what the broker has written down, and the same once more."""

from __future__ import annotations

from typing import IO

import click

from raypool.cli import connection, output


@click.group()
def journal() -> None:
    """What the broker has written down."""


@journal.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@connection.address_option()
def export(file: IO[str]) -> None:
    """Write the journal to FILE (default: stdout) as JSON lines.

    First the state as of the last snapshot (a head, the pools, the requests), then every event since, with
    what was decided on it. Works also when the broker is degraded.
    """
    client = connection.connect()
    with output.progress("reading the journal"):
        text = client.journal()
    file.write(text)


@journal.command()
@click.argument("file", type=click.File("r", encoding="utf-8", errors="replace"))
@output.output_option
def replay(file: IO[str], form: str) -> None:
    """Run an exported journal through the core again, without Ray.

    Shows every event with its decisions, and stops at the first that comes out otherwise than it did then.

    Exit codes: 0 every decision is the same, 1 one is not, or a line is not understood.
    """
    from raypool.simulation import replay_journal

    with output.progress("running the journal"):
        steps, fault = replay_journal(file)
    if form != "table":
        output.data({"steps": [vars(step) for step in steps], "fault": fault}, form)
    elif steps:
        rows = [[step.number, f"{step.at:.3f}", step.what, "\n".join(step.decided)] for step in steps]
        output.table(["EVENT", "AT", "WHAT", "DECIDED"], rows)
    decided = sum(len(step.decided) for step in steps)
    click.echo(
        fault or f"{len(steps)} events, {decided} decisions: all as they were decided then",
        err=fault is not None or form != "table",
    )
    if fault is not None:
        click.get_current_context().exit(1)
