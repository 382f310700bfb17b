"""A request that may run for so long and no longer: notice, grace, end, and what it means to others."""

import pytest

from raypool.core import events as ev
from raypool.core.broker import World
from raypool.core.reasons import RanTooLong, span
from raypool.core.snapshot import Snapshots, broker_of

from .story import Story, policy, pool
from .test_snapshot import story as twins_story

TWO = [policy("red"), policy("blue", priority=5)]


def test_it_gets_a_notice_when_its_time_is_over_and_ends_as_cancelled_after_its_grace():
    story = Story([pool(gpu=4, grace_seconds=30)])
    story.run("a", gpu=4, max_duration_seconds=7200)
    story.pass_seconds(7199)
    assert story.status("a") == "allocated"
    story.pass_seconds(1)
    assert (story.status("a"), story.rule("a"), story.warned()) == ("preempting", "max-duration", [("a", 7230.0)])
    assert story.view("a").reason == "ran longer than its 2 h"
    story.pass_seconds(30)
    assert (story.status("a"), story.rule("a"), story.taken_back()) == ("cancelled", "max-duration", [("a", 1)])
    assert story.view("a").preempted_by is None


def test_its_time_begins_when_it_is_allocated():
    story = Story([pool(gpu=4)])
    story.submit("a", gpu=4, max_duration_seconds=10)
    story.pass_seconds(9)
    story.ready("a")
    assert story.view("a").runs_until == 19
    story.pass_seconds(9)
    assert story.status("a") == "allocated"
    story.pass_seconds(1)
    assert (story.status("a"), story.view("a").runs_until) == ("cancelled", None)


def test_with_a_grace_of_zero_it_ends_at_once_without_a_notice():
    story = Story([pool(gpu=4, grace_seconds=30)])
    story.run("a", gpu=4, max_duration_seconds=60, grace_seconds=0)
    story.pass_seconds(60)
    assert (story.status("a"), story.warned()) == ("cancelled", [])


def test_what_it_holds_counts_as_leaving_during_its_grace_and_nobody_is_evicted_for_it():
    story = Story([pool(gpu=4, grace_seconds=30)], TWO)
    story.run("long", gpu=2, max_duration_seconds=60)
    story.run("other", gpu=2)
    story.pass_seconds(60)
    assert story.leaving() == 2
    story.submit("wants", "blue", gpu=2)
    assert (story.rule("wants"), story.status("other")) == ("room-being-made", "allocated")
    story.pass_seconds(30)
    story.removed("long")
    story.ready("wants")
    assert story.status("wants") == "allocated"


@pytest.mark.parametrize(
    "leave",
    [
        lambda story: story.release("a"),
        lambda story: story.cancel("a", "an operator"),
        lambda story: story.lost("a"),
        lambda story: story.nodes(),
        lambda story: story.removed("a"),
    ],
    ids=["released", "cancelled", "group lost", "node lost", "group removed"],
)
def test_however_it_leaves_in_its_grace_it_ends_as_one_that_ran_too_long(leave):
    story = Story([pool(gpu=4, grace_seconds=30)])
    story.run("a", gpu=4, max_duration_seconds=60)
    story.pass_seconds(60)
    leave(story)
    assert (story.status("a"), story.rule("a")) == ("cancelled", "max-duration")


def test_one_that_was_evicted_before_its_time_was_over_stays_preempted():
    story = Story([pool(gpu=4, grace_seconds=30)], TWO)
    story.run("a", gpu=4, max_duration_seconds=60)
    story.pass_seconds(50)
    story.submit("b", "blue", gpu=4)
    story.pass_seconds(20)
    assert (story.status("a"), story.rule("a")) == ("preempting", "evicted")
    story.pass_seconds(10)
    assert (story.status("a"), story.rule("a")) == ("preempted", "evicted")


def test_one_that_gives_back_in_time_is_released_and_nothing_is_due():
    story = Story([pool(gpu=4)])
    story.run("a", gpu=4, max_duration_seconds=60)
    story.release("a")
    assert story.status("a") == "released"
    story.removed("a")
    assert story.broker.next_deadline is None


def test_one_of_a_component_without_a_pool_is_ended_too():
    story = Story(unmanaged="allow")
    story.run("free", "nobody", max_duration_seconds=60)
    story.run("warned", "nobody", max_duration_seconds=60, grace_seconds=5)
    story.pass_seconds(60)
    assert [story.status(id) for id in ("free", "warned")] == ["cancelled", "preempting"]
    story.pass_seconds(5)
    assert story.status("warned") == "cancelled"


def test_a_broker_read_back_before_every_event_ends_it_at_the_same_moment():
    told, twins = twins_story(pools=[pool(gpu=4, grace_seconds=30)])
    told.run("a", gpu=2, max_duration_seconds=60)
    told.run("b", gpu=2, max_duration_seconds=90, grace_seconds=0)
    twin, _ = broker_of(Snapshots().lines_of(told.broker, 0))
    assert twin.next_deadline == 60
    told.pass_seconds(60)
    told.pass_seconds(30)
    assert told.statuses() == {"a": "cancelled", "b": "cancelled"}
    assert twins.number > 4


def test_in_a_world_that_confirms_nothing_the_room_is_free_in_the_same_instant():
    story = Story([pool(gpu=4)], world=World(confirms_placement=False, confirms_removal=False))
    story.submit("a", gpu=4, max_duration_seconds=60)
    story.submit("b", gpu=4)
    story.now = 60.0
    story.feed(ev.TimePassed())
    assert story.statuses() == {"a": "cancelled", "b": "allocated"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(7200, "2 h"), (5400, "1 h 30 min"), (90, "1 min 30 s"), (1.5, "1.5 s"), (3601, "1 h 1 s"), (86400, "24 h")],
)
def test_how_long_it_may_run_is_told_in_full(seconds, words):
    assert span(seconds) == words
    assert RanTooLong(seconds).sentence == f"ran longer than its {words}"
