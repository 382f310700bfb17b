"""A placement group that its holder left clean goes to who is granted next, if he asks for the very same."""

import pytest

from raypool.core import events as ev
from raypool.core.copy import copy_of
from raypool.core.snapshot import Snapshots, broker_of
from raypool.errors import Refused
from raypool.spec import RequestSpec

from .story import Story, node, policy, pool

TEAMS = [policy("red", priority=1), policy("blue", priority=5)]


def held(pools=None, policies=TEAMS, **fields):
    """'a' of red holds all 8 GPUs, as two workers of 4."""
    story = Story(pools or [pool(gpu=8)], policies)
    story.nodes(node("n1", 8), node("n2", 8, zone="b"))
    story.run("a", gpu=4, workers=2, on=("n1", "n1"), **fields)
    return story


def test_in_one_event_the_one_ends_and_the_other_has_its_group():
    story = held()
    story.submit("b", gpu=4, workers=2)
    story.release("a", clean=True)
    assert story.handed_over() == [("a", "b")]
    assert story.created() == story.taken_back() == []
    assert story.changes() == [("a", "released"), ("b", "allocated")]
    assert (story.free(), story.leaving()) == (0, 0)
    view = story.view("b")
    assert (view.group_id, view.nodes, view.pool) == ("group-of-a", ["n1", "n1"], "p")
    assert view.group_name == story.view("a").group_name == "raypool/p/red/a"


def test_it_may_go_from_hand_to_hand_and_keeps_its_name():
    story = held()
    for id in "bcd":
        story.submit(id, gpu=4, workers=2)
    for former, heir in ("ab", "bc", "cd"):
        story.release(former, clean=True)
        assert story.handed_over() == [(former, heir)]
        assert story.view(heir).group_name == "raypool/p/red/a"
    story.release("d", clean=True)
    assert story.taken_back() == [("d", 1)], "nobody waits for it: it is removed, as ever"
    story.removed("d")
    assert (story.free(), story.broker.handed_over) == (8, {})


def test_an_id_is_not_used_again_while_a_group_is_named_after_it():
    story = held()
    story.submit("b", gpu=4, workers=2)
    story.release("a", clean=True)
    story.feed(ev.Forgotten("a"))
    with pytest.raises(Refused, match="'a' is taken: 'b' has the placement group that is named after it"):
        story.submit("a")
    story.release("b", clean=True)
    with pytest.raises(Refused):
        story.submit("a")
    story.removed("b")
    story.submit("a")
    assert story.created() == [("a", 1, "p")]


OTHERS = {
    "other bundles": {"resources": {"gpu_count": 8}, "workers": 1},
    "more bundles": {"resources": {"gpu_count": 2}, "workers": 4},
    "another strategy": {"strategy": "SPREAD"},
    "another component": {"component": "green"},
    "another type of component": {"component_type": "step_operator"},
    "one more resource": {"resources": {"gpu_count": 4, "cpu_count": 1}},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_who_asks_for_something_else_has_a_group_made(fields):
    step_operator = policy("red", priority=1, component_type="step_operator")
    story = held(policies=[*TEAMS, policy("green", priority=1), step_operator])
    same = {"id": "b", "component": "red", "resources": {"gpu_count": 4}, "workers": 2}
    story.feed(ev.Submitted(RequestSpec.load(same | fields)))
    story.release("a", clean=True)
    assert story.handed_over() == []
    assert story.taken_back() == [("a", 1)]
    assert (story.free(), story.leaving()) == (0, 8)
    story.removed("a")
    assert story.created() == [("b", 1, "p")]


def test_it_never_goes_to_another_pool():
    story = Story([pool("p", 8), pool("q", 8)], [policy("red", "p"), policy("red", "q")])
    story.run("a", gpu=8, pool="p")
    story.run("x", gpu=8, pool="q")
    story.submit("b", gpu=8, pool="q")
    story.release("a", clean=True)
    assert (story.handed_over(), story.taken_back()) == ([], [("a", 1)])


def clean_end_after(what):
    return lambda story: (what(story), story.release("a", clean=True))


ENDS = {
    "a release that says nothing": lambda story: story.release("a"),
    "a cancellation": lambda story: story.cancel("a"),
    "an eviction, and a release in its grace": clean_end_after(
        lambda story: story.submit("high", "blue", gpu=4, workers=2)
    ),
    "an eviction for who asks for the same, and a release in its grace": clean_end_after(
        lambda story: story.submit("high", "high-red", gpu=4, workers=2)
    ),
    "the end of its time": clean_end_after(lambda story: story.pass_seconds(100)),
    "a lost node": clean_end_after(lambda story: story.nodes(node("n2", 8), node("n3", 8))),
    "the loss of its group": lambda story: story.lost("a"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_no_other_end_hands_it_over(end):
    story = held([pool(gpu=8, grace_seconds=10)], [*TEAMS, policy("high-red", priority=9)], max_duration_seconds=60.0)
    story.submit("b", gpu=4, workers=2)
    assert not story.handed_over()
    end(story)
    assert not story.handed_over()
    assert not story.view("b").group_id


def test_a_group_under_repair_is_not_handed_over():
    story = held(on_node_loss="wait", repair_seconds=50.0)
    story.submit("b", gpu=4, workers=2)
    story.nodes(node("n2", 8))
    story.release("a", clean=True)
    assert (story.handed_over(), story.taken_back()) == ([], [("a", 1)])


def test_nobody_is_overtaken():
    """Who would be granted with that room is asked, not who would like the group."""
    story = held(policies=[policy("red", priority=1), policy("blue", priority=5)])
    story.submit("same", gpu=4, workers=2)
    story.submit("first", "blue", gpu=1)  # blue ranks higher: there is nobody to evict for it but 'a'
    assert story.status("a") == "preempted", "no grace: it has left for blue"
    story = held(policies=[policy("red", priority=5), policy("blue", priority=5)])
    story.submit("first", "blue", gpu=2)
    story.submit("same", gpu=4, workers=2)
    story.release("a", clean=True)
    assert (story.handed_over(), story.taken_back()) == ([], [("a", 1)])
    story.removed("a")
    assert story.created() == [("first", 1, "p")]


def test_room_that_is_being_made_for_another_is_not_handed_over():
    story = Story([pool(gpu=8, grace_seconds=10)], [policy("red", priority=1), policy("blue", priority=5)])
    story.run("a", gpu=4, preemptible=True)
    story.run("v", gpu=4)
    story.submit("big", "blue", gpu=8)
    assert {story.status("a"), story.status("v")} == {"preempting"}
    story.submit("same", gpu=4)
    story.release("a", clean=True)
    assert story.handed_over() == []


def test_the_pool_that_the_heir_prefers_goes_first():
    """He is granted where he would be granted; a group elsewhere does not draw him there."""
    story = Story(
        [pool("p", 8), pool("q", 8)], [policy("red", "p", 1), policy("red", "q", 5), policy("blue", "q", 5)]
    )
    story.run("a", gpu=8, pool="p")
    story.run("x", "blue", gpu=8)
    story.submit("b", gpu=8)
    story.release("a", clean=True)
    assert story.handed_over() == [("a", "b")], "q, which he prefers, has no room"
    assert story.view("b").pool == "p"


def test_who_is_given_a_group_is_a_holder_like_any_other():
    story = held([pool(gpu=8, grace_seconds=10)], max_duration_seconds=None)
    story.submit("b", gpu=4, workers=2, max_duration_seconds=60.0)
    story.now = 5.0
    story.release("a", clean=True)
    view = story.view("b")
    assert (view.granted_at, view.runs_until, view.attempt) == (5.0, 65.0, 1)
    story.pass_seconds(61)
    assert story.warned() == [("b", 76.0)]
    story.pass_seconds(10)
    assert story.taken_back() == [("b", 1)]
    story.removed("b")
    assert story.free() == 8


def test_its_end_is_told_of_the_present_holder_only():
    story = held()
    story.submit("b", gpu=4, workers=2)
    story.release("a", clean=True)
    for late in (ev.PlacementLost("a", 1, "late"), ev.PlacementRemoved("a", 1), ev.PlacementStuck("a", 1)):
        story.feed(late)
        assert (story.status("b"), story.free()) == ("allocated", 0)
    story.nodes(node("n2", 8))
    assert (story.status("a"), story.status("b")) == ("released", "cancelled")
    assert story.taken_back() == [("b", 1)]


def test_it_survives_being_written_down_and_copied():
    story = held()
    story.submit("b", gpu=4, workers=2)
    story.submit("c", gpu=4, workers=2)
    story.release("a", clean=True)
    read, _ = broker_of(Snapshots().lines_of(story.broker, 1))
    for broker in (read, copy_of(story.broker), story.broker):
        assert [(maker, one.request.id) for maker, one in broker.handed_over.items()] == [("a", "b")]
        broker.check()
        done = broker.handle(ev.Released("b", clean=True), story.now)
        assert [one.to for one in done if hasattr(one, "to_attempt")] == ["c"]
        assert broker.requests["c"].allocation.group_name == "raypool/p/red/a"
