"""What people see of a broker: frozen values, plain enough for JSON, made from the core by reading it.

The command line, the client, tests and logs read these and never the core. Times are seconds since
the epoch (of the clock that the broker is fed with); amounts are whole numbers by pool key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from raypool.core.bundles import SMALLEST_CPU
from raypool.core.explain import explanation_of, wait_reasons
from raypool.core.pool import by_preference
from raypool.core.reasons import BeingPlaced, Evicted

if TYPE_CHECKING:
    from raypool.core.broker import Broker
    from raypool.core.pool import Pool
    from raypool.core.request import Allocation, Request

__all__ = ["SMALLEST_CPU", "BrokerView", "PolicyView", "PoolView", "RequestView"]

V = TypeVar("V", bound="View")


@dataclass(frozen=True)
class View:
    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON and for the wire."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls: type[V], data: dict[str, Any]) -> V:
        """Back from `as_dict`. Fields that this version does not know are left out."""
        return cls(**{one.name: data[one.name] for one in fields(cls) if one.name in data})


@dataclass(frozen=True)
class RequestView(View):
    """A request and how it stands.

    status: pending, allocated, preempting, released, preempted, cancelled, rejected.
    pool: where it was granted; None while it waits or was never granted.
    reason: one sentence: why it waits, was refused, had to leave. rule: the same as a word for
    programs. reasons: while pending, the sentence for each pool, most hopeful first.
    position: its place in the line of its most preferred pool, from 1.
    placing: granted and charged; its placement group is not ready yet.
    borrowed: what of it lies above its policy's reserve and may be taken back.
    deadline: while preempting: when its placement group will be removed.
    bundles: what its placement group holds, in Ray's names, once it was granted.
    group_id, nodes: its placement group, and the node id of each bundle.
    """

    id: str
    component: str
    component_type: str
    status: str
    pool: str | None
    reason: str | None
    rule: str | None
    demand: dict[str, int]
    preemptible: bool
    workers: int
    strategy: str
    submitted_at: float
    number: int
    reasons: dict[str, str] = field(default_factory=dict)
    position: int | None = None
    placing: bool = False
    pinned: str | None = None
    borrowed: dict[str, int] = field(default_factory=dict)
    granted_at: float | None = None
    ended_at: float | None = None
    deadline: float | None = None
    preempted_by: str | None = None
    preempted_by_component: str | None = None
    preemption_rule: str | None = None
    opportunistic: bool = False
    attempt: int = 0
    group_id: str | None = None
    nodes: list[str] = field(default_factory=list)
    bundles: list[dict[str, float]] = field(default_factory=list)
    job: str | None = None
    lifetime: str | None = None
    retry_of: str | None = None
    description: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ("released", "preempted", "cancelled", "rejected")

    @property
    def running(self) -> bool:
        return self.status in ("allocated", "preempting")


@dataclass(frozen=True)
class PolicyView(View):
    """A policy and its account. used counts those leaving; limit is what holds now, for every key."""

    pool: str
    component: str
    component_type: str
    priority: int
    reserved: dict[str, int]
    limit: dict[str, int]
    used: dict[str, int]
    borrowed: dict[str, int]
    leaving: dict[str, int]
    queued: int
    active: int


@dataclass(frozen=True)
class PoolView(View):
    """A pool and its figures: used + free == capacity, for every key; leaving is a part of used."""

    name: str
    description: str
    queueing: str
    capacity: dict[str, int]
    used: dict[str, int]
    free: dict[str, int]
    leaving: dict[str, int]
    borrowed: dict[str, int]
    queued: int
    active: int
    grace_seconds: float
    placement_timeout_seconds: float
    infeasible: str
    node_labels: dict[str, str]
    ray_resources: dict[str, str]
    policies: list[PolicyView] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "policies": [policy.as_dict() for policy in self.policies]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PoolView:
        policies = [PolicyView.from_dict(one) for one in data.get("policies", ())]
        return super().from_dict({**data, "policies": policies})


@dataclass(frozen=True)
class BrokerView(View):
    """The broker as a whole: how many requests there are by status, and what it wants somebody to see."""

    pools: list[PoolView]
    requests: dict[str, int]
    unmanaged: str
    warnings: list[str] = field(default_factory=list)
    started_at: float = 0.0
    version: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "pools": [pool.as_dict() for pool in self.pools]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BrokerView:
        return super().from_dict({**data, "pools": [PoolView.from_dict(one) for one in data["pools"]]})


# --- made from the core -----------------------------------------------------------------------


def view_request(broker: Broker, request: Request, borrowed: dict[str, int] | None = None) -> RequestView:
    """`borrowed` saves work when many are viewed: see `view_requests`."""
    spec, allocation = request.spec, request.allocation
    assert request.status is not None
    reasons = wait_reasons(broker, request)
    reason = next(iter(reasons.values()), None) or request.reason
    evicted = request.reason if isinstance(request.reason, Evicted) else None
    if borrowed is None:
        borrowed = _borrowed_in(allocation.pool).get(request.id, {}) if allocation and allocation.pool else {}
    pools = by_preference(request)
    return RequestView(
        id=request.id,
        number=request.number,
        component=spec.component,
        component_type=spec.component_type,
        status=request.status.value,
        pool=request.pool,
        reason=reason.sentence if reason else None,
        rule=reason.rule if reason else None,
        reasons={pool: why.sentence for pool, why in reasons.items()},
        position=explanation_of(pools[0]).position(request) if pools else None,
        placing=isinstance(reason, BeingPlaced),
        demand=dict(request.demand),
        borrowed=borrowed,
        preemptible=request.preemptible,
        workers=len(spec.bundle_list()),
        strategy=spec.strategy,
        pinned=spec.pool,
        submitted_at=request.submitted_at,
        granted_at=request.granted_at,
        ended_at=request.ended_at,
        deadline=request.deadline,
        preempted_by=request.preempted_by,
        preempted_by_component=evicted.by_component if evicted else None,
        preemption_rule=evicted.why if evicted else None,
        opportunistic=allocation.opportunistic if allocation else False,
        attempt=request.grants,
        group_id=(allocation.group_id or None) if allocation else None,
        nodes=list(allocation.nodes) if allocation else [],
        bundles=[dict(one) for one in broker.bundles(spec, allocation.pool)] if allocation else [],
        job=request.job,
        lifetime=spec.lifetime,
        retry_of=spec.retry_of,
        description=spec.description,
    )


def view_requests(broker: Broker, requests: Iterable[Request]) -> list[RequestView]:
    """Many at once: each policy's line is read only once."""
    borrowed: dict[str, dict[str, int]] = {}
    for pool in broker.pools.values():
        borrowed.update(_borrowed_in(pool))
    return [view_request(broker, request, borrowed.get(request.id, {})) for request in requests]


def _borrowed_in(pool: Pool) -> dict[str, dict[str, int]]:
    return {
        allocation.request.id: pool.ledger.by_key(above)
        for account in pool.ledger.accounts.values()
        for allocation, above in account.line()
    }


def view_pool(pool: Pool) -> PoolView:
    ledger, spec = pool.ledger, pool.spec
    policies = view_policies(pool)
    return PoolView(
        name=pool.name,
        description=spec.description,
        queueing=spec.queueing,
        capacity=dict(spec.capacity),
        used={key: most - ledger.free[ledger.index[key]] for key, most in spec.capacity.items()},
        free={key: ledger.free[ledger.index[key]] for key in spec.capacity},
        leaving={key: ledger.leaving[ledger.index[key]] for key in spec.capacity},
        borrowed={key: sum(policy.borrowed.get(key, 0) for policy in policies) for key in spec.capacity},
        queued=len(pool.queue),
        active=sum(policy.active for policy in policies),
        grace_seconds=spec.grace_seconds,
        placement_timeout_seconds=spec.placement_timeout_seconds,
        infeasible=spec.infeasible,
        node_labels=dict(spec.node_labels),
        ray_resources=dict(spec.ray_resources),
        policies=policies,
    )


def view_policies(pool: Pool) -> list[PolicyView]:
    """The pool's policies, highest priority first, then by name."""
    ledger = pool.ledger
    queued: dict[tuple[str, str], int] = {}
    for group in pool.queue.groups.values():
        queued[group.account.owner] = queued.get(group.account.owner, 0) + len(group.members)
    views = []
    for owner, account in sorted(ledger.accounts.items(), key=lambda item: (-item[1].priority, item[0])):
        line: list[tuple[Allocation, tuple[tuple[int, int], ...]]] = list(account.line())
        above: dict[str, int] = {}
        for _, need in line:
            for key, amount in ledger.by_key(need).items():
                above[key] = above.get(key, 0) + amount
        figures = zip(ledger.keys, account.used, account.staying, account.limit, strict=True)
        used, leaving, limit = {}, {}, {}
        for key, charged, staying, most in figures:
            used[key], leaving[key], limit[key] = charged, charged - staying, most
        views.append(
            PolicyView(
                pool=pool.name,
                component=owner[0],
                component_type=owner[1],
                priority=account.priority,
                reserved=dict(account.policy.reserved),
                limit=limit,
                used=used,
                borrowed=above,
                leaving=leaving,
                queued=queued.get(owner, 0),
                active=len(line),
            )
        )
    return views


def view_broker(
    broker: Broker,
    warnings: Iterable[str] = (),
    started_at: float = 0.0,
    version: str = "",
) -> BrokerView:
    counts: dict[str, int] = {}
    for request in broker.requests.values():
        assert request.status is not None
        counts[request.status.value] = counts.get(request.status.value, 0) + 1
    return BrokerView(
        pools=[view_pool(pool) for _, pool in sorted(broker.pools.items())],
        requests=counts,
        unmanaged=broker.unmanaged,
        warnings=list(warnings),
        started_at=started_at,
        version=version,
    )
