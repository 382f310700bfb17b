"""What was submitted into a lease that has ended: whatever Ray leaves unfinished is cancelled, and nothing else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakValueDictionary

import pytest
from ray import ActorID, ObjectRef, ObjectRefGenerator
from ray.actor import ActorClass, ActorHandle
from ray.remote_function import RemoteFunction
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raypool.client import submissions
from raypool.client.current import CurrentLease
from raypool.client.lease import group_handle
from raypool.client.submissions import Submissions, submissions_into, takes_options
from raypool.client.watch import Watch
from raypool.errors import LeaseEnded

from .fake_line import FakeLine, view, watched

GROUP = "cd" * 18


class FakeRay:
    """What Ray would say: `unfinished` are the results and actors that it never finishes by itself; a
    cancellation finishes them, unless they are `deaf`."""

    def __init__(self) -> None:
        self.unfinished: set[bytes] = set()
        self.deaf: set[bytes] = set()
        self.cancelled: list[bytes] = []
        self.killed: list[bytes] = []
        self.looks = 0

    def keeps(self, results: Iterable[bytes]) -> set[bytes]:
        self.looks += 1
        return set(results) & self.unfinished

    def is_over(self, actor: bytes, detached: bool) -> bool:
        return actor not in self.unfinished

    def cancel(self, result: bytes) -> None:
        self._end(self.cancelled, result)

    def kill(self, actor: bytes) -> None:
        self._end(self.killed, actor)

    def _end(self, ended: list[bytes], which: bytes) -> None:
        ended.append(which)
        if which not in self.deaf:
            self.unfinished.discard(which)


class Later:
    """Stands for the listener: time passes when the test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], Any]]] = []

    def later(self, seconds: float, do: Callable[[], Any]) -> None:
        self.due.append((seconds, do))

    def passes(self, most: int = 100) -> list[float]:
        """Does what is due later, and what comes of it, `most` times at most; returns after how many seconds
        each was due."""
        passed: list[float] = []
        while self.due and len(passed) < most:
            seconds, start = self.due.pop(0)
            start()
            start.__self__.join(5)  # type: ignore[attr-defined]
            passed.append(seconds)
        return passed


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    made = Later()
    monkeypatch.setattr(submissions, "listener", lambda: made)
    return made


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch, later: Later) -> FakeRay:
    made = FakeRay()
    monkeypatch.setattr(submissions, "_of_group", WeakValueDictionary())
    monkeypatch.setattr(submissions, "session", lambda: ("cluster", "01"))
    monkeypatch.setattr(submissions, "_unfinished", made.keeps)
    monkeypatch.setattr(submissions, "_is_over", made.is_over)
    monkeypatch.setattr(submissions, "_cancel", made.cancel)
    monkeypatch.setattr(submissions, "_kill", made.kill)
    return made


def a_generator() -> ObjectRefGenerator:
    made = ObjectRefGenerator.__new__(ObjectRefGenerator)
    made._generator_ref, made.worker = ObjectRef.from_random(), None
    return made


def an_actor() -> ActorHandle:
    made = ActorHandle.__new__(ActorHandle)
    made.__dict__["_ray_actor_id"] = ActorID(ObjectRef.from_random().binary()[:16])
    made.__dict__["_ray_weak_ref"] = True  # Ray's own word for: it is not counted
    return made


def id_of(actor: ActorHandle) -> bytes:
    return bytes(actor._actor_id.binary())


# --- the end of a lease -------------------------------------------------------------------------


def test_what_is_not_finished_when_its_lease_has_ended_is_cancelled_and_the_rest_is_left(
    fake_ray: FakeRay, later: Later
) -> None:
    work = Submissions("r1")
    stuck, finished, several = ObjectRef.from_random(), ObjectRef.from_random(), [ObjectRef.from_random()] * 2
    items, waits, lives = a_generator(), an_actor(), an_actor()
    for made in (stuck, finished, several, items, waits, lives, None):
        work.add(made, {})
    results = {stuck.binary(), several[0].binary(), items._generator_ref.binary()}
    fake_ray.unfinished = results | {id_of(waits)}
    assert not later.due, "while it is held nothing is touched"
    work.lease_ended()
    assert later.passes()[0] == submissions.RAY_TELLS_SECONDS
    assert set(fake_ray.cancelled) == results
    assert fake_ray.killed == [id_of(waits)]


def test_it_is_said_once_how_much_was_cancelled(
    fake_ray: FakeRay, later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    work, stuck = Submissions("r1"), ObjectRef.from_random()
    work.add(stuck, {})
    fake_ray.unfinished = {stuck.binary()}
    with caplog.at_level(logging.WARNING, "raypool"):
        work.lease_ended()
        work.lease_ended()
        later.passes()
    assert fake_ray.cancelled == [stuck.binary()]
    [record] = caplog.records
    assert "request 'r1' has ended, and Ray would let 1 results and 0 actors" in record.message


def test_what_ray_tells_by_itself_is_left_to_it(
    fake_ray: FakeRay, later: Later, caplog: pytest.LogCaptureFixture
) -> None:
    work, told = Submissions("r1"), ObjectRef.from_random()
    work.add(told, {})
    fake_ray.unfinished = {told.binary()}
    work.lease_ended()
    fake_ray.unfinished.clear()  # Ray has raised its own error
    with caplog.at_level(logging.WARNING, "raypool"):
        assert later.passes() == [submissions.RAY_TELLS_SECONDS]
    assert (fake_ray.cancelled, caplog.records) == ([], [])


def test_a_lease_in_which_nothing_was_submitted_needs_no_look(fake_ray: FakeRay, later: Later) -> None:
    Submissions("r1").lease_ended()
    assert not later.due


def test_what_a_slow_thread_submits_after_the_end_is_cancelled_too(fake_ray: FakeRay, later: Later) -> None:
    work, late = Submissions("r1"), ObjectRef.from_random()
    work.lease_ended()
    fake_ray.unfinished = {late.binary()}
    work.add(late, {})
    later.passes()
    assert fake_ray.cancelled == [late.binary()]


def test_what_a_cancellation_does_not_reach_is_cancelled_again_after_ever_longer(
    fake_ray: FakeRay, later: Later
) -> None:
    work, deaf = Submissions("r1"), ObjectRef.from_random()
    work.add(deaf, {})
    fake_ray.unfinished, fake_ray.deaf = {deaf.binary()}, {deaf.binary()}
    work.lease_ended()
    assert later.passes(most=9) == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(fake_ray.cancelled) == 9
    fake_ray.deaf.clear()
    later.passes()
    assert not fake_ray.unfinished and not later.due


def test_an_actor_that_was_there_before_is_not_ours_to_kill(fake_ray: FakeRay, later: Later) -> None:
    work, found, made = Submissions("r1"), an_actor(), an_actor()
    work.add(found, {"get_if_exists": True})
    work.add(made, {"get_if_exists": False})
    fake_ray.unfinished = {id_of(found), id_of(made)}
    work.lease_ended()
    later.passes()
    assert fake_ray.killed == [id_of(made)]


def test_a_process_that_has_left_the_cluster_cancels_nothing(
    fake_ray: FakeRay, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, stuck = Submissions("r1"), ObjectRef.from_random()
    work.add(stuck, {})
    fake_ray.unfinished = {stuck.binary()}
    monkeypatch.setattr(submissions, "session", lambda: ("another cluster", "01"))
    work.lease_ended()
    later.passes()
    assert (fake_ray.looks, fake_ray.cancelled) == (0, [])


def test_a_lease_for_a_million_tasks_keeps_few_ids(fake_ray: FakeRay) -> None:
    work = Submissions("r1")
    stuck = [ObjectRef.from_random() for _ in range(3)]
    fake_ray.unfinished = {ref.binary() for ref in stuck}
    for ref in stuck:
        work.add(ref, {})
    most = 0
    for _ in range(20_000):
        work.add(ObjectRef.from_random(), {})
        most = max(most, len(work._results))
    assert most <= submissions.KEPT_AT_LEAST
    assert fake_ray.looks < 25, "they are looked through rarely"
    assert fake_ray.unfinished <= work._results


def test_what_is_looked_through_grows_with_what_is_unfinished(fake_ray: FakeRay) -> None:
    work = Submissions("r1")
    for _ in range(10_000):
        ref = ObjectRef.from_random()
        fake_ray.unfinished.add(ref.binary())
        work.add(ref, {})
    assert len(work._results) == 10_000
    assert fake_ray.looks <= 5


@pytest.mark.parametrize(
    "end",
    [
        lambda watch: watch.close(),
        lambda watch: watch.lost(),
        lambda watch: watch.heard(view(status="preempted", group_id=GROUP), 1),
    ],
    ids=["given back", "unknown to the broker", "taken away"],
)
def test_every_end_of_a_lease_counts(fake_ray: FakeRay, later: Later, end: Callable[[Watch], None]) -> None:
    watch = Watch(FakeLine(), view(group_id=GROUP), 0)  # type: ignore[arg-type]
    stuck = ObjectRef.from_random()
    submissions_into(GROUP, "r1").add(stuck, {})
    fake_ray.unfinished = {stuck.binary()}
    end(watch)
    later.passes()
    assert fake_ray.cancelled == [stuck.binary()]


def test_a_group_that_was_handed_over_has_submissions_of_its_own(fake_ray: FakeRay, later: Later) -> None:
    """What the next holder, in the same process, puts into it does not end with the one before."""
    first = Watch(FakeLine(), view("r1", group_id=GROUP), 0)  # type: ignore[arg-type]
    second = Watch(FakeLine(), view("r2", group_id=GROUP), 0)  # type: ignore[arg-type]
    running = ObjectRef.from_random()
    submissions._of_group[GROUP].add(running, {})
    fake_ray.unfinished = {running.binary()}
    first.close()
    later.passes()
    assert fake_ray.cancelled == []
    second.close()
    later.passes()
    assert fake_ray.cancelled == [running.binary()]


# --- where Ray submits --------------------------------------------------------------------------


class Function:
    """Stands for Ray's: its `.remote()` ends in `_remote`, too."""

    def __init__(self) -> None:
        self.submitted: list[ObjectRef] = []

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> ObjectRef:
        self.submitted.append(ObjectRef.from_random())
        return self.submitted[-1]


class Other:
    """As a later Ray might do it."""

    def _remote(self, args: Any, kwargs: Any, options: Any) -> None:
        """Not called."""


@pytest.fixture
def function(fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Function:
    monkeypatch.setattr(Function, "_remote", submissions._seen(Function._remote))
    return Function()


@pytest.mark.parametrize("kind", [RemoteFunction, ActorClass])
def test_the_ray_that_is_installed_submits_where_it_is_seen(kind: Any) -> None:
    submissions_into(GROUP, "r1")
    assert takes_options(kind)
    assert kind._remote.__code__ is submissions._seen(lambda: None).__code__, "it goes through ours"
    assert takes_options(type("Before", (), {"_remote": kind._remote.__wrapped__})), "and ours through Ray's"


def test_a_ray_that_submits_in_another_way_is_told_of_once_and_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(submissions, "RemoteFunction", Other)
    monkeypatch.setattr(submissions, "ActorClass", object)
    before = Other._remote
    with caplog.at_level(logging.WARNING, "raypool"):
        submissions._watch_ray.__wrapped__()
    assert Other._remote is before
    assert len(caplog.records) == 2
    assert "submits in a way that is not known here" in caplog.text
    with caplog.at_level(logging.WARNING, "raypool"):
        submissions_into(GROUP, "r1")
        submissions_into(GROUP, "r1")
    assert len(caplog.records) == 2


@pytest.mark.parametrize("strategy", ["of the lease", "of Ray's"])
def test_what_is_submitted_into_the_group_of_a_lease_is_seen(
    fake_ray: FakeRay, later: Later, function: Function, strategy: str
) -> None:
    watch = watched(FakeLine())
    lease = CurrentLease(watch, group_handle("ab" * 18))
    ours = lease.task_options()["scheduling_strategy"]
    plain = PlacementGroupSchedulingStrategy(lease.placement_group, 0)
    function._remote(args=(), kwargs={}, scheduling_strategy=ours if strategy == "of the lease" else plain)
    fake_ray.unfinished = {function.submitted[0].binary()}
    watch.close()
    later.passes()
    assert fake_ray.cancelled == [function.submitted[0].binary()]


@pytest.mark.parametrize(
    "strategy",
    [
        None,
        "SPREAD",
        PlacementGroupSchedulingStrategy(None),
        PlacementGroupSchedulingStrategy(group_handle("ef" * 18)),
    ],
    ids=["none", "spread", "outside", "another group"],
)
def test_what_is_submitted_elsewhere_is_not_ours(fake_ray: FakeRay, function: Function, strategy: Any) -> None:
    work = submissions_into(GROUP, "r1")
    assert function._remote((), {}, scheduling_strategy=strategy) is function.submitted[0]
    assert function._remote() is function.submitted[1]
    assert not work._results


def test_options_of_a_lease_that_has_ended_submit_nothing(fake_ray: FakeRay, function: Function) -> None:
    watch = watched(FakeLine())
    options = CurrentLease(watch, group_handle("ab" * 18)).task_options()
    watch.close()
    with pytest.raises(LeaseEnded):
        function._remote(scheduling_strategy=options["scheduling_strategy"])
    assert not function.submitted


def test_a_submission_costs_microseconds_more(fake_ray: FakeRay, function: Function) -> None:
    work = submissions_into(GROUP, "r1")
    inside, outside = PlacementGroupSchedulingStrategy(group_handle(GROUP), 0), "DEFAULT"

    def seconds(strategy: Any) -> float:
        began = time.perf_counter()
        for _ in range(1000):
            function._remote(scheduling_strategy=strategy)
        return (time.perf_counter() - began) / 1000

    added = min(seconds(inside) for _ in range(5)) - min(seconds(outside) for _ in range(5))
    assert work._results
    assert added < 100e-6, "some 2 µs here, and much room for a busy machine"
