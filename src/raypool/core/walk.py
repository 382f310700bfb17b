"""The walk over one pool's queue (semantics 4): who is granted, set aside, passed over, blocked.

A walk changes nothing: it works on a copy of the pool's figures, made only where it charges
something to it. The order of waiters is `Group.rank` (queue.py), and nowhere else. This is the rule written
plainly, for explanations and look-aheads; decisions are made by a walk that does not begin anew after every event
(resumable.py).

The order, all evaluated on the copy as the walk goes:
    1. non-preemptible inside its reserve; then preemptible inside its reserve; then the rest
    2. policy priority, higher first
    3. order of submission
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from raypool.core.ledger import Account, Ledger, Standing, is_room
from raypool.core.queue import REST, Entry, Group, Queue, Rank
from raypool.core.request import Allocation, Need, Request


class Figures:
    """A pool's figures as a walk sees them: the ledger's own, until something is charged."""

    def __init__(self, ledger: Ledger) -> None:
        self.free = ledger.free
        self.leaving = ledger.leaving
        self._standings: dict[Account, Standing] = {}
        self._copied = False

    @classmethod
    def when_gone(cls, ledger: Ledger, victims: Iterable[Allocation]) -> Figures:
        """The figures when all who are leaving, and the victims, have left."""
        figures = cls(ledger)
        figures.free = [free + leaving for free, leaving in zip(ledger.free, ledger.leaving, strict=True)]
        figures.leaving = [0] * len(ledger.keys)
        figures._copied = True
        for allocation in ledger.leavers.values():
            assert allocation.account is not None
            standing = figures._own(allocation.account)
            for key, amount in allocation.need:
                standing.used[key] -= amount
        for victim in victims:
            assert victim.account is not None, victim
            standing = figures._own(victim.account)
            for key, amount in victim.need:
                figures.free[key] += amount
                standing.used[key] -= amount
                standing.staying[key] -= amount
        return figures

    def standing(self, account: Account) -> Standing:
        return self._standings.get(account, account)

    def fits(self, standing: Standing, need: Need) -> bool:
        """Room for it now, under its limit with those leaving counted."""
        return is_room(self.free, standing, need)

    def covered(self, standing: Standing, need: Need) -> bool:
        """Room for it when those leaving have left."""
        free, leaving, staying, limit = self.free, self.leaving, standing.staying, standing.limit
        for key, amount in need:
            if amount > free[key] + leaving[key] or staying[key] + amount > limit[key]:
                return False
        return True

    def charge(self, account: Account, need: Need, preemptible: bool) -> None:
        if not self._copied:
            self.free = self.free[:]
            self._copied = True
        for key, amount in need:
            self.free[key] -= amount
        self._own(account).add(need, preemptible)

    def _own(self, account: Account) -> Standing:
        standing = self._standings.get(account)
        if standing is None:
            standing = self._standings[account] = account.copy()
        return standing


class Ending(Enum):
    GRANT = "grant"
    BLOCKED = "blocked"
    EXHAUSTED = "exhausted"


class Outcome:
    """How a walk ended, and what it left on the way.

    request: whom it grants or who is blocked (None when exhausted), with its group.
    set_aside: requests whose room is being made, with their groups, in order.
    """

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.ending = Ending.EXHAUSTED
        self.request: Request | None = None
        self.group: Group | None = None
        self.set_aside: dict[Request, Group] = {}

    @property
    def granted(self) -> Request | None:
        return self.request if self.ending is Ending.GRANT else None

    @property
    def blocked(self) -> Request | None:
        return self.request if self.ending is Ending.BLOCKED else None


class PlainOutcome(Outcome):
    """held_back: policies whose later requests are held back, with the earlier one's id. behind: who is first of
    each group that was not reached."""

    def __init__(self, figures: Figures) -> None:
        super().__init__(figures)
        self.held_back: dict[Account, str] = {}
        self.behind: list[Entry] = []

    def backfill(self) -> Request | None:
        """Of those behind the blocked one, who may run meanwhile (semantics 5, step 4)."""
        best: tuple[Rank, Request] | None = None
        for _, _, number, request, group in self.behind:
            standing = self.figures.standing(group.account)
            if not group.preemptible or not self.figures.fits(standing, group.need):
                continue
            candidate = rank(standing, group, number)
            if candidate[0] == REST and (group.account in self.held_back or standing.over_limit(group.need)):
                continue
            if best is None or candidate < best[0]:
                best = candidate, request
        return best[1] if best else None


def rank(standing: Standing, group: Group, number: int) -> Rank:
    """Where a request stands in the walk; smaller is earlier."""
    return group.rank(group.place(standing), number)


def walk(
    pool: object,
    queue: Queue,
    figures: Figures,
    until_granted: Request | None = None,
    passed: Callable[[Group, str, Request], None] | None = None,
) -> PlainOutcome:
    """Walks the queue.

    With `until_granted` it is the look-ahead of semantics 6: every grant is charged to the copy and
    the walk goes on until that request is granted (the ending is then GRANT of it) or the walk ends
    otherwise. `passed(group, verdict, request)` hears of each group passed over, for explanations.
    """
    outcome = PlainOutcome(figures)
    held_back = outcome.held_back
    heap = _first_of_each(queue, figures)
    followers: dict[Group, Iterator[Request]] = {}
    while heap:
        place, _, number, request, group = heap[0]
        standing = figures.standing(group.account)
        need, preemptible = group.need, group.preemptible
        if standing is not group.account:
            present = rank(standing, group, number)
            if present[0] != place:  # set-asides have used up its reserve since
                heapq.heapreplace(heap, (*present, request, group))
                continue
        heapq.heappop(heap)
        if place == REST:
            verdict = _passed_over(group, standing, request, held_back)
            if verdict:
                if passed:
                    passed(group, verdict, request)
                continue
        if figures.fits(standing, need):
            if until_granted is None or request is until_granted:
                outcome.ending, outcome.request, outcome.group = Ending.GRANT, request, group
                break
            figures.charge(group.account, need, preemptible)
        elif request.mark is not None and request.mark is not pool:
            if passed:
                passed(group, "elsewhere", request)
        elif figures.covered(standing, need):
            outcome.set_aside[request] = group
            figures.charge(group.account, need, preemptible)
        else:
            outcome.ending, outcome.request, outcome.group = Ending.BLOCKED, request, group
            outcome.behind = heap
            break
        others = followers.get(group)
        if others is None:
            others = followers[group] = iter(group.members)
            next(others)
        follower = next(others, None)
        if follower is not None:
            present = rank(figures.standing(group.account), group, follower.number)
            heapq.heappush(heap, (*present, follower, group))
    return outcome


def _first_of_each(queue: Queue, figures: Figures) -> list[Entry]:
    """A heap of the first member of each group."""
    heap = []
    for group in queue.groups.values():
        request = group.first
        heap.append((*rank(figures.standing(group.account), group, request.number), request, group))
    heapq.heapify(heap)
    return heap


def _passed_over(group: Group, standing: Standing, request: Request, held_back: dict[Account, str]) -> str:
    """Why one that is not inside its reserve is skipped, with all that are like it; "" if it is not."""
    if not group.preemptible:
        return "reserve"
    if standing.over_limit(group.need):
        held_back.setdefault(group.account, request.id)
        return "limit"
    return "held-back" if group.account in held_back else ""
