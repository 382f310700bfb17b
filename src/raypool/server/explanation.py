"""Makes the answers to "why?" and "what if?" (view.py) from the core, by reading it."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

from raypool.core.broker import Broker
from raypool.core.dry_run import DryRun
from raypool.core.explain import explanation_of, wait_reasons
from raypool.core.ledger import Ledger
from raypool.core.nodes import Misfit
from raypool.core.pool import Pool
from raypool.core.reasons import Evicted, NoPoolTakesIt, Reason, RoomBeingMade, amounts
from raypool.core.request import Request
from raypool.core.status import Status
from raypool.core.victims import Taker, takers
from raypool.core.what_if import Suggestion
from raypool.server.views import UNKNOWN, Eta, view_request
from raypool.view import DryRunView, ExplanationView, WaitView

HOLDERS_NAMED = 8
LEAVERS_NAMED = 5
"""So many are named at most; the rest is counted."""


def view_explanation(broker: Broker, request: Request, now: float, eta: Eta = UNKNOWN) -> ExplanationView:
    """Without what would start it: that is looked for by and by (what_if.py)."""
    view = view_request(broker, request, None, eta)
    reason = request.reason
    rejected = reason is not None and request.status is Status.REJECTED
    return ExplanationView(
        id=request.id,
        component=request.owner[0],
        status=view.status,
        sentence=view.story.partition("\n")[0],
        at=now,
        expected=view.eta,
        waits=[_wait(broker, request, name, why) for name, why in wait_reasons(broker, request).items()],
        tried=_tried(reason) if rejected and reason is not None else [],
        evicted=_evicted(request, reason) if isinstance(reason, Evicted) else None,
        borrowed=view.borrowed,
        takers=_takers(request) if request.status is Status.ALLOCATED else [],
    )


def _wait(broker: Broker, request: Request, name: str, reason: Reason) -> WaitView:
    pool = broker.pools.get(name)
    if pool is None:  # a component without a policy has no pool
        return WaitView(name, reason.rule, reason.sentence)
    position, ahead = None, []
    if name in request.queued:
        explanation = explanation_of(pool)
        position, ahead = explanation.position(request), [one.id for one in explanation.ahead_of(request)]
    return WaitView(
        pool=name,
        rule=reason.rule,
        sentence=reason.sentence,
        position=position,
        ahead=ahead,
        ahead_in_all=position - 1 if position is not None else 0,
        figures=_figures(pool, request),
        waits_for=_leavers(pool) if isinstance(reason, RoomBeingMade) else [],
        waits_for_in_all=len(pool.ledger.leavers) if isinstance(reason, RoomBeingMade) else 0,
    )


def _figures(pool: Pool, request: Request) -> dict[str, dict[str, Any]]:
    ledger, own = pool.ledger, pool.ledger.accounts[request.owner]
    names = _names_of_owners(pool)
    return {
        ledger.keys[key]: {
            "asks": amount,
            "free": ledger.free[key],
            "leaving": ledger.leaving[key],
            "phantom": ledger.phantom[key],
            "capacity": ledger.capacity[key],
            **_held(ledger, names, key),
            "used": own.used[key],
            "reserved": own.reserved[key],
            "limit": own.limit[key],
        }
        for key, amount in pool.need(request)
    }


def _held(ledger: Ledger, names: dict[tuple[str, str], str], key: int) -> dict[str, Any]:
    """Who holds most of a key, and how much all others hold."""
    most = heapq.nlargest(HOLDERS_NAMED, ledger.accounts.values(), key=lambda account: account.used[key])
    held = {names[account.owner]: account.used[key] for account in most if account.used[key]}
    charged = ledger.capacity[key] - ledger.free[key] - ledger.phantom[key]
    return {"held": held, "others": charged - sum(held.values())}


def _names_of_owners(pool: Pool) -> dict[tuple[str, str], str]:
    """Names for people; with the type where two kinds of components have the same."""
    alike = Counter(name for name, _ in pool.ledger.accounts)
    return {(name, kind): name if alike[name] == 1 else f"{name} ({kind})" for name, kind in pool.ledger.accounts}


def _leavers(pool: Pool) -> list[dict[str, Any]]:
    return [
        {
            "id": allocation.request.id,
            "component": allocation.request.owner[0],
            "holds": pool.ledger.by_key(allocation.need),
            "leaves_by": allocation.request.deadline,
        }
        for _, allocation in heapq.nsmallest(LEAVERS_NAMED, pool.ledger.leavers.items())
    ]


def _tried(reason: Reason) -> list[dict[str, Any]]:
    reasons = reason.tried if isinstance(reason, NoPoolTakesIt) else (reason,)
    return [{"rule": one.rule, "sentence": one.sentence} for one in reasons]


def _evicted(request: Request, reason: Evicted) -> dict[str, Any]:
    return {
        "by": reason.by,
        "by_component": reason.by_component,
        "why": reason.why,
        "pool": reason.pool,
        "missing": dict(reason.missing),
        "borrowed": dict(reason.borrowed),
        "before": dict(reason.before),
        "after": dict(reason.after),
        "reserved": dict(reason.reserved),
        "leaves_by": request.deadline,
    }


def _takers(request: Request) -> list[dict[str, Any]]:
    allocation = request.allocation
    if allocation is None or allocation.account is None or allocation.pool is None:
        return []
    borrowed = dict(allocation.account.line())[allocation]
    return [
        {
            "component": one.account.owner[0],
            "component_type": one.account.owner[1],
            "why": one.why,
            "sentence": _taker_sentence(one, allocation.account.priority, allocation.pool),
        }
        for one in takers(allocation, borrowed)
    ]


def _taker_sentence(taker: Taker, priority: int, pool: Pool) -> str:
    who = f"'{taker.account.owner[0]}'"
    unused = amounts(pool.ledger.by_key(taker.unused))
    if taker.why == "preempt":
        return f"{who}: priority {taker.account.priority} goes before {priority}"
    if taker.why == "backfilled":
        return f"{who}: it ran ahead of its turn"
    if taker.firm_only:
        return f"{who}, with non-preemptible work: that uses all but {unused} of its reserve"
    return f"{who}: {unused} reserved for it are not in use"


def view_suggestion(one: Suggestion) -> dict[str, Any]:
    return {"rule": one.rule, "sentence": one.sentence, "leaving": list(one.leaving)}


# --- a dry run --------------------------------------------------------------------------------


def view_dry_run(answer: DryRun, nodes: tuple[str, ...] | Misfit | None, eta: Eta = UNKNOWN) -> DryRunView:
    where = None
    if isinstance(nodes, Misfit):
        where = f"it would not be placed yet: {nodes.as_search}"
    elif nodes is not None:
        where = f"there is room on today's nodes: {', '.join(dict.fromkeys(nodes))}"
    return DryRunView(
        request=view_request(answer.broker, answer.request, None, eta),
        starts=answer.granted,
        pool=answer.pool,
        places=None if nodes is None else not isinstance(nodes, Misfit),
        nodes=where,
        evicts=[
            {"id": one.id, "component": one.owner[0], "sentence": reason.sentence} for one, reason in answer.evicted
        ],
    )


def view_known(broker: Broker, request: Request, eta: Eta = UNKNOWN) -> DryRunView:
    """Of a request that is there already: asked for again, it is the same."""
    current = request.current
    pool = current.pool.name if current is not None and current.pool is not None else None
    return DryRunView(view_request(broker, request, None, eta), starts=current is not None, known=True, pool=pool)
