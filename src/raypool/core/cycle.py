"""What follows from an event: the cycle of semantics 5.

After every event, the first of these that changes something is done, and it starts again, until none
does. Pools are visited by name; for a new submission its own pools first, most preferred first.

    1. grant      whom a walk grants, in the most preferred pool whose walk also grants it
    2. mark       requests set aside get a mark "room is being made here"; marks end
    3. evict      for a blocked request: backfill it somewhere, else find victims, else end its mark
    4. backfill   in pools that allow it, the first of those behind the blocked one that fits

So a free pool anywhere is used before anybody is evicted anywhere. The cycle only decides; the
broker that it is given (`Acts`) carries out a grant or an eviction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from raypool.core.pool import Pool, by_preference
from raypool.core.request import Request
from raypool.core.victims import Victim, choose


class Acts(Protocol):
    """What the cycle asks of the broker."""

    def grant(self, request: Request, pool: Pool, opportunistic: bool) -> None: ...

    def evict(self, victims: list[Victim], request: Request, pool: Pool) -> None: ...


class Cycle:
    """One run. `touched` names the pools in which something has changed since the last run."""

    def __init__(self, pools: Mapping[str, Pool], acts: Acts) -> None:
        self.pools = pools
        self.acts = acts
        self.touched: dict[str, None] = {}

    def touch(self, pool: Pool) -> None:
        if len(pool.neighbours) > 1 or pool.queue.groups:  # where nobody waits there is nothing to decide
            for name in pool.neighbours:
                self.touched[name] = None

    def run(self, first: Iterable[Pool] = ()) -> None:
        while self.touched:
            order = self._visiting_order(first)
            if not (self._grant(order) or self._mark(order) or self._evict(order) or self._backfill(order)):
                break
        self.touched.clear()

    def _visiting_order(self, first: Iterable[Pool]) -> list[Pool]:
        names = self.touched
        if len(names) > 1:  # those in `first` are touched, too
            names = dict.fromkeys(pool.name for pool in first)
            names.update(dict.fromkeys(sorted(self.touched)))
        pools = [self.pools[name] for name in names if name in self.pools]
        return [pool for pool in pools if pool.queue.groups]

    # --- step 1 -------------------------------------------------------------------------------

    def _grant(self, order: list[Pool]) -> bool:
        changed = False
        for pool in order:
            while (request := pool.outcome().granted) is not None:
                self.acts.grant(request, best_that_grants(request), opportunistic=False)
                changed = True
        return changed

    # --- step 2 -------------------------------------------------------------------------------

    def _mark(self, order: list[Pool]) -> bool:
        changed = False
        for pool in order:
            outcome = pool.outcome()
            if outcome.marks_done:
                continue
            outcome.marks_done = True
            for request in outcome.doubtful_marks():
                if request not in outcome.set_aside and request is not outcome.blocked:
                    self.unmark(request)
                    changed = True
            for request in outcome.newly_aside():
                if request.mark is None:
                    self.mark(request, pool)
                    changed = True
        return changed

    def mark(self, request: Request, pool: Pool) -> None:
        """Room is being made for it in this pool: its other pools no longer hold anything for it."""
        if request.mark is pool:
            return
        assert request.mark is None, request
        request.mark = pool
        pool.marked[request] = None
        self._others_stale(request, pool)

    def unmark(self, request: Request) -> None:
        pool = request.mark
        assert pool is not None, request
        request.mark = None
        del pool.marked[request]
        self._others_stale(request, pool)

    def _others_stale(self, request: Request, pool: Pool) -> None:
        for other in request.queued.values():
            if other is not pool:
                other.stale()
                self.touch(other)

    # --- step 3 -------------------------------------------------------------------------------

    def _evict(self, order: list[Pool]) -> bool:
        for pool in order:
            outcome = pool.outcome()
            request = outcome.blocked
            if request is None:
                continue
            seen = [(name, one.generation) for name, one in request.queued.items()]
            if outcome.eviction_tried == seen:
                continue  # nothing that could change the answer has happened since
            if self._make_room(request):
                return True
            outcome.eviction_tried = seen
        return False

    def _make_room(self, request: Request) -> bool:
        """For a blocked request; True if anything changed."""
        pools = by_preference(request)
        if len(pools) > 1:  # where it is blocked it is not behind the blocked one
            for pool in pools:
                if pool.backfill() is request:
                    self.acts.grant(request, pool, opportunistic=True)
                    return True
        for pool in pools:
            if pool.outcome().blocked is request and request.mark in (None, pool):
                victims = choose(pool, pool.outcome())
                if victims:
                    self.mark(request, pool)
                    self.acts.evict(victims, request, pool)
                    return True
        if request.mark is not None:
            self.unmark(request)
            return True
        return False

    # --- step 4 -------------------------------------------------------------------------------

    def _backfill(self, order: list[Pool]) -> bool:
        for pool in order:
            request = pool.backfill()
            if request is not None:
                self.acts.grant(request, pool, opportunistic=True)
                return True
        return False


def best_that_grants(request: Request) -> Pool:
    """Of the pools whose walks grant it, the one that it prefers."""
    if len(request.queued) == 1:
        return next(iter(request.queued.values()))
    return next(pool for pool in by_preference(request) if pool.outcome().granted is request)
