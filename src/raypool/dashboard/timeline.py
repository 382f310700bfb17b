"""One pool over the last hours: who used how much, and who had to leave for whom, as the broker has kept it."""

from __future__ import annotations

from typing import Any

from raypool.client.client import Client

LONGEST_SECONDS = 24 * 3600.0

STEPS = 240
"""So many points in time a timeline has at most."""

MOST_EVICTIONS = 200


def timeline_of(client: Client, pool: str, seconds: float, now: float) -> dict[str, Any]:
    """Of the last so many seconds: `times`, and by key `capacity`, `components`, `borrowed` as means over the steps
    of `step_seconds` that begin then, None where nothing is known; the first is one of which something is.
    `evictions`: the last first, `most_evictions` at most. Blocks."""
    usage = client.usage(since_seconds=seconds, step_seconds=seconds / STEPS, pool=pool)
    keys = usage.pools.get(pool, {})
    known = [at for lines in keys.values() for at, one in enumerate(lines["capacity"]) if one is not None]
    begins = min(known, default=len(usage.times))
    since = now - seconds
    evicted = client.events(since=since, pool=pool, kind="evicted", limit=MOST_EVICTIONS)
    return {
        "times": usage.times[begins:],
        "step_seconds": usage.step_seconds,
        "keys": {key: _from(lines, begins) for key, lines in keys.items()},
        "since": since,
        "now": now,
        "evictions": [
            {name: getattr(one, name) for name in ("at", "request", "component", "by", "rule", "why")}
            for one in reversed(evicted)
        ],
        "most_evictions": MOST_EVICTIONS,
    }


def _from(lines: dict[str, Any], begins: int) -> dict[str, Any]:
    return {
        "capacity": lines["capacity"][begins:],
        **{what: {name: line[begins:] for name, line in lines[what].items()} for what in ("components", "borrowed")},
    }
