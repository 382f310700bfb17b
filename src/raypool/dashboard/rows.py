"""What the page shows, cut out of the client's views into named parts that are plain data.

A part is sent again only when it differs from what was sent, so nothing in here may change by itself: moments, no
ages, and an expected start in words, which nobody could tell to the second anyway.
"""

from __future__ import annotations

from typing import Any

from raypool.view import BrokerView, ExplanationView, PageView, RequestView

Parts = dict[str, Any]
"""By name. "broker": counts and warnings; "pool:NAME"; "waiting" and "running": the ids of a page, in order;
"request:ID": a row of either; "first": why the first of those who wait does, and what would start it."""


def parts_of_broker(view: BrokerView) -> Parts:
    parts: Parts = {
        "broker": {
            "requests": view.requests,
            "warnings": view.warnings,
            "degraded": view.degraded,
            "version": view.version,
            "started_at": view.started_at,
            "pools": [pool.name for pool in view.pools],
        }
    }
    for pool in view.pools:
        parts[f"pool:{pool.name}"] = pool.as_dict()
    return parts


def parts_of_page(kind: str, page: PageView) -> Parts:
    rows = rows_of(page)
    parts: Parts = {kind: {"ids": [row["id"] for row in rows], "in_all": page.in_all, "first": page.first}}
    for row in rows:
        parts[f"request:{row['id']}"] = row
    return parts


def rows_of(page: PageView) -> list[dict[str, Any]]:
    """What a table shows of each request."""
    return [_row_of(one, page.places.get(one.id)) for one in page.requests]


def _row_of(view: RequestView, place: list[Any] | None) -> dict[str, Any]:
    row = {
        "id": view.id,
        "component": component_of(view.component, view.component_type),
        "status": view.status,
        "demand": view.demand,
        "workers": view.workers,
        "preemptible": view.preemptible,
        "description": view.description[:200],
        "submitted_at": view.submitted_at,
        "reason": view.reason,
        "rule": view.rule,
    }
    if view.status == "pending" and not view.placing:
        return {**row, "place": place, "reasons": view.reasons, "eta": view.eta}
    return {
        **row,
        "pool": view.pool or next(iter(view.reasons), None),
        "placing": view.placing,
        "nodes": view.nodes,
        "borrowed": view.borrowed,
        "granted_at": view.granted_at,
        "ended_at": view.ended_at,
        "deadline": view.deadline,
        "runs_until": view.runs_until,
        "opportunistic": view.opportunistic,
        "preempted_by": view.preempted_by,
        "preempted_by_component": view.preempted_by_component,
    }


def first_of(why: ExplanationView) -> dict[str, Any]:
    return {
        "id": why.id,
        "component": why.component,
        "sentence": why.sentence,
        "expected": why.expected,
        "waits": [one.as_dict() for one in why.waits],
        "would_start": why.would_start,
    }


def component_of(name: str, kind: str) -> str:
    """As the page names it: the kind is said only where it is not a team."""
    return name if kind == "team" else f"{name} ({kind})"
