"""`raypool start`, `stop`, `status`, `apply`: the broker as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from raypool.cli import connection, output
from raypool.cli.changes import Change, by_kind, changes_of
from raypool.cli.pool import print_figures, warn
from raypool.errors import Refused, SpecError

if TYPE_CHECKING:
    from raypool.spec import BrokerConfig
    from raypool.view import BrokerView


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
    view = connection.start(config, journal).status()
    warn([*filter(None, [view.degraded]), *view.warnings])
    pools = ", ".join(pool.name for pool in view.pools) or "none"
    click.echo(f"the broker runs (raypool {view.version}, up {_uptime(view)}); pools: {pools}")


@click.command()
@click.option(
    "--discard-journal",
    is_flag=True,
    help="Also end a degraded broker, and erase the journal that it cannot read. What runs is left as it is.",
)
@connection.address_option()
def stop(discard_journal: bool) -> None:
    """Cancel every request and end the broker."""
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
@click.option("--dry-run", is_flag=True, help="Ask the broker whether it would take it; change nothing.")
@output.output_option
@connection.address_option()
def apply(file: IO[bytes], dry_run: bool, form: str) -> None:
    """Add or replace pools and policies, all or none.

    Nothing is removed: what the file does not name stays as it is.
    """
    wanted = _read_config(file)
    client = connection.connect()
    changes = changes_of(client.config(), wanted)
    refused, warnings = None, []
    try:
        warnings = client.check(wanted) if dry_run else client.apply(wanted)
    except Refused as error:
        refused = error
    if form != "table":
        faults = list(refused.faults) if refused is not None else []
        output.data(_as_data(changes, applied=not dry_run and not faults, faults=faults, warnings=warnings), form)
    elif dry_run or refused is None:
        _print_changes(changes, dry_run)
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


def _as_data(changes: list[Change], applied: bool, faults: list[str], warnings: list[str]) -> dict[str, Any]:
    """`removed` is there because people look for it; it is always empty."""
    kinds = {kind: [change.as_dict() for change in found] for kind, found in by_kind(changes).items()}
    return {"applied": applied, **kinds, "removed": [], "faults": faults, "warnings": warnings}


def _print_changes(changes: list[Change], dry_run: bool) -> None:
    rows = [
        [change.kind if first else "", change.what if first else "", name, _value(now), _value(then)]
        for change in changes
        if change.kind != "unchanged"
        for first, name, now, then in _fields(change)
    ]
    if rows:
        output.table(["", "WHAT", "FIELD", "NOW", "THEN" if dry_run else "NEW"], rows)
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in by_kind(changes).items())
    done = "dry run, nothing was changed; it would be" if dry_run else "applied"
    click.echo(f"{done}: {counts}, none removed")


def _fields(change: Change) -> Iterator[tuple[bool, str, Any, Any]]:
    """(whether it is the first, field, now, then)"""
    for index, (name, (now, then)) in enumerate(change.fields.items()):
        yield index == 0, name, now, then


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {one}" for key, one in value.items()) + "}"
    return "-" if value in (None, "") else str(value)
