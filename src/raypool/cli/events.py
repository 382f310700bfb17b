"""`raypool events`: what was decided, with who, what and why, and who changed what."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from raypool.cli import connection, output
from raypool.cli.values import SINCE

if TYPE_CHECKING:
    from raypool.view import EventView


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until it is stopped.")
@click.option("--since", type=SINCE, metavar="WHEN", help="From then on: 30min, 2h, 7d ago, or a time.")
@click.option("--component", help="Only about this component, also where others left for it.")
@click.option("--pool", help="Only about this pool.")
@click.option("--request", metavar="ID", help="Only about this request (its whole id), and who left for it.")
@click.option("--kind", help="Only of this kind: granted, evicted, config-applied, ...")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="So many of the last."
)
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="How it is printed; json: one record in each line.")  # fmt: skip
@connection.address_option()
def events(
    follow: bool,
    since: float | None,
    component: str | None,
    pool: str | None,
    request: str | None,
    kind: str | None,
    limit: int,
    form: str,
) -> None:
    """Show what was decided: grants, evictions, ends, and changes of pools and nodes, with the figures.

    The same is in raypool_events.jsonl in Ray's log folder on the broker's node.
    """
    client = connection.connect()
    if follow:
        found: Iterable[EventView] = client.follow_events(
            since=since, component=component, pool=pool, request=request, kind=kind
        )
    else:
        found = client.events(since=since, component=component, pool=pool, request=request, kind=kind, limit=limit)
    none = True
    for event in found:
        none = False
        if form == "json":
            click.echo(json.dumps(event.as_dict(), ensure_ascii=False))
        else:
            output.lines(f"{time.strftime('%m-%d %H:%M:%S', time.localtime(event.at))}  {event}")
    if none:
        click.echo("no record is of that time and about all that", err=True)
