"""An independent copy of a broker: what a question "what if" is tried on.

The copy decides by the very same code, and nothing that is done to it reaches the original. What cannot
change (specs, reasons, nodes) is shared; figures and queues are built again, as for a broker that is read
back (snapshot.py), five times as fast. The rule that must not break: a copy decides as the original
would; tests/core/test_snapshot.py compares them at every event of its histories.
"""

from __future__ import annotations

from collections.abc import Mapping

from raypool.core.broker import Broker
from raypool.core.pool import Pool, link
from raypool.core.request import Allocation, Request
from raypool.core.snapshot import charge_what_is_held


def copy_of(broker: Broker) -> Broker:
    twin = Broker(broker.world, broker.ended_kept)
    twin.unmanaged, twin.owner_timeout_seconds = broker.unmanaged, broker.owner_timeout_seconds
    twin.nodes, twin.now = broker.nodes, broker.now
    twin.history = broker.history.copy()
    twin._number, twin._serial = broker._number, broker._serial
    twin._ended = broker._ended.copy()
    twin._deadlines = broker._deadlines[:]
    twin._misfits = broker._misfits.copy()
    for name, pool in broker.pools.items():
        twin.pools[name] = Pool(pool.spec, pool.policies)
        twin.pools[name].lowered = pool.lowered
    link(twin.pools)
    for id, request in broker.requests.items():
        twin.requests[id] = _request_of(request, twin.pools)
    charge_what_is_held(twin)
    for request in sorted(twin.requests.values(), key=lambda one: one.number):
        for waits_in in list(request.queued.values()):
            waits_in.enqueue(request)
    for name, pool in broker.pools.items():
        twin.pools[name].marked = {twin.requests[request.id]: None for request in pool.marked}
    return twin


def _request_of(request: Request, pools: Mapping[str, Pool]) -> Request:
    twin = Request.__new__(Request)
    for name in Request.__slots__:
        setattr(twin, name, getattr(request, name))
    twin.queued = {name: pools[name] for name in request.queued}
    twin.held_out = request.held_out.copy()
    twin.back_offs = request.back_offs.copy()
    twin.mark = pools[request.mark.name] if request.mark is not None else None
    if request.allocation is not None:
        twin.allocation = _allocation_of(request.allocation, twin, pools)
    return twin


def _allocation_of(allocation: Allocation, request: Request, pools: Mapping[str, Pool]) -> Allocation:
    """Not charged yet. One of a pool that is no more keeps that pool: it is gone, and only its name is asked."""
    twin = Allocation.__new__(Allocation)
    for name in Allocation.__slots__:
        setattr(twin, name, getattr(allocation, name))
    twin.request, twin.account = request, None
    if allocation.pool is not None:
        twin.pool = pools.get(allocation.pool.name, allocation.pool)
    return twin
