"""An independent broker in the same state, for questions that begin with "what if": the answer is a run of the very
same code. As broker_of(lines_of(broker)) would give it (a test compares them), without what is over, and faster.
"""

from __future__ import annotations

from raypool.core.broker import Broker, World
from raypool.core.lifetimes import Lifetimes
from raypool.core.pool import Pool, link
from raypool.core.request import Allocation, Request

_SHARED = tuple(
    name for name in Request.__slots__ if name not in ("allocation", "back_offs", "held_out", "mark", "queued")
)
"""Slots that hold values: they are replaced, never changed."""


def copy_of(broker: Broker, world: World | None = None) -> Broker:
    """world: what is confirmed to the copy from outside, if not what is confirmed to the original."""
    twin = Broker(world or broker.world, broker.ended_kept)
    twin.now, twin.nodes, twin.unmanaged = broker.now, broker.nodes, broker.unmanaged
    twin.owner_timeout_seconds = broker.owner_timeout_seconds
    twin._number, twin._serial = broker._number, broker._serial
    twin.lifetimes = {kind: Lifetimes.of(found.row()) for kind, found in broker.lifetimes.items()}
    for name, pool in broker.pools.items():
        twin.pools[name] = Pool(pool.spec, pool.policies)
        twin.pools[name].lowered = pool.lowered
    link(twin.pools)
    former: dict[str, Pool] = {}
    for request in broker.requests.values():
        allocation = request.allocation
        ended = request.status is not None and request.status.terminal
        if not ended or (allocation is not None and not allocation.gone):
            twin.requests[request.id] = _request_of(request, twin, former)
    for id in broker._ended:
        if id in twin.requests:
            twin._ended[id] = None
    _charge(twin)
    _stand_in_line(broker, twin)
    for request in twin.requests.values():
        twin.push_deadlines_of(request)
    return twin


def _request_of(request: Request, twin: Broker, former: dict[str, Pool]) -> Request:
    copy: Request = Request.__new__(Request)
    for name in _SHARED:
        setattr(copy, name, getattr(request, name))
    copy.back_offs, copy.held_out = dict(request.back_offs), dict(request.held_out)
    copy.mark = None
    copy.queued = {name: twin.pools[name] for name in request.queued}
    copy.allocation = request.allocation and _allocation_of(request.allocation, copy, twin, former)
    return copy


def _allocation_of(allocation: Allocation, request: Request, twin: Broker, former: dict[str, Pool]) -> Allocation:
    copy: Allocation = Allocation.__new__(Allocation)
    for name in Allocation.__slots__:
        setattr(copy, name, getattr(allocation, name))
    copy.request, copy.account = request, None
    if allocation.pool is not None:
        name = allocation.pool.name
        found = twin.pools.get(name) or former.get(name)
        copy.pool = found or former.setdefault(name, Pool(allocation.pool.spec, {}))
    return copy


def _charge(twin: Broker) -> None:
    """In order of grant: the lines of the accounts are in that order."""
    granted = [one.allocation for one in twin.requests.values() if one.allocation is not None]
    for allocation in sorted(granted, key=lambda one: one.serial):
        if allocation.gone:
            continue
        if allocation.pool is None:
            twin._unpooled[allocation.serial] = allocation
        else:
            allocation.pool.charge(allocation)


def _stand_in_line(broker: Broker, twin: Broker) -> None:
    for request in sorted(twin.requests.values(), key=lambda one: one.number):
        for pool in list(request.queued.values()):
            pool.enqueue(request)
    for name, pool in broker.pools.items():
        for marked in pool.marked:
            request = twin.requests[marked.id]
            request.mark = twin.pools[name]
            twin.pools[name].marked[request] = None
