"""A copy of a broker decides as the broker would, at every event of any history, and leaves it alone."""

import pytest

from raypool.core import events as ev
from raypool.core.copy import copy_of
from raypool.core.records import decision_of
from raypool.core.snapshot import Snapshots
from raypool.errors import Refused
from raypool.spec import RequestSpec

from .core_rules import CoreRules
from .histories import random_history, trace
from .story import Story, node, policy, pool
from .test_rules import HISTORIES


def lines(broker):
    return list(Snapshots().lines_of(broker, 0))


class BesideACopy(CoreRules):
    """Every event is handled by a copy first."""

    def __init__(self, grace=False, removal=False):
        super().__init__(grace, removal)
        self.broker.handle = self.both

    def both(self, event, now):
        handle = type(self.broker).handle
        named = event.spec.id if isinstance(event, ev.Submitted) else getattr(event, "request", None)
        if named in self.broker._ended:
            return handle(self.broker, event, now)  # the copy may not know it
        before = lines(self.broker)
        twin = copy_of(self.broker)
        try:
            decided = [decision_of(one) for one in twin.handle(event, now)]
        except Refused:
            with pytest.raises(Refused):
                handle(self.broker, event, now)
            raise
        assert lines(self.broker) == before
        twin.check()
        done = handle(self.broker, event, now)
        assert [decision_of(one) for one in done] == decided
        assert lines(copy_of(twin)) == lines(copy_of(self.broker))
        return done


@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_a_copy_decides_the_same_before_any_event(first):
    for seed in range(first, first + (10 if HISTORIES > 10 else 2)):
        trace(random_history(seed), BesideACopy)


def test_what_is_worked_out_of_kinds_of_requests_is_bounded(monkeypatch):
    monkeypatch.setattr("raypool.core.asks.KEPT", 5)
    story = Story([pool(gpu=8)])
    story.nodes(node("n1", 8))
    for i in range(12):
        story.broker.handle(ev.Submitted(RequestSpec(id=f"r{i}", component="red", description=f"kind {i}")), 0.0)
    broker = story.broker
    for memo in (broker._asks._by_value, broker._chances, broker._misfits, broker.pools["p"]._needs):
        assert 0 < len(memo) <= 5, memo


def test_a_copy_leaves_out_what_is_over_unless_it_may_still_be_met():
    story = Story([pool(gpu=8)])
    story.nodes(node("n1", 8))
    for id in ("over", "leaving", "stuck", "lost"):
        story.run(id)
    story.release("over")
    story.removed("over")
    story.release("leaving")
    story.release("stuck")
    story.stuck("stuck")
    story.nodes(node("n2", 8))
    assert story.status("lost") == "cancelled"
    assert list(copy_of(story.broker).requests) == ["leaving", "stuck", "lost"]


def test_a_short_copy_has_who_comes_first_and_who_is_asked_about():
    story = Story([pool(gpu=1)], [policy("red"), policy("blue", priority=5)])
    story.run("holder")
    for i in range(10):
        story.submit(f"r{i}", "red")
        story.submit(f"b{i}", "blue")
    assert list(copy_of(story.broker, short_for="r8").requests) == [
        "holder", "r0", "b0", "r1", "b1", "r2", "b2", "r3", "b3", "r8",
    ]  # fmt: skip
