"""What Ray loses, and what it does not give back: dead nodes, groups that are gone, phantom room."""

import pytest

from raypool.core import events as ev
from raypool.errors import Refused, SpecError
from raypool.spec import RequestSpec

from .story import Story, node, policy, pool

FOUR = [node("n1", 4), node("n2", 4), node("n3", 4), node("n4", 4)]
HIGH_AND_LOW = [policy("high", priority=9), policy("low", priority=1)]


def two_nodes(**fields):
    """A gang over two nodes, of which the second is about to die."""
    story = Story([pool(gpu=16)])
    story.nodes(*FOUR)
    story.run("gang", gpu=4, workers=2, on=("n1", "n2"), **fields)
    return story


def n2_dies(story):
    return story.nodes(*[one for one in FOUR if one.id != "n2"])


# --- a node dies ------------------------------------------------------------------------------


def test_a_gang_that_loses_a_node_ends_whole_and_says_which():
    story = two_nodes()
    story.run("other", gpu=4, on=("n3",))
    n2_dies(story)
    assert story.changes() == [("gang", "cancelled")]
    assert story.taken_back() == [("gang", 1)]
    assert (story.rule("gang"), story.view("gang").reason) == (
        "node-lost",
        "node n2 lost: its placement group is removed whole",
    )
    assert (story.status("other"), story.free(), story.leaving()) == ("allocated", 4, 8)
    story.removed("gang")
    story.pass_seconds(5)
    assert story.free() == 12


def full(**fields):
    """The gang, the rest of the pool in use, and one that waits behind."""
    story = two_nodes(**fields)
    story.run("other", gpu=4, on=("n3",))
    story.run("another", gpu=4, on=("n4",))
    story.submit("later", gpu=4, workers=2)
    n2_dies(story)
    return story


def test_its_retry_has_its_place_in_line():
    story = full()
    story.submit("again", gpu=4, workers=2, retry_of="gang")
    assert (story.view("again").number, story.view("gang").number, story.view("later").number) == (1, 1, 4)
    assert (story.view("again").position, story.view("later").position) == (1, 2)
    story.removed("gang")
    assert story.created() == [("again", 1, "p")]


def test_its_room_is_kept_for_its_retry_for_a_moment():
    story = full()
    story.removed("gang")
    assert (story.created(), story.rule("later"), story.leaving()) == ([], "room-being-made", 8)
    story.now += 4.9
    story.submit("again", gpu=4, workers=2, retry_of="gang")
    assert story.created() == [("again", 1, "p")]
    assert (story.free(), story.broker.next_deadline) == (0, None)


def test_if_nobody_comes_those_behind_have_it():
    story = full()
    story.removed("gang")
    story.pass_seconds(5)
    assert story.created() == [("later", 1, "p")]
    story.submit("again", gpu=4, workers=2, retry_of="gang")
    assert story.view("again").number == 1, "its place is kept all the same"


def test_a_slow_removal_is_waited_for_though_the_moment_is_over():
    story = full()
    story.pass_seconds(5)
    assert story.created() == []
    story.removed("gang")
    assert story.created() == [("later", 1, "p")]


def test_nothing_is_kept_of_what_shall_fail():
    story = full(on_node_loss="fail")
    story.removed("gang")
    assert story.created() == [("later", 1, "p")]


def test_what_is_kept_survives_a_change_of_its_pool_and_can_become_a_phantom():
    story = full()
    story.apply([pool(gpu=17)])
    story.removed("gang")
    assert (story.leaving(), story.free()) == (8, 1)
    story.pass_seconds(5)
    assert story.leaving() == 0

    story = full()
    story.stuck("gang")
    story.pass_seconds(5)
    assert story.phantom() == 8
    story.removed("gang")
    assert (story.phantom(), story.created()) == (0, [("later", 1, "p")])


def test_the_place_is_taken_up_once():
    story = two_nodes()
    n2_dies(story)
    story.submit("again", retry_of="gang")
    story.submit("twice", retry_of="gang")
    assert [story.view(id).number for id in ("again", "twice")] == [1, 2]


def test_a_retry_that_loses_a_node_too_hands_the_place_on():
    story = two_nodes()
    n2_dies(story)
    story.removed("gang")
    story.run("again", gpu=4, on=("n3",), retry_of="gang")
    story.nodes(node("n1", 4), node("n4", 4))
    story.submit("third", gpu=4, retry_of="again")
    assert story.view("third").number == 1


@pytest.mark.parametrize(
    "case", ["of another component", "of one that was not to be taken up", "of one that was cancelled", "of nobody"]
)
def test_nobody_else_gets_a_place_so(case):
    story = Story([pool(gpu=16)], [policy("red"), policy("blue")])
    story.nodes(*FOUR)
    story.run("gang", gpu=4, on=("n2",), on_node_loss="fail" if "taken up" in case else "requeue")
    if "cancelled" in case:
        story.cancel("gang")
    n2_dies(story)
    component = "blue" if "component" in case else "red"
    story.submit("again", component, retry_of="unheard-of" if "nobody" in case else "gang")
    assert story.view("again").number == 2


def test_with_fail_it_ends_all_the_same():
    story = two_nodes(on_node_loss="fail")
    n2_dies(story)
    assert (story.status("gang"), story.rule("gang"), story.taken_back()) == ("cancelled", "node-lost", [("gang", 1)])


def test_with_wait_ray_may_repair_it():
    story = two_nodes(on_node_loss="wait", repair_seconds=30)
    n2_dies(story)
    assert (story.done, story.status("gang"), story.view("gang").repair_until) == ([], "allocated", 30.0)
    story.pass_seconds(29)
    story.ready("gang", nodes=("n1", "n4"))
    assert story.changes() == [("gang", "allocated")], "who watches it hears of its new nodes"
    view = story.view("gang")
    assert (view.nodes, view.repair_until, story.broker.next_deadline) == (["n1", "n4"], None, None)
    story.pass_seconds(100)
    assert story.status("gang") == "allocated"
    story.nodes(node("n1", 4))
    assert story.view("gang").repair_until == 159.0, "and another time"


def test_with_wait_it_ends_when_ray_has_not():
    story = two_nodes(on_node_loss="wait", repair_seconds=30)
    n2_dies(story)
    story.pass_seconds(10)
    story.nodes(node("n3", 4))
    assert story.view("gang").repair_until == 30.0, "a second loss gives no second time"
    story.pass_seconds(20)
    assert (story.status("gang"), story.view("gang").reason) == (
        "cancelled",
        "node n1 lost: Ray did not repair its placement group in 30 s, it is removed whole",
    )
    story.submit("again", retry_of="gang")
    assert story.view("again").number == 1


def test_a_node_that_was_only_away_is_no_loss_at_the_end_of_the_repair():
    story = two_nodes(on_node_loss="wait")
    n2_dies(story)
    story.nodes(*FOUR)
    story.pass_seconds(60)
    assert (story.status("gang"), story.view("gang").repair_until) == ("allocated", None)


@pytest.mark.parametrize("how", ["requeue", "fail", "wait"])
def test_one_that_is_leaving_has_left_when_its_node_dies(how):
    story = Story([pool(grace_seconds=60)], HIGH_AND_LOW)
    story.nodes(*FOUR)
    story.run("victim", "low", gpu=4, workers=2, on=("n1", "n2"), on_node_loss=how)
    story.submit("taker", "high", gpu=4, workers=2)
    n2_dies(story)
    assert (story.status("victim"), story.rule("victim")) == ("preempted", "evicted")
    story.removed("victim")
    assert story.created() == [("taker", 1, "p")]


def test_one_that_is_evicted_while_it_is_repaired_keeps_its_grace():
    story = Story([pool(grace_seconds=60)], HIGH_AND_LOW)
    story.nodes(*FOUR)
    story.run("victim", "low", gpu=4, workers=2, on=("n1", "n2"), on_node_loss="wait", repair_seconds=10)
    n2_dies(story)
    story.submit("taker", "high", gpu=4, workers=2)
    story.pass_seconds(10)
    assert story.status("victim") == "preempting"
    story.pass_seconds(50)
    assert story.status("victim") == "preempted"


def test_a_grant_that_is_being_placed_is_not_ended_by_a_node():
    story = Story()
    story.nodes(*FOUR)
    story.submit("a")
    n2_dies(story)
    assert (story.done, story.view("a").placing) == ([], True)


def test_a_group_that_is_ready_on_a_dead_node_is_lost_when_nodes_are_told_again():
    story = Story()
    story.nodes(node("n1", 4))
    story.run("a", on=("n2",))
    assert story.status("a") == "allocated", "the node may be one that is not known yet"
    story.nodes(node("n1", 4))
    assert story.rule("a") == "node-lost"


def test_without_a_pool_it_ends_too():
    story = Story(unmanaged="allow")
    story.nodes(*FOUR)
    story.run("a", "stranger", on=("n2",))
    n2_dies(story)
    assert (story.rule("a"), story.taken_back()) == ("node-lost", [("a", 1)])


def test_how_long_to_wait_is_said_only_with_wait():
    spec = {"component": "red", "repair_seconds": 5.0}
    with pytest.raises(SpecError, match="repair_seconds: only with on_node_loss='wait'"):
        RequestSpec.load(spec)
    waits = RequestSpec.load({**spec, "on_node_loss": "wait"})
    assert RequestSpec.load(waits.dump()) == waits
    with pytest.raises(SpecError, match="on_node_loss: must be 'requeue', 'fail' or 'wait', got 'retry'"):
        RequestSpec.load({"component": "red", "on_node_loss": "retry"})


# --- a group is gone --------------------------------------------------------------------------


def test_a_group_that_somebody_removed_ends_its_request_and_its_charge():
    story = Story()
    story.run("a", gpu=8)
    story.submit("b", gpu=8)
    story.lost("a")
    assert (story.status("a"), story.view("a").reason) == (
        "cancelled",
        "its placement group is gone: somebody removed it",
    )
    assert story.rule("a") == "group-lost"
    assert story.created() == [("b", 1, "p")]


def test_a_group_that_is_lost_late_changes_nothing():
    story = Story()
    story.run("a", gpu=8)
    story.release("a")
    story.lost("a")
    assert (story.status("a"), story.free()) == ("released", 8)
    story.lost("a")
    assert story.free() == 8
    story.lost("unheard-of")


def test_one_that_is_leaving_has_left_when_its_group_is_gone():
    story = Story([pool(grace_seconds=60)], HIGH_AND_LOW)
    story.run("victim", "low", gpu=8)
    story.submit("taker", "high", gpu=8)
    story.lost("victim")
    assert (story.status("victim"), story.rule("victim")) == ("preempted", "evicted")
    assert story.created() == [("taker", 1, "p")]


# --- phantom room -----------------------------------------------------------------------------


def stuck(**fields):
    """6 of 8 GPUs that Ray does not give back, and two teams."""
    story = Story([pool(**fields)], [policy("red", limit=6, reserved=4), policy("blue", reserved=4)])
    story.run("a", gpu=6)
    story.release("a")
    story.stuck("a")
    return story


def test_room_that_ray_does_not_give_back_is_nobodys_and_not_free():
    story = stuck()
    assert (story.free(), story.leaving(), story.phantom()) == (2, 0, 6)
    red = story.broker.pools["p"].ledger.accounts["red", "team"]
    assert red.used == [0]
    story.submit("b", gpu=2)
    assert story.created() == [("b", 1, "p")], "its team's limit is not eaten by it"
    story.submit("c", "blue", gpu=2)
    assert story.view("c").reason == (
        "first in line in pool 'p': asks for 2 gpu, 0 free; 6 phantom: Ray has not given them back"
    )
    story.removed("a")
    assert (story.phantom(), story.free()) == (0, 4)
    assert story.created() == [("c", 1, "p")]


def test_what_the_broker_counts_alone_comes_back_at_once():
    story = Story([{"name": "p", "capacity": {"gpu": 8, "licence": 2, "chip": 4}, "ray_resources": {"chip": "CHIP"}}])
    wants = {"gpu_count": 6, "pool_resources": {"licence": 2, "chip": 3}}
    spec = RequestSpec.load({"id": "a", "component": "red", "resources": wants})
    story.feed(ev.Submitted(spec))
    story.ready("a")
    story.release("a")
    story.stuck("a")
    assert {key: story.phantom(key=key) for key in ("gpu", "licence", "chip")} == {"gpu": 6, "licence": 0, "chip": 3}
    assert story.free(key="licence") == 2


def test_a_phantom_is_not_waited_for_and_eats_no_reserve():
    story = stuck()
    story.submit("b", gpu=4)
    assert story.rule("b") == "no-room", "it is inside its reserve, and nobody can help: excused"
    story.submit("borrows", "blue", gpu=2)
    assert story.rule("borrows") == "behind"


def test_a_phantom_that_nobody_released_or_that_is_gone_is_none():
    story = Story([pool(grace_seconds=60)], HIGH_AND_LOW)
    story.run("victim", "low", gpu=8)
    story.stuck("victim")
    assert (story.phantom(), story.status("victim")) == (0, "allocated")
    story.submit("taker", "high", gpu=8)
    story.stuck("victim")
    assert (story.phantom(), story.status("victim")) == (0, "preempting")
    story.release("victim")
    story.removed("victim")
    story.stuck("victim")
    assert story.phantom() == 0
    assert story.broker.pools["p"].ledger.free == [0]


@pytest.mark.parametrize("new", [pool(gpu=8), pool(gpu=4), pool(gpu=12), pool(queueing="backfill")])
def test_a_phantom_stays_when_its_pool_is_changed(new):
    story = Story()
    story.run("a", gpu=6)
    story.release("a")
    story.stuck("a")
    story.apply([new], [policy("red", priority=2)])
    assert (story.phantom(), story.free()) == (6, new["capacity"]["gpu"] - 6)
    story.submit("b", gpu=4)
    story.removed("a")
    assert (story.phantom(), story.status("b")) == (0, "pending")
    story.ready("b")
    assert story.free() == new["capacity"]["gpu"] - 4


def test_a_pool_with_nothing_but_phantoms_can_be_deleted_and_made_again():
    story = stuck()
    story.feed(ev.PoolDeleted("p"))
    story.apply([pool()], [policy()])
    assert (story.phantom(), story.free()) == (0, 8)
    story.removed("a")
    assert story.free() == 8


def test_a_request_is_not_forgotten_while_its_room_is_a_phantom():
    story = stuck()
    with pytest.raises(Refused, match="Ray has not given its room back yet"):
        story.feed(ev.Forgotten("a"))
    story.broker.ended_kept = 0
    story.run("b", "blue")
    story.release("b")
    story.removed("b")
    story.cancel("a")
    assert "a" in story.broker.requests
    story.removed("a")
    story.feed(ev.Forgotten("a"))
    assert "a" not in story.broker.requests


def test_a_group_that_ray_may_still_create_keeps_its_room_as_a_phantom():
    story = Story()
    story.submit("a", gpu=6)
    story.submit("b", gpu=2)
    story.failed("a", why="Ray did not create it", pending=True)
    assert (story.free(), story.phantom()) == (0, 6)
    assert story.rule("a") == "placement"
    story.pass_seconds(1)
    assert story.rule("a") == "earlier-group"
    assert story.created() == []
    story.ready("a")
    assert story.status("a") == "pending", "that group was given up"
    story.removed("a")
    assert (story.created(), story.phantom()) == ([("a", 2, "p")], 0)


def test_a_group_that_never_came_gives_its_room_back():
    story = Story()
    story.submit("a", gpu=6)
    story.failed("a", pending=True)
    story.cancel("a")
    assert (story.taken_back(), story.phantom()) == ([], 6)
    story.failed("a", why="somebody removed its placement group before it was ready")
    assert (story.phantom(), story.free(), story.status("a")) == (0, 8, "cancelled")
