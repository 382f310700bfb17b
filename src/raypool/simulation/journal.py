"""An exported journal run through the core again: what happened, what was decided, and whether it still is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from raypool.core import replay as core
from raypool.core.events import Event, ManySubmitted
from raypool.core.records import Decision
from raypool.spec import Spec


@dataclass(frozen=True)
class ReplayStep:
    """One event. number: its place in the journal. at: seconds since the epoch. what: the event in words.
    decided: what followed, in order, in words."""

    number: int
    at: float
    what: str
    decided: tuple[str, ...]


def replay_journal(lines: Iterable[str]) -> tuple[list[ReplayStep], str | None]:
    """Every event that comes out as it did then, and what is wrong with the next one; None if nothing is."""
    rows = [line for line in (line.strip() for line in lines) if line]
    steps: list[ReplayStep] = []
    try:
        for step in _steps(rows):
            steps.append(step)
    except core.Unreadable as error:
        return steps, f"after {len(steps)} events that are as they were: {error}"
    return steps, None


def _steps(rows: list[str]) -> Iterator[ReplayStep]:
    first_event = next((at for at, row in enumerate(rows) if row.startswith('{"n":')), len(rows))
    broker, number, _ = core.opened(rows[:first_event])
    for step in core.replay(broker, number, rows[first_event:]):
        yield ReplayStep(step.number, step.at, _event(step.event), tuple(map(_decision, step.decided)))


def _event(event: Event) -> str:
    """ "Submitted r7 of team-ml"."""
    if isinstance(event, ManySubmitted):
        return f"ManySubmitted {len(event.ids)} requests"
    words = [type(event).__name__]
    for field in fields(event):
        value: Any = getattr(event, field.name)
        if isinstance(value, Spec):
            words += [getattr(value, "id", ""), f"of {value.component}"] if hasattr(value, "component") else []
        elif isinstance(value, str) and value:
            words.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            words.append(f"#{value}")
    return " ".join(words)


def _decision(decision: Decision) -> str:
    match decision:
        case ["create", request, attempt, pool]:
            return f"create the group of {request} #{attempt}" + (f" in {pool}" if pool else "")
        case ["remove", request, attempt]:
            return f"remove the group of {request} #{attempt}"
        case ["hand-over", request, attempt, to, to_attempt]:
            return f"hand the group of {request} #{attempt} over to {to} #{to_attempt}"
        case ["warn", request, deadline]:
            return f"warn {request}, it has until {deadline:.3f}"
        case ["status", request, to, pool, rule]:
            return f"{request} is {to}" + (f" in {pool}" if pool else "") + (f" ({rule})" if rule else "")
        case _:
            return " ".join(map(str, decision))
