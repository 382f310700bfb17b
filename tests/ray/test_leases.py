"""Leases on a real cluster: gangs, strategies, preemption notices, and how they end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import ray

import raypool
from raypool import ResourceSettings

from .conftest import until

POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 12}}],
    "policies": [
        {"pool": "shared", "component": "sandbox", "priority": 10},
        {"pool": "shared", "component": "prod", "priority": 100},
    ],
}
TWO_GPUS = ResourceSettings(gpu_count=2)


@ray.remote
class Worker:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def block(self) -> None:
        time.sleep(300)


@pytest.mark.parametrize(
    ("strategy", "workers", "nodes"),
    [("STRICT_PACK", 2, 1), ("STRICT_SPREAD", 3, 3), ("SPREAD", 3, 3), ("PACK", 2, 1)],
)
def test_a_strategy_places_as_promised(client: raypool.Client, strategy: str, workers: int, nodes: int) -> None:
    client.apply(POOLS)
    with raypool.lease(TWO_GPUS, component="sandbox", workers=workers, strategy=strategy) as lease:
        gang = [Worker.options(**lease.actor_options(i)).remote() for i in range(workers)]
        found = ray.get([worker.node.remote() for worker in gang], timeout=90)
        assert tuple(found) == lease.nodes
        assert len(set(found)) == nodes


def test_a_gang_is_all_or_nothing_and_named_for_its_owner(client: raypool.Client) -> None:
    client.apply(POOLS)
    with raypool.lease(ResourceSettings(gpu_count=3), component="sandbox", workers=3) as lease:
        table = lease.describe()["placement_group"]
        assert table["name"] == f"raypool/shared/sandbox/{lease.request_id}"
        assert [bundle["GPU"] for bundle in table["bundles"].values()] == [3.0, 3.0, 3.0]
        second = client.submit(component="sandbox", workers=2, resources=TWO_GPUS)
        assert client.request(second.id).status == "pending"
        assert client.pool("shared").free == {"gpu": 3}
    assert client.wait(second.id, 30).status == "allocated"


@pytest.mark.parametrize("plainly", [True, False], ids=["plain", "async"])
def test_who_waits_logs_why_with_the_facts_and_what_would_start_it(
    client: raypool.Client, plainly: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raypool.client.waiting.FIRST_LOG_SECONDS", 0.5)
    client.apply({**POOLS, "policies": [{"pool": "shared", "component": "sandbox", "priority": 10}]})
    with raypool.lease(TWO_GPUS, component="sandbox", workers=5) as held:
        waits = raypool.lease(ResourceSettings(gpu_count=4), component="sandbox", wait_timeout_seconds=10)
        with pytest.raises(raypool.WaitTimeout):
            waits.acquire() if plainly else asyncio.run(waits.acquire_async())
    told = "\n".join(caplog.messages)  # what would start it is not in each: the broker may have no time for it
    for fact in (
        "over the limit of 'sandbox' in pool 'shared': asks for 4 gpu, uses 10 of 12",
        "gpu: asks for 4, 2 of 12 free; held by 'sandbox' 10; its own component uses 10, reserved 0, limit 12",
        "asked again with 2 gpu instead of 4, it would start now",
        f"if '{held.request_id}' ended (10 gpu of 'sandbox' in pool 'shared'",
    ):
        assert fact in told


def test_unlike_bundles_are_granted_together(client: raypool.Client) -> None:
    client.apply(POOLS)
    bundles = [ResourceSettings(cpu_count=1), ResourceSettings(gpu_count=3), ResourceSettings(gpu_count=1)]
    with raypool.lease(bundles=bundles, component="sandbox") as lease:
        assert lease.view.demand == {"gpu": 4, "mcpu": 1000, "step_run": 1}
        assert lease.view.bundles == [{"CPU": 1.0}, {"GPU": 3.0}, {"GPU": 1.0}]
        assert len(lease.nodes) == 3


def test_a_notice_comes_before_the_removal_and_work_may_leave_early(client: raypool.Client, tmp_path: Path) -> None:
    client.apply({**POOLS, "pools": [{"name": "shared", "capacity": {"gpu": 12}, "grace_seconds": 60}]})

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=4), workers=3)
    def train(checkpoint: str) -> str:
        path = Path(checkpoint)
        if path.exists():
            return "resumed from " + path.read_text()
        lease = raypool.current_lease()
        assert lease is not None and lease.preemption_notice is None
        path.with_name("started").touch()
        lease.on_preemption(lambda notice: path.write_text(f"asked by {notice.by_component}"))
        while not path.exists():
            time.sleep(0.02)
        notice = lease.preemption_notice
        assert notice is not None and notice.seconds_left > 15
        return "left early"

    checkpoint = tmp_path / "checkpoint"
    ref = train.remote(str(checkpoint))
    until(checkpoint.with_name("started").exists, "it runs", 90)
    began = time.monotonic()
    taker = client.submit(component="prod", resources=TWO_GPUS)
    assert ray.get(ref, timeout=60) == "left early"
    assert client.wait(taker.id, 30).status == "allocated"
    assert time.monotonic() - began < 45, "nobody waited for the deadline"
    assert checkpoint.read_text() == "asked by prod"


def test_a_block_that_fails_because_it_was_preempted_raises_preempted_from_the_original(
    client: raypool.Client,
) -> None:
    client.apply(POOLS)
    with pytest.raises(raypool.Preempted) as caught:  # noqa: SIM117 - the story needs its block
        with raypool.lease(ResourceSettings(gpu_count=4), component="sandbox", workers=3) as lease:
            worker = Worker.options(**lease.actor_options(0)).remote()
            ray.get(worker.node.remote(), timeout=60)
            blocked = worker.block.remote()
            client.submit(component="prod", resources=TWO_GPUS)
            ray.get(blocked, timeout=60)
    assert caught.value.by_component == "prod"
    assert isinstance(caught.value.__cause__, ray.exceptions.RayActorError)


def test_calls_through_a_lease_that_has_ended_raise_at_once(client: raypool.Client) -> None:
    client.apply(POOLS)
    with raypool.lease(TWO_GPUS, component="sandbox") as lease:
        task, actor = lease.task_options(), lease.actor_options()
    with pytest.raises(raypool.LeaseEnded):
        ray.remote(lambda: 1).options(**task).remote()
    with pytest.raises(raypool.LeaseEnded):
        Worker.options(**actor).remote()
    with pytest.raises(raypool.LeaseEnded):
        lease.task_options()


def test_options_of_a_preempted_lease_raise_preempted(client: raypool.Client) -> None:
    client.apply(POOLS)
    lease = raypool.lease(ResourceSettings(gpu_count=4), component="sandbox", workers=3).acquire()
    options = lease.task_options()
    client.submit(component="prod", resources=TWO_GPUS)
    until(lambda: lease.ended, "the lease hears of its end")
    with pytest.raises(raypool.Preempted, match="'prod'"):
        ray.remote(lambda: 1).options(**options).remote()


def test_with_a_grace_options_stop_working_at_the_deadline_so_that_nothing_hangs(client: raypool.Client) -> None:
    client.apply({**POOLS, "pools": [{"name": "shared", "capacity": {"gpu": 12}, "grace_seconds": 2}]})
    lease = raypool.lease(ResourceSettings(gpu_count=4), component="sandbox", workers=3).acquire()
    step = ray.remote(lambda: time.sleep(0.005)).options(**lease.task_options(num_gpus=0))
    ray.get(step.remote(), timeout=60)
    client.submit(component="prod", resources=TWO_GPUS)
    refs = []
    with pytest.raises(raypool.Preempted, match="'prod'"):
        while True:
            refs.append(step.remote())
            time.sleep(0.01)
    done, stuck = ray.wait(refs, num_returns=len(refs), timeout=20)
    assert len(done) > 10 and not stuck


def test_a_lease_goes_on_under_a_broker_that_was_started_in_the_place_of_one_that_was_killed(
    client: raypool.Client,
) -> None:
    client.apply(POOLS)
    lease = raypool.lease(TWO_GPUS, component="sandbox").acquire()
    ray.kill(client._line.actor, no_restart=True)  # without the farewells of `raypool stop`
    until(_no_broker, "Ray has freed the name")
    client._line.actor = raypool.start()._line.actor
    task = ray.remote(lambda: "ran").options(**lease.task_options())
    assert ray.get(task.remote(), timeout=60) == "ran"
    client.cancel(lease.request_id, "enough")
    until(lambda: lease.ended, "the lease hears of the new broker's word")


def _no_broker() -> bool:
    try:
        ray.get_actor("broker", namespace="raypool")
    except ValueError:
        return True
    return False


def test_a_users_own_error_is_not_dressed_up(client: raypool.Client) -> None:
    client.apply(POOLS)
    with pytest.raises(ZeroDivisionError), raypool.lease(TWO_GPUS, component="sandbox"):
        _ = 1 / 0
    until(lambda: client.pool("shared").used == {"gpu": 0}, "it was given back all the same")


def test_async_leases_wait_and_are_given_back(client: raypool.Client) -> None:
    client.apply(POOLS)

    async def story() -> str:
        async with raypool.lease(TWO_GPUS, component="sandbox") as lease:
            task = ray.remote(lambda: "ran").options(**lease.task_options())
            return str(await task.remote())

    assert asyncio.run(story()) == "ran"
    until(lambda: client.pool("shared").used == {"gpu": 0}, "it was given back")


def test_a_cancelled_lease_tells_its_block_why(client: raypool.Client) -> None:
    client.apply(POOLS)
    with pytest.raises(raypool.RequestCancelled, match="cluster maintenance"):  # noqa: SIM117
        with raypool.lease(TWO_GPUS, component="sandbox") as lease:
            worker = Worker.options(**lease.actor_options()).remote()
            ray.get(worker.node.remote(), timeout=60)
            blocked = worker.block.remote()
            client.cancel(lease.request_id, reason="cluster maintenance")
            ray.get(blocked, timeout=60)


def test_many_are_submitted_at_once_in_order_or_none_of_them(client: raypool.Client) -> None:
    client.apply(POOLS)
    one, before = {"component": "sandbox", "resources": {"gpu_count": 1}}, client.status().requests
    with pytest.raises(raypool.SpecError, match=r"specs\[1\]: resources.gpu_count: must be >= 0, got -1"):
        client.submit_many([one, {"component": "sandbox", "resources": {"gpu_count": -1}}])
    assert client.status().requests == before
    alike = raypool.RequestSpec(component="sandbox", resources=ResourceSettings(gpu_count=1))
    views = client.submit_many([alike, {"component": "nobody"}, *[one] * 12])
    assert [view.number for view in views] == list(range(views[0].number, views[0].number + 14))
    assert [view.status for view in views] == ["pending", "rejected", *["pending"] * 12]
    assert views[1].reason == "no policy attaches team 'nobody' to any pool"
    started = [views[0].id, *(view.id for view in views[2:13])]
    assert [client.wait(id, 30).status for id in started] == ["allocated"] * 12
    assert client.request(views[13].id).status == "pending"
    again = asyncio.run(client.submit_many_async([{**one, "id": view.id} for view in views[2:]]))
    assert [(view.id, view.status) for view in again] == [(id, "allocated") for id in started[1:]] + [
        (views[13].id, "pending")
    ]
    with pytest.raises(raypool.Refused, match=f"request id '{views[0].id}' is taken"):
        client.submit_many([one, {**one, "workers": 2, "id": views[0].id}])
    more = {status: count - before.get(status, 0) for status, count in client.status().requests.items()}
    assert {status: count for status, count in more.items() if count} == {
        "allocated": 12,
        "pending": 1,
        "rejected": 1,
    }
