"""The state of a broker as lines of text, and a broker from such lines.

What is written is what cannot be worked out from the rest: specs, who holds and who waits, in which order.
Figures, queues, deadlines and outcomes are built again. The rule that must not break: a broker read back
decides as the one that was written would have; tests/core/test_snapshot.py cuts histories at every event to
see that, and looks whether every slot of a request and an allocation is accounted for here.

The first line is the head, with the number of the last event that is in it; then the versions of the config
that are kept, then pools, then requests in order of submission.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from raypool.core.asks import OWN, Ask, Asks
from raypool.core.broker import Broker, World
from raypool.core.history import History
from raypool.core.lifetimes import lifetimes_of, rows_of
from raypool.core.pool import Pool, link
from raypool.core.reasons import PlacementBackOff, Reason
from raypool.core.records import body_text, nodes_of, plain, quoted, reason_of, scalar_text, version_of
from raypool.core.request import NONE, Allocation, Request
from raypool.core.status import Status
from raypool.spec import BrokerConfig, PolicySpec, PoolSpec, RequestSpec

SCHEMA = 2
"""Of the snapshot and of the journal's lines. It grows when a version writes what older ones cannot read: 2 has
`ManySubmitted`."""

READ = (1, SCHEMA)
"""The schemas that are read."""

REQUEST_FACTS = (
    "number", "job", "holder", "actor", "submitted_at", "granted_at", "ended_at", "deadline", "accepted", "grants",
    "placement_failures", "preempted_by", "taken_up",
)  # fmt: skip
"""Slots of a request that are written as they are."""

ALLOCATION_FACTS = (
    "serial", "opportunistic", "attempt", "placed", "leaving", "gone", "phantom", "repair_until", "kept_until",
    "confirmed", "group_id", "made_for",
)  # fmt: skip
"""Slots of an allocation that are written as they are."""


class Snapshots:
    """Writes snapshots of one broker. What cannot change is made once: the line of a version, that of a request
    that is over, and that of what the others ask for."""

    def __init__(self) -> None:
        self._over: dict[str, str] = {}
        self._asks: dict[Ask, str] = {}
        self._versions: dict[int, str] = {}

    def lines_of(self, broker: Broker, number: int, **more: Any) -> Iterator[str]:
        """number: of the last event that the broker has handled. `more` goes into the head."""
        over, asks, versions = self._over, self._asks, self._versions
        self._over, self._asks, self._versions = {}, {}, {}
        yield _text(_head_of(broker, number) | more)
        for version in broker.history.versions:
            text = versions.get(version.number) or _text({"version": plain(version)})
            self._versions[version.number] = text
            yield text
        for pool in broker.pools.values():
            yield _text({"pool": _pool_row(pool)})
        for id, request in broker.requests.items():
            line = over.get(id)
            if line is None:
                ask = request.ask
                body = self._asks[ask] = self._asks.get(ask) or asks.get(ask) or body_text(ask.spec, OWN)
                line = _request_text(request, body)
            if id in over or _is_over(request):
                self._over[id] = line
            yield line


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


def _head_of(broker: Broker, number: int) -> dict[str, Any]:
    former = {
        request.allocation.pool.name: request.allocation.pool.spec.dump()
        for request in broker.requests.values()
        if request.allocation is not None
        and request.allocation.pool is not None
        and request.allocation.pool.name not in broker.pools
    }
    return {
        "schema": SCHEMA,
        "n": number,
        "at": broker.now,
        "submitted": broker._number,
        "granted": broker._serial,
        "unmanaged": broker.unmanaged,
        "owner_timeout_seconds": broker.owner_timeout_seconds,
        "nodes": plain(broker.nodes),
        "before": broker.history.before.dump(),
        "ended": list(broker._ended),
        "former_pools": list(former.values()),
        "lifetimes": rows_of(broker.lifetimes),
    }


def _pool_row(pool: Pool) -> dict[str, Any]:
    return {
        "spec": pool.spec.dump(),
        "policies": [policy.dump() for policy in pool.policies.values()],
        "lowered": pool.lowered,
        "marked": [request.id for request in pool.marked],
    }


def _request_text(request: Request, body: str) -> str:
    """There may be very many, and all that live are written anew every time. body: what it asks for."""
    assert request.status is not None
    allocation = request.allocation
    taken_up = "" if request.retry_of is None else f'"retry_of":{quoted(request.retry_of)},'
    held = "" if allocation is None else f',"allocation":{_allocation_text(allocation)}'
    return (
        f'{{"request":{{"spec":{{"id":{quoted(request.id)},{taken_up}{body},'
        f'"status":"{request.status.value}",{_request_facts(request)},'
        f'"reason":{_plain_text(request.reason)},"queued":[{",".join(map(quoted, request.queued))}],'
        f'"held_out":{_plain_text(request.held_out)},"back_offs":{_plain_text(request.back_offs)}{held}}}}}'
    )


def _allocation_text(allocation: Allocation) -> str:
    pool = scalar_text(allocation.pool.name if allocation.pool is not None else None)
    nodes = ",".join(map(quoted, allocation.nodes))
    return f'{{"pool":{pool},"nodes":[{nodes}],{_allocation_facts(allocation)}}}'


def _facts_text(names: tuple[str, ...]) -> Callable[[object], str]:
    """What writes those slots of a value down."""
    values, form = attrgetter(*names), ",".join(f'"{name}":%s' for name in names)
    return lambda value: form % tuple(map(scalar_text, values(value)))


_request_facts, _allocation_facts = _facts_text(REQUEST_FACTS), _facts_text(ALLOCATION_FACTS)


def _plain_text(value: Reason | Mapping[str, Reason] | None) -> str:
    if value is None:
        return "null"
    return _text(plain(value)) if value else "{}"


def _is_over(request: Request) -> bool:
    allocation = request.allocation
    ended = request.status is not None and request.status.terminal
    return ended and (allocation is None or allocation.gone)


# --- reading ----------------------------------------------------------------------------------


def broker_of(lines: Iterable[str], world: World | None = None) -> tuple[Broker, dict[str, Any]]:
    """The broker of a snapshot, and its head. Raises KeyError, TypeError, ValueError or SpecError for
    lines that are none."""
    rows = (json.loads(line) for line in lines)
    head = next(rows)
    broker = Broker(world)
    broker.now = head["at"]
    broker._number, broker._serial = head["submitted"], head["granted"]
    broker.unmanaged, broker.owner_timeout_seconds = head["unmanaged"], head["owner_timeout_seconds"]
    broker.nodes = None if head["nodes"] is None else nodes_of(head["nodes"])
    broker.lifetimes = lifetimes_of(head.get("lifetimes", []))  # an older version wrote none
    former = {spec.name: Pool(spec, {}) for spec in map(PoolSpec.load, head["former_pools"])}
    marked: dict[str, list[str]] = {}
    versions = []
    for row in rows:
        if "version" in row:
            versions.append(version_of(row["version"]))
        elif "pool" in row:
            pool = _pool_of(row["pool"])
            broker.pools[pool.name] = pool
            marked[pool.name] = row["pool"]["marked"]
        else:
            request = _request_of(row["request"], broker.pools, former, broker._asks)
            broker.requests[request.id] = request
    broker.history = History(BrokerConfig.load(head["before"]) if "before" in head else broker.config, versions)
    link(broker.pools)
    charge_what_is_held(broker)
    for request in sorted(broker.requests.values(), key=lambda one: one.number):
        for pool in list(request.queued.values()):
            pool.enqueue(request)
    for name, ids in marked.items():
        for id in ids:
            request, pool = broker.requests[id], broker.pools[name]
            request.mark = pool
            pool.marked[request] = None
    for id in head["ended"]:
        broker._ended[id] = None
    for request in broker.requests.values():
        broker.push_deadlines_of(request)
    return broker, head


def _pool_of(row: Mapping[str, Any]) -> Pool:
    policies: list[PolicySpec] = [PolicySpec.load(one) for one in row["policies"]]
    pool = Pool(PoolSpec.load(row["spec"]), {policy.owner: policy for policy in policies})
    pool.lowered = row["lowered"]
    return pool


def _request_of(row: Mapping[str, Any], pools: Mapping[str, Pool], former: Mapping[str, Pool], asks: Asks) -> Request:
    spec: RequestSpec = RequestSpec.load(row["spec"])
    request = Request(asks.of(spec), spec.id, spec.retry_of, row["number"], row["submitted_at"], row["job"])
    for name in REQUEST_FACTS:
        setattr(request, name, row[name])
    request.status = Status(row["status"])
    request.reason = reason_of(row["reason"])
    request.queued = {name: pools[name] for name in row["queued"]} or NONE
    request.held_out = {name: _reason(data) for name, data in row["held_out"].items()} or NONE
    for name, data in row["back_offs"].items():
        back_off = _reason(data)
        assert isinstance(back_off, PlacementBackOff)
        request.back_offs = {**request.back_offs, name: back_off}
    if "allocation" in row:
        request.allocation = _allocation_of(row["allocation"], request, {**former, **pools})
    return request


def _reason(data: Mapping[str, Any]) -> Reason:
    reason = reason_of(data)
    assert reason is not None
    return reason


def _allocation_of(row: Mapping[str, Any], request: Request, pools: Mapping[str, Pool]) -> Allocation:
    pool = pools[row["pool"]] if row["pool"] is not None else None
    allocation = Allocation(request, pool, row["serial"], row["opportunistic"])
    for name in ALLOCATION_FACTS:
        setattr(allocation, name, row.get(name, "") if name == "made_for" else row[name])  # older ones have none
    allocation.nodes = tuple(row["nodes"])
    return allocation


def charge_what_is_held(broker: Broker) -> None:
    """For a broker that is read back, or copied: in order of grant."""
    held = [one.allocation for one in broker.requests.values() if one.allocation is not None]
    for allocation in sorted(held, key=lambda one: one.serial):
        pool = allocation.pool
        if allocation.gone:
            continue
        if allocation.made_for:
            broker.handed_over[allocation.made_for] = allocation
        if pool is None:
            broker._unpooled[allocation.serial] = allocation
            continue
        pool.charge(allocation)
