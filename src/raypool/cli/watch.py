"""`raypool watch`: one request, followed to its end."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import click

from raypool.cli import connection, exits, output
from raypool.cli.request import demand_of
from raypool.errors import BrokerUnavailable

if TYPE_CHECKING:
    from raypool.view import RequestView

_MARKS = (3600, 600, 300, 60, 30, 10, 5)
"""When so many seconds are left of a notice, it is told again."""

_MOVED_SECONDS, _MOVED_PART = 10.0, 0.25
"""An expected start is told again when it has moved by more than both."""


@click.command()
@click.argument("id")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How it is printed; json: a line for each change.",
)
@connection.address_option()
def watch(id: str, form: str) -> None:
    """Follow one request to its end: a line for each change.

    Its status, its place in line, why it waits, when it may start, a notice and how long that leaves. ID may be
    shortened.

    Exit codes: 0 released, 1 rejected, 3 no broker, 4 preempted, 5 cancelled, 130 Ctrl-C (it goes on).
    """
    client = connection.connect()
    whole, told = client.request(id).id, Told()
    try:
        while True:
            try:
                for view in client.changes(whole):
                    _tell(view, told, form)
                    if view.ended:
                        sys.exit(exits.OF_END[view.status])
            except BrokerUnavailable as error:
                click.echo(f"{error}; looking for it again", err=True)
                client = connection.connect()
    except KeyboardInterrupt:
        click.echo(f"not followed any more; '{whole}' goes on", err=True)
        sys.exit(exits.STOPPED)


def _tell(view: RequestView, told: Told, form: str) -> None:
    now = time.time()
    for sentence in told.news(view, now):
        if form == "json":
            click.echo(json.dumps({"at": round(now, 3), "told": sentence, **view.as_dict()}, ensure_ascii=False))
        else:
            clock = time.strftime("%H:%M:%S  ", time.localtime(now))
            first, *others = output.folded(output.printable(sentence), output.columns() - len(clock))
            click.echo("\n".join([clock + first, *(" " * len(clock) + line for line in others)]))
    sys.stdout.flush()


class Told:
    """What was told of a request, and so what would be news."""

    def __init__(self) -> None:
        self._stands: tuple[object, ...] = ()
        self._starts_at: float | None = None
        self._mark = 0

    def news(self, view: RequestView, now: float) -> list[str]:
        """Sentences; none if all was told."""
        stands = (view.status, view.placing, view.position, view.reason, tuple(view.reasons.items()), view.deadline)
        if stands != self._stands or self._has_moved(view, now):
            self._stands = stands
            self._starts_at = None if view.eta_p50_seconds is None else now + view.eta_p50_seconds
            self._mark = _marks_passed(view, now)
            return [_stands(view, now)]
        mark = _marks_passed(view, now)
        if view.status == "preempting" and mark > self._mark:
            self._mark = mark
            return [f"leaves {_left(view, now)}"]
        return []

    def _has_moved(self, view: RequestView, now: float) -> bool:
        """Whether it is expected to start at another time than was told."""
        if view.status != "pending" or view.eta_p50_seconds is None or self._starts_at is None:
            return view.status == "pending" and (view.eta_p50_seconds is None) != (self._starts_at is None)
        by = abs(now + view.eta_p50_seconds - self._starts_at)
        return by > max(_MOVED_SECONDS, _MOVED_PART * view.eta_p50_seconds)


def _marks_passed(view: RequestView, now: float) -> int:
    return 0 if view.deadline is None else sum(view.deadline - now <= mark for mark in _MARKS)


def _left(view: RequestView, now: float) -> str:
    return "now" if view.deadline is None else f"in {output.duration(view.deadline - now)}"


def _stands(view: RequestView, now: float) -> str:
    """How it stands, in one line."""
    if view.status == "pending":
        whys = [*view.reasons.values()] or [view.reason or "it is being decided"]
        in_line = view.position is not None and "in line" not in whys[0]
        place = f", number {view.position} in line" if in_line else ""
        return "; ".join([f"pending{place}: {whys[0]}", *whys[1:], *filter(None, [view.eta])])
    if view.status == "preempting":
        return f"preempting, leaves {_left(view, now)}: {view.reason or 'it was told to'}"
    if view.running:
        borrowed = output.amounts(view.borrowed)
        nodes = ", ".join(dict.fromkeys(view.nodes))
        return (
            f"{view.status} in pool '{view.pool}': {demand_of(view)}"
            + (f", of which {borrowed} borrowed" if borrowed != "-" else "")
            + (f", on {nodes}" if nodes else "")
        )
    return view.status + (f": {view.reason}" if view.reason else "")
