"""Work that survives being preempted: it is warned, writes a checkpoint, leaves, and goes on later.

    python examples/survive_preemption.py

The sandbox trains on more GPUs than are reserved for it. After some seconds this script plays the other
team too: production takes its reserve, and gives it back. In your own code only `train` matters.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import ray

import raypool
from raypool import ResourceSettings

STEPS = 60


@raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=4), workers=3, strategy="SPREAD")
def train(checkpoint: Path) -> str:
    step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
    print(f"training from step {step}")

    lease = raypool.current_lease()
    # A callback hears of the notice at once, in a thread of its own ...
    lease.on_preemption(
        lambda notice: print(f"{notice.by_component} wants the room; {notice.seconds_left:.0f} s left")
    )

    while step < STEPS:
        time.sleep(0.2)  # one step of training
        step += 1
        # ... and the notice can be looked at where it suits the work: here, between two steps.
        if lease.preemption_notice:
            checkpoint.write_text(json.dumps({"step": step}))  # where every node can read it: a bucket, NFS
            print(f"wrote the checkpoint of step {step}")
            # Leaving early gives the room to the other team now. Who stays is ended at the deadline.
            raise raypool.Preempted("leaving early")
    return f"finished all {step} steps"


def main() -> None:
    try:
        client = raypool.connect()
    except raypool.BrokerUnavailable as error:
        sys.exit(f"{error}\nTo try it on this machine: python examples/local_cluster.py, in another terminal.")

    with tempfile.TemporaryDirectory() as directory:
        # A task that was preempted is queued again by itself: up to max_preemptions=3 times, unless told otherwise.
        result = train.remote(Path(directory, "checkpoint.json"))
        while not any(one.running for one in client.requests(component="sandbox", ended=False)):
            time.sleep(0.1)
        time.sleep(3)

        print("production arrives")
        with raypool.lease(ResourceSettings(gpu_count=4), component="production"):
            print("production runs")
            time.sleep(3)
        print("production has left")

        print(ray.get(result))
    this_job = ray.get_runtime_context().get_job_id()
    for request in client.requests(component="sandbox"):
        if request.job == this_job:
            print(f"  {request.id}  {request.status:9}  {request.reason}")


if __name__ == "__main__":
    main()
