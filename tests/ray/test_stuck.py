"""Nobody hangs: work that reaches Ray when its group is gone, which Ray would let wait for ever, is ended.

To be stuck for certain, a lease loses its group behind the broker's back: all that is submitted into it from
then on is just where a task is that was submitted a moment too late.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, RayError, TaskCancelledError
from ray.util.placement_group import placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import raypool
from raypool import ResourceSettings
from raypool.client import submissions

from .conftest import until

HEAD = {"_system_config": {"raylet_report_resources_period_milliseconds": 100}}
"""Ray's own default: a raylet hears of a group, and of its end, a tenth of a second late."""

NODES = [{"num_cpus": 2, "num_gpus": 2} for _ in range(2)]
POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 4}}],
    "policies": [
        {"pool": "shared", "component": "sandbox", "priority": 10},
        {"pool": "shared", "component": "prod", "priority": 100},
    ],
}
ALL = {"resources": ResourceSettings(gpu_count=2), "workers": 2}

WELL_BEYOND = 20.0
"""Seconds: of what takes one."""


@ray.remote(num_cpus=0)
def one(*inputs: object) -> int:
    return 1


@ray.remote(num_cpus=0)
def items() -> Iterator[int]:
    yield 1


@ray.remote(num_cpus=0)
def endless(started: str | None = None) -> None:
    if started is not None:
        Path(started).touch()
    time.sleep(3600)


@ray.remote(num_cpus=0)
class Worker:
    def one(self) -> int:
        return 1


def held() -> raypool.Lease:
    return raypool.lease(**ALL, component="sandbox").acquire()  # type: ignore[arg-type]


def removed_behind_its_back(lease: raypool.Lease) -> PlacementGroupSchedulingStrategy:
    """Ray's own strategy for the group that is no more: it does not ask the lease, so nothing is refused."""
    group = lease.placement_group
    remove_placement_group(group)
    until(lambda: placement_group_table(group)["state"] == "REMOVED", "the group is removed")
    return PlacementGroupSchedulingStrategy(group, 0)


def submitted(strategy: PlacementGroupSchedulingStrategy) -> dict[str, Any]:
    """A reference of every kind of work that there is, all of them stuck."""
    task: dict[str, Any] = {"scheduling_strategy": strategy, "max_retries": 0}
    actor: dict[str, Any] = {"scheduling_strategy": strategy, "max_restarts": 0}
    handle = Worker.options(**actor).remote()
    return {
        "task": one.options(**task).remote(),
        "the second of two": one.options(num_returns=2, **task).remote()[1],
        "generator": items.options(**task).remote(),
        "waits for another": one.options(**task).remote(endless.options(max_retries=0).remote()),
        "call of an actor": handle.one.remote(),
        "call of one whose handle is gone": Worker.options(**actor).remote().one.remote(),
        "its handle": handle,
    }


def how_it_ends(work: Any) -> type[BaseException]:
    with pytest.raises(RayError) as caught:
        ray.get(next(work) if isinstance(work, ray.ObjectRefGenerator) else work, timeout=WELL_BEYOND)
    return caught.type


@pytest.mark.parametrize("end", ["cancelled", "released"])
def test_all_that_is_stuck_when_a_lease_ends_raises(client: raypool.Client, end: str) -> None:
    client.apply(POOLS)
    lease = held()
    work = submitted(removed_behind_its_back(lease))
    handle = work.pop("its handle")
    done, _ = ray.wait([ref for ref in work.values() if isinstance(ref, ray.ObjectRef)], timeout=0.3)
    assert not done or lease.ended, "Ray says nothing of them by itself"
    began = time.monotonic()
    if end == "cancelled":
        client.cancel(lease.request_id, "enough")
    else:
        lease.release()
    ends = {kind: how_it_ends(one) for kind, one in work.items()}
    assert time.monotonic() - began < WELL_BEYOND
    assert {kind: error for kind, error in ends.items() if error is TaskCancelledError}.keys() == {
        "task", "the second of two", "generator", "waits for another",
    }  # fmt: skip
    assert ends["call of an actor"] is ends["call of one whose handle is gone"] is ActorDiedError
    assert how_it_ends(handle.one.remote()) is ActorDiedError


def test_a_block_that_was_stuck_says_why(client: raypool.Client) -> None:
    client.apply(POOLS)
    with pytest.raises(raypool.RequestCancelled) as caught:  # noqa: SIM117
        with raypool.lease(**ALL, component="sandbox") as lease:  # type: ignore[arg-type]
            ref = one.options(scheduling_strategy=removed_behind_its_back(lease), max_retries=0).remote()
            client.cancel(lease.request_id, "enough")
            ray.get(ref, timeout=WELL_BEYOND)
    assert isinstance(caught.value.__cause__, TaskCancelledError)


@ray.remote(num_cpus=0)
class Holder:
    """An async actor that holds a lease: many calls at once, each of which is a task to Ray."""

    async def take(self) -> str:
        self._lease = await raypool.lease(**ALL, component="sandbox").acquire_async()  # type: ignore[arg-type]
        remove = asyncio.get_running_loop().run_in_executor(None, removed_behind_its_back, self._lease)
        self._strategy, self._submitted = await remove, 0
        return self._lease.request_id

    async def submitted(self) -> int:
        return self._submitted

    async def submit_and_wait(self) -> str:
        ref = one.options(scheduling_strategy=self._strategy, max_retries=0).remote()
        self._submitted += 1
        try:
            await asyncio.wait_for(_result(ref), WELL_BEYOND)
        except RayError as error:
            return type(error).__name__
        return "it ran"


async def _result(ref: Any) -> Any:
    return await ref


def test_an_actor_on_an_event_loop_does_not_hang_either(client: raypool.Client) -> None:
    client.apply(POOLS)
    holder = Holder.remote()
    request_id = ray.get(holder.take.remote(), timeout=60)
    waiting = [holder.submit_and_wait.remote() for _ in range(10)]
    until(lambda: ray.get(holder.submitted.remote()) == 10, "all have submitted")
    client.cancel(request_id, "enough")
    assert ray.get(waiting, timeout=2 * WELL_BEYOND) == ["TaskCancelledError"] * 10


def test_work_with_rays_own_strategy_and_retries_ends_with_its_lease(client: raypool.Client, tmp_path: Path) -> None:
    """As libraries submit it that take a placement group."""
    client.apply(POOLS)
    lease = held()
    strategy = PlacementGroupSchedulingStrategy(lease.placement_group, 0)
    handle = Worker.options(scheduling_strategy=strategy, num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()
    ray.get(handle.one.remote(), timeout=60)
    runs = endless.options(scheduling_strategy=strategy, max_retries=-1).remote(str(tmp_path / "started"))
    until((tmp_path / "started").exists, "it runs")
    client.cancel(lease.request_id, "enough")
    assert how_it_ends(runs) is TaskCancelledError
    assert how_it_ends(handle.one.remote()) is ActorDiedError


def test_what_has_finished_is_let_go_of_while_the_lease_is_held(
    client: raypool.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.apply(POOLS)
    monkeypatch.setattr(submissions, "KEPT_AT_LEAST", 20)
    lease = held()
    work = submissions.submissions_into(lease.placement_group.id.hex(), lease.request_id)
    task = one.options(**lease.task_options(num_gpus=0))
    kept = [task.remote() for _ in range(5)]
    for _ in range(200):
        ray.get(task.remote(), timeout=60)
        assert len(work._results) <= 2 * 20
    assert ray.get(kept, timeout=60) == [1] * 5
    Actor = Worker.options(**lease.actor_options(num_gpus=0))  # noqa: N806
    for _ in range(25):
        Actor.remote()
    assert len(work._actors) <= 2 * 20
    lease.release()
    assert ray.get(kept, timeout=60) == [1] * 5


def preempted_while_it_submits(client: raypool.Client, delay_seconds: float) -> list[Any]:
    lease = held()
    task, actor = lease.task_options(0, num_gpus=0), lease.actor_options(1, num_gpus=0)
    taker = threading.Timer(delay_seconds, lambda: client.submit(component="prod", **ALL))
    taker.start()
    refs: list[Any] = []
    with pytest.raises(raypool.Preempted):
        while True:
            refs.append(one.options(**task).remote())
            if len(refs) % 20 == 5:
                refs.append(Worker.options(**actor).remote().one.remote())
            time.sleep(0.005)
    taker.join()
    return refs


def test_nobody_hangs_who_submits_while_his_lease_is_taken_without_a_grace(client: raypool.Client) -> None:
    """Without the cancellations most of these rounds leave somebody waiting."""
    client.apply(POOLS)
    luck = random.Random(3)
    for _ in range(8):
        refs = preempted_while_it_submits(client, luck.uniform(0, 0.3))
        _, stuck = ray.wait(refs, num_returns=len(refs), timeout=WELL_BEYOND)
        assert not stuck
        for view in client.requests(ended=False):
            client.cancel(view.id, "the round is over")
        until(lambda: not client.pool("shared").active, "all is given back")
