"""A pool: its spec and policies, its ledger, its queue, and the walk over it.

Whatever changes the figures, the queue or a mark goes through here, so that the walk hears of it: it goes on where
it ended, or is `stale` and begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from raypool.core.asks import Ask, Memo
from raypool.core.ledger import Account, Ledger, is_room
from raypool.core.queue import Group, Queue
from raypool.core.reasons import Ineligible, Reason
from raypool.core.request import NONE, Allocation, Need, Request
from raypool.core.resumable import ResumableWalk
from raypool.spec import GPU, MCPU, MEMORY_MB, PolicySpec, PoolSpec

Owner = tuple[str, str]


class Pool:
    """Named capacity with who is charged and who waits.

    neighbours: names of the pools that share a component with this one, itself included: what
    happens here may matter there.
    """

    def __init__(self, spec: PoolSpec, policies: Mapping[Owner, PolicySpec]) -> None:
        self.spec = spec
        self.name: str = spec.name
        self.policies = dict(policies)
        self.ledger = Ledger(spec, self.policies)
        self.queue = Queue()
        self.marked: dict[Request, None] = {}
        self.neighbours: tuple[str, ...] = (spec.name,)
        self.generation = 0  # changes that a walk can see, so far
        self.arrivals = 0  # requests that joined the queue, so far
        self.explanation: object = None  # see explain.py
        self.lowered = False  # capacity, a reserve or a limit was lowered under work that still runs
        self._walk: ResumableWalk | None = None
        self._needs: Memo[Ask, Need] = Memo()
        self._only_here: Mapping[str, Pool] = {self.name: self}

    # --- eligibility (semantics 2) ------------------------------------------------------------

    def ineligible(self, owner: Owner, demand: Mapping[str, int], preemptible: bool) -> Reason | None:
        """Why a request can never be granted here, whatever is in use; None if it can."""
        account = self.ledger.accounts[owner]
        ledger = self.ledger
        for key, asked in sorted(demand.items()):
            if not ledger.meters(key):
                continue
            at = ledger.index.get(key)
            bounds = [("capacity", 0 if at is None else ledger.capacity[at])]
            if at is not None:
                bounds.append(("limit", account.limit[at]))
                if not preemptible:
                    bounds.append(("reserved", account.reserved[at]))
            for bound, allowed in bounds:
                if asked > allowed:
                    return Ineligible(self.name, owner[0], key, asked, allowed, bound)
        return None

    def need(self, request: Request) -> Need:
        """The request's demand in this pool's keys."""
        need = self._needs.get(request.ask)
        return self._needs.keep(request.ask, self.ledger.need(request.demand)) if need is None else need

    def grants_at_once(self, account: Account, need: Need, preemptible: bool) -> bool:
        """Whether a walk would grant it, if nobody else waited here. (Where there is room for it, it is not over its
        limit either: that counts what stays, and room counts those leaving, too.)"""
        if not preemptible and not account.inside_reserve(need, preemptible):
            return False
        return is_room(self.ledger.free, account, need)

    def charge(self, allocation: Allocation) -> None:
        """Counts a grant here, as staying, leaving or phantom, whichever it is. Whoever had it in his figures
        before has dropped it."""
        allocation.pool, allocation.need = self, self.need(allocation.request)
        if allocation.phantom:
            allocation.need = self.in_ray(allocation.need)
            self.ledger.hold_phantom(allocation)
        else:
            leaving, allocation.leaving = allocation.leaving, False
            account = self.ledger.accounts[allocation.request.owner]
            self.ledger.charge(allocation, account)
            if leaving:
                self.ledger.mark_leaving(allocation)
            self.queue.account_changed(account)
        self.stale()

    def charge_at_once(self, allocation: Allocation, account: Account, need: Need) -> None:
        """Counts a grant of one that never waited here, and nobody does."""
        allocation.need = need
        self.ledger.charge(allocation, account)
        self._walk = None
        self.generation += 1

    def grant(self, allocation: Allocation) -> None:
        """Counts a grant of one that waits here, and takes it out of the line."""
        request = allocation.request
        group = self._take_out(request)[0]
        allocation.need = group.need
        self.ledger.charge(allocation, group.account)
        self.queue.account_changed(group.account)
        self._hear(self._walk is not None and self._walk.granted_here(request, group))

    def mark_leaving(self, allocation: Allocation) -> None:
        """It stays charged, but will go."""
        account = allocation.account
        assert account is not None, allocation
        self.ledger.mark_leaving(allocation)
        self.queue.account_changed(account)
        self._hear(self._walk is not None and self._walk.eased(account))

    def discharge(self, allocation: Allocation) -> None:
        """What was leaving is gone."""
        self.ledger.discharge(allocation)
        self._hear(self._walk is not None and self._walk.freed())

    def hold_phantom(self, allocation: Allocation) -> None:
        """What was leaving is gone, and its room has not come back."""
        self.ledger.discharge(allocation)
        allocation.need = self.in_ray(allocation.need)
        self.ledger.hold_phantom(allocation)
        self.stale()

    def free_phantom(self, allocation: Allocation) -> None:
        self.ledger.free_phantom(allocation)
        self._hear(self._walk is not None and self._walk.freed())

    def in_ray(self, need: Need) -> Need:
        """What of it stands for resources of Ray's. The rest (licences, `step_run`) the broker counts alone
        and can give back alone."""
        keys = self.ledger.keys
        return tuple((at, n) for at, n in need if keys[at] in (GPU, MCPU, MEMORY_MB, *self.spec.ray_resources))

    # --- the queue ----------------------------------------------------------------------------

    def enqueue(self, request: Request) -> bool:
        """It waits here from now on. False if nothing follows from that: it stands behind the blocked one, and may
        not run meanwhile."""
        group, at = self.queue.add(request, self.need(request), self.ledger.accounts[request.owner])
        request.queued = {**request.queued, self.name: self} if request.queued else self._only_here
        self.arrivals += 1
        if self._walk is None or not self._walk.arrived(request, group, at):
            self.stale()
            return True
        if not self._walk.settled:
            self.generation += 1
            return True
        return self.spec.queueing == "backfill" and self._walk.may_fill(request)

    def dequeue(self, request: Request) -> None:
        """It waits here no more, and was not granted here."""
        group, at = self._take_out(request)
        self._hear(self._walk is not None and self._walk.left(request, group, at))

    def _take_out(self, request: Request) -> tuple[Group, int]:
        """Its group, and how many stood before it there."""
        found = self.queue.remove(request, self.need(request))
        if len(request.queued) == 1:
            request.queued = NONE
        else:
            request.queued = {name: pool for name, pool in request.queued.items() if pool is not self}
        return found

    # --- the walk -----------------------------------------------------------------------------

    def stale(self) -> None:
        """Something changed that a walk would have seen: the next one begins anew."""
        self._walk = None
        self.generation += 1

    def _hear(self, goes_on: bool) -> None:
        """Something changed; goes_on: the steps of the walk would be the same."""
        if not goes_on:
            self._walk = None
        self.generation += 1

    def outcome(self) -> ResumableWalk:
        walk = self._walk
        if walk is not None and walk.settled:
            return walk
        if walk is None or not walk.run():
            walk = self._walk = ResumableWalk(self)
            walk.run()
        return walk

    def backfill(self) -> Request | None:
        """Whom step 4 would choose here."""
        if self.spec.queueing != "backfill":
            return None
        outcome = self.outcome()
        return outcome.backfill() if outcome.blocked else None

    def priority(self, request: Request) -> int:
        return self.ledger.accounts[request.owner].priority


def by_preference(request: Request) -> list[Pool]:
    """The pools in whose queue it stands, most preferred first: policy priority descending, then name."""
    pools = request.queued
    if len(pools) == 1:
        return list(pools.values())
    return sorted(pools.values(), key=lambda pool: (-pool.priority(request), pool.name))


def link(pools: Mapping[str, Pool]) -> None:
    """Works out the neighbours of every pool, through components that use several."""
    parent = {name: name for name in pools}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    first: dict[Owner, str] = {}
    for name, pool in pools.items():
        for owner in pool.policies:
            parent[root(name)] = root(first.setdefault(owner, name))
    families: dict[str, list[str]] = {}
    for name in sorted(pools):
        families.setdefault(root(name), []).append(name)
    for family in families.values():
        for name in family:
            pools[name].neighbours = tuple(family)


def borrowed_by(request: Request) -> dict[str, int]:
    """What of the request's charge lies above its policy's reserve, by key; only positive amounts."""
    allocation = request.allocation
    if allocation is None or allocation.account is None or allocation.pool is None:
        return {}
    for one, above in allocation.account.line():
        if one is allocation:
            return allocation.pool.ledger.by_key(above)
    return {}


def borrowed_in(pool: Pool) -> dict[str, dict[str, int]]:
    """The same of all that are charged there, by their ids: each policy's line is read only once."""
    return {
        allocation.request.id: pool.ledger.by_key(above)
        for account in pool.ledger.accounts.values()
        for allocation, above in account.line()
    }
