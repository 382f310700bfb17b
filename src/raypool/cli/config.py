"""`raypool export`, `history`, `rollback`: the pools and policies as a whole, now and as they were."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING

import click

from raypool.cli import connection, output
from raypool.cli.broker import note_option, outcome_as_data, print_changes, print_preview
from raypool.cli.changes import changes_back_to
from raypool.cli.pool import warn
from raypool.errors import Refused

if TYPE_CHECKING:
    from raypool.spec import BrokerConfig
    from raypool.view import VersionView

form_option = click.option(
    "-o", "--output", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True,
    help="How it is written.",
)  # fmt: skip


@click.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@form_option
@connection.address_option()
def export(file: IO[str], form: str) -> None:
    """Write the pools and policies as they stand to FILE (default: stdout).

    `raypool apply -f FILE` makes the same of them again, and changes nothing as long as they are so.
    """
    client = connection.connect()
    history = client.history()
    head = f"version {_told(history[-1])}" if history else "nothing was applied yet"
    file.write(_text_of(client.config(), form, head))


@click.command()
@click.argument("number", type=int, required=False)
@output.output_option
@connection.address_option()
def history(number: int | None, form: str) -> None:
    """List the changes of pools and policies; with NUMBER, print the config as it was after that one.

    The last is in force. The last 100 are kept.
    """
    client = connection.connect()
    if number is not None:
        config = client.config_of(number)
        version = next(one for one in client.history() if one.number == number)
        click.echo(_text_of(config, form, f"version {_told(version)}"), nl=False)
        return
    output.listing(
        client.history(),
        {
            "NUMBER": lambda one: one.number,
            "WHEN": lambda one: _moment(one.at),
            "BY": lambda one: one.by or None,
            "WHAT": lambda one: one.what,
            "NOTE": lambda one: one.note or None,
        },
        form,
        "nothing was applied yet; `raypool apply -f pools.yaml` does",
    )


@click.command()
@click.argument("number", type=int)
@click.option("--dry-run", is_flag=True, help="Tell what it would do; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@note_option
@output.output_option
@connection.address_option()
def rollback(number: int, dry_run: bool, yes: bool, note: str, form: str) -> None:
    """Make pools and policies what they were after the change NUMBER of `raypool history`, all or none.

    What was not there then is removed, if it is not in use. Shows first what it would do, and asks.
    """
    client = connection.connect()
    changes = changes_back_to(client.config(), client.config_of(number))
    table = form == "table"
    try:
        with output.progress("making the change on a copy of the broker"):
            preview = client.preview_rollback(number)
    except Refused as error:
        if table:
            print_changes(changes, "refused, nothing was changed; it would be")
        else:
            output.data(outcome_as_data(changes, applied=False, faults=error.faults), form)
        raise
    if table:
        print_changes(changes, "dry run, nothing was changed; it would be" if dry_run else "it would be")
        print_preview(preview)
    warnings = preview.warnings
    if not dry_run:
        if not yes:
            click.confirm(f"Go back to version {number}?", abort=True, err=True)
        with output.progress("making the change"):
            warnings = client.rollback(number, note=note)
    if not table:
        output.data(outcome_as_data(changes, applied=not dry_run, warnings=warnings, preview=preview), form)
        return
    if not dry_run:
        click.echo(f"pools and policies are as after change {number}; this is version {client.history()[-1].number}")
    warn(warnings)


def _text_of(config: BrokerConfig, form: str, head: str) -> str:
    if form == "json":
        import json

        return json.dumps(config.dump(), indent=2, ensure_ascii=False) + "\n"
    return config.to_yaml(f"raypool: pools and policies\n{head}")


def _told(version: VersionView) -> str:
    """ "7, 2026-11-30 06:20:17, by ann: more room"."""
    by = f", by {version.by}" if version.by else ""
    note = f": {version.note}" if version.note else ""
    return f"{version.number}, {_moment(version.at)}{by}{note}"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
