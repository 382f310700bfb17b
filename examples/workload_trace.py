"""A made-up workload trace as CSV, in the shape of the traces that production GPU clusters publish.

Services (half of the jobs), batch work and a little training ask for one GPU mostly, at times for eight; a job
in two runs for less than ten minutes, one in ten for hours. The same seed makes the same trace.

    python examples/workload_trace.py > trace.csv
    python examples/workload_trace.py --jobs 100000 --days 60 --seed 2 > long.csv

docs/how-to/replay.md replays it.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
from collections.abc import Iterator

MEDIAN_SECONDS, SPREAD, LONGEST_SECONDS = 545, 1.9, 2 * 86400
KINDS = {"LS": 0.57, "BE": 0.40, "Burstable": 0.03}
GPUS = {0: 0.10, 1: 0.84, 2: 0.03, 4: 0.02, 8: 0.01}


def rows(jobs: int, days: float, seed: int) -> Iterator[tuple[object, ...]]:
    """One job each, in order of creation. Now and then many come at once, and some never ran."""
    luck = random.Random(seed)
    times = sorted(_moment(luck, days) for _ in range(jobs))
    for number, created in enumerate(times):
        (kind,) = luck.choices(list(KINDS), list(KINDS.values()))
        (gpus,) = luck.choices(list(GPUS), list(GPUS.values()))
        ran = min(math.ceil(luck.lognormvariate(math.log(MEDIAN_SECONDS), SPREAD)), LONGEST_SECONDS)
        if kind == "Burstable":
            ran *= 4
        scheduled = created + luck.randrange(10)
        if luck.random() < 0.05:
            yield f"task-{number:05}", kind, gpus, created, "", created + 60
        else:
            yield f"task-{number:05}", kind, gpus, created, scheduled, scheduled + ran


def _moment(luck: random.Random, days: float) -> int:
    """By day twice as often as by night; a fifth of all in bursts at noon."""
    day = luck.randrange(math.ceil(days)) * 86400
    if luck.random() < 0.2:
        return day + 12 * 3600 + luck.randrange(1200)
    hour = luck.choices(range(24), [2 if 8 <= hour < 20 else 1 for hour in range(24)])[0]
    return day + hour * 3600 + luck.randrange(3600)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a workload trace as CSV.")
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--days", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["name", "qos", "num_gpu", "creation_time", "scheduled_time", "deletion_time"])
    writer.writerows(rows(asked.jobs, asked.days, asked.seed))


if __name__ == "__main__":
    main()
