"""Decorated tasks and actors on a real cluster: they wait, run in their group, and give it back."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray

import raypool
from raypool import ResourceSettings
from raypool.client import dispatcher

from .conftest import until

POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 12}}],
    "policies": [
        {"pool": "shared", "component": "sandbox", "priority": 10},
        {"pool": "shared", "component": "prod", "priority": 100, "reserved": {"gpu": 2}},
    ],
}


@raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=2))
def where(value: Any = None) -> dict[str, Any]:
    lease = raypool.current_lease()
    assert lease is not None
    return {
        "value": value,
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        "request": lease.request_id,
        "node": ray.get_runtime_context().get_node_id(),
    }


def test_a_task_runs_in_its_own_group_with_its_gpus_and_gives_it_back(client: raypool.Client) -> None:
    client.apply(POOLS)
    found = ray.get(where.remote("x"), timeout=60)
    view = client.request(found["request"])
    assert found["value"] == "x"
    assert len(found["gpus"].split(",")) == 2
    assert view.nodes == [found["node"]]
    assert (view.status, view.pool, view.component) == ("released", "shared", "sandbox")
    until(lambda: client.pool("shared").used == {"gpu": 0}, "the capacity is back")


def test_references_pass_through_and_user_errors_keep_their_type(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox")
    def add(left: int, right: int) -> int:
        if right == 0:
            raise KeyError("no zero")
        return left + right

    assert ray.get(add.remote(ray.put(40), right=ray.put(2)), timeout=60) == 42
    with pytest.raises(KeyError):
        ray.get(add.remote(1, 0), timeout=60)
    with pytest.raises(TypeError):
        add.remote(1)


def test_an_error_of_the_function_shows_its_own_lines(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox")
    def look_up(key: str) -> int:
        return {"a": 1}[key]

    with pytest.raises(KeyError) as caught:
        ray.get(look_up.remote("b"), timeout=60)
    assert "in look_up" in str(caught.value) and 'return {"a": 1}[key]' in str(caught.value)


def test_a_task_without_returns_holds_its_lease_until_it_has_run(client: raypool.Client, tmp_path: Path) -> None:
    client.apply(POOLS)
    started, go, done = tmp_path / "started", tmp_path / "go", tmp_path / "done"

    @raypool.remote(component="sandbox", num_returns=0)
    def work() -> str:
        started.touch()
        while not go.exists():
            time.sleep(0.02)
        done.touch()
        return "nobody asks for this"

    assert work.remote() is None
    until(started.exists, "it runs", 60)
    assert [one.status for one in client.requests(ended=False)] == ["allocated"]
    go.touch()
    until(done.exists, "it ends")
    until(lambda: not client.requests(ended=False), "it gives back what it held")


def test_options_of_the_same_function_send_it_once(client: raypool.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.apply(POOLS)
    sent: list[Any] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: sent.append(value) or put(value))

    @raypool.remote(component="sandbox")
    def colour() -> list[str | None]:
        return [os.environ.get("COLOUR"), "second"]

    assert ray.get(colour.remote(), timeout=60) == [None, "second"]
    named = [colour.options(name=f"colour-{i}", description=f"call {i}").remote() for i in range(3)]
    assert ray.get(named, timeout=60) == [[None, "second"]] * 3
    blue = colour.options(runtime_env={"env_vars": {"COLOUR": "blue"}})
    assert ray.get(blue.remote(), timeout=60) == ["blue", "second"]
    assert len(sent) == 1
    assert ray.get(colour.options(num_returns=2).remote(), timeout=60) == [None, "second"]
    assert len(sent) == 2  # how many values it returns belongs to the function that is sent


def test_a_process_has_one_dispatcher_and_a_new_one_when_it_died(client: raypool.Client) -> None:
    client.apply(POOLS)
    first = ray.get(where.remote(), timeout=60)
    ray.kill(dispatcher.dispatcher_of_this_process())
    at_once = threading.Barrier(4)

    def ask(_: int) -> str:
        at_once.wait()
        return str(dispatcher.dispatcher_of_this_process()._actor_id.hex())

    def new_ones() -> bool:
        with ThreadPoolExecutor(4) as threads:
            asked = set(threads.map(ask, range(4)))
        made.update(asked - {before})  # in the very moment of the news some still get the dead one
        assert len(made) <= 1
        return before not in asked

    made: set[str] = set()
    before = dispatcher.dispatcher_of_this_process()._actor_id.hex()
    until(new_ones, "the dead dispatcher is replaced")
    assert ray.get(where.remote(), timeout=60)["request"] != first["request"]


def test_it_goes_on_top_of_ray_remote_and_keeps_its_options(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox")
    @ray.remote(num_returns=2, runtime_env={"env_vars": {"COLOUR": "blue"}})
    def two() -> tuple[str, str]:
        return os.environ["COLOUR"], "second"

    assert ray.get(two.remote(), timeout=90) == ["blue", "second"]


def test_a_generator_streams(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox")
    def count(n: int) -> Any:
        for i in range(n):  # noqa: UP028 - Ray sends values into generators, which range cannot take
            yield i

    assert [ray.get(ref, timeout=60) for ref in count.remote(3)] == [0, 1, 2]


def test_children_of_a_captured_task_run_in_its_group(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=1, cpu_count=2))
    def parent() -> tuple[str, str]:
        @ray.remote(num_cpus=0)
        def child() -> str:
            return str(ray.util.get_current_placement_group().id.hex())

        return ray.util.get_current_placement_group().id.hex(), ray.get(child.remote())

    mine, childs = ray.get(parent.options(capture_child_tasks=True).remote(), timeout=90)
    assert mine == childs


def test_an_evicted_task_with_rays_default_retries_runs_again_and_raises_nothing_of_rays(
    client: raypool.Client, tmp_path: Path
) -> None:
    client.apply(POOLS)
    marks = tmp_path / "marks"

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=4))
    def work(release_file: str) -> int:
        with open(marks, "a") as file:
            file.write("ran\n")
        while not os.path.exists(release_file):
            time.sleep(0.02)
        return len(marks.read_text().splitlines())

    go = tmp_path / "go"
    refs = [work.remote(str(go)) for _ in range(3)]
    until(lambda: marks.exists() and len(marks.read_text().splitlines()) == 3, "all three run", 90)
    with raypool.lease(ResourceSettings(gpu_count=4), component="prod") as lease:
        evicted = client.requests(status="preempted")
        assert [one.preempted_by for one in evicted] == [lease.request_id]
        assert evicted[0].preemption_rule == "preempt"
        again = until(lambda: client.requests(status="pending"), "the evicted task is queued again")
        assert again[0].retry_of == evicted[0].id
    until(lambda: len(marks.read_text().splitlines()) == 4, "it runs again", 90)
    go.touch()
    assert sorted(ray.get(refs, timeout=90)) == [4, 4, 4]


def test_a_task_that_is_evicted_too_often_raises_preempted_with_who_took_it(
    client: raypool.Client, tmp_path: Path
) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=4), workers=3, max_preemptions=0)
    def work() -> None:
        time.sleep(300)

    ref = work.remote()
    until(lambda: client.requests(status="allocated"), "it runs")
    taker = client.submit(component="prod", resources=ResourceSettings(gpu_count=2))
    with pytest.raises(raypool.Preempted) as caught:
        ray.get(ref, timeout=60)
    assert (caught.value.by, caught.value.by_component, caught.value.pool) == (taker.id, "prod", "shared")
    assert caught.value.rule == "reclaim"


def test_an_error_of_the_function_during_the_grace_is_its_own(client: raypool.Client, tmp_path: Path) -> None:
    client.apply({**POOLS, "pools": [{"name": "shared", "capacity": {"gpu": 12}, "grace_seconds": 60}]})
    started = tmp_path / "started"

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=4), workers=3)
    def work() -> None:
        lease = raypool.current_lease()
        assert lease is not None
        started.touch()
        while not lease.preemption_notice:
            time.sleep(0.02)
        raise KeyError("no checkpoint")

    ref = work.remote()
    until(started.exists, "it runs", 60)
    client.submit(component="prod", resources=ResourceSettings(gpu_count=2))
    with pytest.raises(KeyError, match="no checkpoint"):
        ray.get(ref, timeout=60)


def test_only_its_own_preemption_is_counted(client: raypool.Client, tmp_path: Path) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox", max_preemptions=1)
    def leave(mark: Path, request_id: str) -> None:
        with mark.open("a") as file:
            file.write("ran\n")
        raise raypool.Preempted("this went wrong inside", request_id)

    with pytest.raises(raypool.Preempted) as anothers:
        ray.get(leave.remote(tmp_path / "anothers", "somebody-else"), timeout=60)
    assert anothers.value.request_id == "somebody-else"
    assert (tmp_path / "anothers").read_text() == "ran\n"

    with pytest.raises(raypool.Preempted) as own:
        ray.get(leave.remote(tmp_path / "own", ""), timeout=60)
    assert (tmp_path / "own").read_text() == "ran\n" * 2
    assert client.request(own.value.request_id).retry_of is not None
    assert own.value.pool == "shared"


def test_what_cannot_run_is_refused_with_the_figures(client: raypool.Client) -> None:
    client.apply(POOLS)
    with pytest.raises(raypool.RequestRejected, match="asks for 13 gpu, pool 'shared' has 12"):
        ray.get(where.options(resources=ResourceSettings(gpu_count=13)).remote(), timeout=60)
    with pytest.raises(raypool.RequestRejected, match="no policy attaches team 'nobody' to any pool"):
        ray.get(where.options(component="nobody").remote(), timeout=60)


def test_a_task_that_waits_too_long_raises_and_leaves_the_queue(client: raypool.Client) -> None:
    client.apply(POOLS)
    with raypool.lease(ResourceSettings(gpu_count=4), component="sandbox", workers=3):
        ref = where.options(wait_timeout_seconds=0.3).remote()
        with pytest.raises(raypool.WaitTimeout, match=r"not granted within 0.3 s"):
            ray.get(ref, timeout=60)
        until(lambda: not client.requests(status="pending"), "it left the queue")


def test_cancelling_the_reference_gives_back_what_it_held(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=1))
    def sleep() -> None:
        time.sleep(300)

    refs = [sleep.remote() for _ in range(6)]
    until(lambda: len(client.requests(status="allocated")) == 6, "they run")
    for ref in refs:
        ray.cancel(ref)
    for ref in refs:
        with pytest.raises(ray.exceptions.RayError):
            ray.get(ref, timeout=60)
    until(lambda: client.pool("shared").used == {"gpu": 0}, "the capacity is back")


def test_an_actor_waits_for_its_grant_and_gives_it_back_when_it_ends(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="prod", resources=ResourceSettings(gpu_count=1, preemptible=False))
    class Server:
        def __init__(self, greeting: str) -> None:
            self.greeting = greeting

        def hello(self) -> tuple[str, str]:
            return self.greeting, os.environ["CUDA_VISIBLE_DEVICES"]

    server = Server.remote("hi")
    greeting, gpus = ray.get(server.hello.remote(), timeout=60)
    assert greeting == "hi" and len(gpus.split(",")) == 1
    assert client.pool("shared").used == {"gpu": 1}
    del server
    until(lambda: client.pool("shared").used == {"gpu": 0}, "the last handle is gone, so is its lease")


def test_a_preempted_actor_dies_and_its_calls_raise(client: raypool.Client) -> None:
    client.apply(POOLS)

    @raypool.remote(component="sandbox", resources=ResourceSettings(gpu_count=4), workers=3)
    class Sandbox:
        def ping(self) -> str:
            return "pong"

    actor = Sandbox.remote()
    assert ray.get(actor.ping.remote(), timeout=60) == "pong"
    client.submit(component="prod", resources=ResourceSettings(gpu_count=1))
    until(lambda: client.requests(status="preempted"), "it is evicted")
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.ping.remote(), timeout=30)


def test_a_pooled_class_cannot_be_inherited_from_and_says_what_to_do() -> None:
    @raypool.remote
    class Base:
        pass

    with pytest.raises(
        TypeError, match=r"'Base' runs in pools and cannot be inherited from: .* decorate the subclass"
    ):

        class Derived(Base):  # type: ignore[valid-type,misc]
            pass


def test_a_limit_on_how_far_a_generator_runs_ahead_is_refused() -> None:
    with pytest.raises(
        raypool.SpecError, match=r"_generator_backpressure_num_objects: cannot .* use raypool.lease\(\)"
    ):

        @raypool.remote(component="sandbox", _generator_backpressure_num_objects=2)
        def count() -> Any:
            yield 1


def test_a_dispatcher_forgets_the_functions_that_were_not_called_for_long() -> None:
    class Stored:
        """What the dispatcher sees of an ObjectRef."""

        def __init__(self, name: str) -> None:
            self.name, self.fetched = name, 0

        def hex(self) -> str:
            return self.name

        def __await__(self) -> Any:
            self.fetched += 1
            return self.name
            yield

    async def call_them() -> None:
        for one in (often, rarely):
            await forgetful._function([one])
        for i in range(dispatcher.FUNCTIONS_KEPT):
            await forgetful._function([Stored(f"another {i}")])
            assert await forgetful._function([often]) == "often"
        assert await forgetful._function([rarely]) == "rarely"

    forgetful, often, rarely = dispatcher.Dispatcher(), Stored("often"), Stored("rarely")
    asyncio.run(call_them())
    assert (often.fetched, rarely.fetched) == (1, 2)
    assert len(forgetful._functions) == dispatcher.FUNCTIONS_KEPT


@pytest.mark.parametrize(
    "failure",
    [
        ray.exceptions.RayTaskError("work", "its lines", ValueError("its SystemExit, caught"), ip="here"),
        ray.exceptions.RayTaskError("work", "its lines", ray.exceptions.ActorDiedError(), ip="here"),
        ray.exceptions.WorkerCrashedError(),
    ],
    ids=["an error of its own", "its child died first", "its worker died"],
)
def test_a_failure_is_a_preemption_if_the_broker_says_so(failure: ray.exceptions.RayError) -> None:
    class Held:
        """A lease whose end is known to the broker before anybody here has heard of it."""

        nodes = ("n1",)
        under_repair = False

        def __init__(self, ending: raypool.Preempted | None) -> None:
            self.ending = ending

        def on_end(self, callback: Any) -> None:
            pass

        async def why_it_failed(self) -> raypool.Preempted | None:
            return self.ending

        def lost_some_of(self, nodes: Any) -> bool:
            return False

    async def work() -> None:
        raise failure

    call = dispatcher.Call(raypool.RequestSpec(component="sandbox").dump(), None, 3, False, {})
    preempted = raypool.Preempted("it had to leave")
    for ending, raised in ((None, failure), (preempted, preempted)):
        with pytest.raises(type(raised)) as caught:
            asyncio.run(dispatcher._Run(call)._guard(Held(ending), [], work()))
        assert caught.value is raised
    assert preempted.__cause__ is failure
