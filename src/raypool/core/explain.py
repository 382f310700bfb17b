"""Why each waiting request waits, per pool: the walk once more, taking notes.

The notes come from the same walk that decides, so an explanation cannot disagree with the decision.
Read-only; made when somebody asks, kept until the pool changes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from raypool.core.ledger import Standing
from raypool.core.pool import Pool, by_preference
from raypool.core.queue import Group
from raypool.core.reasons import (
    Behind,
    BeingPlaced,
    HeldBack,
    NoRoom,
    OverLimit,
    Reason,
    ReserveInUse,
    RoomBeingMade,
    RoomElsewhere,
)
from raypool.core.request import Need, Request
from raypool.core.walk import Figures, walk

if TYPE_CHECKING:
    from raypool.core.broker import Broker

AHEAD_NAMED = 5
"""Of those ahead of a request so many are named at most."""


def wait_reasons(broker: Broker, request: Request) -> dict[str, Reason]:
    """Why it waits, by pool, most hopeful first. Empty unless it is pending."""
    current = request.current
    if current is not None and not current.placed:
        pool = current.pool.name if current.pool else ""
        return {pool: BeingPlaced(pool, current.search)}
    if not request.waiting:
        return {}
    reasons = {pool.name: explanation_of(pool).reason(request) for pool in by_preference(request)}
    reasons.update(sorted(request.held_out.items()))
    return dict(sorted(reasons.items(), key=lambda item: not isinstance(item[1], RoomBeingMade)))


def explanation_of(pool: Pool) -> Explanation:
    """The notes of the pool's last walk; taken anew when the pool or its queue has changed."""
    cached = pool.explanation
    if not isinstance(cached, Explanation) or cached.version != (pool.generation, pool.arrivals):
        cached = pool.explanation = Explanation(pool)
    return cached


class Explanation:
    """One pool's queue, explained."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.version = (pool.generation, pool.arrivals)
        self.passed: dict[Group, tuple[str, Request]] = {}
        self.elsewhere: dict[Request, None] = {}
        self.figures = Figures(pool.ledger)
        self.outcome = walk(pool, pool.queue, self.figures, passed=self._note)
        self._numbers: dict[tuple[int, int], tuple[int, list[int]]] = {}
        self._first: list[Request] = []
        self._all: list[Request] = []

    def _note(self, group: Group, verdict: str, request: Request) -> None:
        if verdict == "elsewhere":
            self.elsewhere[request] = None
        else:
            self.passed[group] = (verdict, request)

    def position(self, request: Request) -> int:
        """Its place in the pool's line, from 1, in the order in which a walk begins."""
        group = self.pool.queue.groups[request.owner, self.pool.need(request), request.preemptible]
        before, numbers = self._line()[_class_of(group)]
        return before + bisect_left(numbers, request.number) + 1

    def first(self, count: int) -> list[Request]:
        """The first so many in line."""
        # They are in those groups whose first members come first.
        groups = heapq.nsmallest(count, self.pool.queue.groups.values(), key=attrgetter("first_rank"))
        members = [
            (*_class_of(group), member.number, member)
            for group in groups
            for member in group.members.islice(0, count)
        ]
        return [one[3] for one in heapq.nsmallest(count, members, key=lambda one: one[:3])]

    def in_line(self) -> list[Request]:
        """Who waits here, in the order of `position`."""
        if not self._all:
            members = [
                (*_class_of(group), member.number, member)
                for group in self.pool.queue.groups.values()
                for member in group.members
            ]
            self._all = [one[3] for one in sorted(members, key=lambda one: one[:3])]
        return self._all

    def ahead_of(self, request: Request) -> list[Request]:
        """Who stands before it in line, the first `AHEAD_NAMED` of them."""
        if not self._first:
            self._first = self.first(AHEAD_NAMED)
        first = self._first
        return first[: first.index(request)] if request in first else first

    def _line(self) -> dict[tuple[int, int], tuple[int, list[int]]]:
        """For each class and priority: how many stand before all of them, and their numbers, ascending."""
        if not self._numbers:
            numbers: dict[tuple[int, int], list[int]] = {}
            for group in self.pool.queue.groups.values():
                numbers.setdefault(_class_of(group), []).extend(member.number for member in group.members)
            before = 0
            for key, own in sorted(numbers.items()):
                own.sort()
                self._numbers[key] = before, own
                before += len(own)
        return self._numbers

    def reason(self, request: Request) -> Reason:
        """The first rule that holds it here."""
        pool, ledger, outcome = self.pool, self.pool.ledger, self.outcome
        need = pool.need(request)
        account = ledger.accounts[request.owner]
        standing = self.figures.standing(account)
        group = pool.queue.groups[account.owner, need, request.preemptible]
        if request in outcome.set_aside:
            key, amount = self._short_of(need)
            leavers = tuple(one.request.id for _, one in sorted(ledger.leavers.items()))
            return RoomBeingMade(pool.name, ledger.keys[key], amount, leavers)
        if request in self.elsewhere and request.mark is not None:
            return RoomElsewhere(pool.name, request.mark.name)
        if group in self.passed:
            verdict, first = self.passed[group]
            return self._passed_over(verdict, first, request, need, standing)
        if outcome.blocked is not None and outcome.blocked is not request:
            return Behind(pool.name, outcome.blocked.id, self.position(request) - 1)
        key, amount = self._short_of(need)
        free = max(ledger.free[key], 0)
        return NoRoom(
            pool=pool.name,
            key=ledger.keys[key],
            asked=amount,
            free=free,
            leaving=ledger.leaving[key],
            phantom=ledger.phantom[key],
            ahead=self.position(request) - 1,
            kept=min(ledger.free[key] - self.figures.free[key], free + ledger.leaving[key]),
        )

    def _passed_over(self, verdict: str, first: Request, request: Request, need: Need, standing: Standing) -> Reason:
        name, keys, component = self.pool.name, self.pool.ledger.keys, request.owner[0]
        account = self.pool.ledger.accounts[request.owner]
        if verdict == "reserve":
            key, amount = next((k, a) for k, a in need if standing.firm[k] + a > standing.reserved[k])
            used, kept = account.firm[key], standing.firm[key] - account.firm[key]
            return ReserveInUse(name, component, keys[key], amount, used, standing.reserved[key], kept)
        over = [(k, a) for k, a in need if standing.staying[k] + a > standing.limit[k]]
        if over:
            key, amount = over[0]
            used, kept = account.staying[key], standing.staying[key] - account.staying[key]
            return OverLimit(name, component, keys[key], amount, used, standing.limit[key], kept)
        return HeldBack(name, component, self.outcome.held_back.get(account, first.id))

    def _short_of(self, need: Need) -> tuple[int, int]:
        """The key it lacks most of, with the amount asked. What lacks also when the leaving have left goes first."""
        if not need:
            return 0, 0
        free, leaving = self.figures.free, self.figures.leaving
        return max(
            need,
            key=lambda item: (max(item[1] - free[item[0]] - leaving[item[0]], 0), item[1] - free[item[0]], -item[0]),
        )


def _class_of(group: Group) -> tuple[int, int]:
    return group.first_rank[:2]
