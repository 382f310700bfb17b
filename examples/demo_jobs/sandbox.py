"""The sandbox's job: two trials of four GPUs each, while the team has a reserve of four.

Each trial watches for the notice that it must leave. When it comes, the trial writes its checkpoint and
leaves at once; raypool queues it again, and it goes on where it was. Nothing here names the team: that
came with `ray job submit --metadata-json '{"raypool.component": "sandbox"}'`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import ray

import raypool
from raypool import PreemptionNotice, ResourceSettings

STEP_SECONDS = 0.2
CHECKPOINT_SECONDS = 1.5  # what a real model takes to be written somewhere safe


@raypool.remote(resources=ResourceSettings(gpu_count=4))
def trial(checkpoint: Path, steps: int) -> dict[str, Any]:
    """Fits y = weight * x by gradient descent, so slowly that one can watch it."""
    lease = raypool.current_lease()
    assert lease is not None
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "weight": 0.0, "runs": []}
    run = {"request": lease.request_id, "from": state["step"], "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}
    while state["step"] < steps:
        if notice := lease.preemption_notice:
            save(checkpoint, state, run, notice)
            raise raypool.Preempted("the checkpoint is written: leaving before the deadline")
        state["weight"] -= 0.05 * 2 * (state["weight"] - 3.0)
        state["step"] += 1
        time.sleep(STEP_SECONDS)
    save(checkpoint, state, run, None)
    return state


def save(checkpoint: Path, state: dict[str, Any], run: dict[str, Any], notice: PreemptionNotice | None) -> None:
    """Writes beside the file and renames: whoever is killed half-way leaves the last one whole."""
    if notice is not None:
        time.sleep(CHECKPOINT_SECONDS)
        run |= {"asked_by": notice.by_component, "rule": notice.rule, "deadline": notice.deadline}
    state["runs"].append({**run, "to": state["step"], "written_at": time.time()})
    beside = checkpoint.with_suffix(".new")
    beside.write_text(json.dumps(state))
    beside.rename(checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=130)
    asked = parser.parse_args()
    ray.init()
    names = ("trial-a", "trial-b")
    trials = [
        trial.options(description=name).remote(asked.checkpoints / f"{name}.json", asked.steps) for name in names
    ]
    for name, state in zip(names, ray.get(trials), strict=True):
        print(f"{name}: weight {state['weight']:.3f} after {state['step']} steps in {len(state['runs'])} run(s)")


if __name__ == "__main__":
    main()
