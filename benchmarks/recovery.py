"""How long a broker with a full house is away when its process is killed: 10,000 wait, 200 hold.

    python benchmarks/recovery.py           # PENDING=10000 HELD=200 KILLS=5 say otherwise

A real cluster on this machine with one node of fake GPUs, so 200 placement groups are real. `kill -9` of the
broker's process, then calls until one is answered. Prints, for each kill, the seconds from the kill, and from
the start of the new process (the rest is Ray's: noticing it, finding a worker), to the first answer; and
whether everybody is where he was.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import tempfile
import time

import psutil
import ray
from ray._private import state
from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

import raypool

PENDING = int(os.environ.get("PENDING", "10000"))
HELD = int(os.environ.get("HELD", "200"))
KILLS = int(os.environ.get("KILLS", "5"))
STORE_BYTES = 80 * 1024 * 1024
BAR_SECONDS = 3.0


def main() -> None:
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="rp", dir="/tmp")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "no_monitor": True,
            "_system_config": {"raylet_report_resources_period_milliseconds": 10},
        },
    )
    try:
        cluster.add_node(num_cpus=HELD, num_gpus=HELD, object_store_memory=STORE_BYTES)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        measure(raypool.start())
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)


def measure(client: raypool.Client) -> None:
    fill(client)
    before = snapshot(client)
    table = Table("kill", "from the kill, s", "from the new process, s", "journal, bytes of text", "as it was")
    from_kill, from_start = [], []
    for number in range(1, KILLS + 1):
        killed, started, answered = one_kill(client)
        from_kill.append(answered - killed)
        from_start.append(answered - started)
        same = "yes" if snapshot(client) == before else "NO"
        size = len(client.journal())
        table.add_row(str(number), f"{from_kill[-1]:.2f}", f"{from_start[-1]:.2f}", f"{size:,}", same)
    Console().print(table)
    worst = max(from_start)
    print(
        f"{PENDING} pending, {HELD} held: first answer p50 {statistics.median(from_start):.2f}, worst {worst:.2f} s "
        f"after the new process began; the bar is {BAR_SECONDS:g} s"
    )


def fill(client: raypool.Client) -> None:
    """A full pool, and a long line behind it."""
    teams = [{"pool": "gpus", "component": f"team-{i}", "priority": i} for i in range(10)]
    client.apply({"pools": [{"name": "gpus", "capacity": {"gpu": HELD}}], "policies": teams})
    job = ray.get_runtime_context().get_job_id()
    refs = []
    for i in range(HELD + PENDING):
        spec = {
            "component": f"team-{9 if i < HELD else i % 9}",
            "resources": {"gpu_count": 1},
            "description": "a training",
        }
        refs.append(client._line.send("submit", {"id": f"request-{i:06}", **spec}, job))
        if len(refs) >= 500:
            ray.get(refs)
            refs = []
    ray.get(refs)
    while client.pool("gpus").active < HELD or any(view.placing for view in client.requests(status="pending")[:HELD]):
        time.sleep(0.1)
    while client.status().requests.get("allocated", 0) < HELD:
        time.sleep(0.1)


def snapshot(client: raypool.Client) -> list[tuple[str, str, int, str | None]]:
    return [(view.id, view.status, view.number, view.group_id) for view in client.requests()]


def one_kill(client: raypool.Client) -> tuple[float, float, float]:
    """When it was killed, when its new process began, when that answered; seconds since the epoch."""
    actor = client._line.actor._actor_id.hex()
    pid = int(state.actors(actor)["Pid"])
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    while True:
        try:
            ray.get(client._line.send("pool", "gpus"), timeout=0.2)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            time.sleep(0.01)
            continue
        answered = time.time()
        now = int(state.actors(actor)["Pid"])
        if now != pid:
            # Ray may give it a worker that waits idle: then what counts begins with the kill.
            return killed, max(psutil.Process(now).create_time(), killed), answered


if __name__ == "__main__":
    main()
