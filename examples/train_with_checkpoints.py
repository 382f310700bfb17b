"""A training loop that survives being preempted: told to leave, it writes its checkpoint, and goes on from it later.

    python examples/train_with_checkpoints.py --component sandbox --checkpoint state.json

A classifier with two weights and a bias, fitted by stochastic gradient descent. The checkpoint holds all that the
result depends on, so it comes out the same however often the training had to leave. docs/how-to/survive-preemption.md
shows it being preempted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import ray

import raypool
from raypool import ResourceSettings

POINTS = 400
RATE = 0.05
EVERY = 10  # epochs between checkpoints that are written without a notice, against the death of a node


def points() -> list[tuple[float, float, int]]:
    """Two clouds that overlap, always the same."""
    of_data = random.Random(1)
    labels = [number % 2 for number in range(POINTS)]
    return [(of_data.gauss(2 * label, 1), of_data.gauss(label, 1), label) for label in labels]


def fresh() -> dict[str, Any]:
    return {"epoch": 0, "weights": [0.0, 0.0, 0.0], "random": random.Random(2).getstate(), "began": []}


def read(checkpoint: Path) -> dict[str, Any]:
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else fresh()
    version, numbers, gauss = state["random"]
    return {**state, "random": (version, tuple(numbers), gauss)}


def write(checkpoint: Path, state: dict[str, Any]) -> None:
    """Whoever is killed in the middle of it leaves the old checkpoint whole."""
    new = checkpoint.with_name(checkpoint.name + ".new")
    new.write_text(json.dumps(state))
    os.replace(new, checkpoint)


def one_epoch(state: dict[str, Any], data: list[tuple[float, float, int]]) -> None:
    order = random.Random()
    order.setstate(state["random"])
    a, b, bias = state["weights"]
    for x, y, label in order.sample(data, len(data)):
        error = 1 / (1 + math.exp(-(a * x + b * y + bias))) - label
        a, b, bias = a - RATE * error * x, b - RATE * error * y, bias - RATE * error
    state.update(epoch=state["epoch"] + 1, weights=[a, b, bias], random=order.getstate())


def accuracy(state: dict[str, Any], data: list[tuple[float, float, int]]) -> float:
    a, b, bias = state["weights"]
    return sum((a * x + b * y + bias > 0) == bool(label) for x, y, label in data) / len(data)


@raypool.remote(resources=ResourceSettings(gpu_count=4), max_preemptions=10)
def train(checkpoint: Path, epochs: int, seconds_per_epoch: float) -> dict[str, Any]:
    data = points()
    state = read(checkpoint)
    state["began"].append(state["epoch"])
    lease = raypool.current_lease()
    while state["epoch"] < epochs:
        one_epoch(state, data)
        time.sleep(seconds_per_epoch)  # a larger model takes longer
        if lease.preemption_notice:
            write(checkpoint, state)
            raise raypool.Preempted(f"left after epoch {state['epoch']}")
        if state["epoch"] % EVERY == 0:
            write(checkpoint, state)
    write(checkpoint, state)
    return {"began": state["began"], "weights": state["weights"], "accuracy": accuracy(state, data)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--component", required=True, help="who trains")
    parser.add_argument("--checkpoint", required=True, type=Path, help="a file that every node can read and write")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seconds-per-epoch", type=float, default=0.2)
    given = parser.parse_args()
    try:
        raypool.connect()
    except raypool.BrokerUnavailable as error:
        sys.exit(f"{error}\nTo try it on this machine: python examples/local_cluster.py, in another terminal.")

    ref = train.options(component=given.component).remote(
        given.checkpoint.absolute(), given.epochs, given.seconds_per_epoch
    )
    result = ray.get(ref)
    for number, epoch in enumerate(result["began"], start=1):
        print(f"run {number} began at epoch {epoch}")
    print(f"finished: {result['accuracy']:.1%} of the points are right")
    given.checkpoint.unlink()


if __name__ == "__main__":
    main()
