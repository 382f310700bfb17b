"""A second broker in the same state, for questions that begin with "what if".

What cannot change (specs, nodes, reasons) is shared; requests, allocations and figures are the copy's own, so
whatever is done to it leaves the broker as it was. The rule that must not break: a copy decides as the broker
would have; tests/core/test_copy.py compares both at every event of histories.

A copy leaves out what no question can reach: requests that are over, but for those whose room has not come
back or whose place in line may be taken up. A *short* copy, for questions by the dozen, has of those who wait
only who comes first. What is found on a short copy has to be seen once more on a whole one.
"""

from __future__ import annotations

from itertools import islice
from operator import attrgetter

from raypool.core.asks import Memo
from raypool.core.broker import Broker, World
from raypool.core.lifetimes import Lifetimes
from raypool.core.pool import Pool
from raypool.core.reasons import GroupLost, NodeLost
from raypool.core.request import Allocation, Request
from raypool.core.snapshot import charge_what_is_held

# All slots of one, and what puts each into another: a copy of thousands is made while somebody waits.
_request_slots = attrgetter(*Request.__slots__)
_allocation_slots = attrgetter(*Allocation.__slots__)
_PUT_IN_REQUEST = [getattr(Request, name).__set__ for name in Request.__slots__]
_PUT_IN_ALLOCATION = [getattr(Allocation, name).__set__ for name in Allocation.__slots__]


SHORT_GROUPS = 50
SHORT_MEMBERS = 4
"""Of each pool's line a short copy has the first groups, and of each of them the first members."""


def copy_of(broker: Broker, world: World | None = None, short_for: str | None = None) -> Broker:
    """world: what is confirmed to the copy from outside, if not what is confirmed to the original.
    short_for: the id of a request: a short copy, with that request in any case."""
    twin = Broker(world or broker.world, broker.ended_kept)
    twin.unmanaged, twin.owner_timeout_seconds = broker.unmanaged, broker.owner_timeout_seconds
    twin.nodes, twin.now = broker.nodes, broker.now
    twin.history = broker.history.copy()
    twin.lifetimes = {kind: Lifetimes.of(found.row()) for kind, found in broker.lifetimes.items()}
    twin._number, twin._serial = broker._number, broker._serial
    twin._deadlines = broker._deadlines[:]
    twin._asks, twin._misfits = broker._asks, Memo(broker._misfits)
    for name, pool in broker.pools.items():
        new = twin.pools[name] = Pool(pool.spec, pool.policies)
        new.neighbours, new.lowered = pool.neighbours, pool.lowered
    left_out: set[Request] = set() if short_for is None else _left_out(broker, short_for)
    for id, request in broker.requests.items():
        if request not in left_out and (id not in broker._ended or _may_matter(request)):
            twin.requests[id] = _request_of(request, twin)
    for id in broker._ended:
        if id in twin.requests:
            twin._ended[id] = None
    charge_what_is_held(twin)
    for name, pool in broker.pools.items():
        _line_up(pool, twin.pools[name], twin.requests)
    return twin


def _may_matter(ended: Request) -> bool:
    """Whether something that is over can still be met: its group is in the way, or somebody may take it up."""
    allocation = ended.allocation
    if allocation is not None and allocation.in_the_way:
        return True
    return isinstance(ended.reason, NodeLost | GroupLost) and not ended.taken_up


def _left_out(broker: Broker, keep: str) -> set[Request]:
    """Who waits, and is in no pool among the first. (A set to look into, never to go through.)"""
    first = {broker.requests[keep]}
    waiting: set[Request] = set()
    for pool in broker.pools.values():
        first.update(pool.marked)
        groups = sorted(pool.queue.groups.values(), key=attrgetter("first_rank"))
        for group in groups[:SHORT_GROUPS]:
            first.update(islice(group.members, SHORT_MEMBERS))
        waiting.update(pool.queue)
    return waiting - first


def _request_of(request: Request, twin: Broker) -> Request:
    new = Request.__new__(Request)
    for put, value in zip(_PUT_IN_REQUEST, _request_slots(request), strict=True):
        put(new, value)
    if request.queued:
        new.queued = {name: twin.pools[name] for name in request.queued}
    new.mark = None if request.mark is None else twin.pools[request.mark.name]
    if request.allocation is not None:
        new.allocation = _allocation_of(request.allocation, new, twin)
    return new


def _allocation_of(allocation: Allocation, request: Request, twin: Broker) -> Allocation:
    new = Allocation.__new__(Allocation)
    for put, value in zip(_PUT_IN_ALLOCATION, _allocation_slots(allocation), strict=True):
        put(new, value)
    new.request, new.account = request, None
    if allocation.pool is not None:  # the pool of one that is gone may have been deleted since
        new.pool = twin.pools.get(allocation.pool.name, allocation.pool)
    return new


def _line_up(pool: Pool, new: Pool, requests: dict[str, Request]) -> None:
    """The same groups in the same order, and the same marks."""
    for key, group in pool.queue.groups.items():
        members = [requests[member.id] for member in group.members if member.id in requests]
        if members:
            new.queue.add_group(key, new.ledger.accounts[group.account.owner], members)
    for request in pool.marked:
        new.marked[requests[request.id]] = None
