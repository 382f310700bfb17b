"""One pool over the last hours: who used how much, and who had to leave for whom, as the broker has kept it."""

from __future__ import annotations

from typing import Any

from raypool.client.client import Client

LONGEST_SECONDS = 24 * 3600.0

STEPS = 240
"""So many points in time a timeline has at most."""

MOST_EVICTIONS = 200


def timeline_of(client: Client, pool: str, since: float, now: float) -> dict[str, Any]:
    """`times`, and by key `capacity`, `components`, `borrowed` as means over the steps that begin then; `evictions`,
    the last first. Begins with the first step of which anything is known; what is not known later is 0. Blocks."""
    usage = client.usage(since_seconds=now - since, step_seconds=(now - since) / STEPS)
    keys = usage.pools.get(pool, {})
    known = [at for lines in keys.values() for at, one in enumerate(lines["capacity"]) if one is not None]
    begins = min(known, default=len(usage.times))
    evicted = client.events(since=since, pool=pool, kind="evicted", limit=MOST_EVICTIONS)
    return {
        "times": usage.times[begins:],
        "keys": {key: _from(lines, begins) for key, lines in keys.items()},
        "since": since,
        "now": now,
        "evictions": [
            {name: getattr(one, name) for name in ("at", "request", "component", "by", "rule", "why")}
            for one in reversed(evicted)
        ],
    }


def _from(lines: dict[str, Any], begins: int) -> dict[str, Any]:
    def figures(line: list[float | None]) -> list[float]:
        return [amount or 0 for amount in line[begins:]]

    return {
        "capacity": figures(lines["capacity"]),
        "components": {name: figures(line) for name, line in lines["components"].items()},
        "borrowed": {name: figures(line) for name, line in lines["borrowed"].items()},
    }
