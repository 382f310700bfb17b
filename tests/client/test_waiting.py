"""What is asked of the broker while a request waits, and what its answers mean: no broker, no clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import ray.exceptions

from raypool.client import listening, waiting
from raypool.client.waiting import Waiting, acquire, acquire_async
from raypool.errors import NodeLost, Refused, RequestRejected, WaitTimeout
from raypool.spec import RequestSpec

from .fake_line import FakeLine, task_error, view


def told(status: str, **more: Any) -> dict[str, Any]:
    return {"request": view(status=status, **more).as_dict(), "version": 3}


def ask(line: FakeLine, timeout: float | None = None) -> Any:
    return acquire(line, RequestSpec(id="r1", component="red"), "01", timeout)  # type: ignore[arg-type]


def test_it_is_asked_anew_by_a_broker_that_forgot_it_and_as_a_retry_after_it_lost_its_room() -> None:
    line = FakeLine()
    line.trouble["watch"] = [Refused("there is no request 'r1'")]
    line.answers["acquire"] = [told("pending"), told("preempted", reason="had to leave"), told("pending")]
    line.answers["watch"] = [told("pending"), told("allocated")]
    spec, granted, version = ask(line)
    assert [call[0] for call in line.calls] == ["acquire", "watch", "acquire", "acquire", "watch", "watch"]
    ids = [call[1]["id"] for call in line.calls if call[0] == "acquire"]
    assert ids[:2] == ["r1", "r1"] and ids[2] == spec.id != "r1"
    assert (spec.retry_of, granted.status, version) == ("r1", "allocated", 3)


def test_one_that_lost_its_node_before_anybody_could_use_it_is_asked_anew_in_the_very_place_of_that_one() -> None:
    line = FakeLine()
    line.answers["acquire"] = [
        told("preempted", reason="had to leave"), told("cancelled", rule="node-lost", reason="node n1 lost"),
        told("allocated"),
    ]  # fmt: skip
    spec, _, _ = ask(line)
    submitted = [call[1] for call in line.calls if call[0] == "acquire"]
    assert [one.get("retry_of") for one in submitted] == [None, "r1", submitted[1]["id"]]
    assert spec.id == submitted[2]["id"]


def test_one_that_shall_not_be_asked_anew_says_that_it_lost_its_node() -> None:
    line = FakeLine()
    line.answers["acquire"] = told("cancelled", rule="node-lost", reason="node n1 lost")
    spec = RequestSpec(id="r1", component="red", on_node_loss="fail")
    with pytest.raises(NodeLost, match="node n1 lost"):
        acquire(line, spec, "01", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "timeout", "error", "withdrawn"),
    [(told("rejected", reason="no pool"), None, RequestRejected, False), (told("pending"), 0, WaitTimeout, True)],
    ids=["rejected", "time is up"],
)
def test_whatever_else_ends_the_wait_withdraws_it(
    answer: dict[str, Any], timeout: float | None, error: type[Exception], withdrawn: bool
) -> None:
    line = FakeLine()
    line.answers["acquire"] = answer
    with pytest.raises(error):
        ask(line, timeout)
    assert ("cancel" in line.sent) == withdrawn


def test_a_withdrawal_is_repeated_until_the_broker_has_heard_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LOOK_AGAIN_SECONDS", 0.01)
    line = FakeLine()
    line.answers["acquire"] = told("pending")
    with pytest.raises(WaitTimeout):
        ask(line, 0)
    line.open_call("cancel", 1)[1].set_exception(ray.exceptions.ActorUnavailableError("it starts again", None))
    args, answer = line.open_call("cancel", 2)
    assert args == ("r1", "its owner stopped waiting: wait_timeout_seconds is over")
    answer.set_exception(task_error(Refused("there is no request 'r1'")))


def test_a_request_that_is_refused_is_not_asked_again() -> None:
    line = FakeLine()
    line.trouble["acquire"] = [Refused("the id 'r1' stands for something else")]
    with pytest.raises(Refused):
        ask(line)
    assert [call[0] for call in line.calls] == ["acquire"]


WHY = {
    "id": "r1", "component": "red", "status": "pending", "sentence": "'r1' waits: no room", "at": 10.0,
    "waits": [{
        "pool": "p", "rule": "room-being-made", "sentence": "no room",
        "position": 2, "ahead": ["r0"], "ahead_in_all": 1,
        "waits_for": [{"id": "r9", "component": "blue", "holds": {"gpu": 4}, "leaves_by": 15.0}],
    }],
    "expected": "expected to start in about 5 s, in 9 of 10 cases within 9 s",
    "would_start": [{"rule": "ask-less", "sentence": "asked again with 1 gpu, it would start now", "leaving": []}],
}  # fmt: skip


@pytest.mark.parametrize("how", [acquire, lambda *args: asyncio.run(acquire_async(*args))], ids=["plain", "async"])
def test_the_log_has_the_reason_the_facts_and_what_would_start_it(
    how: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOG_SECONDS", 0.0)
    line = FakeLine()
    line.answers["acquire"] = {**told("pending"), "why": WHY}
    line.answers["watch"] = told("allocated")
    how(line, RequestSpec(id="r1", component="red"), "01", None)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("raypool", "WARNING")
    assert record.getMessage().splitlines() == [
        "waiting for 0 s: 'r1' waits: no room",
        "  pool 'p', number 2 in line",
        "    ahead of it: 'r0'",
        "    waits for 'r9' of 'blue' (4 gpu), which leaves in 5 s at the latest",
        "  expected to start in about 5 s, in 9 of 10 cases within 9 s",
        "what would start it",
        "  - asked again with 1 gpu, it would start now",
    ]


def test_what_changes_just_when_it_is_logged_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOG_SECONDS", 0.0)
    line = FakeLine()
    line.answers["acquire"] = told("pending", reasons={"p": "no room"})
    line.answers["watch"] = told("allocated")
    ask(line)
    assert caplog.messages == ["waiting for 0 s: 'r1' waits: no room"]


def test_it_is_asked_why_only_when_it_is_time_to_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    made = Waiting(RequestSpec(id="r1", component="red"), "01", 100.0, None)
    asked = []
    for _ in range(5):
        method, (*_, patience, explain), _ = made.next_call()
        asked.append((method, patience, explain))
        clock.now += patience
        made.take(told("pending"))
    assert asked == [
        ("acquire", 5.0, True), ("watch", 10.0, True), ("watch", 20.0, True), ("watch", 30.0, False),
        ("watch", 10.0, True),
    ]  # fmt: skip
    assert made.next_call()[1][2:] == (25.0, False), "by then its time is up"


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("p50", "p90", "beyond", "words"),
    [
        (40.2, 95.0, None, "expected to start in about 41 s, in 9 of 10 cases within 95 s"),
        (100.0, 7300.0, None, "expected to start in about 2 min, in 9 of 10 cases within 2 h"),
        (3 * 86400.0, None, None, "expected to start in about 3 d, or much later"),
        (3 * 86400.0, None, 9e5, "expected to start in about 3 d, in 1 of 10 cases in more than 10 d"),
        (None, None, 9e5, "not expected to start within the next 10 d"),
        (29.5, 30.0, None, "expected to start within 30 s"),
        (0.0, 0.0, None, "expected to start any moment"),
    ],
)
def test_who_waits_hears_when_it_is_expected_to_start(
    p50: float | None, p90: float | None, beyond: float | None, words: str
) -> None:
    waits = view(
        status="pending",
        reasons={"p": "no room"},
        eta_p50_seconds=p50,
        eta_p90_seconds=p90,
        eta_beyond_seconds=beyond,
    )
    assert waits.story == f"'r1' waits: no room\n{words}"
    assert view(status="pending", reasons={"p": "no room"}).story == "'r1' waits: no room"
