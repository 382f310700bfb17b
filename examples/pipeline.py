"""A pipeline of three steps, each with resources of its own. Who runs it is said when it is submitted:

    ray job submit --metadata-json '{"raypool.component": "team-ml"}' --working-dir examples -- python pipeline.py

Each step is queued, granted, run and given back by itself, so the GPUs are held only while they train.
Results stay in Ray's object store; steps pass references.
"""

from __future__ import annotations

import random
import sys

import ray

import raypool
from raypool import ResourceSettings

Points = list[tuple[float, float]]


@raypool.remote(resources=ResourceSettings(cpu_count=1), description="prepare")
def prepare(count: int) -> Points:
    print(f"prepare: in pool '{raypool.current_lease().pool}'")
    random.seed(7)
    return [(x, 3.0 * x + random.gauss(0, 0.1)) for x in (random.uniform(-1, 1) for _ in range(count))]


@raypool.remote(resources=ResourceSettings(gpu_count=4), description="train", max_preemptions=10)
def train(points: Points) -> float:
    """May be preempted: it is queued again, and reads its points again from the object store."""
    print(f"train: in pool '{raypool.current_lease().pool}' on GPUs {ray.get_gpu_ids()}")
    weight = 0.0
    for _ in range(100):
        weight -= 0.5 * sum((weight * x - y) * x for x, y in points) / len(points)
    return weight


@raypool.remote(resources=ResourceSettings(gpu_count=1, preemptible=False), description="publish")
def publish(weight: float, points: Points) -> str:
    """Must not be broken off half-way: it is not preemptible, and waits for room in the team's reserve."""
    print(f"publish: in pool '{raypool.current_lease().pool}' on GPUs {ray.get_gpu_ids()}")
    error = sum((weight * x - y) ** 2 for x, y in points) / len(points)
    return f"published: weight {weight:.2f}, error {error:.4f}"


def main() -> None:
    try:
        raypool.connect()
    except raypool.BrokerUnavailable as error:
        sys.exit(f"{error}\nTo try it on this machine: python examples/local_cluster.py, in another terminal.")

    points = prepare.remote(2000)
    ray.wait([points], fetch_local=False)  # GPUs are asked for only when there is something to do with them
    weight = train.remote(points)
    ray.wait([weight], fetch_local=False)
    print(ray.get(publish.remote(weight, points)))


if __name__ == "__main__":
    main()
