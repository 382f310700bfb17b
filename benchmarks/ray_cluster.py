"""The Ray cluster that benchmarks run on: a head and three nodes of 8 fake GPUs, on this machine.

It lives in a private, short temp dir and is reached by an explicit address, so that other Rays on the machine are
neither seen nor disturbed. Nodes report their resources every 100 ms, which is Ray's default, or every 10 ms, as
cluster.yaml sets it. One cluster at a time: the next benchmark takes over the one that runs if it is as it needs it.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

NODES, GPUS = 3, 8
STORE_BYTES = 80 * 1024 * 1024
DEFAULT_MS, TUNED_MS = 100, 10

POOLS: dict[str, Any] = {
    "pools": [
        {"name": "gpus", "capacity": {"gpu": NODES * GPUS}},
        {"name": "cpus", "capacity": {"mcpu": 16_000}},
        {"name": "one-cpu", "capacity": {"mcpu": 1_000}},
    ],
    "policies": [
        {"pool": "gpus", "component": "red", "priority": 1},
        {"pool": "gpus", "component": "blue", "priority": 1},
        {"pool": "gpus", "component": "urgent", "priority": 9},
        {"pool": "cpus", "component": "tasks", "priority": 1},
        {"pool": "one-cpu", "component": "line", "priority": 1},
    ],
}
"""One task of the component `line` has room at a time."""


LOGGER = logging.getLogger("raypool")


class _Running:
    """The cluster that runs now, if one does."""

    def __init__(self) -> None:
        self.cluster: Any = None
        self.report_ms = 0
        self.directory = ""

    def start(self, report_ms: int) -> None:
        self.end()
        self.directory = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="rp", dir="/tmp")
        import ray
        from ray.cluster_utils import Cluster

        head: dict[str, Any] = {
            "num_cpus": 2,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "no_monitor": True,
        }
        if report_ms != DEFAULT_MS:
            head["_system_config"] = {"raylet_report_resources_period_milliseconds": report_ms}
        self.report_ms = report_ms
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(NODES):
            self.cluster.add_node(wait=False, num_cpus=8, num_gpus=GPUS, object_store_memory=STORE_BYTES)
        self.cluster.wait_for_nodes()
        ray.init(address=self.cluster.address, log_to_driver=False)
        LOGGER.setLevel(logging.ERROR)  # a broker that was stopped is missed, loudly

    def end(self) -> None:
        if self.cluster is None:
            return
        import ray

        LOGGER.setLevel(logging.NOTSET)
        ray.shutdown()
        self.cluster.shutdown()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.cluster = None


RUNNING = _Running()
atexit.register(RUNNING.end)


def new_broker(report_ms: int) -> Any:
    """A `raypool.Client` of a broker that knows nothing but `POOLS`, on a cluster with that report period."""
    if RUNNING.cluster is None or RUNNING.report_ms != report_ms:
        RUNNING.start(report_ms)
    import raypool

    raypool.start()
    raypool.stop()
    return raypool.start(POOLS)


def name_of(report_ms: int) -> str:
    """As the rows have it: D and T."""
    return "default" if report_ms == DEFAULT_MS else "tuned"


def random_phase() -> None:
    """Ray looks at pending groups once a second: a loop that sleeps for a fixed time would lock to that tick."""
    time.sleep(random.uniform(0.2, 1.2))


def seconds_until(done: Callable[[], object], most: float = 60.0) -> float:
    """How long it takes until that is true, asked every millisecond. Raises TimeoutError."""
    began = time.perf_counter()
    while not done():
        if time.perf_counter() - began > most:
            raise TimeoutError(f"not true within {most:g} s")
        time.sleep(0.001)
    return time.perf_counter() - began


def broker_pid(client: Any) -> int:
    from ray._private import state

    return int(state.actors(client._line.actor._actor_id.hex())["Pid"])
