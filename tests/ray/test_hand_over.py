"""Placement groups that go from one holder to the next as they are, and what keeps them from it, with real Ray."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import state
from ray.util.placement_group import PlacementGroup, get_current_placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import raypool
from raypool import ResourceSettings

from .conftest import until

pytestmark = pytest.mark.ray

NODES = [{"num_cpus": 2, "num_gpus": 2} for _ in range(2)]
POOLS = {
    "pools": [
        {"name": "gpus", "capacity": {"gpu": 4}},
        {"name": "cpus", "capacity": {"mcpu": 2000}},
        {"name": "gpus-too", "capacity": {"gpu": 4}},
    ],
    "policies": [
        {"pool": "gpus", "component": "red", "priority": 1},
        {"pool": "gpus", "component": "blue", "priority": 1},
        {"pool": "gpus-too", "component": "red", "priority": 1},
        {"pool": "cpus", "component": "tasks", "priority": 1},
    ],
}
TWO_CPUS = ResourceSettings(cpu_count=2)


class Waiter:
    """A lease that is waited for in a thread."""

    def __init__(self, lease: raypool.Lease) -> None:
        self.lease = lease
        self._thread = threading.Thread(target=lease.acquire)
        self._thread.start()

    def got(self) -> raypool.Lease:
        self._thread.join(30)
        assert not self._thread.is_alive(), "it is not granted"
        return self.lease


def all_gpus(component: str = "red", **more: Any) -> raypool.Lease:
    fields = {"resources": ResourceSettings(gpu_count=2), "workers": 2, "pool": "gpus"} | more
    return raypool.lease(component=component, **fields)


def waiting(client: raypool.Client, lease: raypool.Lease, pool: str = "gpus") -> Waiter:
    queued = client.pool(pool).queued
    waiter = Waiter(lease)
    until(lambda: client.pool(pool).queued == queued + 1, "it waits")
    return waiter


def group_of(client: raypool.Client, lease: raypool.Lease) -> str:
    """Asked of the broker: the lease itself has then handed nothing out."""
    group = client.request(lease.request_id).group_id
    assert group is not None
    return group


# --- it happens ---------------------------------------------------------------------------------


def test_the_next_lease_has_the_same_group_and_can_use_it(client: raypool.Client) -> None:
    client.apply(POOLS)
    first = all_gpus().acquire()
    group, name = group_of(client, first), client.request(first.request_id).group_name
    second, third = (waiting(client, all_gpus()) for _ in range(2))
    first.release()
    held = second.got()
    assert group_of(client, held) == group
    assert client.request(group).id == client.request(name).id == held.request_id
    with pytest.raises(raypool.LeaseEnded):
        first.task_options(0)
    node = ray.remote(lambda: ray.get_runtime_context().get_node_id())
    nodes = ray.get([node.options(**held.task_options(index)).remote() for index in range(2)], timeout=60)
    assert tuple(nodes) == held.nodes
    held.release()
    assert group_of(client, third.got()) != group, "the second gave options away"
    third.got().release()


def last_groups(client: raypool.Client, count: int, component: str = "tasks") -> list[str]:
    """Of the last grants, in their order."""
    views = [view for view in client.requests(component=component) if view.granted_at is not None]
    return [str(view.group_id) for view in sorted(views, key=lambda view: view.granted_at or 0.0)[-count:]]


def once_it_is_waited_for(go: str, leave: Callable[[], Any]) -> Any:
    until(Path(go).exists, "others wait")
    return leave()


def run_after_each_other(client: raypool.Client, tmp_path: Path, function: Any, leave: list[Any], pool: str) -> Any:
    """What they return: the first goes on when the others wait for what it holds."""
    go = tmp_path / "go"
    refs = [function.remote(str(go), one) for one in leave]
    until(lambda: client.pool(pool).queued == len(leave) - 1, "one runs, and the others wait")
    go.touch()
    return ray.get(refs, timeout=120)


def test_tasks_that_wait_for_each_other_share_one_group(client: raypool.Client, tmp_path: Path) -> None:
    """And none of them is taken for a leftover of the one before, seconds after that has ended."""
    client.apply(POOLS)
    task = raypool.remote(component="tasks", resources=TWO_CPUS)(once_it_is_waited_for)
    leave = [int, lambda: time.sleep(2.5), lambda: time.sleep(2.5), int]
    assert run_after_each_other(client, tmp_path, task, leave, "cpus") == [0, None, None, 0]
    assert len(set(last_groups(client, 4))) == 1


def test_gpu_tasks_share_one_group_and_each_has_a_worker_of_its_own(client: raypool.Client, tmp_path: Path) -> None:
    client.apply(POOLS)
    options = {"resources": ResourceSettings(gpu_count=2), "workers": 2, "strategy": "STRICT_SPREAD", "pool": "gpus"}
    task = raypool.remote(component="red", **options)(once_it_is_waited_for)
    assert len(set(run_after_each_other(client, tmp_path, task, [os.getpid] * 3, "gpus"))) == 3
    assert len(set(last_groups(client, 3, "red"))) == 1


# --- it does not --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"component": "blue"},
        {"resources": ResourceSettings(gpu_count=1), "workers": 4},
        {"strategy": "SPREAD"},
        {"pool": "gpus-too"},
    ],
    ids=["component", "bundles", "strategy", "pool"],
)
def test_who_asks_for_something_else_has_a_group_of_his_own(client: raypool.Client, other: dict[str, Any]) -> None:
    client.apply(POOLS)
    first = all_gpus().acquire()
    group = group_of(client, first)
    request = Waiter(all_gpus(**other))
    until(lambda: client.requests(status="pending"), "it waits, in its pool or for nodes")
    first.release()
    assert group_of(client, request.got()) != group
    until(lambda: placement_group_table(handle(group))["state"] == "REMOVED", "the first is removed")
    request.got().release()


def handle(group: str) -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))


def test_one_that_is_cancelled_leaves_nothing_to_hand_over(client: raypool.Client) -> None:
    client.apply(POOLS)
    first = all_gpus().acquire()
    group, second = group_of(client, first), waiting(client, all_gpus())
    client.cancel(first.request_id)
    first.release()
    assert group_of(client, second.got()) != group
    second.got().release()


def test_one_whose_process_is_killed_leaves_nothing_to_hand_over(
    client: raypool.Client, drivers: Callable[..., Any]
) -> None:
    client.apply(POOLS)
    driver = drivers("""
        lease = raypool.lease(ResourceSettings(gpu_count=2), component="red", workers=2, pool="gpus").acquire()
        print(lease.request_id)
        time.sleep(1000)
    """)
    group = client.request(driver.line()).group_id
    second = waiting(client, all_gpus())
    driver.kill()
    assert group_of(client, second.got()) != group
    second.got().release()


def test_one_that_is_evicted_leaves_nothing_to_hand_over(client: raypool.Client) -> None:
    urgent = {"pool": "gpus", "component": "red", "component_type": "orchestrator", "priority": 9}
    client.apply({**POOLS, "policies": [*POOLS["policies"], urgent]})
    first = all_gpus().acquire()
    group, second = group_of(client, first), waiting(client, all_gpus())
    with all_gpus(component_type="orchestrator") as taken:
        first.release()
        assert client.request(first.request_id).status == "preempted"
        assert group_of(client, taken) != group
    assert group_of(client, second.got()) not in (group, group_of(client, taken))
    second.got().release()


# --- what a task may leave ----------------------------------------------------------------------


class Late:
    """Says where it runs, by a file that it touches again and again."""

    def __init__(self, where: str) -> None:
        def touch() -> None:
            while True:
                Path(where).touch()
                time.sleep(0.01)

        threading.Thread(target=touch, daemon=True).start()

    def ready(self) -> bool:
        return True


def in_the_group(group: PlacementGroup) -> dict[str, Any]:
    return {"num_cpus": 0, "scheduling_strategy": PlacementGroupSchedulingStrategy(group)}


def leave_an_actor(where: str) -> Any:
    late = ray.remote(Late).options(**in_the_group(get_current_placement_group())).remote(where)
    ray.get(late.ready.remote())
    return late


def leave_a_detached_actor(where: str) -> None:
    options = {"name": "late", "namespace": "left", "lifetime": "detached"}
    late = ray.remote(Late).options(**options, **in_the_group(get_current_placement_group())).remote(where)
    ray.get(late.ready.remote())


def leave_a_captured_actor(where: str) -> Any:
    late = ray.remote(num_cpus=0)(Late).remote(where)
    ray.get(late.ready.remote())
    return late


def leave_a_task(where: str) -> None:
    ray.remote(max_retries=0)(lambda: (Late(where), time.sleep(1000))).options(
        **in_the_group(get_current_placement_group())
    ).remote()
    until(Path(where).exists, "it runs")


def return_the_group(where: str) -> Any:
    return get_current_placement_group()


def return_its_id(where: str) -> Any:
    return ray.get_runtime_context().get_placement_group_id()


def return_its_id_by_the_lease(where: str) -> Any:
    lease = raypool.current_lease()
    assert lease is not None
    return lease.placement_group.id.hex()


def leave_a_thread(where: str) -> None:
    Late(where)


def leave_a_thread_of_the_lower_kind(where: str) -> None:
    def touch() -> None:
        while True:
            Path(where).touch()
            time.sleep(0.01)

    _thread.start_new_thread(touch, ())


def leave_a_child(where: str) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])


def leave_a_child_of_ray(where: str) -> None:
    ray.get(ray.remote(num_cpus=0)(lambda: 1).remote())


def hand_over(
    client: raypool.Client, tmp_path: Path, function: Any, leave: Callable[[], Any]
) -> tuple[Any, raypool.Lease]:
    """What the task returned, and the lease that waited for what it held."""
    go = tmp_path / "go"
    result = function.remote(str(go), leave)
    until(lambda: client.requests(status="allocated", component="tasks"), "the task has its group")
    waiter = waiting(client, raypool.lease(TWO_CPUS, component="tasks"), "cpus")
    go.touch()
    return ray.get(result, timeout=60), waiter.got()


def test_a_task_that_left_nothing_hands_its_group_over(client: raypool.Client, tmp_path: Path) -> None:
    client.apply(POOLS)
    function = raypool.remote(component="tasks", resources=TWO_CPUS)(once_it_is_waited_for)
    left, held = hand_over(client, tmp_path, function, int)
    before, after = last_groups(client, 2)
    assert (left, before) == (0, after)
    held.release()


LEAVES = [
    leave_an_actor, leave_a_detached_actor, leave_a_captured_actor, leave_a_task, return_the_group, return_its_id,
    return_its_id_by_the_lease, leave_a_thread, leave_a_thread_of_the_lower_kind, leave_a_child, leave_a_child_of_ray,
]  # fmt: skip


@pytest.mark.parametrize("leave", LEAVES, ids=lambda one: one.__name__)
def test_a_task_that_left_something_or_could_does_not_hand_its_group_over(
    client: raypool.Client, tmp_path: Path, leave: Callable[[str], Any]
) -> None:
    """Whatever is left is in a group that is no more, or outside of all; nothing of it runs in the next one's."""
    client.apply(POOLS)
    where = tmp_path / "late"
    more = {"capture_child_tasks": leave is leave_a_captured_actor}
    # Its worker ends after it: a thread that stays would keep every later task of that worker from being clean.
    function = raypool.remote(component="tasks", resources=TWO_CPUS, max_calls=1, **more)(once_it_is_waited_for)
    left, held = hand_over(client, tmp_path, function, lambda: leave(str(where)))
    before, after = last_groups(client, 2)
    assert before != after
    assert placement_group_table(handle(before))["state"] == "REMOVED"
    living = [row for row in state.actors().values() if row["ActorClassName"] == "Late" and row["State"] != "DEAD"]
    until(lambda: not living or all(is_dead(row["ActorID"]) for row in living), "no actor is left in it")
    if isinstance(left, PlacementGroup | str):
        group = left if isinstance(left, PlacementGroup) else handle(left)
        assert group.id.hex() == before
        late = ray.remote(lambda: Path(where).touch()).options(max_retries=0, **in_the_group(group)).remote()
        ray.wait([late], timeout=1.0)
        assert not where.exists(), "it came too late, and waits for a group that is no more"
        ray.cancel(late)
    assert held.nodes
    held.release()


def is_dead(actor: str) -> bool:
    return bool(state.actors(actor)["State"] == "DEAD")


def test_a_handle_that_another_keeps_reaches_nobody_elses_lease(client: raypool.Client, tmp_path: Path) -> None:
    """The task tells an actor that runs elsewhere, and that one uses it when the next holder is there."""
    client.apply(POOLS)
    where = tmp_path / "late"

    class Keeper:
        def keep(self, group: PlacementGroup) -> None:
            self.group = group

        def use(self) -> None:
            self.late = ray.remote(Late).options(**in_the_group(self.group)).remote(str(where))

    keeper = ray.remote(num_cpus=0)(Keeper).remote()

    function = raypool.remote(component="tasks", resources=TWO_CPUS)(once_it_is_waited_for)
    tell = lambda: ray.get(keeper.keep.remote(get_current_placement_group()))  # noqa: E731 - it is sent by value
    _, held = hand_over(client, tmp_path, function, tell)
    ray.get(keeper.use.remote(), timeout=60)
    before, after = last_groups(client, 2)
    assert before != after
    time.sleep(0.5)  # long enough for it to have been started there, if it could be
    assert not where.exists()
    held.release()


# --- the broker dies ----------------------------------------------------------------------------


def test_who_was_given_a_group_has_it_when_the_broker_comes_back(client: raypool.Client) -> None:
    client.apply(POOLS)
    first = all_gpus().acquire()
    group = group_of(client, first)
    second, third = (waiting(client, all_gpus()) for _ in range(2))
    first.release()
    held = second.got()
    pid = pid_of(client)
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(client) not in (0, pid), "Ray has started it again")
    assert client.request(group).id == held.request_id
    assert client.request(held.request_id).status == "allocated"
    where = ray.remote(lambda: ray.get_runtime_context().get_node_id()).options(**held.task_options(0)).remote()
    assert ray.get(where, timeout=60) == held.nodes[0]
    held.release()
    assert group_of(client, third.got()) != group
    third.got().release()


def pid_of(client: raypool.Client) -> int:
    return int(state.actors(client._line.actor._actor_id.hex())["Pid"])
