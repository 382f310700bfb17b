"""Owners on a real cluster: whoever exits, crashes or is stopped gives back what he held."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

import raypool
from raypool import Refused, RequestView, ResourceSettings

from .conftest import SRC, Driver, until

HEAD = {"include_dashboard": True}
NODES = [{"num_cpus": 4, "num_gpus": 4}] * 2

POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 8}}],
    "policies": [
        {"pool": "shared", "component": "red", "priority": 10, "reserved": {"gpu": 4}},
        {"pool": "shared", "component": "blue", "priority": 10, "reserved": {"gpu": 4}},
    ],
}
FOUR = {
    "pools": [{"name": "shared", "capacity": {"gpu": 4}}],
    "policies": [{"pool": "shared", "component": component, "priority": 10} for component in ("red", "blue")],
}
HOLD = """
    with raypool.lease(ResourceSettings(gpu_count={gpus}), component="{component}", workers={workers}) as lease:
        print("held", lease.request_id)
        {then}
"""
Start = Callable[..., Driver]
GONE = "the process that asked for it is gone"
SOON_SECONDS = 5.0
"""Within this everything is back, whoever ended and however."""


def hold(component: str, gpus: int, then: str = "time.sleep(300)", workers: int = 1) -> str:
    return HOLD.format(component=component, gpus=gpus, then=then, workers=workers)


def everything_is_back(client: raypool.Client, left: int = 0) -> bool:
    return client.pool("shared").used == {"gpu": left} and client.pool("shared").queued == 0


def measured(client: raypool.Client, what: str, left: int = 0) -> float:
    """Waits until all but `left` GPUs are given back; returns and prints how many seconds that took."""
    began = time.monotonic()
    until(lambda: everything_is_back(client, left), f"everything is given back after: {what}")
    seconds = time.monotonic() - began
    print(f"{what}: everything was given back after {seconds:.2f} s")
    return seconds


QUEUED = """
        import threading
        eight = dict(component="red", workers=2, resources=ResourceSettings(gpu_count=4))
        raypool.connect().submit(**eight)
        waits = raypool.lease(ResourceSettings(gpu_count=4), component="red", workers=2)
        threading.Thread(target=waits.acquire, daemon=True).start()
        task = raypool.remote(**eight)(lambda: None).remote()
        while len(raypool.connect().requests(status="pending")) < 3:
            time.sleep(0.02)
        print("queued")
"""


@pytest.mark.parametrize("end", ["killed", "exits", "raises"])
def test_a_driver_that_ends_gives_its_lease_and_its_queue_back(
    client: raypool.Client, drivers: Start, end: str
) -> None:
    client.apply(POOLS)
    then = {"killed": "time.sleep(300)", "exits": "os._exit(0)", "raises": "raise SystemExit(3)"}[end]
    driver = drivers(hold("red", 4, f"{QUEUED}        {then}"))
    request_id = driver.line().split()[1]
    assert driver.line() == "queued"
    if end == "killed":
        driver.kill()
    else:
        driver.process.wait(60)
    assert measured(client, f"a driver with a queue {end}") < SOON_SECONDS
    views = client.requests(component="red")[-4:]
    assert views[0].id == request_id
    for view in views[1:] if end == "raises" else views:
        assert (view.status, view.reason) == ("cancelled", "its job ended")


# --- workers that crash -----------------------------------------------------------------------


@ray.remote(max_retries=0)
def takes(gpus: int, sign: str) -> None:
    """Takes a lease inside a task; its process id stands in the file `sign` first."""
    Path(sign).write_text(str(os.getpid()))
    with raypool.lease(ResourceSettings(gpu_count=gpus), component="red"):
        time.sleep(300)


@ray.remote(max_retries=0, max_calls=1)
def gives_back() -> int:
    with raypool.lease(ResourceSettings(gpu_count=1), component="red"):
        return os.getpid()


def process_of(sign: Path) -> int:
    return int(until(lambda: sign.exists() and sign.read_text(), "the task runs"))


def ended(client: raypool.Client, request_id: str) -> RequestView:
    return until(lambda: client.request(request_id).ended and client.request(request_id), "it ends")


@pytest.mark.parametrize("what", ["holds", "waits"])
def test_a_worker_that_crashes_gives_back_what_its_task_held_or_waited_for(
    client: raypool.Client, tmp_path: Path, what: str
) -> None:
    client.apply(FOUR)
    left = 0
    if what == "waits":
        left = 4
        client.wait(client.submit(component="blue", resources=ResourceSettings(gpu_count=4)).id, 30)
    running = takes.remote(4, str(tmp_path / "pid"))
    status = "allocated" if what == "holds" else "pending"
    [view] = until(lambda: client.requests(component="red", status=status), f"it is {status}")
    time.sleep(0.2)  # for the worker to be in the middle of it
    os.kill(process_of(tmp_path / "pid"), signal.SIGKILL)
    assert measured(client, f"a worker that {what} was killed", left) < SOON_SECONDS
    assert (ended(client, view.id).status, ended(client, view.id).reason) == ("cancelled", GONE)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(running, timeout=30)


def test_a_task_that_gave_its_lease_back_does_not_keep_its_worker(client: raypool.Client) -> None:
    client.apply(POOLS)
    process = ray.get(gives_back.remote(), timeout=60)
    began = time.monotonic()
    until(lambda: not Path(f"/proc/{process}").exists(), "its worker has exited")
    print(f"the worker was gone after {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < SOON_SECONDS


def test_decorated_calls_end_with_their_dispatcher(client: raypool.Client, drivers: Start) -> None:
    client.apply(POOLS)
    driver = drivers(
        """
        from raypool.client.dispatcher import dispatcher_of_this_process
        call = raypool.remote(component="red", resources=ResourceSettings(gpu_count=4))(lambda: time.sleep(300))
        refs = [call.remote() for _ in range(3)]
        while raypool.connect().pool("shared").active < 2:
            time.sleep(0.02)
        ray.kill(dispatcher_of_this_process())
        print("killed")
        time.sleep(300)
        """
    )
    assert driver.line() == "killed"
    assert measured(client, "a dispatcher was killed") < SOON_SECONDS
    assert {view.reason for view in client.requests(component="red")[-3:]} == {GONE}
    driver.kill()


# --- who only seems to be gone ----------------------------------------------------------------


def broker_process() -> int:
    from ray._private import state

    actor = ray.get_actor("broker", namespace="raypool")
    return int(state.actors(actor._actor_id.hex())["Pid"])


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_process_that_is_not_heard_of_loses_its_lease_and_one_that_is_keeps_it(
    client: raypool.Client, drivers: Start
) -> None:
    client.apply({**POOLS, "owner_timeout_seconds": 2})
    silent, healthy = drivers(hold("red", 1)), drivers(hold("blue", 1))
    request_id, other = silent.line().split()[1], healthy.line().split()[1]
    time.sleep(5)
    assert [client.request(id).status for id in (request_id, other)] == ["allocated"] * 2
    with stopped(silent.process.pid):
        view = ended(client, request_id)
        print(f"'{view.reason}'")
        assert view.status == "cancelled" and str(view.reason).startswith("its owner was not heard of for 2")
    assert client.request(other).status == "allocated"
    client.apply({"owner_timeout_seconds": 60})
    silent.kill()
    healthy.kill()


def test_a_broker_that_stood_still_blames_nobody(client: raypool.Client, drivers: Start) -> None:
    client.apply({**POOLS, "owner_timeout_seconds": 2})
    driver = drivers(hold("red", 1))
    request_id = driver.line().split()[1]
    with stopped(broker_process()):
        time.sleep(6)
    time.sleep(4)
    assert client.request(request_id).status == "allocated"
    client.apply({"owner_timeout_seconds": 60})
    driver.kill()
    until(lambda: client.request(request_id).ended, "its lease ends")


def test_a_process_is_known_again_to_a_broker_that_was_killed(client: raypool.Client, tmp_path: Path) -> None:
    client.apply(FOUR)
    client.wait(client.submit(component="blue", resources=ResourceSettings(gpu_count=4)).id, 30)
    running = takes.remote(4, str(tmp_path / "pid"))
    [view] = until(lambda: client.requests(component="red", status="pending"), "it waits")
    started_at = client.status().started_at
    os.kill(broker_process(), signal.SIGKILL)
    until(lambda: client.status().started_at > started_at, "another broker runs")
    until(lambda: view.id in {one.id for one in client.requests(ended=False)}, "the request stands")
    time.sleep(3)  # a process that lost the broker looks for it again after a second
    os.kill(process_of(tmp_path / "pid"), signal.SIGKILL)
    began = time.monotonic()
    assert ended(client, view.id).reason == GONE
    print(f"a worker was killed after the broker: its request ended after {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < SOON_SECONDS
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(running, timeout=30)


# --- who may give it back ---------------------------------------------------------------------


def test_what_belongs_to_a_job_is_released_by_that_job_only(client: raypool.Client, drivers: Start) -> None:
    client.apply(POOLS)
    driver = drivers(hold("red", 1, "time.sleep(300)"))
    request_id = driver.line().split()[1]
    with pytest.raises(Refused, match="only that job gives it back; `raypool request cancel"):
        client.release(request_id)
    assert client.request(request_id).status == "allocated"
    assert client.cancel(request_id, "maintenance").status == "cancelled"
    driver.kill()


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
    assert measured(client, "`ray job stop` returned") < SOON_SECONDS
    assert client.request(held[0].id).reason == "its job ended"
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
