"""From grant to placement group and back: what the broker does with what Ray says.

The world here confirms both: a grant is allocated once its group is ready, and charged until it is gone.
"""

import pytest

from raypool.core import events as ev
from raypool.errors import Refused
from raypool.spec import RequestSpec

from .story import Story, node, policy, pool

HIGH_AND_LOW = [policy("high", priority=9), policy("low", priority=1)]


# --- being placed -----------------------------------------------------------------------------


def test_a_grant_is_pending_and_charged_until_its_group_is_ready():
    story = Story()
    story.submit("a", gpu=3)
    assert story.created() == [("a", 1, "p")]
    assert story.free() == 5
    view = story.view("a")
    assert (view.status, view.placing, view.pool, view.granted_at) == ("pending", True, None, None)
    assert view.reason == "being placed in pool 'p'"

    story.now = 4.0
    story.ready("a")
    assert story.changes() == [("a", "allocated")]
    view = story.view("a")
    assert (view.status, view.placing, view.pool, view.granted_at) == ("allocated", False, "p", 4.0)
    assert (view.group_id, view.nodes) == ("group-of-a", ["n1"])


def test_what_its_placement_looks_for_is_its_reason():
    story = Story()
    story.submit("a", gpu=3)
    story.waits("a", "bundle 0 (3 GPU) found no node; the largest free block is 2 GPU")
    assert story.view("a").reason == (
        "being placed in pool 'p': bundle 0 (3 GPU) found no node; the largest free block is 2 GPU"
    )


def test_a_release_ends_the_charge_only_when_the_group_is_gone():
    story = Story()
    story.run("a", gpu=8)
    story.submit("b", gpu=8)
    story.release("a")
    assert story.taken_back() == [("a", 1)]
    assert (story.status("a"), story.free(), story.leaving()) == ("released", 0, 8)
    assert story.rule("b") == "room-being-made"

    story.removed("a")
    assert story.created() == [("b", 1, "p")]


@pytest.mark.parametrize("how", ["cancel", "release"])
def test_a_request_that_is_given_up_while_it_is_being_placed_stays_charged_until_its_group_is_gone(how):
    story = Story()
    story.submit("a", gpu=8)
    getattr(story, how)("a")
    assert story.status("a") == "cancelled"
    assert story.taken_back() == [("a", 1)]
    assert (story.free(), story.leaving()) == (0, 8)

    story.ready("a")  # Ray had it ready before it heard
    assert story.status("a") == "cancelled"
    assert story.changes() == []
    story.removed("a")
    assert (story.free(), story.leaving()) == (8, 0)


def test_a_request_that_is_given_up_may_also_end_by_a_failed_placement():
    story = Story()
    story.submit("a", gpu=8)
    story.cancel("a")
    story.failed("a")
    assert (story.status("a"), story.free()) == ("cancelled", 8)


# --- a placement that fails -------------------------------------------------------------------


def test_a_failed_placement_gives_the_charge_back_and_lets_others_pass():
    story = Story()
    story.submit("large", gpu=8)
    story.submit("small", gpu=1)
    assert story.rule("small") == "limit"

    story.failed("large", why="bundle 0 (8 GPU) found no node; the largest free block is 4 GPU")
    assert story.created() == [("small", 1, "p")]
    assert (story.status("large"), story.rule("large")) == ("pending", "placement")
    assert story.view("large").reason == (
        "granted once in pool 'p' but not placed: bundle 0 (8 GPU) found no node; "
        "the largest free block is 4 GPU; others pass until it tries again"
    )
    assert story.free() == 7


def test_each_further_failure_doubles_the_time_aside_up_to_a_minute():
    story = Story()
    story.submit("a")
    waited = []
    for attempt in range(1, 9):
        assert story.created() == [("a", attempt, "p")]
        story.failed("a")
        waited.append(story.broker.next_deadline - story.now)
        story.pass_seconds(waited[-1])
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_back_off_is_not_over_a_moment_early():
    story = Story()
    story.submit("a")
    story.failed("a")
    story.pass_seconds(0.999)
    assert story.created() == []
    story.pass_seconds(0.001)
    assert story.created() == [("a", 2, "p")]


def test_a_placement_that_succeeds_forgets_the_failures():
    story = Story()
    story.submit("a")
    story.failed("a")
    story.pass_seconds(1)
    story.ready("a")
    assert story.broker.requests["a"].placement_failures == 0


def test_a_request_comes_back_to_its_old_place_in_line():
    story = Story()
    story.run("holder", gpu=8)
    story.submit("first", gpu=8)
    story.release("holder")
    story.removed("holder")
    story.failed("first")
    story.submit("second", gpu=8)  # passes while the first stands aside
    story.submit("third", gpu=8)
    story.ready("second")
    story.pass_seconds(1)
    assert (story.view("first").position, story.view("third").position) == (1, 2)
    story.release("second")
    story.removed("second")
    assert story.created() == [("first", 2, "p")]


def test_a_request_that_stands_aside_can_be_cancelled():
    story = Story()
    story.submit("a")
    story.failed("a")
    story.cancel("a")
    assert story.status("a") == "cancelled"
    assert story.broker.next_deadline is None
    assert story.pass_seconds(5) == []


def test_a_request_that_fails_in_one_pool_is_placed_in_another():
    story = Story(
        [pool("best"), pool("other")],
        [policy(pool="best", priority=5), policy(pool="other", priority=1)],
    )
    story.submit("a", gpu=8)
    assert story.created() == [("a", 1, "best")]
    story.failed("a")
    assert story.created() == [("a", 2, "other")]
    story.ready("a")
    assert story.view("a").pool == "other"


def test_a_back_off_ends_in_time_although_the_request_was_granted_elsewhere_meanwhile():
    """It fails in 'best', is granted in 'other', has to go back before it is placed: 'best' still waits for it."""
    story = Story(
        [pool("best"), pool("other")],
        [
            policy(pool="best", priority=5),
            policy(pool="other", priority=1),
            policy("high", pool="other", priority=9, reserved=8),
        ],
    )
    story.submit("a", gpu=8)
    story.failed("a")
    assert story.created() == [("a", 2, "other")]
    assert story.broker.next_deadline is None  # nothing is due while it is being placed
    story.submit("high", "high", gpu=8)
    assert story.taken_back() == [("a", 2)]
    story.removed("a", 2)
    assert set(story.view("a").reasons) == {"best", "other"}
    assert story.broker.next_deadline == 1.0
    story.pass_seconds(1)
    assert story.created() == [("a", 3, "best")]


def test_config_changes_while_a_request_stands_aside_do_not_let_it_forget_the_time():
    story = Story()
    story.submit("a", gpu=8)
    story.failed("a")
    story.apply([pool(gpu=16)])
    assert story.rule("a") == "placement"
    story.pass_seconds(1)
    assert story.created() == [("a", 2, "p")]


def test_a_request_that_stands_aside_is_rejected_when_a_change_leaves_no_pool_for_it():
    story = Story()
    story.submit("a", gpu=8)
    story.failed("a")
    story.apply([pool(gpu=4)])
    assert story.status("a") == "rejected"
    assert story.view("a").reason == "asks for 8 gpu, pool 'p' has 4"
    assert story.pass_seconds(1) == []


def test_a_grant_whose_pool_was_made_smaller_is_rejected_when_its_placement_fails():
    story = Story()
    story.submit("a", gpu=8)
    story.apply([pool(gpu=4)])
    assert (story.status("a"), story.free()) == ("pending", -4)
    story.failed("a")
    assert (story.status("a"), story.free()) == ("rejected", 4)


# --- a victim that is not placed yet ----------------------------------------------------------


def test_a_victim_that_is_not_placed_yet_goes_back_to_its_place_and_nobody_is_warned():
    story = Story([pool(grace_seconds=30)], HIGH_AND_LOW)
    story.submit("victim", "low", gpu=8)
    story.submit("next", "low", gpu=8)
    story.submit("high", "high", gpu=8)
    assert story.taken_back() == [("victim", 1)]
    assert story.warned() == []
    assert (story.status("victim"), story.rule("victim")) == ("pending", "earlier-group")
    assert story.rule("high") == "room-being-made"
    assert story.leaving() == 8

    story.ready("victim", 1)  # too late
    assert story.status("victim") == "pending"

    story.removed("victim", 1)
    assert story.created() == [("high", 1, "p")]
    assert (story.view("victim").position, story.view("next").position) == (1, 2)
    assert story.view("victim").preempted_by is None


def test_a_victim_that_went_back_can_be_cancelled_while_its_group_is_leaving():
    story = Story([pool()], HIGH_AND_LOW)
    story.submit("victim", "low", gpu=8)
    story.submit("high", "high", gpu=8)
    story.cancel("victim")
    assert story.taken_back() == []  # it was asked for already
    assert (story.status("victim"), story.leaving()) == ("cancelled", 8)
    with pytest.raises(Refused, match="still being removed"):
        story.feed(ev.Forgotten("victim"))
    story.removed("victim", 1)
    assert story.created() == [("high", 1, "p")]


def test_a_victim_that_went_back_may_end_its_first_grant_by_a_failed_placement():
    story = Story([pool()], HIGH_AND_LOW)
    story.submit("victim", "low", gpu=8)
    story.submit("high", "high", gpu=8)
    story.failed("victim", 1)
    assert story.created() == [("high", 1, "p")]
    assert story.rule("victim") in ("no-room", "behind")  # no back-off: it was not its fault


# --- grace ------------------------------------------------------------------------------------

GRACE = [
    ("the pool's", 30, None, 30),
    ("shortened by the request", 30, 5, 5),
    ("not lengthened by the request", 30, 100, 30),
    ("none, if the request wants none", 30, 0, 0),
    ("none, if the pool gives none", 0, 100, 0),
]


@pytest.mark.parametrize(("pools", "asked", "given"), [row[1:] for row in GRACE], ids=[row[0] for row in GRACE])
def test_how_much_grace_a_victim_gets(pools, asked, given):
    story = Story([pool(grace_seconds=pools)], HIGH_AND_LOW)
    story.run("victim", "low", gpu=8, grace_seconds=asked)
    story.now = 10.0
    story.submit("high", "high", gpu=8)
    if given:
        assert story.warned() == [("victim", 10.0 + given)]
        assert (story.status("victim"), story.view("victim").deadline) == ("preempting", 10.0 + given)
        assert story.taken_back() == []
        story.pass_seconds(given)
    assert story.status("victim") == "preempted"
    assert story.taken_back() == [("victim", 1)]
    assert story.status("high") == "pending"
    story.removed("victim")
    assert story.created() == [("high", 1, "p")]


def test_who_leaves_before_his_grace_is_over_is_preempted_and_his_deadline_forgotten():
    story = Story([pool(grace_seconds=30)], HIGH_AND_LOW)
    story.run("victim", "low", gpu=8)
    story.submit("high", "high", gpu=8)
    story.release("victim")
    assert story.status("victim") == "preempted"
    assert story.broker.next_deadline is None
    assert story.view("victim").preempted_by_component == "high"


def test_a_group_that_somebody_removed_during_the_grace_ends_it():
    story = Story([pool(grace_seconds=30)], HIGH_AND_LOW)
    story.run("victim", "low", gpu=8)
    story.submit("high", "high", gpu=8)
    story.removed("victim")
    assert story.status("victim") == "preempted"
    assert ("high", 1, "p") in story.created()


# --- duplicates and late events ---------------------------------------------------------------


def being_placed(story):
    story.submit("a", gpu=2)


def allocated(story):
    story.run("a", gpu=2)


def standing_aside(story):
    story.submit("a", gpu=2)
    story.failed("a")


def ended(story):
    story.run("a", gpu=2)
    story.release("a")
    story.removed("a")


def cancelled_while_placed(story):
    story.submit("a", gpu=2)
    story.cancel("a")
    story.removed("a")


def failed_after_cancel(story):
    story.submit("a", gpu=2)
    story.cancel("a")
    story.failed("a")


UNKNOWN = [
    ev.PlacementReady("nobody", 1),
    ev.PlacementFailed("nobody", 1, "why"),
    ev.PlacementRemoved("nobody", 1),
    ev.PlacementWaits("nobody", 1, "why"),
    ev.PlacementReady("a", 7),
    ev.PlacementFailed("a", 7, "why"),
    ev.PlacementRemoved("a", 7),
    ev.PlacementWaits("a", 7, "why"),
    ev.TimePassed(),
]
OF_THE_FIRST_GRANT = [
    ev.PlacementReady("a", 1, "late"),
    ev.PlacementFailed("a", 1, "late"),
    ev.PlacementRemoved("a", 1),
    ev.PlacementWaits("a", 1, "late"),
]


@pytest.mark.parametrize("event", UNKNOWN, ids=repr)
@pytest.mark.parametrize("past", [being_placed, allocated, standing_aside, ended])
def test_events_of_unknown_requests_and_grants_change_nothing(past, event):
    story = Story()
    past(story)
    before = story.figures()
    assert story.feed(event) == []
    assert story.figures() == before


@pytest.mark.parametrize("event", OF_THE_FIRST_GRANT, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("past", [standing_aside, ended, cancelled_while_placed, failed_after_cancel])
def test_events_of_a_grant_that_is_over_change_nothing(past, event):
    story = Story()
    past(story)
    before = story.figures()
    assert story.feed(event) == []
    assert story.figures() == before


@pytest.mark.parametrize("event", [ev.PlacementReady("a", 1, "late"), ev.PlacementRemoved("a", 1)], ids=repr)
def test_a_running_request_is_not_moved_by_a_second_ready_nor_by_a_removal_nobody_asked_for(event):
    story = Story()
    allocated(story)
    before = story.figures()
    assert story.feed(event) == []
    assert story.figures() == before


def test_a_late_event_of_an_earlier_grant_does_not_touch_the_present_one():
    story = Story()
    story.submit("a", gpu=2)
    story.failed("a")
    story.pass_seconds(1)
    for event in OF_THE_FIRST_GRANT:
        assert story.feed(event) == []
    assert (story.view("a").placing, story.view("a").reason) == (True, "being placed in pool 'p'")
    story.ready("a")
    assert (story.status("a"), story.free()) == ("allocated", 6)


# --- nodes ------------------------------------------------------------------------------------


def test_a_request_that_no_node_can_hold_waits_with_the_reason_and_blocks_nobody():
    story = Story()
    story.nodes(node("n1", 4), node("n2", 4))
    story.submit("large", gpu=8)
    assert story.created() == []
    assert story.view("large").reason == (
        "infeasible on today's nodes: needs 8 GPU on one node, the largest has 4 (pool 'p')"
    )
    story.submit("gang", gpu=4, workers=2)
    assert story.created() == [("gang", 1, "p")]

    story.nodes(node("n1", 4), node("n2", 4), node("n3", 8))
    assert story.rule("large") == "limit"
    story.cancel("gang")
    story.removed("gang")
    assert story.created() == [("large", 1, "p")]


def test_a_node_that_leaves_makes_waiting_requests_infeasible_and_its_return_wakes_them():
    story = Story()
    story.nodes(node("n1", 8))
    story.run("holder", gpu=8)
    story.submit("large", gpu=8)
    story.submit("small", gpu=1)
    story.nodes(node("n1", 4))
    assert story.rule("large") == "infeasible"
    assert story.rule("small") == "limit"
    story.release("holder")
    story.removed("holder")
    assert story.created() == [("small", 1, "p")]
    story.cancel("small")
    story.removed("small")
    story.nodes(node("n1", 8))
    assert story.created() == [("large", 1, "p")]


def test_a_mark_ends_when_its_request_becomes_infeasible():
    story = Story([pool()], HIGH_AND_LOW)
    story.nodes(node("n1", 8))
    story.run("holder", "low", gpu=8)
    story.submit("high", "high", gpu=8)
    story.submit("low", "low", gpu=4)
    assert story.rule("high") == "room-being-made"
    story.nodes(node("n1", 4))
    assert story.rule("high") == "infeasible"
    assert story.rule("low") == "room-being-made"
    story.removed("holder")
    assert story.created() == [("low", 1, "p")]


def test_a_pool_may_reject_what_no_node_can_hold():
    story = Story([pool(infeasible="reject")])
    story.nodes(node("n1", 4))
    story.submit("large", gpu=8)
    assert story.status("large") == "rejected"
    assert story.view("large").reason == (
        "infeasible on today's nodes: needs 8 GPU on one node, the largest has 4 (pool 'p')"
    )


def test_only_nodes_with_the_pools_labels_count():
    story = Story([pool(node_labels={"zone": "a"})])
    story.nodes(node("n1", 8, zone="b"), node("n2", 2, zone="a"))
    story.submit("a", gpu=4)
    assert story.view("a").reason == (
        "infeasible on today's nodes: needs 4 GPU on one node, the largest has 2 (pool 'p')"
    )
    story.nodes(node("n1", 8, zone="b"))
    assert "no node has the pool's labels" in story.view("a").reason
    story.apply([pool(node_labels={"zone": "b"})])
    assert story.created() == [("a", 1, "p")]


def test_until_nodes_are_known_nothing_is_infeasible():
    story = Story()
    story.submit("a", gpu=8)
    assert story.created() == [("a", 1, "p")]


def test_a_request_that_is_infeasible_in_one_pool_is_granted_in_the_other():
    story = Story(
        [pool("best", node_labels={"zone": "a"}), pool("other")],
        [policy(pool="best", priority=5), policy(pool="other", priority=1)],
    )
    story.nodes(node("n1", 4, zone="a"), node("n2", 8, zone="b"))
    story.submit("a", gpu=8)
    assert story.created() == [("a", 1, "other")]
    story.submit("b", gpu=8)
    assert {name: "infeasible" in why for name, why in story.view("b").reasons.items()} == {
        "best": True,
        "other": False,
    }


def test_who_is_granted_already_is_not_taken_back_by_a_change_of_nodes():
    story = Story()
    story.nodes(node("n1", 8))
    story.submit("a", gpu=8)
    story.nodes(node("n2", 4))
    assert story.taken_back() == []
    story.failed("a")
    assert story.rule("a") == "placement"
    story.pass_seconds(1)
    assert story.rule("a") == "infeasible"


# --- two pools --------------------------------------------------------------------------------


def test_a_request_is_never_charged_in_two_pools_while_it_goes_back():
    story = Story(
        [pool("x"), pool("y")],
        [policy("low", pool="x", priority=2), policy("low", pool="y"), policy("high", pool="x", priority=9)],
    )
    story.submit("a", "low", gpu=8)
    story.submit("high", "high", gpu=8)
    assert story.view("a").reasons.keys() == {"x", "y"}
    assert story.free("y") == 8  # it stands aside there too, until its first group is gone
    story.removed("a", 1)
    assert story.created() == [("high", 1, "x"), ("a", 2, "y")]


# --- forgetting and pools in use --------------------------------------------------------------


def test_a_request_can_be_forgotten_once_it_has_ended_and_its_group_is_gone():
    story = Story()
    story.submit("a")
    with pytest.raises(Refused, match="is pending: cancel it before you delete it"):
        story.feed(ev.Forgotten("a"))
    story.cancel("a")
    with pytest.raises(Refused, match="still being removed"):
        story.feed(ev.Forgotten("a"))
    story.removed("a")
    story.feed(ev.Forgotten("a"))
    assert story.statuses() == {}
    with pytest.raises(Refused, match="there is no request 'a'"):
        story.feed(ev.Forgotten("a"))
    story.submit("a")  # the id is free again
    story.ready("a", 1)
    assert story.status("a") == "allocated"


def test_the_oldest_ended_requests_are_forgotten_but_none_whose_group_is_still_there():
    story = Story()
    story.broker.ended_kept = 2
    for id in "abcd":
        story.run(id)
        story.release(id)
        if id != "a":
            story.removed(id)
    assert set(story.statuses()) == {"a", "c", "d"}
    story.removed("a")
    story.run("e")
    story.release("e")
    assert set(story.statuses()) == {"d", "e"}


@pytest.mark.parametrize("past", [being_placed, allocated, standing_aside])
def test_a_pool_and_a_policy_with_work_on_its_way_are_not_given_up(past):
    story = Story()
    past(story)
    count = "1 queued, 0 charged" if past is standing_aside else "0 queued, 1 charged"
    with pytest.raises(Refused, match=count):
        story.feed(ev.PoolDeleted("p"))
    with pytest.raises(Refused, match=count):
        story.feed(ev.PolicyDetached("p", "red"))
    story.cancel("a")
    story.removed("a")
    story.feed(ev.PolicyDetached("p", "red"))
    story.feed(ev.PoolDeleted("p"))
    assert story.broker.pools == {}


# --- components without a policy --------------------------------------------------------------


def test_an_unmanaged_component_may_be_let_in_without_a_charge():
    story = Story(unmanaged="allow")
    story.submit("a", "stranger", gpu=100)
    assert story.created() == [("a", 1, None)]
    assert story.view("a").reason == "being placed"
    story.ready("a")
    view = story.view("a")
    assert (view.status, view.pool, view.borrowed, story.free()) == ("allocated", None, {}, 8)
    story.release("a")
    assert story.taken_back() == [("a", 1)]
    story.removed("a")
    assert story.status("a") == "released"


def test_an_unmanaged_request_that_finds_no_nodes_is_rejected():
    story = Story(unmanaged="allow")
    story.submit("a", "stranger", gpu=100)
    story.failed("a", why="bundle 0 (100 GPU) found no node; the largest free block is 8 GPU")
    assert story.status("a") == "rejected"
    assert story.view("a").reason.startswith("not placed: bundle 0 (100 GPU) found no node")


def test_an_unmanaged_component_may_not_pin_a_pool():
    story = Story(unmanaged="allow")
    story.submit("a", "stranger", pool="p")
    assert story.view("a").reason == "pinned to pool 'p', where no policy attaches team 'stranger'"


def test_unmanaged_can_be_taken_back():
    story = Story(unmanaged="allow")
    story.apply(unmanaged="reject")
    story.submit("a", "stranger")
    assert story.view("a").reason == "no policy attaches team 'stranger' to any pool"


def test_a_change_that_does_not_speak_of_unmanaged_leaves_it():
    story = Story(unmanaged="allow")
    story.apply([pool("q")])
    assert story.broker.unmanaged == "allow"


def test_a_release_by_another_job_is_refused_and_changes_nothing():
    story = Story()
    story.submit("a", job="job1")
    story.ready("a")
    before = story.figures()
    for job in (None, "job2"):
        with pytest.raises(Refused, match="'a' belongs to job job1"):
            story.feed(ev.Released("a", job))
    assert story.figures() == before
    story.feed(ev.Released("a", "job1"))
    assert story.status("a") == "released"


def test_whose_a_request_is_stands_in_it_and_decides_nothing():
    story = Story()
    story.feed(ev.Submitted(RequestSpec.load({"id": "a", "component": "red"}), "job1", "process1"))
    before = story.figures()
    assert story.feed(ev.BoundToActor("a", "actor1")) == []
    view = story.view("a")
    assert (view.job, view.holder, view.actor) == ("job1", "process1", "actor1")
    assert story.figures() == before
    with pytest.raises(Refused, match="there is no request 'x'"):
        story.feed(ev.BoundToActor("x", "actor1"))
