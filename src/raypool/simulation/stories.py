"""The requests of an exported journal: when each was asked, when it began, and when it ended.

A journal is read whole, since the end of a request stands behind its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raypool.core.events import Event, ManySubmitted, Submitted
from raypool.core.records import event_of
from raypool.spec import MAX_AMOUNT, RequestSpec, shorten


class RunsBackwards(Exception):
    """A time is before the one before it."""


@dataclass
class Story:
    """A request of a journal, from its submission to its end, with those that took it up again. latest: the id of
    the last of them, whose grant and end count."""

    spec: RequestSpec
    latest: str
    line: str
    submitted_at: float
    granted_at: float | None = None
    ended_at: float | None = None

    def ran_until(self, now: float) -> float | None:
        """How long its last run was, until now if it has not ended; None if it never ran."""
        if self.granted_at is None:
            return None
        return max((now if self.ended_at is None else self.ended_at) - self.granted_at, 0.0)


class Stories:
    """All requests of a journal."""

    ENDS = frozenset({"released", "cancelled", "preempted"})

    def __init__(self) -> None:
        self.now = -math.inf
        self.stories: list[Story] = []
        self._of: dict[str, Story] = {}

    def read(self, row: dict[str, Any], line: str) -> None:
        if "n" in row and "event" in row:
            self._event(row, line)
        elif "request" in row:
            one = row["request"]
            times = {
                name: _time(one, name) for name in ("submitted_at", "granted_at", "ended_at") if one[name] is not None
            }
            story = self._begin(RequestSpec.load(one["spec"]), line, times["submitted_at"])
            story.granted_at, story.ended_at = times.get("granted_at"), times.get("ended_at")
        elif not {"pool", "schema", "version"} & set(row):
            raise KeyError("n, request, pool, version or schema")
        elif "at" in row:
            self.now = _time(row, "at")

    def _event(self, row: dict[str, Any], line: str) -> None:
        at = _time(row, "at")
        if at < self.now:
            raise RunsBackwards(f"at: {at} is before {self.now}: times must not run backwards")
        self.now = at
        if row["event"] in ("Submitted", "ManySubmitted"):
            for spec in _submitted(event_of(row)):
                self._begin(spec, line, at)
        for decision in row["decided"]:
            story = self._of.get(decision[1]) if decision[0] == "status" else None
            if story is not None and story.latest == decision[1]:
                if decision[2] == "allocated" and story.granted_at is None:
                    story.granted_at = at
                elif decision[2] in self.ENDS:
                    story.ended_at = at

    def _begin(self, spec: RequestSpec, line: str, at: float) -> Story:
        """A story of its own; who takes up a request again goes on with its story, and runs from the beginning."""
        former = self._of.get(spec.retry_of) if spec.retry_of is not None else None
        if former is not None:
            former.granted_at = former.ended_at = None
            former.latest = spec.id
            self._of[spec.id] = former
            return former
        story = self._of[spec.id] = Story(spec, spec.id, line, at)
        self.stories.append(story)
        return story

    def whole(self) -> list[Story]:
        """In order of submission."""
        return sorted(self.stories, key=lambda story: story.submitted_at)


def _submitted(event: Event) -> Iterator[RequestSpec]:
    match event:
        case Submitted():
            yield event.spec
        case ManySubmitted():
            for request_id, at in zip(event.ids, event.body_of, strict=True):
                yield event.bodies[at].model_copy(update={"id": request_id})


def _time(row: dict[str, Any], name: str) -> float:
    """In seconds. Raises ValueError for what is not a time."""
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_AMOUNT:
        raise ValueError(f"{name}: {shorten(value)} is not a time in seconds")
    return float(value)
