"""Usage over the last hours: what the broker has kept, or what this process has seen itself since it began.

Samples of its own are one line of figures for each pool, key and component, at most one every `SAMPLE_SECONDS`, for
`KEPT_SECONDS`. Evictions are told by the broker in either case.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from raypool.client.client import Client
from raypool.dashboard.rows import component_of
from raypool.view import BrokerView

SAMPLE_SECONDS = 15.0
KEPT_SECONDS = 6 * 3600.0
STEPS = 240
"""So many points in time a timeline has at most."""

MOST_EVICTIONS = 200

Point = dict[str, dict[str, tuple[int, dict[str, int], dict[str, int]]]]
"""By pool and key: the capacity, and what each component used and borrowed."""


class Samples:
    """Added by one thread and read by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: deque[tuple[float, Point]] = deque()

    def add(self, at: float, view: BrokerView) -> None:
        with self._lock:
            if self._points and at < self._points[-1][0] + SAMPLE_SECONDS:
                return
            self._points.append((at, _point(view)))
            while self._points[0][0] < at - KEPT_SECONDS:
                self._points.popleft()

    def of(self, pool: str, since: float) -> dict[str, Any]:
        """Of one pool: `times`, and by key `capacity`, `components`, `borrowed`: as the broker's own record."""
        with self._lock:
            points = [(at, point.get(pool, {})) for at, point in self._points if at >= since]
        points = points[:: max(-(-len(points) // STEPS), 1)]
        keys = dict.fromkeys(key for _, point in points for key in point)
        return {"times": [at for at, _ in points], "keys": {key: _lines(key, points) for key in keys}}


def _point(view: BrokerView) -> Point:
    point: Point = {}
    for pool in view.pools:
        own = point[pool.name] = {}
        for key, capacity in pool.capacity.items():
            used: dict[str, int] = {}
            borrowed: dict[str, int] = {}
            for policy in pool.policies:
                if policy.used.get(key):
                    used[component_of(policy.component, policy.component_type)] = policy.used[key]
                if policy.borrowed.get(key):
                    borrowed[component_of(policy.component, policy.component_type)] = policy.borrowed[key]
            own[key] = (capacity, used, borrowed)
    return point


def _lines(key: str, points: list[tuple[float, Any]]) -> dict[str, Any]:
    rows = [point.get(key, (0, {}, {})) for _, point in points]
    names = sorted({name for _, used, _ in rows for name in used})
    lent = sorted({name for _, _, borrowed in rows for name in borrowed})
    return {
        "capacity": [capacity for capacity, _, _ in rows],
        "components": {name: [used.get(name, 0) for _, used, _ in rows] for name in names},
        "borrowed": {name: [borrowed.get(name, 0) for _, _, borrowed in rows] for name in lent},
    }


def timeline_of(client: Client, samples: Samples, pool: str, since: float, now: float) -> dict[str, Any]:
    """One pool's usage and evictions since then, with what the figures are from. Blocks."""
    kept = getattr(client, "usage", None)
    if kept is None:
        found = samples.of(pool, since)
        source = "this dashboard"
    else:
        span = now - since
        answer = kept(since_seconds=span, step_seconds=max(span / STEPS, 1.0))
        found = {"times": answer["times"], "keys": answer["pools"].get(pool, {})}
        source = "the broker"
    return {**found, "source": source, "since": since, "now": now, "evictions": _evictions(client, pool, since, now)}


def _evictions(client: Client, pool: str, since: float, now: float) -> list[dict[str, Any]]:
    """Who had to leave the pool since then, the last first: `at`, `request`, `component`, `by`, `rule`, `why`. Where
    the broker keeps no events, at is when he had left; now, if he has not."""
    told = getattr(client, "events", None)
    if told is not None:
        events = [
            one for one in told(since=since, limit=5_000) if one["kind"] == "evicted" and one.get("pool") == pool
        ]
        return [
            {name: one.get(name) for name in ("at", "request", "component", "by", "rule", "why")}
            for one in reversed(events[-MOST_EVICTIONS:])
        ]
    leaving = [(now, one) for one in client.page("running", pool=pool, count=MOST_EVICTIONS).requests if one.deadline]
    ended = [(one.ended_at or now, one) for one in client.page("ended", pool=pool, count=MOST_EVICTIONS).requests]
    return [
        {
            "at": at,
            "request": one.id,
            "component": component_of(one.component, one.component_type),
            "by": {"request": one.preempted_by, "component": one.preempted_by_component},
            "rule": one.preemption_rule,
            "why": one.reason,
        }
        for at, one in [*leaving, *ended]
        if one.preempted_by and at >= since
    ]
