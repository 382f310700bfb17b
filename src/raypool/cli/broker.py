"""`raypool start`, `stop`, `status`, `apply`: the broker as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from raypool.cli import connection, output
from raypool.cli.changes import Change, by_kind, changes_of
from raypool.cli.dashboard import HOST, PORT
from raypool.cli.pool import print_figures, warn
from raypool.errors import Refused, SpecError

if TYPE_CHECKING:
    from raypool.spec import BrokerConfig
    from raypool.view import BrokerView, PreviewView


note_option = click.option("--note", metavar="TEXT", default="", help="Why, for `raypool history`.")


@click.command()
@click.option("-f", "--file", type=click.File("rb"), help="Pools and policies to apply, YAML; '-' reads stdin.")
@click.option(
    "--journal",
    metavar="PLACE",
    help="Where a new broker keeps what it knows: 'ray' (default), or the path of a SQLite file on the head node.",
)
@connection.address_option()
def start(file: IO[bytes] | None, journal: str | None) -> None:
    """Start the broker, or find the one that runs.

    With -f, pools and policies of the file are added to it, or replaced.
    """
    config = None if file is None else _read_config(file)
    with output.progress("starting the broker"):
        view = connection.start(config, journal).status()
    warn([*filter(None, [view.degraded]), *view.warnings])
    pools = ", ".join(pool.name for pool in view.pools) or "none"
    click.echo(f"the broker runs (raypool {view.version}, up {_uptime(view)}); pools: {pools}")
    click.echo(f"`raypool dashboard` shows who holds what and who waits, at http://{HOST}:{PORT}")


@click.command()
@click.option(
    "--discard-journal",
    is_flag=True,
    help="Also end a degraded broker, and erase the journal that it cannot read. What runs is left as it is.",
)
@connection.address_option()
def stop(discard_journal: bool) -> None:
    """Cancel every request and end the broker."""
    with output.progress("waiting until all placement groups are gone"):
        connection.stop(discard_journal)
    if discard_journal:
        click.echo("the broker is stopped and its journal is erased")
    else:
        click.echo("the broker is stopped; its requests are cancelled and their placement groups are gone")


@click.command()
@output.output_option
@connection.address_option()
def status(form: str) -> None:
    """Show pools, requests, warnings and uptime."""
    view = connection.connect().status()
    if form != "table":
        output.data({**view.as_dict(), "uptime_seconds": round(time.time() - view.started_at, 3)}, form)
        return
    counts = ", ".join(f"{count} {name}" for name, count in view.requests.items() if count)
    output.facts(
        {
            "broker": f"raypool {view.version}, up {_uptime(view)}",
            **({"state": view.degraded} if view.degraded else {}),
            "journal": view.journal,
            "no policy": f"requests of components without one: {view.unmanaged}",
            "requests": counts or "none",
            "warnings": "\n".join(view.warnings),
        }
    )
    click.echo()
    if view.pools:
        print_figures(view.pools)
    else:
        click.echo("no pools; `raypool apply -f pools.yaml` or `raypool pool create` makes some")


@click.command()
@click.option(
    "-f", "--file", type=click.File("rb"), required=True, help="YAML with `pools` and `policies`; '-': stdin."
)
@click.option("--dry-run", is_flag=True, help="Tell what it would do to who waits and who runs; change nothing.")
@note_option
@output.output_option
@connection.address_option()
def apply(file: IO[bytes], dry_run: bool, note: str, form: str) -> None:
    """Add or replace pools and policies, all or none.

    Nothing is removed: what the file does not name stays as it is.
    """
    wanted = _read_config(file)
    client = connection.connect()
    changes = changes_of(client.config(), wanted)
    refused, preview, warnings = None, None, []
    try:
        if dry_run:
            with output.progress("making the change on a copy of the broker"):
                preview = client.preview(wanted)
            warnings = preview.warnings
        else:
            with output.progress("making the change"):
                warnings = client.apply(wanted, note=note)
    except Refused as error:
        refused = error
    if form != "table":
        faults = refused.faults if refused is not None else ()
        applied = not dry_run and refused is None
        output.data(outcome_as_data(changes, applied, faults, warnings, preview), form)
    elif dry_run or refused is None:
        print_changes(changes, "dry run, nothing was changed; it would be" if dry_run else "applied")
        if preview is not None:
            print_preview(preview)
        warn(warnings)
    if refused is not None:
        raise refused


def _read_config(file: IO[bytes]) -> BrokerConfig:
    """Raises SpecError, naming the file."""
    from raypool.spec import BrokerConfig

    try:
        return BrokerConfig.from_yaml(file.read().decode("utf-8"))
    except UnicodeDecodeError:
        raise SpecError(f"{file.name}: not readable as YAML: it is not UTF-8 text") from None
    except SpecError as error:
        raise SpecError(f"{file.name}: {error}", error.problems) from None


def _uptime(view: BrokerView) -> str:
    return output.duration(time.time() - view.started_at)


def outcome_as_data(
    changes: list[Change],
    applied: bool,
    faults: Iterable[str] = (),
    warnings: Iterable[str] = (),
    preview: PreviewView | None = None,
) -> dict[str, Any]:
    """`removed` is always empty unless it goes back. What follows is there where it was asked."""
    kinds = {kind: [change.as_dict() for change in found] for kind, found in by_kind(changes).items()}
    told = preview.as_dict() if preview is not None else {"consequences": [], "more": {}, "promises": []}
    follows = {name: told[name] for name in ("consequences", "more", "promises")}
    return {"applied": applied, **kinds, **follows, "faults": list(faults), "warnings": list(warnings)}


def print_changes(changes: list[Change], done: str) -> None:
    rows = [
        [change.kind if first else "", change.what if first else "", name, _value(now), _value(then)]
        for change in changes
        if change.kind != "unchanged"
        for first, name, now, then in _fields(change)
    ]
    if rows:
        output.table(["", "WHAT", "FIELD", "NOW", "NEW" if done == "applied" else "THEN"], rows)
    kinds = by_kind(changes)
    removed = len(kinds.pop("removed")) or "none"
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())
    click.echo(f"{done}: {counts}, {removed} removed")


def print_preview(preview: PreviewView) -> None:
    """A sentence for each consequence."""
    rows: list[tuple[str, str]] = []
    for kind in dict.fromkeys(one.kind for one in preview.consequences):
        rows += [(kind, one.sentence) for one in preview.consequences if one.kind == kind]
        if kind in preview.more:
            rows.append((kind, f"and {preview.more[kind]} more"))
    rows += [("promises", text) for text in preview.promises]
    if rows:
        click.echo()
        output.table(["", "WHAT FOLLOWS"], rows)
    else:
        click.echo("nothing follows for who waits or runs now")


def _fields(change: Change) -> Iterator[tuple[bool, str, Any, Any]]:
    """(whether it is the first, field, now, then); one without fields for what is removed."""
    if change.kind == "removed":
        yield True, "", "", ""
    for index, (name, (now, then)) in enumerate(change.fields.items()):
        yield index == 0, name, now, then


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {one}" for key, one in value.items()) + "}"
    return "-" if value in (None, "") else str(value)
