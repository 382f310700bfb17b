"""max_duration_seconds on a real cluster: a lease and a decorated task that run too long are ended, and told so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ray

import raypool
from raypool import ResourceSettings

from .conftest import until

NODES = [{"num_cpus": 2, "num_gpus": 4}]
POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 4}, "grace_seconds": 1}],
    "policies": [{"pool": "shared", "component": "sandbox", "priority": 10}],
}


def test_a_lease_and_a_task_that_run_too_long_are_ended_and_not_taken_for_preempted(
    client: raypool.Client, tmp_path: Path
) -> None:
    client.apply(POOLS)
    notices: list[raypool.PreemptionNotice] = []

    @ray.remote
    def sleep() -> None:
        time.sleep(120)

    begun = tmp_path / "begun"

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=2), max_duration_seconds=1.5)
    def too_long() -> None:
        with begun.open("a") as file:
            file.write("once\n")
        time.sleep(120)

    reference = too_long.remote()
    lease = raypool.lease(ResourceSettings(gpu_count=2), component="sandbox", max_duration_seconds=1)
    with pytest.raises(raypool.DurationExceeded, match="ran longer than its 1 s"), lease:
        lease.on_preemption(notices.append)
        ray.get(sleep.options(**lease.task_options()).remote(), timeout=60)
    assert [(notice.rule, notice.by) for notice in notices] == [("max-duration", "")]
    with pytest.raises(raypool.DurationExceeded, match=r"ran longer than its 1\.5 s"):
        ray.get(reference, timeout=60)
    assert begun.read_text() == "once\n"
    until(lambda: client.pool("shared").free == {"gpu": 4}, "the room is back")
    assert {view.rule for view in client.requests()} == {"max-duration"}
