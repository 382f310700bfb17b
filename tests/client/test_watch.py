"""One thread serves every lease of a process: nothing that one of them does makes the others deaf."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import ray.exceptions

from raypool.client import listening
from raypool.client import watch as watching
from raypool.client.watch import Watch, follow
from raypool.errors import BrokerUnavailable, DurationExceeded, LeaseEnded, Preempted, RequestCancelled

from .fake_line import FakeLine, preempting, task_error, view, watched


@pytest.fixture(autouse=True)
def a_listener_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(listening, "_listener", None)
    yield


def followed(line: FakeLine, request_id: str = "r1") -> Watch:
    return follow(watched(line, request_id))


def died() -> ray.exceptions.ActorDiedError:
    return ray.exceptions.ActorDiedError()


def test_a_slow_callback_does_not_eat_the_grace_of_other_leases() -> None:
    slow, other = FakeLine(), FakeLine()
    go_on, heard = threading.Event(), threading.Event()
    followed(slow).on_preemption(lambda notice: go_on.wait(10))
    followed(other, "r2").on_preemption(lambda notice: heard.set())
    slow.tell(1, preempting(time.time() + 60))
    other.tell(1, preempting(time.time() + 60, "r2"))
    assert heard.wait(5)
    go_on.set()


@pytest.mark.parametrize("end", ["ended", "lost"])
def test_a_callback_that_fails_leaves_the_others_their_ears(end: str) -> None:
    broken, other = FakeLine(), FakeLine()
    second, heard = threading.Event(), threading.Event()
    one = followed(broken)
    one.on_end(lambda: 1 / 0)
    one.on_end(second.set)
    followed(other, "r2").on_end(heard.set)
    if end == "ended":
        broken.tell(1, view(status="cancelled", reason="maintenance"))
    else:
        broken.refuse(1)
    assert second.wait(5)
    other.tell(1, view("r2", "cancelled", reason="maintenance"))
    assert heard.wait(5)


def test_polls_that_fail_wait_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_AGAIN_SECONDS", 0.3)
    lines = [FakeLine() for _ in range(20)]
    for number, line in enumerate(lines):
        followed(line, f"r{number}")
    began = time.monotonic()
    for line in lines:
        line.poll(1).set_exception(ray.exceptions.ActorUnavailableError("away", None))
    for line in lines:
        line.poll(2)
    assert 0.3 <= time.monotonic() - began < 3.0, "20 one after the other would take 6 s"


def test_the_broker_that_was_started_anew_is_found_and_does_not_know_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "LOOK_AGAIN_SECONDS", 0.01)
    line, anew, lost = FakeLine(), FakeLine(), threading.Event()
    anew.actor = "the second"
    found = [BrokerUnavailable("no broker runs"), anew]

    def find_broker() -> FakeLine:
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(listening, "find_broker", find_broker)
    watch = followed(line)
    watch.on_end(lost.set)
    line.poll(1).set_exception(died())
    line.poll(2).set_exception(died())
    line.refuse(3)
    assert lost.wait(5)
    assert line.actor == "the second"
    with pytest.raises(RequestCancelled, match="was lost"):
        watch.require()


def test_a_fault_of_the_brokers_is_not_the_end_of_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_AGAIN_SECONDS", 0.01)
    line = FakeLine()
    watch = followed(line)
    line.poll(1).set_exception(task_error(KeyError("a bug")))
    line.poll(2)
    assert not watch.over


def test_a_release_by_its_owner_is_no_news_to_him() -> None:
    watch, told = watched(FakeLine()), []
    watch.on_end(lambda: told.append("ended"))
    watch.leaving = True
    watch.heard(view(status="released"), 1)
    assert told == []
    with pytest.raises(LeaseEnded):
        watch.require()


@pytest.mark.parametrize(("seconds_left", "works"), [(30.0, True), (0.1, False), (-1.0, False)])
def test_no_work_starts_in_a_lease_whose_deadline_has_come(seconds_left: float, works: bool) -> None:
    watch = watched(FakeLine())
    watch.heard(preempting(time.time() + seconds_left), 1)
    if works:
        watch.require()
    else:
        with pytest.raises(Preempted, match="has to make room"):
            watch.require()


def test_one_that_ran_too_long_hears_so_in_its_notice_and_at_its_end() -> None:
    line = FakeLine()
    lease = followed(line)
    heard, over = threading.Event(), threading.Event()
    lease.on_preemption(lambda notice: heard.set())
    lease.on_end(over.set)
    told = {"rule": "max-duration", "reason": "ran longer than its 2 h"}
    line.tell(1, view(status="preempting", deadline=time.time() - 1, **told))
    assert heard.wait(5)
    assert lease.notice is not None
    assert (lease.notice.rule, lease.notice.by, lease.notice.reason) == ("max-duration", "", told["reason"])
    with pytest.raises(DurationExceeded, match="ran longer than its 2 h"):
        lease.require()
    line.tell(2, view(status="cancelled", **told))
    assert over.wait(5)
    assert isinstance(lease.ending, DurationExceeded)
