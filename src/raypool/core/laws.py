"""The laws that hold after every event (semantics 7), as assertions on a broker's state.

For tests and for doubt: it looks at everything and costs accordingly. Laws 5 and 6 speak of what
happened and not of a state; the tests check them on histories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypool.core.pool import Pool
from raypool.core.reasons import PlacementBackOff
from raypool.core.request import Request
from raypool.core.victims import choose, enough

if TYPE_CHECKING:
    from raypool.core.broker import Broker


def check(broker: Broker) -> None:
    """Raises AssertionError, naming the law and the figures, if one is broken."""
    for pool in broker.pools.values():
        _figures_add_up(pool)
        _quotas_hold(pool)
        _reserve_is_guaranteed(pool)
    _charged_once(broker)
    _lines_are_right(broker)


def _figures_add_up(pool: Pool) -> None:
    ledger = pool.ledger
    for key, name in enumerate(ledger.keys):
        for account in ledger.accounts.values():
            staying = [*account.firm_grants.values(), *account.loose_grants.values()]
            assert account.staying[key] == sum(dict(one.need).get(key, 0) for one in staying), (pool.name, name)
            leaving = sum(dict(one.need).get(key, 0) for one in account.leavers.values())
            assert account.used[key] == account.staying[key] + leaving, (pool.name, name)
        for priority, accounts in ledger.by_priority:
            loose = sum(account.staying[key] - account.firm[key] for account in accounts)
            assert ledger.loose[priority][key] == loose, f"{pool.name}: preemptible {name} of {priority}"
        used = sum(account.used[key] for account in ledger.accounts.values())
        phantom = sum(dict(one.need).get(key, 0) for one in ledger.phantoms.values())
        assert ledger.phantom[key] == phantom, f"{pool.name}: phantom {name} does not add up"
        assert used + phantom + ledger.free[key] == ledger.capacity[key], f"{pool.name}: {name} does not add up"
        leaving = sum(dict(one.need).get(key, 0) for one in ledger.leavers.values())
        assert ledger.leaving[key] == leaving, f"{pool.name}: leaving {name} does not add up"


def _quotas_hold(pool: Pool) -> None:
    """Laws 1, 2 and 3; what was lowered under running work is excused."""
    if pool.lowered:
        return
    ledger = pool.ledger
    for key, name in enumerate(ledger.keys):
        assert ledger.free[key] >= 0, f"law 1: {pool.name} has {-ledger.free[key]} {name} too many charged"
        for account in ledger.accounts.values():
            assert account.used[key] <= account.limit[key], f"law 2: {account.owner} in {pool.name}, {name}"
            assert account.firm[key] <= account.reserved[key], f"law 3: {account.owner} in {pool.name}, {name}"


def _reserve_is_guaranteed(pool: Pool) -> None:
    """Law 4: nobody who is inside his reserve is blocked.

    The rules leave one gap (docs/reference/semantics.md, section 7): there are victims for him, but once they
    have left, somebody of a victim's team comes inside his own reserve, goes first, and takes the room.
    The look-ahead then forbids the eviction. Room that Ray does not give back is excused, as what was
    lowered is.
    """
    outcome = pool.outcome()
    assert outcome.granted is None, f"{pool.name}: the cycle stopped while {outcome.granted} could be granted"
    held_up = held_up_inside_its_reserve(pool)
    assert not held_up or held_up[1], (
        f"law 4: {held_up and held_up[0]} is inside its reserve in {pool.name} and blocked"
    )


def held_up_inside_its_reserve(pool: Pool) -> tuple[Request, bool] | None:
    """Who is blocked in the pool though he is inside his reserve, and whether the known gap of law 4 is why;
    None if nobody is, or what was lowered or is phantom excuses it."""
    outcome = pool.outcome()
    if outcome.blocked is None or outcome.group is None or pool.lowered or any(pool.ledger.phantom):
        return None
    standing = outcome.figures.standing(outcome.group.account)
    if not standing.inside_reserve(outcome.group.need, outcome.group.preemptible):
        return None
    if any(request.mark not in (None, pool) for request in pool.queue):
        return None
    return outcome.blocked, bool(enough(pool, outcome)) and not choose(pool, outcome)


def _charged_once(broker: Broker) -> None:
    """Law 7, and that requests and allocations tell the same story."""
    seen: dict[str, str] = {}
    for pool in broker.pools.values():
        for allocation in pool.ledger.allocations():
            request = allocation.request
            assert request.id not in seen, f"law 7: {request} is charged in {seen[request.id]} and {pool.name}"
            seen[request.id] = pool.name
            assert allocation.pool is pool
            assert allocation.leaving or request.current is allocation, f"{allocation} is charged for nobody"
        for allocation in pool.ledger.phantoms.values():
            request = allocation.request
            assert allocation.phantom and allocation.account is None and not allocation.gone, allocation
            assert broker.requests.get(request.id) is request and request.allocation is allocation, allocation
            assert request.id not in seen, f"law 7: {request} is charged in {seen[request.id]} and a phantom"
    for maker, allocation in broker.handed_over.items():
        assert allocation.made_for == maker and not allocation.gone, allocation
    numbers: dict[int, str] = {}
    for request in broker.requests.values():
        if request.status is not None and not request.status.terminal:
            other = numbers.setdefault(request.number, request.id)
            assert other == request.id, f"'{other}' and '{request.id}' both have number {request.number}"
        if request.status is not None and request.status.running and request.allocation:
            assert request.allocation.pool is None or request.id in seen, f"{request} runs uncharged"


def _lines_are_right(broker: Broker) -> None:
    """Who waits stands in line or aside somewhere, and nobody else does."""
    for request in broker.requests.values():
        if request.waiting:
            assert request.queued or request.held_out, f"{request} waits nowhere"
        else:
            assert not request.queued and not request.held_out and request.mark is None, request
        for reason in request.held_out.values():
            until = reason.until if isinstance(reason, PlacementBackOff) else broker.now
            assert until <= broker.now or broker.next_deadline, f"{request} stands aside, and nothing calls it back"
        for pool in request.queued.values():
            assert broker.pools[pool.name] is pool, f"{request} stands in a pool that is no more"
            assert pool.name not in request.held_out
    for pool in broker.pools.values():
        for request in pool.queue:
            assert request.queued.get(pool.name) is pool, request
        for request in pool.marked:
            assert request.mark is pool and pool.name in request.queued, request
