"""A pool: its spec and policies, its ledger, its queue, and the outcome of the last walk over it.

The outcome is kept until something changes that a walk can see: figures, queue, marks, policies.
`stale()` says so; nothing else may forget an outcome.
"""

from __future__ import annotations

from collections.abc import Mapping

from raypool.core.ledger import Ledger
from raypool.core.queue import Queue
from raypool.core.reasons import Ineligible, Reason
from raypool.core.request import Allocation, Need, Request
from raypool.core.walk import Figures, Outcome, rank, walk
from raypool.spec import GPU, MCPU, MEMORY_MB, Demand, PolicySpec, PoolSpec

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
        self._outcome: Outcome | None = None

    # --- eligibility (semantics 2) ------------------------------------------------------------

    def ineligible(self, owner: Owner, demand: Demand, preemptible: bool) -> Reason | None:
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
        return self.ledger.need(request.demand)

    def charge(self, allocation: Allocation) -> None:
        """Counts a grant here, as staying, leaving or phantom, whichever it is. Whoever had it in his figures
        before has dropped it."""
        allocation.pool, allocation.need = self, self.need(allocation.request)
        if allocation.phantom:
            allocation.need = self.in_ray(allocation.need)
            self.ledger.hold_phantom(allocation)
            return
        leaving, allocation.leaving = allocation.leaving, False
        self.ledger.charge(allocation, self.ledger.accounts[allocation.request.owner])
        if leaving:
            self.ledger.mark_leaving(allocation)

    def in_ray(self, need: Need) -> Need:
        """What of it stands for resources of Ray's. The rest (licences, `step_run`) the broker counts alone
        and can give back alone."""
        keys = self.ledger.keys
        return tuple((at, n) for at, n in need if keys[at] in (GPU, MCPU, MEMORY_MB, *self.spec.ray_resources))

    # --- the queue ----------------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        group = self.queue.add(request, self.need(request), self.ledger.accounts[request.owner])
        request.queued[self.name] = self
        self.arrivals += 1
        # In a strict pool nobody behind a blocked one is looked at: the outcome stands. (Judged on
        # the figures before the set-asides, which may only push a request further back.)
        outcome = self._outcome
        if outcome is not None and outcome.blocked is not None and self.spec.queueing == "strict":
            assert outcome.group is not None
            head = rank(outcome.figures.standing(outcome.group.account), outcome.group, outcome.blocked.number)
            if rank(group.account, group, request.number) > head:
                return
        self.stale()

    def dequeue(self, request: Request) -> None:
        self.queue.remove(request, self.need(request))
        del request.queued[self.name]
        self.stale()

    # --- the walk -----------------------------------------------------------------------------

    def stale(self) -> None:
        """Something changed that a walk can see."""
        self._outcome = None
        self.generation += 1

    def outcome(self) -> Outcome:
        if self._outcome is None:
            self._outcome = walk(self, self.queue, Figures(self.ledger))
        return self._outcome

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
