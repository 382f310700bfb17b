"""Makes what people see (view.py) from the core, by reading it."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from raypool.core.broker import Broker
from raypool.core.config import warnings_of
from raypool.core.explain import explanation_of, wait_reasons
from raypool.core.pool import Pool, borrowed_by, borrowed_in, by_preference
from raypool.core.preview import BorrowsMore, Consequence, Moves, Preview
from raypool.core.reasons import BeingPlaced, Evicted
from raypool.core.request import Allocation, Request
from raypool.core.status import Status
from raypool.spec import PoolSpec
from raypool.view import (
    BrokerView,
    ConsequenceView,
    FrontView,
    PolicyView,
    PoolView,
    PreviewView,
    RequestView,
    VersionView,
)

MOST_CONSEQUENCES = 20
"""So many consequences of each kind are told one by one."""

Eta = tuple[float | None, float | None, float | None]
"""p50, p90, and later than what the first of these is that is None: in seconds from now."""

UNKNOWN: Eta = (None, None, None)


def view_request(
    broker: Broker, request: Request, borrowed: dict[str, int] | None = None, eta: Eta = UNKNOWN
) -> RequestView:
    """`borrowed` saves work when many are viewed: see `view_requests`. eta: in how many seconds it will start."""
    spec, allocation = request.ask.spec, request.allocation
    assert request.status is not None
    reasons = wait_reasons(broker, request)
    reason = next(iter(reasons.values()), None) or request.reason
    evicted = request.reason if isinstance(request.reason, Evicted) else None
    if borrowed is None:
        borrowed = borrowed_by(request)
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
        group_name=allocation.group_name if allocation and allocation.group_id else None,
        nodes=list(allocation.nodes) if allocation else [],
        bundles=[dict(one) for one in broker.bundles(spec, allocation.pool)] if allocation else [],
        job=request.job,
        holder=request.holder,
        actor=request.actor,
        lifetime=spec.lifetime,
        retry_of=request.retry_of,
        description=spec.description,
        on_node_loss=spec.on_node_loss,
        repair_until=allocation.repair_until if allocation is not None and request.status.running else None,
        max_duration_seconds=spec.max_duration_seconds,
        runs_until=request.may_run_until if request.status is Status.ALLOCATED else None,
        eta_p50_seconds=eta[0] if request.waiting else None,
        eta_p90_seconds=eta[1] if request.waiting else None,
        eta_beyond_seconds=eta[2] if request.waiting else None,
    )


def view_requests(
    broker: Broker, requests: Iterable[Request], etas: Mapping[str, Eta] | None = None
) -> list[RequestView]:
    """Many at once."""
    etas = etas or {}
    borrowed: dict[str, dict[str, int]] = {}
    for pool in broker.pools.values():
        borrowed.update(borrowed_in(pool))
    return [
        view_request(broker, request, borrowed.get(request.id, {}), etas.get(request.id, UNKNOWN))
        for request in requests
    ]


def view_pool(pool: Pool) -> PoolView:
    ledger, spec = pool.ledger, pool.spec
    at = ledger.index
    policies = view_policies(pool)
    return PoolView(
        name=pool.name,
        description=spec.description,
        queueing=spec.queueing,
        capacity=dict(spec.capacity),
        used={key: most - ledger.free[at[key]] - ledger.phantom[at[key]] for key, most in spec.capacity.items()},
        free={key: ledger.free[at[key]] for key in spec.capacity},
        leaving={key: ledger.leaving[at[key]] for key in spec.capacity},
        borrowed={key: sum(policy.borrowed.get(key, 0) for policy in policies) for key in spec.capacity},
        queued=len(pool.queue),
        active=sum(policy.active for policy in policies),
        grace_seconds=spec.grace_seconds,
        placement_timeout_seconds=spec.placement_timeout_seconds,
        infeasible=spec.infeasible,
        node_labels=dict(spec.node_labels),
        ray_resources=dict(spec.ray_resources),
        policies=policies,
        phantom={key: ledger.phantom[at[key]] for key in spec.capacity},
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


def view_front(pool: Pool, broker: Broker, first: int, etas: Mapping[str, Eta]) -> FrontView:
    """The first so many of each kind. etas: of those that wait, as far as it is known."""
    aside = [one for one in broker.requests.values() if pool.name in one.held_out]
    charged = [one for one in pool.ledger.allocations() if one.request.allocation is one]
    shown = heapq.nsmallest(first, charged, key=_leaving_first)
    borrowed = borrowed_in(pool) if shown else {}

    def waiters(requests: Iterable[Request]) -> list[RequestView]:
        return [view_request(broker, one, {}, etas.get(one.id, UNKNOWN)) for one in requests]

    return FrontView(
        pool=view_pool(pool),
        waiting=waiters(explanation_of(pool).first(first)),
        running=[view_request(broker, one.request, borrowed.get(one.request.id, {})) for one in shown],
        running_in_all=len(charged),
        aside=waiters(islice(aside, first)),
        aside_in_all=len(aside),
    )


def _leaving_first(allocation: Allocation) -> tuple[bool, float, int]:
    """1. Those that leave. 2. Earliest deadline. 3. The last granted."""
    deadline = allocation.request.deadline if allocation.leaving else None
    return not allocation.leaving, deadline or 0.0, -allocation.serial


def view_broker(
    broker: Broker,
    warnings: Iterable[str] = (),
    started_at: float = 0.0,
    version: str = "",
    degraded: str = "",
    journal: str = "",
    outside: Iterable[dict[str, Any]] = (),
) -> BrokerView:
    counts: dict[str, int] = {}
    for request in broker.requests.values():
        assert request.status is not None
        counts[request.status.value] = counts.get(request.status.value, 0) + 1
    return BrokerView(
        pools=[view_pool(pool) for _, pool in sorted(broker.pools.items())],
        requests=counts,
        unmanaged=broker.unmanaged,
        owner_timeout_seconds=broker.owner_timeout_seconds,
        warnings=list(warnings),
        started_at=started_at,
        version=version,
        degraded=degraded,
        journal=journal,
        outside=list(outside),
    )


def view_history(broker: Broker) -> list[VersionView]:
    """Every change of pools and policies that is kept, by number."""
    return [
        VersionView(one.number, one.at, one.what, one.by, one.note, one.back_to) for one in broker.history.versions
    ]


def view_preview(found: Preview, broken: Collection[str] = (), known: Collection[str] = ()) -> PreviewView:
    """broken: what pools would promise beyond their nodes. known: what they do now."""
    told: list[ConsequenceView] = []
    counts: dict[str, int] = {}
    for one in found.consequences:
        counts[one.kind] = counts.get(one.kind, 0) + 1
        if counts[one.kind] <= MOST_CONSEQUENCES:
            told.append(_view_consequence(one))
    return PreviewView(
        number=found.after.history.number,
        consequences=told,
        more={kind: count - MOST_CONSEQUENCES for kind, count in counts.items() if count > MOST_CONSEQUENCES},
        promises=[promise for promise in broken if promise not in known],
        warnings=[*config_warnings(found.after), *(promise for promise in broken if promise in known)],
    )


def _view_consequence(one: Consequence) -> ConsequenceView:
    before: dict[str, int] | int | None = None
    after: dict[str, int] | int | None = None
    match one:
        case BorrowsMore():
            before, after = dict(one.before), dict(one.after)
        case Moves():
            before, after = one.before, one.after
    return ConsequenceView(
        one.kind, one.request, one.component, one.sentence, getattr(one, "pool", None), before, after
    )


def config_warnings(broker: Broker) -> list[str]:
    """What is allowed in its pools and policies but rarely meant."""
    return warnings_of(specs_of(broker), {name: pool.policies for name, pool in broker.pools.items()})


def specs_of(broker: Broker) -> dict[str, PoolSpec]:
    return {name: pool.spec for name, pool in broker.pools.items()}
