"""Owners on a real cluster: whoever exits, crashes or is stopped gives back what he held."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

import raypool
from raypool import ResourceSettings

from .conftest import SRC, Driver, until

pytestmark = pytest.mark.ray

HEAD = {"include_dashboard": True}
NODES = [{"num_cpus": 4, "num_gpus": 4}] * 2

POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 8}}],
    "policies": [
        {"pool": "shared", "component": "red", "priority": 10, "reserved": {"gpu": 4}},
        {"pool": "shared", "component": "blue", "priority": 10, "reserved": {"gpu": 4}},
    ],
}
HOLD = """
    with raypool.lease(ResourceSettings(gpu_count={gpus}), component="{component}", workers={workers}) as lease:
        print("held", lease.request_id)
        {then}
"""
Start = Callable[..., Driver]


def hold(component: str, gpus: int, then: str = "time.sleep(300)", workers: int = 1) -> str:
    return HOLD.format(component=component, gpus=gpus, then=then, workers=workers)


@pytest.mark.parametrize("end", ["killed", "exits", "raises"])
def test_a_driver_that_ends_gives_its_lease_and_its_queue_back(
    client: raypool.Client, drivers: Start, end: str
) -> None:
    client.apply(POOLS)
    then = {"killed": "time.sleep(300)", "exits": "os._exit(0)", "raises": "raise SystemExit(3)"}[end]
    queued = "raypool.connect().submit(component='red', workers=2, resources=ResourceSettings(gpu_count=4));"
    driver = drivers(hold("red", 4, f"{queued} print('queued'); {then}"))
    request_id = driver.line().split()[1]
    assert driver.line() == "queued"
    if end == "killed":
        driver.kill()
    view = until(lambda: client.request(request_id).ended and client.request(request_id), "its lease ends")
    if end != "raises":
        assert (view.status, view.reason) == ("cancelled", "its job ended")
    until(lambda: not client.requests(ended=False), "nothing of it is left", 15)
    until(lambda: client.pool("shared").used == {"gpu": 0}, "its GPUs are free")


def test_two_drivers_contend_and_the_one_inside_its_reserve_wins(client: raypool.Client, drivers: Start) -> None:
    client.apply(POOLS)
    red = drivers(
        """
        try:
            with raypool.lease(ResourceSettings(gpu_count=4), component="red", workers=2) as lease:
                print("held", lease.request_id)
                worker = ray.remote(lambda: time.sleep(300)).options(**lease.task_options(0)).remote()
                ray.get(worker)
        except raypool.Preempted as error:
            print("preempted", error.rule, error.by_component)
        """
    )
    assert red.line().startswith("held")
    blue = drivers(hold("blue", 4))
    assert blue.line().startswith("held")
    assert red.line() == "preempted reclaim blue"
    blue.kill()


def test_a_detached_lease_lives_until_it_is_released(client: raypool.Client, drivers: Start) -> None:
    client.apply(POOLS)
    driver = drivers(
        """
        lease = raypool.lease(ResourceSettings(gpu_count=1), component="red", lifetime="detached").acquire()
        print("held", lease.request_id)
        """
    )
    request_id = driver.line().split()[1]
    driver.finish()
    marker = drivers(hold("blue", 1))
    other = marker.line().split()[1]
    marker.kill()
    until(lambda: client.request(other).ended, "the other driver's end was noticed")
    assert client.request(request_id).status == "allocated"
    client.release(request_id)
    until(lambda: client.pool("shared").used == {"gpu": 0}, "it was released")


# --- ray job submit ---------------------------------------------------------------------------

JOB = """
import os, time
import ray, raypool

@raypool.remote(resources=raypool.ResourceSettings(gpu_count=1))
def train():
    return raypool.current_lease().component

ray.init(log_to_driver=False)
print("component", ray.get(train.remote()), flush=True)
if os.environ.get("STAY"):
    lease = raypool.lease(raypool.ResourceSettings(gpu_count=2)).acquire()  # nobody gives it back
    print("held", lease.request_id, flush=True)
    time.sleep(300)
"""


def submit(cluster: Cluster, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`ray job submit` with these arguments, against the test's own dashboard."""
    ray_command = str(Path(sys.executable).with_name("ray"))
    url = "http://" + str(cluster.head_node.webui_url)
    runtime_env = json.dumps({"env_vars": {"PYTHONPATH": str(SRC), **(env or {})}})
    return subprocess.Popen(
        [ray_command, "job", "submit", "--address", url, "--runtime-env-json", runtime_env, *arguments],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_submitted_job_says_its_component_in_its_metadata(
    client: raypool.Client, cluster: Cluster, tmp_path: Path
) -> None:
    client.apply(POOLS)
    script = tmp_path / "train.py"
    script.write_text(JOB)
    metadata = ["--metadata-json", '{"raypool.component": "red"}']
    job = submit(cluster, *metadata, "--", sys.executable, str(script))
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output
    assert "component red" in output
    assert client.requests()[-1].component == "red"


def test_a_stopped_job_gives_everything_back(client: raypool.Client, cluster: Cluster, tmp_path: Path) -> None:
    client.apply(POOLS)
    script = tmp_path / "train.py"
    script.write_text(JOB)
    metadata = ["--metadata-json", '{"raypool.component": "blue"}', "--submission-id", "to-stop"]
    job = submit(cluster, *metadata, "--", sys.executable, str(script), env={"STAY": "1"})
    held = until(lambda: client.pool("shared").used == {"gpu": 2} and client.requests(ended=False), "it holds", 90)
    ray_command = str(Path(sys.executable).with_name("ray"))
    url = "http://" + str(cluster.head_node.webui_url)
    stop = subprocess.run(
        [ray_command, "job", "stop", "--address", url, "to-stop"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert stop.returncode == 0, stop.stdout + stop.stderr
    view = until(lambda: client.request(held[0].id).ended and client.request(held[0].id), "its lease ends")
    assert view.reason == "its job ended"
    until(lambda: client.pool("shared").used == {"gpu": 0}, "its GPUs are free")
    job.communicate(timeout=60)


def raypool_run(cluster: Cluster, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """`raypool run` with these arguments, as somebody at a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "raypool", "run", "--component", "red", *arguments],
        env={**os.environ, "PYTHONPATH": str(SRC), "RAY_ADDRESS": cluster.address, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_raypool_run_passes_output_exit_code_gpus_and_environment_through(
    client: raypool.Client, cluster: Cluster, tmp_path: Path
) -> None:
    client.apply(POOLS)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys; print(*map(os.environ.get, ['CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS'])); sys.exit(7)"
    )
    caller = {"OMP_NUM_THREADS": "5", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}
    ran = raypool_run(cluster, "--gpus", "2", "--", sys.executable, str(script), **caller)
    output, errors = ran.communicate(timeout=120)
    assert ran.returncode == 7, errors
    gpus, threads = output.split()
    assert len(gpus.split(",")) == 2 and threads == "5"
    until(lambda: client.pool("shared").used == {"gpu": 0}, "the lease was given back")


def test_raypool_run_terminates_its_command_at_the_notice(
    client: raypool.Client, cluster: Cluster, tmp_path: Path
) -> None:
    client.apply({**POOLS, "pools": [{"name": "shared", "capacity": {"gpu": 8}, "grace_seconds": 60}]})
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, sys, time\n"
        "def leave(*_):\n    time.sleep(1); print('checkpoint written', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('started', flush=True)\n"
        "time.sleep(300)\n"
    )
    under_a_shell = ["sh", "-c", f"{sys.executable} {script}; echo went on"]
    running = raypool_run(cluster, "--gpus", "4", "--workers", "2", "--", *under_a_shell)
    assert running.stdout is not None
    first = running.stdout.readline()
    assert first == "started\n", running.communicate(timeout=60)
    taker = client.submit(component="blue", resources=ResourceSettings(gpu_count=4))
    output, errors = running.communicate(timeout=90)
    assert (running.returncode, output) == (143, "checkpoint written\n"), errors
    assert "has to make room in pool 'shared'" in errors
    assert client.wait(taker.id, 30).status == "allocated"


def test_raypool_run_says_how_it_was_lost(client: raypool.Client, cluster: Cluster) -> None:
    client.apply(POOLS)
    cancelled = raypool_run(cluster, "--gpus", "1", "--", "sh", "-c", "echo started; sleep 300")
    assert cancelled.stdout is not None
    assert cancelled.stdout.readline() == "started\n", cancelled.communicate(timeout=60)
    (held,) = client.requests(ended=False)
    client.cancel(held.id, "cluster maintenance")
    _, errors = cancelled.communicate(timeout=60)
    assert cancelled.returncode in (137, 143), errors
    assert "was cancelled: cluster maintenance" in errors

    runner_killed = raypool_run(cluster, "--gpus", "1", "--", "sh", "-c", "kill -9 $PPID; sleep 300")
    _, errors = runner_killed.communicate(timeout=60)
    assert runner_killed.returncode == 1, errors
    assert errors.startswith("Error: the command was lost") and "Traceback" not in errors
    until(lambda: client.pool("shared").used == {"gpu": 0}, "the lease was given back")


def test_the_broker_is_detached_named_and_takes_no_resources(client: raypool.Client) -> None:
    actor = ray.get_actor("broker", namespace="raypool")
    from ray._private import state

    row = state.actors(actor._actor_id.hex())
    assert row["State"] == "ALIVE"
    head = next(one for one in ray.nodes() if "node:__internal_head__" in one["Resources"])
    assert row["Address"]["NodeID"] == head["NodeID"], "it is on the head node"
    assert raypool.start().status().started_at == client.status().started_at, "start() found the one that runs"
