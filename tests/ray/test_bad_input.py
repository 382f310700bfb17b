"""What a hostile client can send over a real Ray: the broker's process lives on, and answers."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

import raypool
from raypool import RequestSpec, ResourceSettings, SpecError
from raypool.client.broker import BrokerLine, find_broker

from .conftest import Driver, until

NODES = [{"num_cpus": 4, "num_gpus": 4}]
PLAIN = "the broker takes plain data only"


class Calls:
    """Unpickled, it calls something."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.reduced = function, args

    def __reduce__(self) -> Any:
        return self.reduced


class RaisesWhenRead:
    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}

    def __setstate__(self, state: Any) -> None:
        raise SystemExit(f"{state}")


class NotThere:
    """Ray pickles this class by its name: the broker cannot import it."""


def not_there() -> NotThere:
    NotThere.__module__ = "no_such_module"
    sys.modules["no_such_module"] = sys.modules[__name__]
    return NotThere()


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def large_when_written_out() -> tuple[Any, ...]:
    value: list[Any] = [1]
    for _ in range(30):
        value = [value] * 10
    return (value,)


HOSTILE: dict[str, Callable[[], Any]] = {
    "ends the process": lambda: Calls(os._exit, 1),
    "ends the process from inside of a list": lambda: [{"a": Calls(os._exit, 1)}],
    "kills the process": lambda: Calls(os.kill, 0, signal.SIGKILL),
    "raises SystemExit": lambda: Calls(sys.exit, 1),
    "runs a command": lambda: Calls(os.system, "kill -9 $PPID"),
    "takes for ever": lambda: Calls(pow, 10, 10**9),
    "a class that is not there": not_there,
    "raises when it is read": RaisesWhenRead,
    "a lambda": lambda: lambda: os._exit(1),
    "an exception": lambda: ValueError("x"),
    "an exception of Ray's": lambda: ray.exceptions.RayActorError(),
    "an exception of ours": lambda: raypool.Preempted("x"),
    "a spec": lambda: RequestSpec(component="team"),
    "an array": lambda: pickle.PickleBuffer(bytearray(1000)),
    "a set": lambda: {1, 2},
    "a class": lambda: RequestSpec,
    "small in a pickle and large written out": large_when_written_out,
    "a string of 50 MB": lambda: "x" * 50_000_000,
    "bytes of 50 MB": lambda: b"x" * 50_000_000,
    "an actor": lambda: find_broker().actor,
}


@pytest.fixture
def line(client: raypool.Client) -> BrokerLine:
    pool = {"name": "p", "capacity": {"gpu": 4}}
    client.apply({"pools": [pool], "policies": [{"pool": "p", "component": "team", "priority": 1}]})
    return find_broker()


def pid() -> int:
    """The broker's process, as the GCS knows it."""
    from ray._private import state

    return next(row["Pid"] for row in state.actors().values() if row["Name"] == "broker" and row["State"] == "ALIVE")


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_not_plain_data_is_not_read_and_the_broker_lives_on(line: BrokerLine, what: str) -> None:
    before = pid()
    for send in (
        lambda value: line.call("describe", value),
        lambda value: line.call("submit", {"component": "team", "description": value}, None),
        lambda value: line.call("watch", request_id="a", seen=value, timeout_seconds=1.0),
    ):
        with pytest.raises(SpecError, match=PLAIN) as caught:
            send(HOSTILE[what]())
        assert len(str(caught.value)) < 400
    assert pid() == before
    assert line.call("requests") == []


@pytest.mark.parametrize(
    "value",
    [(1, 2), b"x", 2**70, "\ud800", float("nan"), deep(100), {1: 2}, "x" * 1_000_000, True, None],
    ids=["tuple", "bytes", "number", "surrogate", "nan", "deep", "keys", "string", "bool", "none"],
)
def test_plain_data_of_the_wrong_kind_is_refused_by_what_the_call_takes(line: BrokerLine, value: Any) -> None:
    before = pid()
    with pytest.raises(SpecError, match="describe: request_id: "):
        line.call("describe", value)
    with pytest.raises(SpecError, match=r"submit: spec: |RequestSpec: "):
        line.call("submit", {"component": "team", "workers": value}, None)
    assert pid() == before


@pytest.mark.parametrize("levels", [400, 900, 5_000])
def test_lists_too_deep_for_ray_are_refused_too(line: BrokerLine, levels: int) -> None:
    before = pid()
    with pytest.raises(SpecError) as caught:
        line.call("submit", {"component": "team", "description": deep(levels)}, None)
    assert len(str(caught.value)) < 400
    assert pid() == before


def test_a_reference_in_a_list_tells_of_its_owner_s_death(cluster: Cluster, drivers: Callable[..., Driver]) -> None:
    """What a caller's presence is known by: it is read, and waited for, though little else is."""

    class Reads:
        def __init__(self) -> None:
            from raypool.server.plain_data import take_plain_data_only

            take_plain_data_only()
            self.heard = ""

        async def here(self, token: list[Any]) -> None:
            self.heard = "waits"
            try:
                await token[0]
            except ray.exceptions.OwnerDiedError:
                self.heard = "its owner died"

        async def what(self) -> str:
            return self.heard

    actor = ray.remote(Reads).options(name="reads", namespace="bad", lifetime="detached", num_cpus=0).remote()
    assert ray.get(actor.what.remote()) == ""
    driver = drivers(
        """
        token = ray.remote(num_cpus=0)(lambda: time.sleep(300)).remote()
        said = ray.get_actor("reads", namespace="bad").here.remote([token])
        print("said")
        time.sleep(300)
        """
    )
    assert driver.line() == "said"
    until(lambda: ray.get(actor.what.remote()) == "waits", "the reference is read")
    driver.kill()
    until(lambda: ray.get(actor.what.remote()) == "its owner died", "the owner's death is heard of")
    ray.kill(actor)


def test_what_cannot_be_sent_is_a_spec_error_too(line: BrokerLine) -> None:
    with pytest.raises(SpecError, match=PLAIN) as caught:
        line.call("describe", ["x" * 10_000_000, threading.Lock()])
    assert len(str(caught.value)) < 400


def test_references_are_read_with_what_is_behind_them(line: BrokerLine) -> None:
    @ray.remote(max_retries=0)
    def fails() -> None:
        raise Hostile()

    class Hostile(Exception):
        def __reduce__(self) -> Any:
            return os._exit, (1,)

    before = pid()
    with pytest.raises(SpecError, match="request_id: must be a string"):
        line.call("describe", ray.put(7))
    with pytest.raises(SpecError, match=PLAIN):
        line.call("describe", ray.put(Calls(os._exit, 1)))
    with pytest.raises(SpecError, match=PLAIN):
        line.call("describe", fails.remote())
    with pytest.raises(SpecError, match="submit: spec: must be plain data"):
        line.call("submit", {"component": "team", "description": [ray.put(7)]}, None)
    assert pid() == before


def test_a_function_that_ray_would_run_in_any_actor_is_not_even_read(line: BrokerLine) -> None:
    before = pid()
    with pytest.raises(SpecError, match=PLAIN):
        line.call("__ray_call__", lambda broker: os._exit(1))
    assert pid() == before


def test_calls_with_too_much_or_too_little_are_refused(line: BrokerLine) -> None:
    for args, more, says in (
        ((), {}, "describe: request_id: is required"),
        (("a", "b"), {}, "describe: takes request_id, got 2 arguments"),
        (("a",), {"request_id": "a"}, "describe: request_id is given twice"),
        (("a",), {"sean": 1}, "describe: 'sean' is no argument of it"),
    ):
        with pytest.raises(SpecError, match=says):
            line.call("describe", *args, **more)


def test_groups_are_placed_and_given_back_as_ever(client: raypool.Client, line: BrokerLine) -> None:
    with pytest.raises(SpecError, match=PLAIN):
        line.call("describe", Calls(os._exit, 1))
    with raypool.lease(ResourceSettings(gpu_count=1), component="team", workers=2) as lease:
        assert len(lease.nodes) == 2
    until(lambda: client.pool("p").used == {"gpu": 0}, "its GPUs are free")
