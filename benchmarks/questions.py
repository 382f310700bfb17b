"""What "why?", a dry run and a look ahead cost with 5,000 waiting and 200 running, and for how long the broker is
held up by them.

    python benchmarks/questions.py     # figures are processor time: other work on the machine matters less

Pure core, no Ray. Ten components in two pools; the waiters are alike by component, or each asks for something of
its own. The broker answers other calls between two pieces of a search, and of a look ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.dry_run import dry_run
from raypool.core.eta import Forecast
from raypool.core.what_if import search
from raypool.spec import BrokerConfig, RequestSpec

WAITING, RUNNING, COMPONENTS = 5_000, 200, 10


def crowded(unlike: bool) -> Broker:
    broker = Broker(World())
    pools = [{"name": name, "capacity": {"gpu": 2 * RUNNING, "mcpu": 10**9}} for name in "pq"]
    policies = [
        {"pool": name, "component": f"c{i}", "priority": 1 + i % 3, "reserved": {"gpu": 20}}
        for name in "pq"
        for i in range(COMPONENTS)
    ]
    broker.handle(ev.ConfigApplied(BrokerConfig.load({"pools": pools, "policies": policies})), 0)
    for i in range(RUNNING + WAITING):
        spec = asked(f"r{i}", i, unlike)
        broker.handle(ev.Submitted(spec), 0)
        if broker.requests[spec.id].current is not None:
            broker.handle(ev.PlacementReady(spec.id, 1, "group", ("node",)), 0)
    return broker


def asked(request_id: str, number: int, unlike: bool) -> RequestSpec:
    resources = {"gpu_count": 4, **({"cpu_count": 1 + number / 1000} if unlike else {})}
    return RequestSpec.load({"id": request_id, "component": f"c{number % COMPONENTS}", "resources": resources})


def pieces(work: Iterable[object]) -> tuple[float, float]:
    """Milliseconds of all of it, and of its longest piece."""
    began = last = time.process_time()
    longest = 0.0
    for _ in work:
        now = time.process_time()
        longest, last = max(longest, now - last), now
    now = time.process_time()
    return (now - began) * 1e3, max(longest, now - last) * 1e3


def measure(unlike: bool, request_id: str) -> tuple[float, float, float, str]:
    """Milliseconds of a search, of its longest piece, of a dry run; and what was found."""
    broker = crowded(unlike)
    found: list[str] = []

    def why() -> Iterator[None]:
        for suggestion in search(broker, broker.requests[request_id], 10.0):
            found.extend([suggestion.rule] if suggestion is not None else [])
            yield

    whole, longest = pieces(why())
    began = time.process_time()
    dry_run(broker, asked("dry", 1, unlike), 10.0)
    return whole, longest, (time.process_time() - began) * 1e3, ", ".join(found) or "-"


def look(broker: Broker, ids: list[str] | None) -> Iterator[None]:
    yield from Forecast(broker, ids).steps()


def main() -> None:
    table = Table("waiters", "who asks", "why", "longest piece", "dry run", "what would start it")
    looks = Table("waiters", "look ahead at", "whole", "longest piece")
    for unlike in (False, True):
        kind = "all unlike" if unlike else "alike"
        for who, request_id in (("one near the head", f"r{RUNNING}"), ("the last", f"r{RUNNING + WAITING - 1}")):
            whole, longest, dry, found = measure(unlike, request_id)
            table.add_row(kind, who, f"{whole:.0f} ms", f"{longest:.0f} ms", f"{dry:.0f} ms", found)
        for whom, ids in (("one near the head", [f"r{RUNNING}"]), ("all", None)):
            whole, longest = pieces(look(crowded(unlike), ids))
            looks.add_row(kind, whom, f"{whole / 1e3:.1f} s", f"{longest:.0f} ms")
    Console().print(table, looks)


if __name__ == "__main__":
    main()
