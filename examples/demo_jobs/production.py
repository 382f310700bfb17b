"""Production's job: eight GPUs on two nodes for some seconds, all of them inside its reserve."""

from __future__ import annotations

import argparse
import time

import ray

import raypool
from raypool import ResourceSettings


@ray.remote
class Scorer:
    def score(self, seconds: float) -> str:
        time.sleep(seconds)
        return f"scored on GPUs {ray.get_gpu_ids()} of node {ray.get_runtime_context().get_node_id()[:8]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    asked = parser.parse_args()
    ray.init()
    four_gpus = ResourceSettings(gpu_count=4)
    with raypool.lease(four_gpus, workers=2, strategy="STRICT_SPREAD", description="nightly scoring") as lease:
        scorers = [Scorer.options(**lease.actor_options(bundle)).remote() for bundle in range(2)]
        for line in ray.get([scorer.score.remote(asked.seconds) for scorer in scorers]):
            print(line)


if __name__ == "__main__":
    main()
