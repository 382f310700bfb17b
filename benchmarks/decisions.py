"""What one decision costs when many merely wait: release-and-grant with 100 to 100,000 waiters.

    python benchmarks/decisions.py     # figures are processor time: other work on the machine matters less

Pure core, no Ray: `Broker.handle` of a release, with the grant that follows from it (both in one call),
and of the submission that takes the place of the one that was granted. The waiters are of a few shapes
and several components in one strict pool, so that each release lets exactly one of them in.
"""

from __future__ import annotations

import gc
import statistics
import time

from rich.console import Console
from rich.table import Table

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.spec import BrokerConfig, PolicySpec, PoolSpec, RequestSpec, ResourceSettings

COMPONENTS = 4
SHAPES = (1, 2, 4)
TURNS = 2_000
SIZES = (100, 1_000, 20_000, 100_000)


def crowded(waiting: int) -> tuple[Broker, list[str]]:
    """A full pool of 8 GPUs and `waiting` requests behind it; the ids of those that run."""
    broker = Broker(World(confirms_placement=False, confirms_removal=False))
    policies = tuple(PolicySpec(pool="p", component=f"c{i}", priority=1) for i in range(COMPONENTS))
    broker.handle(
        ev.ConfigApplied(BrokerConfig(pools=(PoolSpec(name="p", capacity={"gpu": 8}),), policies=policies)), 0
    )
    running = []
    for i in range(8):
        running.append(f"r{i}")
        broker.handle(submitted(running[-1], i, 1), 0)
    broker.handle(submitted("head", 0, 1), 0)  # the line begins with one of the size that is released
    for i in range(waiting - 1):
        broker.handle(submitted(f"w{i}", i, SHAPES[i % len(SHAPES)] if i % 50 else 1), 0)
    return broker, running


def submitted(request_id: str, component: int, gpus: int) -> ev.Submitted:
    settings = ResourceSettings(gpu_count=gpus)
    return ev.Submitted(RequestSpec(id=request_id, component=f"c{component % COMPONENTS}", resources=settings))


def measure(waiting: int) -> dict[str, float]:
    """Microseconds per release-and-grant and per submission."""
    broker, running = crowded(waiting)
    turns, submissions = [], []
    gc.collect()
    gc.disable()
    try:
        for turn in range(TURNS):
            leaver = ev.Released(running[turn % len(running)])
            began = time.process_time()
            changes = broker.handle(leaver, 0)
            turns.append(time.process_time() - began)
            granted = [one.request for one in changes if one.to.value == "allocated"]
            running[turn % len(running) : turn % len(running) + 1] = granted
            if not running:
                break
            event = submitted(f"n{turn}", turn, 1)
            began = time.process_time()
            broker.handle(event, 0)
            submissions.append(time.process_time() - began)
    finally:
        gc.enable()
    return {
        "p50": statistics.median(turns) * 1e6,
        "p99": statistics.quantiles(turns, n=100)[98] * 1e6,
        "submit p50": statistics.median(submissions) * 1e6,
    }


def main() -> None:
    measure(100)  # warm-up
    table = Table("waiting", "release + grant p50", "p99", "submission p50", "p50 / p50 of 100")
    reference = 0.0
    for waiting in SIZES:
        figures = measure(waiting)
        reference = reference or figures["p50"]
        table.add_row(
            f"{waiting:,}",
            f"{figures['p50']:.1f} us",
            f"{figures['p99']:.1f} us",
            f"{figures['submit p50']:.1f} us",
            f"{figures['p50'] / reference:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
