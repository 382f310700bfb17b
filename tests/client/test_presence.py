"""A process is present as long as it waits for leases or holds some: two open calls, however many they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray.exceptions

from raypool.client import lease as leases
from raypool.client import listening, presence
from raypool.client.lease import Lease
from raypool.client.presence import Stay, stay
from raypool.errors import RequestCancelled, WaitTimeout
from raypool.spec import RequestSpec

from .fake_line import FakeLine, task_error, view


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(listening, "_listener", None)
    monkeypatch.setattr(presence, "_present", None)
    monkeypatch.setattr(presence, "session", lambda: ("cluster", "01"))
    monkeypatch.setattr(presence, "LOOK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(presence, "LINGER_SECONDS", 0.05)
    yield


def stays(line: FakeLine) -> Stay:
    return stay(line)  # type: ignore[arg-type]


def sent(line: FakeLine, method: str) -> int:
    return len(line.sent.get(method, ()))


def settle() -> None:
    """Until the listener has done what it has to do by now, and what was due in its linger."""
    done = threading.Event()
    listening.listener().later(presence.LINGER_SECONDS + 0.05, done.set)
    assert done.wait(5)


def test_one_pair_of_open_calls_serves_all_leases_and_ends_with_the_last() -> None:
    line = FakeLine()
    first, second = stays(line), stays(line)
    assert first.holder == second.holder
    [((name,), hold)], [((here, token), _)] = line.sent["hold"], line.sent["here"]
    assert name == here == first.holder
    assert token == [hold]
    first.leave()
    first.leave()
    settle()
    assert sent(line, "bye") == 0
    second.leave()
    assert line.open_call("bye", 1)[0] == (first.holder,)
    settle()
    third = stays(line)
    assert third.holder != first.holder, "what is still said of the first must not be taken for the other"
    assert (sent(line, "hold"), sent(line, "here")) == (2, 2)


def test_a_loop_of_leases_one_after_the_other_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "LINGER_SECONDS", 0.5)  # longer than a busy machine keeps the loop
    line = FakeLine()
    for _ in range(20):
        stays(line).leave()
    held = stays(line)
    settle()
    assert (sent(line, "hold"), sent(line, "bye")) == (1, 0)
    held.leave()


def test_it_says_that_it_is_here_again_and_again_and_gives_its_token_once() -> None:
    line = FakeLine()
    stays(line)
    for number in range(1, 6):
        (_, token), answer = line.open_call("here", number)
        assert len(token) == (1 if number == 1 else 0)
        answer.set_result(True)
    line.open_call("here", 6)
    assert sent(line, "hold") == 1


def test_a_broker_that_does_not_know_its_token_is_given_another() -> None:
    line = FakeLine()
    stays(line)
    line.open_call("here", 1)[1].set_result(True)
    line.open_call("here", 2)[1].set_result(False)
    (_, token), _ = line.open_call("here", 3)
    assert token == [line.sent["hold"][1][1]]


@pytest.mark.parametrize("order", [("hold", "here"), ("here", "hold")])
def test_after_the_broker_was_away_it_comes_again_once(order: tuple[str, str]) -> None:
    line = FakeLine()
    stays(line)
    for method in order:
        line.open_call(method, 1)[1].set_exception(ray.exceptions.ActorUnavailableError("away", None))
    (_, token), _ = line.open_call("here", 2)
    assert token == [line.sent["hold"][1][1]]
    settle()
    assert (sent(line, "hold"), sent(line, "here")) == (2, 2)


def test_a_broker_that_was_started_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    line, anew = FakeLine(), FakeLine()
    anew.actor = "the second"
    monkeypatch.setattr(listening, "find_broker", lambda: anew)
    stays(line)
    line.open_call("hold", 1)[1].set_exception(ray.exceptions.ActorDiedError())
    line.open_call("here", 2)
    assert line.actor == "the second"


def test_a_fault_of_the_brokers_does_not_pile_up_open_calls() -> None:
    line = FakeLine()
    stays(line)
    for number in range(1, 6):
        line.open_call("here", number)[1].set_exception(task_error(KeyError("a bug")))
    line.open_call("here", 6)[1].set_result(True)
    assert len(line.open_call("here", 7)[0][1]) == 0
    assert sent(line, "hold") == 1


def test_a_process_that_has_left_the_cluster_says_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    line, other = FakeLine(), FakeLine()
    before = stays(line)
    monkeypatch.setattr(presence, "session", lambda: None)
    line.open_call("hold", 1)[1].set_exception(ray.exceptions.RaySystemError("not connected"))
    settle()
    assert (sent(line, "hold"), sent(line, "here")) == (1, 1)
    monkeypatch.setattr(presence, "session", lambda: ("another cluster", "01"))
    after = stays(other)
    assert after.holder != before.holder
    before.leave()
    settle()
    assert sent(line, "bye") == 0 and sent(other, "hold") == 1 and sent(other, "bye") == 0
    assert stays(other).holder == after.holder


# --- with leases ------------------------------------------------------------------------------


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> FakeLine:
    made = FakeLine()
    made.answers["acquire"] = {"request": view().as_dict(), "version": 0}
    monkeypatch.setattr(leases, "find_broker", lambda: made)
    monkeypatch.setattr(leases, "job_id", lambda: "01")
    return made


def a_lease(**more: Any) -> Lease:
    return Lease(RequestSpec(id="r1", component="red"), **more)


def test_a_lease_needs_it_until_it_was_given_back(line: FakeLine) -> None:
    lease = a_lease().acquire()
    settle()
    assert sent(line, "bye") == 0
    lease.release()
    line.open_call("bye", 1)


@pytest.mark.parametrize("end", ["ended", "lost"])
def test_a_lease_that_was_taken_away_needs_it_no_more(line: FakeLine, end: str) -> None:
    a_lease().acquire()
    if end == "ended":
        line.tell(1, view(status="preempted", reason="had to leave"))
    else:
        line.refuse(1)
    line.open_call("bye", 1)


@pytest.mark.parametrize(
    ("status", "error"), [("cancelled", RequestCancelled), ("pending", WaitTimeout)], ids=["ended", "time is up"]
)
def test_a_wait_that_failed_needs_it_no_more(line: FakeLine, status: str, error: type[Exception]) -> None:
    line.answers["acquire"] = {"request": view(status=status).as_dict(), "version": 0}
    began = time.monotonic()
    with pytest.raises(error):
        a_lease(wait_timeout_seconds=0).acquire()
    line.open_call("bye", 1)
    assert time.monotonic() - began < 3
