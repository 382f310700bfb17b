"""The broker's process is killed, and nobody notices more than a pause."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray._private import state

import raypool
from raypool import ResourceSettings
from raypool.simulation import replay_journal

from .conftest import Driver, no_groups_left, until

POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 12}}],
    "policies": [
        {"pool": "shared", "component": "prod", "priority": 90, "reserved": {"gpu": 8}},
        {"pool": "shared", "component": "sandbox", "priority": 10, "reserved": {"gpu": 4}},
    ],
}
FOUR = ResourceSettings(gpu_count=4)


def pid_of(client: raypool.Client) -> int:
    row = state.actors(client._line.actor._actor_id.hex())
    return int(row["Pid"])


def kill_broker(client: raypool.Client) -> None:
    """kill -9, and only of the process of this cluster's broker."""
    pid = pid_of(client)
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(client) not in (0, pid), "Ray has started it again")


def groups() -> list[str]:
    """The ids of the placement groups that any node has."""
    rooms = state.available_resources_per_node().values()
    return sorted({key.rpartition("_")[2] for room in rooms for key in room if key.startswith("bundle_group_")})


def test_leases_queues_tasks_and_pools_go_on(client: raypool.Client, drivers: Callable[..., Driver]) -> None:
    client.apply(POOLS)
    sandbox = raypool.lease(ResourceSettings(gpu_count=2), component="sandbox", workers=2).acquire()
    driver = drivers("""
        @raypool.remote(component="prod", resources=ResourceSettings(gpu_count=4))
        def slow(name):
            time.sleep(4)
            return name

        refs = [slow.remote(name) for name in "abc"]
        print("asked")
        print("".join(ray.get(refs)))
    """)
    assert driver.line() == "asked"
    waiting = client.submit(component="sandbox", resources=FOUR, workers=3)
    until(lambda: client.pool("shared").queued >= 1 and client.pool("shared").active >= 2, "some run, some wait")
    pool, config = client.pool("shared"), client.config()
    before = groups()
    kill_broker(client)
    assert client.config() == config
    assert client.request(waiting.id).number == waiting.number
    assert set(before) <= set(groups())
    assert client.pool("shared").capacity == pool.capacity
    task = ray.remote(lambda: "ran").options(**sandbox.task_options(1))
    assert ray.get(task.remote(), timeout=60) == "ran"
    kill_broker(client)
    sandbox.release()
    assert client.request(sandbox.request_id).status == "released"
    assert driver.line() == "abc"
    assert client.wait(waiting.id, 60).status == "allocated"


def test_calls_under_way_wait_for_the_broker(client: raypool.Client) -> None:
    client.apply(POOLS)
    answers: list[str] = []

    def work() -> None:
        for _ in range(30):
            with raypool.lease(ResourceSettings(gpu_count=1), component="prod") as lease:
                answers.append(lease.request_id)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.3)  # any moment will do: what is under way then is the test
        kill_broker(client)
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert len(set(answers)) == 90
    until(lambda: client.pool("shared").used == {"gpu": 0}, "all is given back")
    assert {client.request(id).status for id in answers} == {"released"}
    until(no_groups_left, "no placement group is left")


def test_what_its_owner_left_while_the_broker_was_away_is_given_back(
    client: raypool.Client, drivers: Callable[..., Driver]
) -> None:
    client.apply(POOLS)
    driver = drivers("""
        lease = raypool.lease(ResourceSettings(gpu_count=4), component="prod").acquire()
        print(lease.request_id)
        time.sleep(600)
    """)
    request = driver.line()
    pid = pid_of(client)
    os.kill(pid, signal.SIGKILL)
    driver.kill()
    until(lambda: client.request(request).status == "cancelled", "the broker that comes back sees it")
    assert client.request(request).reason == "its job ended"


def test_a_group_that_went_meanwhile_ends_its_request(client: raypool.Client) -> None:
    client.apply(POOLS)
    lease = raypool.lease(FOUR, component="prod").acquire()
    group = lease.placement_group
    pid = pid_of(client)
    os.kill(pid, signal.SIGKILL)
    ray.util.remove_placement_group(group)
    until(lambda: client.request(lease.request_id).ended, "the broker that comes back sees it")
    assert "placement group" in (client.request(lease.request_id).reason or "")
    with pytest.raises(raypool.RequestCancelled):
        until(lambda: lease.ended, "its owner is told")
        lease.require()


LEAVES = """
    from ray._private.worker import global_worker
    from raypool.client import presence

    presence.LOOK_AGAIN_SECONDS = 60

    class Slow:
        def __init__(self, core_worker):
            self.core_worker = core_worker
        def __getattr__(self, name):
            return getattr(self.core_worker, name)
        def shutdown_driver(self):
            self.core_worker.shutdown_driver()
            time.sleep(1)

    for _ in range(2):
        with raypool.lease(ResourceSettings(gpu_count=4), component="prod") as lease:
            print(lease.request_id)
            while not presence._present._out_of_sight:
                time.sleep(0.02)
        global_worker.core_worker = Slow(global_worker.core_worker)
        ray.shutdown()
        print("lives on")
        ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
"""
"""Ray has shut down, and not yet forgotten that, when this process drops what it had sent to the broker that died."""


def test_a_driver_that_leaves_the_cluster_afterwards_lives_on(
    client: raypool.Client, drivers: Callable[..., Driver]
) -> None:
    client.apply(POOLS)
    driver = drivers(LEAVES)
    for _ in range(2):
        lease = driver.line()
        kill_broker(client)
        assert driver.line() == "lives on"
        assert client.request(lease).status == "released"
    assert driver.finish() == 0


@pytest.fixture
def own_journal(client: raypool.Client, tmp_path: Path) -> Iterator[Path]:
    raypool.stop()
    yield tmp_path / "journal.sqlite"
    raypool.stop()
    client._line.actor = raypool.start()._line.actor


def test_the_journal_can_be_a_file(own_journal: Path) -> None:
    path = own_journal
    client = raypool.start(POOLS, journal=path)
    assert client.status().journal == str(path)
    with pytest.raises(raypool.Refused, match="keeps its journal in"):
        raypool.start(journal="ray")
    with pytest.raises(raypool.SpecError, match="absolute path"):
        raypool.start(journal="here.sqlite")
    lease = raypool.lease(FOUR, component="prod").acquire()
    kill_broker(client)
    assert client.request(lease.request_id).status == "allocated"
    steps, fault = replay_journal(client.journal().splitlines())
    assert fault is None
    assert any(lease.request_id in step.what for step in steps)
    lease.release()
