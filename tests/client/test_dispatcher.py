"""What the dispatcher makes of work that failed: once more, in which request, or the end of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import ray.exceptions

from raypool.client.dispatcher import Call, _Run
from raypool.client.watch import PreemptionNotice
from raypool.errors import DurationExceeded, NodeLost, Preempted
from raypool.spec import RequestSpec

from .fake_line import view


def a_run(max_preemptions: int = 2, **fields: Any) -> _Run:
    spec = RequestSpec.load({"id": "r1", "component": "red", **fields})
    return _Run(Call(spec.dump(), None, max_preemptions, False, {}))


def lost(id: str) -> NodeLost:
    return NodeLost("node n1 lost", id)


def test_a_call_that_lost_its_node_names_the_very_request_that_did() -> None:
    run = a_run()
    run.again(run.lease(), Preempted("had to leave", "r1", by="r9"))
    second = run.spec
    assert second.retry_of == "r1"
    run.again(run.lease(), lost(second.id))
    assert run.spec.retry_of == second.id
    with pytest.raises(NodeLost):
        run.again(run.lease(), lost(run.spec.id))  # one budget for both


def test_a_call_is_not_run_again_when_that_is_not_wanted_or_it_was_another_that_lost_a_node() -> None:
    with pytest.raises(NodeLost):
        a_run(on_node_loss="fail").again(a_run().lease(), lost("r1"))
    for other in ("r2", ""):
        with pytest.raises(NodeLost):
            a_run().again(a_run().lease(), lost(other))
    with pytest.raises(NodeLost):
        a_run().again(a_run().lease(), lost("r1"), may_run_again=False)


class LeaseThatRanTooLong:
    """The notice has come, and the function leaves by itself."""

    request_id = "r1"
    view = view("r1", "preempting", rule="max-duration", reason="ran longer than its 2 h")
    preemption_notice = PreemptionNotice.of(view)


def test_a_call_that_ran_too_long_is_not_run_again_though_it_left_as_one_that_is_preempted() -> None:
    run = a_run()
    with pytest.raises(DurationExceeded, match="request 'r1' of 'red' ran longer than its 2 h"):
        run.again(LeaseThatRanTooLong(), Preempted("leaving early"))
    assert run.times == 0


class RepairedLease:
    """Its node died with the work, and Ray repairs its group."""

    request_id = "r1"
    nodes = ("n1",)

    def __init__(self, ends: bool = False) -> None:
        self.asked = 0
        self.ends = ends

    def task_options(self, bundle: int) -> dict[str, Any]:
        return {}

    def on_end(self, callback: Any) -> None:
        pass

    async def why_it_failed(self) -> None:
        return None

    @property
    def under_repair(self) -> bool:
        return self.asked < 2

    async def ending_now(self) -> NodeLost | None:
        self.asked += 1
        return lost("r1") if self.ends and self.asked == 2 else None

    def lost_some_of(self, nodes: tuple[str, ...]) -> bool:
        return self.asked == 2


class Ended(RepairedLease):
    """Remembers whether it was told that nothing is left."""

    clean = False

    def left_nothing(self) -> None:
        self.clean = True


@pytest.mark.parametrize("left_nothing", [True, False])
def test_a_lease_is_told_when_the_function_left_nothing(left_nothing: bool) -> None:
    lease = Ended()
    assert result(a_watched_run(), lease, Function(0, ("done", left_nothing))) == "done"
    assert lease.clean is left_nothing


def test_a_lease_that_was_repaired_is_not_told_that_nothing_is_left() -> None:
    lease = Ended()
    assert result(a_watched_run(), lease, Function(1, ("done", True))) == "done"
    assert not lease.clean


def a_watched_run() -> _Run:
    run = a_run()
    return _Run(replace(run.call, watched=True))


class Function:
    """Dies the first `deaths` times."""

    def __init__(self, deaths: int, returns: Any = "done") -> None:
        self.deaths = deaths
        self.returns = returns
        self.calls = 0

    def options(self, **options: Any) -> Function:
        return self

    async def remote(self) -> Any:
        self.calls += 1
        if self.calls <= self.deaths:
            raise ray.exceptions.WorkerCrashedError
        return self.returns


def result(run: _Run, lease: RepairedLease, function: Function) -> Any:
    return asyncio.run(run.result(lease, function, (), {}))  # type: ignore[arg-type]


def test_a_call_is_run_again_in_its_repaired_group_as_often_as_it_may_be() -> None:
    function = Function(deaths=2)
    assert result(a_run(), RepairedLease(), function) == "done"
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        result(a_run(), RepairedLease(), Function(deaths=3))


def test_a_call_whose_group_was_not_repaired_lost_its_node() -> None:
    with pytest.raises(NodeLost):
        result(a_run(), RepairedLease(ends=True), Function(deaths=1))
