"""The life of a lease against a broker that answers what the test says: how a block ends, and its options."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray.exceptions

from raypool.client import lease as leases
from raypool.client import listening, nodes, presence
from raypool.client.current import CurrentLease
from raypool.client.lease import Lease, group_handle
from raypool.client.watch import Watch
from raypool.errors import BrokerUnavailable, LeaseEnded, NodeLost, Preempted, Refused, RequestCancelled, SpecError
from raypool.spec import RequestSpec, ResourceSettings

from .fake_line import FakeLine, preempting, task_error, view, watched

AWAY = BrokerUnavailable("the broker does not answer")


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> FakeLine:
    made = FakeLine()
    made.answers["acquire"] = {"request": view().as_dict(), "version": 0}
    made.answers["describe"] = view().as_dict()
    monkeypatch.setattr(leases, "find_broker", lambda: made)
    monkeypatch.setattr(leases, "job_id", lambda: "01")
    monkeypatch.setattr(presence, "_present", None)
    monkeypatch.setattr(presence, "session", lambda: ("cluster", "01"))
    monkeypatch.setattr(leases, "any_is_silent", lambda nodes: False)
    monkeypatch.setattr(leases, "ASK_AGAIN_SECONDS", 0.01)
    return made


def a_lease() -> Lease:
    return Lease(RequestSpec(id="r1", component="red", resources=ResourceSettings(gpu_count=1)))


def test_who_asks_and_who_gives_back_says_of_which_job_and_process_he_is(line: FakeLine) -> None:
    a_lease().acquire().release()
    [(name, hold)], [((here, token), _)] = [line.sent[method] for method in ("hold", "here")]
    asked, release = [call for call in line.calls if call[0] in ("acquire", "release")]
    assert asked[2:4] == ("01", here) and name == (here,)
    assert token == [hold]
    assert release == ("release", "r1", "01", True)


def test_a_detached_lease_has_no_owner(line: FakeLine) -> None:
    lease = Lease(RequestSpec(id="r1", component="red", lifetime="detached")).acquire()
    lease.release()
    assert line.sent == {}
    asked, release = [call for call in line.calls if call[0] in ("acquire", "release")]
    assert (asked[2:4], release[2:]) == ((None, None), (None, True))


USES = {
    "options of tasks": lambda lease: lease.task_options(0),
    "options of actors": lambda lease: lease.actor_options(0),
    "the placement group": lambda lease: lease.placement_group,
    "its view, which names the group": lambda lease: lease.view,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_lease_that_gave_something_to_put_work_into_it_with_is_not_given_back_as_clean(
    line: FakeLine, use: Callable[[Lease], Any]
) -> None:
    lease = a_lease().acquire()
    assert (lease.pool, lease.nodes, lease.request_id, lease.ended) == ("gpus", ("n1",), "r1", False)
    use(lease)
    lease.release()
    assert line.calls[-1] == ("release", "r1", "01")


def test_one_whose_user_saw_that_nothing_is_left_is_given_back_as_clean(line: FakeLine) -> None:
    lease = a_lease().acquire()
    lease.task_options(0)
    lease.left_nothing()
    lease.release()
    assert line.calls[-1] == ("release", "r1", "01", True)


def test_once_it_is_given_back_as_clean_nobody_gets_anything_to_put_work_into_it_with(line: FakeLine) -> None:
    """Also while the call is under way, and when its answer was lost: the group may be another's by then."""
    line.trouble["release"] = [AWAY]
    lease = a_lease().acquire()
    with pytest.raises(BrokerUnavailable):
        lease.release()
    for use in (lease.require, lambda: lease.task_options(0), lambda: lease.placement_group):
        with pytest.raises(LeaseEnded):
            use()
    lease.release()
    assert line.calls[-1] == ("release", "r1", "01", True), "as before: what was asked is asked again"


def test_a_lease_that_is_not_asked_for_yet_may_be_sent_elsewhere(line: FakeLine) -> None:
    sent = pickle.loads(pickle.dumps(a_lease()))
    assert sent.acquire().request_id == "r1"


def releases(line: FakeLine) -> int:
    return sum(call[0] == "release" for call in line.calls)


def run_block(lease: Lease, error: Exception | None, kind: str, early: bool = False) -> None:
    def inside() -> None:
        if early:
            lease.release()
        if error is not None:
            raise error

    async def story() -> None:
        async with lease:
            inside()

    if kind == "async":
        asyncio.run(story())
    else:
        with lease:
            inside()


KINDS = pytest.mark.parametrize("kind", ["plain", "async"])


@KINDS
def test_a_block_that_gave_it_back_early_fails_with_its_own_error(line: FakeLine, kind: str) -> None:
    line.answers["describe"] = view(status="released", reason="given back by its owner").as_dict()
    with pytest.raises(KeyError):
        run_block(a_lease(), task_error(KeyError("mine")), kind, early=True)
    assert releases(line) == 1


@KINDS
def test_a_block_that_fails_while_the_broker_is_away_keeps_its_error_and_gives_back(
    line: FakeLine, kind: str
) -> None:
    line.trouble["describe"] = [AWAY]
    with pytest.raises(KeyError):
        run_block(a_lease(), task_error(KeyError("mine")), kind)
    assert releases(line) == 1


@KINDS
def test_a_failed_release_does_not_bury_the_error_of_the_block(
    line: FakeLine, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    line.trouble["release"] = [AWAY]
    with caplog.at_level(logging.WARNING, "raypool"), pytest.raises(ZeroDivisionError):
        run_block(a_lease(), ZeroDivisionError(), kind)
    assert "is given back when the broker hears of it: the broker does not answer" in caplog.text


@KINDS
@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["went well", "failed"])
def test_what_a_block_could_not_give_back_is_given_back_when_the_broker_is_there_again(
    line: FakeLine, kind: str, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "LOOK_AGAIN_SECONDS", 0.01)
    line.trouble["release"] = [AWAY]
    with contextlib.suppress(ZeroDivisionError):
        run_block(a_lease(), error, kind)
    args, answer = line.open_call("release", 1)
    answer.set_exception(ray.exceptions.ActorUnavailableError("it starts again", None))
    again, answer = line.open_call("release", 2)
    answer.set_exception(task_error(BrokerUnavailable("read-only, degraded")))
    line.open_call("release", 3)[1].set_result(None)
    assert args == again == ("r1", "01", True)


def test_what_is_given_back_without_waiting_has_ended_here_at_once_and_is_said_until_it_is_heard(
    line: FakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "LOOK_AGAIN_SECONDS", 0.01)
    lease = a_lease().acquire()
    lease.give_back()
    lease.give_back()
    assert lease.ended and lease.ending is None
    line.open_call("release", 1)[1].set_exception(ray.exceptions.ActorUnavailableError("it starts again", None))
    args, answer = line.open_call("release", 2)
    answer.set_result(None)
    assert args == ("r1", "01", True) and releases(line) == 0


def test_a_release_that_failed_can_be_tried_again(line: FakeLine) -> None:
    lease = a_lease().acquire()
    line.trouble["release"] = [AWAY]
    with pytest.raises(BrokerUnavailable):
        lease.release()
    assert not lease.ended
    lease.release()
    lease.release()
    assert releases(line) == 2
    assert lease.ended and lease.ending is None


def test_what_is_over_or_unknown_is_not_given_back_twice(line: FakeLine) -> None:
    taken = a_lease().acquire()
    taken._watch.heard(view(status="cancelled", reason="maintenance"), 1)  # type: ignore[union-attr]
    taken.release()
    assert releases(line) == 0
    assert isinstance(taken.ending, RequestCancelled)
    unknown = a_lease().acquire()
    line.trouble["release"] = [Refused("there is no such request")]
    unknown.release()
    unknown.release()
    assert releases(line) == 1


@KINDS
def test_a_block_that_failed_in_ray_because_it_was_cancelled_says_so(line: FakeLine, kind: str) -> None:
    line.answers["describe"] = view(status="cancelled", reason="maintenance").as_dict()
    lease = a_lease()
    with pytest.raises(RequestCancelled, match="maintenance") as caught:
        run_block(lease, ray.exceptions.ActorDiedError(), kind)
    assert isinstance(caught.value.__cause__, ray.exceptions.ActorDiedError)
    assert isinstance(lease.ending, RequestCancelled), "the lease knows, though its watch has not heard yet"


# --- a node died, and Ray does not know yet ---------------------------------------------------

LOST = "node n1 lost: its placement group is removed whole"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of the lease does not answer."""
    monkeypatch.setattr(leases, "any_is_silent", lambda nodes: list(nodes) == ["n1"])


@KINDS
def test_a_block_whose_node_died_waits_until_the_broker_has_heard_and_says_so(
    line: FakeLine, silent: None, kind: str
) -> None:
    line.answers["describe"] = [
        view().as_dict(), view().as_dict(), view(status="cancelled", rule="node-lost", reason=LOST).as_dict(),
    ]  # fmt: skip
    with pytest.raises(NodeLost, match="'r1' was cancelled: node n1 lost") as caught:
        run_block(a_lease(), ray.exceptions.WorkerCrashedError(), kind)
    assert (caught.value.request_id, releases(line)) == ("r1", 0)
    assert isinstance(caught.value.__cause__, ray.exceptions.WorkerCrashedError)


@KINDS
def test_it_does_not_wait_for_ever(line: FakeLine, silent: None, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "NODE_DEATH_SECONDS", 0.2)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        run_block(a_lease(), ray.exceptions.WorkerCrashedError(), kind)
    assert releases(line) == 1


@KINDS
@pytest.mark.parametrize("now", [{"repair_until": 99.0}, {"nodes": ["n2"]}], ids=["under repair", "repaired"])
def test_a_block_under_repair_fails_as_it_did(line: FakeLine, silent: None, kind: str, now: dict[str, Any]) -> None:
    line.answers["describe"] = [view().as_dict(), view(**now).as_dict()]
    lease = a_lease()
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        run_block(lease, ray.exceptions.WorkerCrashedError(), kind)
    assert lease.lost_some_of(["n1"])
    assert lease.under_repair == ("repair_until" in now)


@pytest.mark.parametrize(
    ("rows", "silent"),
    [
        ([("n1", True, "open")], False),
        ([("n1", True, "closed")], True),
        ([("n1", False, "open")], True),
        ([("n2", True, "open")], True),
    ],
    ids=["it answers", "nobody answers", "Ray says it is dead", "Ray does not know it"],
)
def test_a_node_is_silent_when_its_raylet_takes_no_connection(
    rows: list[tuple[str, bool, str]], silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listening, socket.socket() as bound:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        bound.bind(("127.0.0.1", 0))
        ports = {"open": listening.getsockname()[1], "closed": bound.getsockname()[1]}
        told = [
            {"NodeID": id, "Alive": alive, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": ports[how]}
            for id, alive, how in rows
        ]
        monkeypatch.setattr(nodes.ray, "nodes", lambda: told)
        assert nodes.any_is_silent(["n1", "n1"]) is silent


# --- options ----------------------------------------------------------------------------------


def held_and_current(line: FakeLine) -> list[tuple[Any, Watch]]:
    lease = a_lease().acquire()
    assert lease._watch is not None
    inside = watched(line)
    return [(lease, lease._watch), (CurrentLease(inside, group_handle("ab" * 18)), inside)]


@pytest.mark.parametrize(
    "override",
    [
        {"max_retries": 3},
        {"max_retries": -1},
        {"retry_exceptions": True},
        {"retry_exceptions": [KeyError]},
        {"max_restarts": 1},
        {"max_task_retries": 1},
        {"scheduling_strategy": "SPREAD"},
    ],
    ids=str,
)
def test_overrides_cannot_bring_rays_retries_back(line: FakeLine, override: dict[str, Any]) -> None:
    for lease, _ in held_and_current(line):
        for options in (lease.task_options, lease.actor_options):
            with pytest.raises(SpecError, match=f"{next(iter(override))}: cannot be given to the options of a lease"):
                options(0, **override)


def test_overrides_may_say_less_than_the_bundle_and_what_a_lease_does_anyway(line: FakeLine) -> None:
    for lease, _ in held_and_current(line):
        options = lease.task_options(0, num_gpus=0.5, max_retries=0, retry_exceptions=False, name="half")
        assert (options["num_gpus"], options["name"], options["max_retries"]) == (0.5, "half", 0)
        assert "retry_exceptions" not in options
        options = lease.actor_options(0, max_restarts=0)
        assert (options["num_gpus"], options["max_restarts"], options["max_task_retries"]) == (1.0, 0, 0)


def test_options_made_before_and_after_the_end_raise(line: FakeLine) -> None:
    for lease, watch in held_and_current(line):
        strategy = lease.task_options()["scheduling_strategy"]
        assert strategy.placement_group.id.hex() == "ab" * 18
        watch.heard(preempting(time.time() - 1), 1)
        for use in (lease.task_options, lease.actor_options, lambda made=strategy: made.placement_group):
            with pytest.raises(Preempted):
                use()
        watch.heard(view(status="released"), 2)
        with pytest.raises(LeaseEnded):
            lease.task_options()
