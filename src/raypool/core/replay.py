"""A journal's lines once more through the core: the same events must give the same decisions.

A broker that comes back reads its journal so, and `raypool journal replay` shows it. Lines that are not
understood, that do not follow each other, or on which this version decides otherwise than was decided then
raise `Unreadable`: the state that they would lead to is not the one that the cluster is in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.instructions import Instruction
from raypool.core.records import Decision, decisions_on, event_of
from raypool.core.snapshot import READ, SCHEMA, broker_of


class Unreadable(Exception):
    """These lines cannot be taken for what has happened. The message says which line, and why."""


@dataclass(frozen=True)
class Step:
    """One event and what was decided on it, then as now. number: its place in the journal. instructions: the same,
    as it was decided now."""

    number: int
    at: float
    event: ev.Event
    decided: list[Decision]
    instructions: list[Instruction]


def opened(snapshot: Iterable[str]) -> tuple[Broker, int, dict[str, object]]:
    """The broker of a snapshot, the number of the last event in it, and its head. Raises Unreadable."""
    lines = list(snapshot)
    try:
        head = json.loads(lines[0])
        schema = head["schema"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"its first line is no head of a journal ({_told(error)})") from None
    if schema not in READ:
        raise Unreadable(f"it has schema {schema!r}, this version of raypool reads schema {SCHEMA} and older ones")
    try:
        broker, head = broker_of(lines)
        return broker, head["n"], head
    except Exception as error:
        raise Unreadable(f"its snapshot is not understood ({_told(error)})") from error


def replay(broker: Broker, number: int, lines: Iterable[str]) -> Iterator[Step]:
    """Feeds what follows event `number` to the broker, step by step. Raises Unreadable; the broker is then
    as it was before that line, or spoilt by it."""
    for line in lines:
        number += 1
        try:
            row = json.loads(line)
            at, event, decided = row["at"], event_of(row), row["decided"]
            found = row["n"]
        except Exception as error:
            raise Unreadable(f"the line of event {number} is not understood ({_told(error)})") from error
        if found != number:
            raise Unreadable(f"event {number} is missing: the next line is event {found}")
        try:
            instructions = broker.handle(event, at)
        except Exception as error:
            raise Unreadable(f"event {number} ({row['event']}) cannot be handled again ({_told(error)})") from error
        again = decisions_on(event, instructions)
        if again != decided:
            raise Unreadable(
                f"on event {number} ({row['event']}) this version of raypool decides {again}; {decided} was decided"
            )
        yield Step(number, at, event, decided, instructions)


def _told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
