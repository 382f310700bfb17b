"""Why each waiting request waits, per pool: the walk once more, taking notes.

The notes come from the same walk that decides, so an explanation cannot disagree with the decision.
Read-only; made when somebody asks, kept until the pool changes.
"""

from __future__ import annotations

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
from raypool.core.walk import Figures, rank, walk

if TYPE_CHECKING:
    from raypool.core.broker import Broker


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
        self._positions: dict[Request, int] | None = None

    def _note(self, group: Group, verdict: str, request: Request) -> None:
        if verdict == "elsewhere":
            self.elsewhere[request] = None
        else:
            self.passed[group] = (verdict, request)

    def position(self, request: Request) -> int:
        """Its place in the pool's line, from 1, in the order in which a walk begins.

        Whole groups stand ahead or behind; only in those of its own rank are members counted. For many
        at once, call `number_all` first.
        """
        if self._positions is not None:
            return self._positions[request]
        groups = self.pool.queue.groups
        account = self.pool.ledger.accounts[request.owner]
        own = groups[account.owner, self.pool.need(request), request.preemptible]
        rank_of_own = rank(account, own, request.number)[:2]
        ahead = 0
        for group in groups.values():
            rank_of_group = rank(group.account, group, 0)[:2]
            if rank_of_group < rank_of_own:
                ahead += len(group.members)
            elif rank_of_group == rank_of_own:
                ahead += group.before(request.number)
        return ahead + 1

    def number_all(self) -> None:
        """Works out every position at once."""
        if self._positions is None:
            self._positions = {member: place for place, member in enumerate(self.in_line(), start=1)}

    def in_line(self) -> list[Request]:
        """All who wait here, in the order in which a walk begins."""
        ranked = [
            (rank(group.account, group, member.number), member)
            for group in self.pool.queue.groups.values()
            for member in group.members
        ]
        ranked.sort(key=lambda pair: pair[0])
        return [member for _, member in ranked]

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
        free, leaving = max(self.figures.free[key], 0), self.figures.leaving[key]
        return NoRoom(pool.name, ledger.keys[key], amount, free, leaving, ledger.phantom[key])

    def _passed_over(self, verdict: str, first: Request, request: Request, need: Need, standing: Standing) -> Reason:
        keys, component = self.pool.ledger.keys, request.owner[0]
        if verdict == "reserve":
            key, amount = next((k, a) for k, a in need if standing.firm[k] + a > standing.reserved[k])
            return ReserveInUse(
                self.pool.name, component, keys[key], amount, standing.firm[key], standing.reserved[key]
            )
        over = [(k, a) for k, a in need if standing.staying[k] + a > standing.limit[k]]
        if over:
            key, amount = over[0]
            return OverLimit(self.pool.name, component, keys[key], amount, standing.staying[key], standing.limit[key])
        earlier = self.outcome.held_back.get(self.pool.ledger.accounts[request.owner], first.id)
        return HeldBack(self.pool.name, component, earlier)

    def _short_of(self, need: Need) -> tuple[int, int]:
        """The key it lacks most of, with the amount asked."""
        if not need:
            return 0, 0
        return max(need, key=lambda item: (item[1] - self.figures.free[item[0]], -item[0]))
