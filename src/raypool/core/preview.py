"""What a change of pools and policies would do to who waits and who runs, before it is made.

The change is handled by a copy of the broker, and the copy is compared with the original: nothing here knows
a rule. What is told is what follows in the same instant; what comes of it later (a grant that finds no nodes,
who moves up when the evicted have left) is not. Each consequence is a frozen value with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.copy import copy_of
from raypool.core.explain import explanation_of
from raypool.core.pool import Pool, borrowed_in
from raypool.core.reasons import Evicted, Reason, amounts
from raypool.core.request import Request
from raypool.core.status import Status

Change = ev.ConfigApplied | ev.RolledBack | ev.PolicyDetached | ev.PoolDeleted


@dataclass(frozen=True, slots=True)
class Consequence:
    """What would become of one request. kind: a word for programs."""

    kind: ClassVar[str] = ""
    request: str
    component: str

    @property
    def sentence(self) -> str:
        return f"request '{self.request}' of '{self.component}' {self._what}"

    @property
    def _what(self) -> str:
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, slots=True)
class Rejected(Consequence):
    """It waits, and no pool could ever take it any more."""

    kind: ClassVar[str] = "rejected"
    reason: Reason

    @property
    def _what(self) -> str:
        return f"is rejected: {self.reason.sentence}"


@dataclass(frozen=True, slots=True)
class MustLeave(Consequence):
    """It runs, and is evicted at once for somebody whom the change helps."""

    kind: ClassVar[str] = "evicted"
    reason: Evicted

    @property
    def _what(self) -> str:
        return self.reason.sentence


@dataclass(frozen=True, slots=True)
class GoesBack(Consequence):
    """It was granted and is being placed, and has to wait again."""

    kind: ClassVar[str] = "goes-back"
    pool: str

    @property
    def _what(self) -> str:
        return f"is being placed in pool '{self.pool}', and goes back to its place in line"


@dataclass(frozen=True, slots=True)
class BorrowsMore(Consequence):
    """It runs, may be evicted, and more of it lies above its policy's reserve than now. By key."""

    kind: ClassVar[str] = "evictable"
    pool: str
    before: Mapping[str, int]
    after: Mapping[str, int]

    @property
    def _what(self) -> str:
        return (
            f"borrows {amounts(self.after)} in pool '{self.pool}' instead of {amounts(self.before)}, "
            "and may be evicted for it"
        )


@dataclass(frozen=True, slots=True)
class Starts(Consequence):
    """It waits, and is granted. demand, and what of it is borrowed, in the keys of the pool."""

    kind: ClassVar[str] = "starts"
    pool: str
    demand: Mapping[str, int]
    borrowed: Mapping[str, int]

    @property
    def _what(self) -> str:
        borrowed = f", {amounts(self.borrowed)} of it borrowed" if self.borrowed else ""
        return f"starts in pool '{self.pool}' with {amounts(self.demand)}{borrowed}"


@dataclass(frozen=True, slots=True)
class Moves(Consequence):
    """It waits on, at another place in the pool's line. before, after: from 1; None where it stands aside or
    the pool cannot take it. aside: why it stands aside then, if it does."""

    kind: ClassVar[str] = "moves"
    pool: str
    before: int | None
    after: int | None
    aside: Reason | None = None

    @property
    def _what(self) -> str:
        if self.before is None:
            return f"joins the line of pool '{self.pool}' as number {self.after}"
        if self.after is not None:
            return f"moves from number {self.before} to number {self.after} in the line of pool '{self.pool}'"
        why = f": {self.aside.sentence}" if self.aside is not None else ""
        return f"leaves the line of pool '{self.pool}', where it is number {self.before}{why}"


KINDS = (Rejected, MustLeave, GoesBack, BorrowsMore, Starts, Moves)
"""In the order in which they are told: what hurts first."""


@dataclass(frozen=True)
class Preview:
    """consequences: by kind, and in order of submission. after: the copy, as the change has left it."""

    consequences: tuple[Consequence, ...]
    after: Broker


def preview(broker: Broker, change: Change, now: float) -> Preview:
    """What `broker.handle(change, now)` would do. Changes nothing; raises Refused where that would."""
    after = copy_of(broker)
    after.ended_kept = len(after.requests)  # who is rejected is looked at before it is forgotten
    after.handle(change, now)
    found = [*_of_requests(broker, after), *_moves(broker, after)]
    return Preview(tuple(sorted(found, key=lambda one: KINDS.index(type(one)))), after)


def _of_requests(broker: Broker, after: Broker) -> Iterator[Consequence]:
    """All but where they stand in line."""
    borrowed, borrowed_then = _borrowed(broker), _borrowed(after)
    for request in _live(broker):
        then = after.requests[request.id]
        who = request.id, request.owner[0]
        if then.status is Status.REJECTED:
            assert then.reason is not None, then
            yield Rejected(*who, then.reason)
        elif then.status is not request.status and isinstance(then.reason, Evicted):
            yield MustLeave(*who, then.reason)
        elif request.current is not None and then.waiting:
            yield GoesBack(*who, _pool_of(request).name)
        elif request.waiting and then.current is not None:
            pool = _pool_of(then)
            yield Starts(*who, pool.name, pool.ledger.by_key(then.current.need), borrowed_then.get(request.id, {}))
        elif then.current is not None and then.preemptible and not then.current.leaving:
            more, less = borrowed_then.get(request.id, {}), borrowed.get(request.id, {})
            if any(amount > less.get(key, 0) for key, amount in more.items()):
                yield BorrowsMore(*who, _pool_of(then).name, less, more)


def _moves(broker: Broker, after: Broker) -> Iterator[Moves]:
    before, then = _places(broker), _places(after)
    for request in _live(broker):
        twin = after.requests[request.id]
        if request.waiting and twin.waiting:
            for name in sorted({*request.queued, *twin.queued}):
                place, place_then = before.get((name, request.id)), then.get((name, request.id))
                if place != place_then:
                    yield Moves(request.id, request.owner[0], name, place, place_then, twin.held_out.get(name))


def _live(broker: Broker) -> list[Request]:
    """Those that are not over, in order of submission."""
    live = [one for one in broker.requests.values() if one.status is not None and not one.status.terminal]
    return sorted(live, key=lambda one: one.number)


def _pool_of(request: Request) -> Pool:
    assert request.allocation is not None and request.allocation.pool is not None, request
    return request.allocation.pool


def _borrowed(broker: Broker) -> dict[str, dict[str, int]]:
    """What of each request is borrowed, by its id."""
    found: dict[str, dict[str, int]] = {}
    for pool in broker.pools.values():
        found |= borrowed_in(pool)
    return found


def _places(broker: Broker) -> dict[tuple[str, str], int]:
    """(pool, request) -> its place in line, from 1."""
    found = {}
    for pool in broker.pools.values():
        explanation = explanation_of(pool)
        found.update({(pool.name, request.id): explanation.position(request) for request in pool.queue})
    return found
