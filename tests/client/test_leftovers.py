"""What a function leaves behind in its worker, told beside its result. Real Ray is in tests/ray/test_hand_over.py."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray.cloudpickle
from ray._private.worker import Worker
from ray.actor import ActorClass
from ray.remote_function import RemoteFunction
from ray.util.placement_group import PlacementGroup

from raypool.client.leftovers import watched
from raypool.client.listening import Listener


@pytest.fixture(autouse=True)
def seams(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `watched` wraps in Ray's classes is put back."""
    for kind, name in ((RemoteFunction, "_remote"), (ActorClass, "_remote"), (PlacementGroup, "__init__")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    monkeypatch.setattr(_thread, "start_new_thread", _thread.start_new_thread)
    monkeypatch.setattr(Worker, "placement_group_id", Worker.placement_group_id)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker: the test's own threads and children are not seen."""
    before = threading.enumerate()
    count = _thread._count()
    enumerate_all = threading.enumerate
    monkeypatch.setattr(
        threading, "enumerate", lambda: [one for one in enumerate_all() if one not in before or one is before[0]]
    )
    counted = _thread._count
    monkeypatch.setattr(_thread, "_count", lambda: counted() - count)


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_function_that_leaves_nothing_says_so_with_its_result(alone: None) -> None:
    def add(left: int, right: int = 1) -> int:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", ""], check=True)
        return left + right

    assert watched(add)(2, right=3) == (5, True)
    assert watched(add)(2) == (3, True), "what was wrapped once is not wrapped again"


def test_what_it_raises_is_raised(alone: None) -> None:
    def fail() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError):
        watched(fail)()


def leave_a_thread(go: threading.Event) -> None:
    threading.Thread(target=go.wait, daemon=True).start()


def leave_a_thread_of_the_lower_kind(go: threading.Event) -> None:
    _thread.start_new_thread(go.wait, ())


def read_its_group(go: threading.Event) -> None:
    with pytest.raises(AttributeError):  # there is no Ray here to ask
        _ = Worker.placement_group_id.fget(object())  # type: ignore[attr-defined]


def make_a_handle(go: threading.Event) -> None:
    PlacementGroup(ray.PlacementGroupID.from_random())


@pytest.mark.parametrize("leave", [leave_a_thread, leave_a_thread_of_the_lower_kind, read_its_group, make_a_handle])
def test_what_it_leaves_is_seen(alone: None, go: threading.Event, leave: Callable[[Any], None]) -> None:
    assert watched(leave)(go) == (None, False)


def test_raypools_own_listener_is_none(alone: None) -> None:
    def listen() -> None:
        Listener().start()

    assert watched(listen)() == (None, True)


def test_a_child_process_is_seen(alone: None) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def leave_a_child() -> None:
        started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

    assert watched(leave_a_child)() == (None, False)
    started[0].communicate()
    assert watched(int)() == (0, True)


@pytest.mark.parametrize("kind", [RemoteFunction, ActorClass])
def test_work_that_it_starts_is_seen(alone: None, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(kind, "_remote", lambda self, *args, **options: "started")

    def start() -> str:
        return str(kind._remote(None))

    assert watched(start)() == ("started", False)


def test_a_ray_that_is_not_known_is_not_trusted(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Worker, "placement_group_id")
    assert watched(int)() == (0, False)


def test_it_travels_by_value_to_where_there_is_no_raypool() -> None:
    def double(value: int) -> int:
        return 2 * value

    sent = ray.cloudpickle.dumps(watched(double))
    program = """
import pickle, sys
sys.modules["raypool"] = None
print(pickle.loads(sys.stdin.buffer.read())(21))
"""
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False)
    assert done.stdout.decode().strip() == "(42, True)", done.stderr.decode()
