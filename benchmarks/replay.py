"""How long a replay takes: `raypool replay` on 100,000 jobs in the Standard Workload Format, page and all.

    python benchmarks/replay.py     # figures are processor time: other work on the machine matters less

The last column is that time as a multiple of 20 million additions in a loop, measured beside each trace: it can be
compared between machines, and between a quiet one and a busy one.

Three made-up traces over a pool of 256 processors: one with room to spare, one that is contended, and one of many
groups in a pool with backfill, whose lines are thousands long.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from raypool.simulation.page import page_of
from raypool.simulation.traces import Trace
from raypool.simulation.workload import Workload, replay_workload
from raypool.simulation.workload_report import report_of
from raypool.spec import BrokerConfig

JOBS = 100_000
CASES = {
    "4 groups, room to spare": (4, 200.0, "strict"),
    "4 groups, contended": (4, 120.0, "strict"),
    "40 groups, backfill, long lines": (40, 110.0, "backfill"),
}
"""Name -> groups, mean seconds between two jobs, queueing."""


def write_trace(file: Path, groups: int, gap: float) -> None:
    luck = random.Random(1)
    at = 0
    with file.open("w", encoding="utf-8") as out:
        for number in range(1, JOBS + 1):
            at += int(luck.expovariate(1 / gap))
            run = max(1, int(luck.lognormvariate(6, 1.8)))
            processors = luck.choice([1, 1, 1, 1, 2, 2, 4, 8, 16, 32, 64])
            out.write(
                f"{number} {at} -1 {run} {processors} -1 -1 -1 -1 -1 1 1 {luck.randrange(groups)} -1 1 1 -1 -1\n"
            )


def pools(groups: int, queueing: str) -> BrokerConfig:
    policies = [
        {"pool": "p", "component": f"group-{one}", "priority": 10 * (one % 3), "reserved": {"gpu": 128 // groups}}
        for one in range(groups)
    ]
    pool = {"name": "p", "capacity": {"gpu": 256}, "queueing": queueing}
    config: BrokerConfig = BrokerConfig.load({"pools": [pool], "policies": policies})
    return config


def measure(file: Path, config: BrokerConfig) -> tuple[float, Workload]:
    trace = Trace(file)
    began = time.process_time()
    workload = replay_workload(trace, config)
    page_of([(report_of(workload, file.name, trace.counts, "pools"), workload)])
    return time.process_time() - began, workload


def additions() -> float:
    """Seconds of this processor for 20 million additions."""
    began, total = time.process_time(), 0
    for number in range(20_000_000):
        total += number
    return time.process_time() - began


def main() -> None:
    headings = ("trace", "seconds", "events", "preemptions", "MB at most", "x 20M additions")
    table = Table(*headings, title=f"{JOBS:,} jobs on 256 processors")
    with tempfile.TemporaryDirectory() as folder:
        for name, (groups, gap, queueing) in CASES.items():
            file = Path(folder) / "trace.swf"
            write_trace(file, groups, gap)
            before = additions()
            seconds, workload = measure(file, pools(groups, queueing))
            ratio = seconds / ((before + additions()) / 2)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            figures = f"{seconds:.1f}", f"{workload.events:,}", f"{len(workload.evictions):,}", f"{memory:.0f}"
            table.add_row(name, *figures, f"{ratio:.1f}")
            print(f"{name}: {seconds:.1f} s, {ratio:.1f} x 20M additions", file=sys.stderr, flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
