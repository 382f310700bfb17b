"""Every reason: the state that brings it about, its word for programs, and its sentence."""

import inspect

import pytest

from raypool.core import reasons
from raypool.core.explain import explanation_of, wait_reasons
from raypool.core.reasons import Evicted, NoPoolTakesIt, Reason, RoomBeingMade, amounts
from raypool.core.walk import rank
from raypool.server.views import view_request

from .story import Story, node, policy, pool


def red_and_blue(**fields):
    return Story([pool(**fields)], [policy("red"), policy("blue")])


# --- why it waits -----------------------------------------------------------------------------


def no_room():
    story = red_and_blue()
    story.run("holder", "red", gpu=6)
    story.submit("x", "blue", gpu=4)
    return story, "no-room", "first in line in pool 'p': asks for 4 gpu, 2 free"


def no_room_and_not_enough_leaves():
    story = red_and_blue()
    story.run("stays", "red", gpu=4)
    story.run("leaves", "red", gpu=2)
    story.release("leaves")
    story.submit("x", "blue", gpu=8)
    return story, "no-room", "first in line in pool 'p': asks for 8 gpu, 2 free and 2 leaving"


def no_room_behind_one_for_whom_room_is_being_made():
    story = red_and_blue()
    story.run("stays", "red", gpu=2)
    story.run("leaves", "red", gpu=4)
    story.release("leaves")
    story.submit("first", "blue", gpu=5)
    story.submit("x", "blue", gpu=3)
    return (
        story,
        "no-room",
        "number 2 in line in pool 'p': asks for 3 gpu, 2 free and 4 leaving, 5 of that kept for those ahead",
    )


def no_room_behind_one_that_is_over_its_limit():
    story = Story([pool()], [policy("red", limit=4), policy("blue")])
    story.run("holder", "red", gpu=4)
    story.submit("first", "red", gpu=2)
    story.submit("x", "blue", gpu=5)
    return story, "no-room", "number 2 in line in pool 'p': asks for 5 gpu, 4 free"


def no_room_for_another_key_than_the_one_that_leaves():
    keys = {"name": "p", "capacity": {"gpu": 8, "tpu": 8}}
    story = Story([keys], [policy("red"), policy("blue")])
    story.run("leaves", "red", gpu=8)
    story.submit("stays", "red", resources={"pool_resources": {"tpu": 7}})
    story.ready("stays")
    story.release("leaves")
    story.submit("x", "blue", resources={"gpu_count": 6, "pool_resources": {"tpu": 2}})
    return story, "no-room", "first in line in pool 'p': asks for 2 tpu, 1 free"


def room_being_made():
    story = red_and_blue()
    story.run("a", "red", gpu=4)
    story.run("b", "red", gpu=4)
    story.release("a")
    story.release("b")
    story.submit("x", "blue", gpu=8)
    return story, "room-being-made", "room for 8 gpu is being made in pool 'p': waits for 'a' and 'b' to leave"


def room_elsewhere():
    story = Story(
        [pool("p", gpu=8), pool("q", gpu=8)],
        [policy("blue", "p", 1), policy("blue", "q", 5), policy("red", "p", 1), policy("red", "q", 1)],
    )
    story.run("in-q", "red", gpu=8, pool="q")
    story.run("in-p", "red", gpu=8, pool="p")
    story.release("in-q")
    story.submit("x", "blue", gpu=8)
    story.release("in-p")
    return story, "room-elsewhere", "room is being made for it in pool 'q', not in 'p'"


def behind():
    story = red_and_blue()
    story.run("holder", "red", gpu=6)
    story.submit("head", "blue", gpu=4)
    story.submit("second", "blue", gpu=4)
    story.submit("x", "blue", gpu=4)
    return story, "behind", "number 3 in line in pool 'p', behind 'head', which has no room yet"


def over_limit():
    story = Story([pool()], [policy("red", limit=4)])
    story.run("holder", "red", gpu=3)
    story.submit("x", "red", gpu=2)
    return story, "limit", "over the limit of 'red' in pool 'p': asks for 2 gpu, uses 3 of 4"


def over_limit_with_what_is_kept_for_an_earlier_one():
    story = Story([pool()], [policy("red", limit=4), policy("blue")])
    story.run("holder", "red", gpu=1)
    story.run("leaves", "blue", gpu=7)
    story.release("leaves")
    story.submit("first", "red", gpu=2)
    story.submit("x", "red", gpu=2)
    sentence = (
        "over the limit of 'red' in pool 'p': asks for 2 gpu, uses 1 of 4, and 2 more kept for its earlier requests"
    )
    return story, "limit", sentence


def held_back():
    story = Story([pool()], [policy("red", limit=4)])
    story.run("holder", "red", gpu=3)
    story.submit("large", "red", gpu=2)
    story.submit("x", "red", gpu=1)
    return (
        story,
        "held-back",
        "held back in pool 'p': 'large' of the same component 'red' came first and waits for the limit",
    )


def reserve_in_use():
    story = Story([pool()], [policy("red", reserved=4)])
    story.run("holder", "red", gpu=3, preemptible=False)
    story.submit("x", "red", gpu=2, preemptible=False)
    return (
        story,
        "reserve-in-use",
        "not preemptible, so it waits for the reserve of 'red' in pool 'p': asks for 2 gpu, "
        "other non-preemptible work uses 3 of 4",
    )


def reserve_kept_for_an_earlier_one():
    story = Story([pool()], [policy("red", reserved=4), policy("blue")])
    story.run("holder", "red", gpu=1, preemptible=False)
    story.run("leaves", "blue", gpu=7)
    story.release("leaves")
    story.submit("first", "red", gpu=2, preemptible=False)
    story.submit("x", "red", gpu=2, preemptible=False)
    return (
        story,
        "reserve-in-use",
        "not preemptible, so it waits for the reserve of 'red' in pool 'p': asks for 2 gpu, other non-preemptible "
        "work uses 1 of 4, and 2 more kept for its earlier requests",
    )


def being_placed():
    story = red_and_blue()
    story.submit("x", "red", gpu=2)
    return story, "being-placed", "being placed in pool 'p'"


def being_placed_and_looking():
    story = red_and_blue()
    story.submit("x", "red", gpu=2)
    story.waits("x", "bundle 0 (2 GPU) found no node; the largest free block is 1 GPU")
    return (
        story,
        "being-placed",
        "being placed in pool 'p': bundle 0 (2 GPU) found no node; the largest free block is 1 GPU",
    )


def back_off():
    story = red_and_blue()
    story.submit("x", "red", gpu=2)
    story.failed("x", why="no node")
    story.pass_seconds(1)
    story.failed("x", why="no node")
    return (
        story,
        "placement",
        "granted 2 times in pool 'p' but not placed: no node; others pass until it tries again",
    )


def earlier_group():
    story = Story([pool()], [policy("high", priority=9), policy("red")])
    story.submit("x", "red", gpu=8)
    story.submit("high", "high", gpu=8)
    return (
        story,
        "earlier-group",
        "back in line: the placement group of its earlier grant in pool 'p' must be gone first",
    )


def infeasible():
    story = red_and_blue()
    story.nodes(node("n1", 4))
    story.submit("x", "red", gpu=8)
    return (
        story,
        "infeasible",
        "infeasible on today's nodes: needs 8 GPU on one node, the largest has 4 (pool 'p')",
    )


WAITING = [
    no_room, no_room_and_not_enough_leaves, no_room_behind_one_for_whom_room_is_being_made,
    no_room_behind_one_that_is_over_its_limit, no_room_for_another_key_than_the_one_that_leaves,
    over_limit_with_what_is_kept_for_an_earlier_one, reserve_kept_for_an_earlier_one, room_being_made,
    room_elsewhere, behind, over_limit, held_back, reserve_in_use, being_placed, being_placed_and_looking,
    back_off, earlier_group, infeasible,
]  # fmt: skip


@pytest.mark.parametrize("state", WAITING, ids=lambda state: state.__name__)
def test_a_waiting_request_says_why(state):
    story, rule, sentence = state()
    view = story.view("x")
    assert view.status == "pending"
    assert sentence in view.reasons.values()
    assert rule in [reason.rule for reason in wait_reasons(story.broker, story.broker.requests["x"]).values()]
    if len(view.reasons) == 1:
        assert (view.rule, view.reason) == (rule, sentence)


def test_the_most_hopeful_reason_comes_first():
    story, _, _ = room_elsewhere()
    view = story.view("x")
    assert list(view.reasons) == ["q", "p"]
    assert view.rule == "room-being-made"


def test_of_several_keys_the_one_that_lacks_most_is_named():
    story = Story(
        [{"name": "p", "capacity": {"gpu": 8, "tpu": 100}}], [policy("red", priority=1), policy("blue", priority=1)]
    )
    story.submit("holder", "red", gpu=5, resources={"gpu_count": 5, "pool_resources": {"tpu": 90}})
    story.submit("x", "blue", resources={"gpu_count": 4, "pool_resources": {"tpu": 50}})
    assert story.view("x").reason == "first in line in pool 'p': asks for 50 tpu, 10 free"


def test_an_overdrawn_pool_has_nothing_free_rather_than_less_than_nothing():
    story = red_and_blue()
    story.run("holder", "red", gpu=8)
    story.submit("x", "blue", gpu=2)
    story.apply([pool(gpu=4)])
    assert story.free() == -4
    assert story.view("x").reason == "first in line in pool 'p': asks for 2 gpu, 0 free"


def test_a_long_list_of_leavers_is_cut():
    leavers = tuple("abcdefgh")
    assert RoomBeingMade("p", "gpu", 8, leavers).sentence.endswith(
        "waits for 'a', 'b', 'c', 'd', 'e' and 3 more to leave"
    )


# --- why no pool takes it ---------------------------------------------------------------------

REJECTED = [
    ("no policy", {"component": "stranger"}, "no-policy", "no policy attaches team 'stranger' to any pool"),
    (
        "no policy of that type",
        {"component_type": "orchestrator"},
        "no-policy",
        "no policy attaches orchestrator 'red' to any pool",
    ),
    ("above the capacity", {"gpu": 9}, "ineligible", "asks for 9 gpu, pool 'p' has 8"),
    (
        "a key that the pool has not",
        {"resources": {"pool_resources": {"tpu": 2}}},
        "ineligible",
        "pool 'p' has no tpu, it asks for 2",
    ),
    ("above the limit", {"gpu": 7}, "ineligible", "asks for 7 gpu, the limit of 'red' in pool 'p' is 6"),
    (
        "above the reserve",
        {"gpu": 3, "preemptible": False},
        "ineligible",
        "asks for 3 gpu non-preemptible, 'red' has 2 reserved in pool 'p'",
    ),
    ("pinned to no pool", {"pool": "x"}, "no-policy-in-pool", "pinned to pool 'x', which does not exist"),
    (
        "pinned to a pool of others",
        {"pool": "q"},
        "no-policy-in-pool",
        "pinned to pool 'q', where no policy attaches team 'red'",
    ),
    (
        "each of two pools has its reason",
        {"component": "both", "gpu": 9},
        "rejected",
        "asks for 9 gpu, pool 'p' has 8; asks for 9 gpu, pool 'q' has 4",
    ),
]


@pytest.mark.parametrize(
    ("fields", "rule", "sentence"), [row[1:] for row in REJECTED], ids=[row[0] for row in REJECTED]
)
def test_a_rejected_request_says_what_was_tried(fields, rule, sentence):
    story = Story(
        [pool("p"), pool("q", gpu=4)],
        [policy("red", reserved=2, limit=6), policy("both"), policy("both", "q"), policy("blue", "q")],
    )
    story.submit("x", **{"component": "red", **fields})
    view = story.view("x")
    assert (view.status, view.rule, view.reason) == ("rejected", rule, sentence)
    assert view.reasons == {}


def test_what_no_node_can_hold_is_rejected_with_the_figures_where_the_pool_says_so():
    story = Story([pool(infeasible="reject")])
    story.nodes(node("n1", 4))
    story.submit("x", gpu=8)
    sentence = "infeasible on today's nodes: needs 8 GPU on one node, the largest has 4 (pool 'p')"
    assert (story.status("x"), story.rule("x"), story.view("x").reason) == ("rejected", "infeasible", sentence)


def test_pools_may_refuse_for_unlike_reasons():
    story = Story([pool("p"), pool("q", infeasible="reject")], [policy("red", limit=2), policy("red", "q")])
    story.nodes(node("n1", 2))
    story.submit("x", gpu=4)
    assert story.view("x").reason == (
        "asks for 4 gpu, the limit of 'red' in pool 'p' is 2; "
        "infeasible on today's nodes: needs 4 GPU on one node, the largest has 2 (pool 'q')"
    )


def test_without_a_pool_it_is_being_placed_nowhere_in_particular():
    story = Story(unmanaged="allow")
    story.submit("x", "stranger")
    assert (story.rule("x"), story.view("x").reason) == ("being-placed", "being placed")


# --- why it left ------------------------------------------------------------------------------


def preempted():
    story = Story([pool(grace_seconds=10)], [policy("high", priority=9), policy("red", priority=1)])
    story.run("x", "red", gpu=6)
    story.submit("h", "high", gpu=4)
    return (
        story,
        "preempt",
        "has to make room in pool 'p' for 'h' of 'high', which lacks 2 gpu: priority 9 goes before 1; "
        "it borrowed 6 gpu",
    )


def reclaimed():
    story = Story([pool(grace_seconds=10)], [policy("red", reserved=1), policy("blue", reserved=4)])
    story.run("x", "red", gpu=6)
    story.submit("b", "blue", gpu=4)
    return (
        story,
        "reclaim",
        "has to make room in pool 'p' for 'b' of 'blue', which lacks 2 gpu: "
        "'blue' takes back what is reserved for it; it borrowed 5 gpu",
    )


def backfilled():
    story = Story([pool(grace_seconds=10, queueing="backfill")], [policy("red"), policy("blue"), policy("green")])
    story.run("long", "blue", gpu=5)
    story.submit("h", "green", gpu=6)
    story.run("x", "red", gpu=3)
    story.release("long")
    story.removed("long")
    return (
        story,
        "backfilled",
        "has to make room in pool 'p' for 'h' of 'green', which lacks 1 gpu: it ran ahead of its turn, "
        "which has come for that one; it borrowed 3 gpu",
    )


EVICTED = [preempted, reclaimed, backfilled]


@pytest.mark.parametrize("state", EVICTED, ids=lambda state: state.__name__)
def test_an_evicted_request_says_for_whom_and_by_which_rule_while_it_leaves_and_when_it_has_left(state):
    story, why, sentence = state()
    view = story.view("x")
    by = story.broker.requests["x"].reason.by
    assert (view.status, view.rule, view.preemption_rule) == ("preempting", "evicted", why)
    assert view.reason == sentence
    assert (view.preempted_by, view.preempted_by_component) == (by, story.view(by).component)
    story.pass_seconds(10)
    assert (story.status("x"), story.view("x").reason) == ("preempted", sentence)


TOLD = [
    ("release", (), "given back by its owner"),
    ("cancel", (), "cancelled by its owner"),
    ("cancel", ("its job ended",), "its job ended"),
]


@pytest.mark.parametrize(("how", "words", "sentence"), TOLD)
def test_who_let_it_go_is_said(how, words, sentence):
    story = red_and_blue()
    story.run("x", "red")
    getattr(story, how)("x", *words)
    assert (story.view("x").rule, story.view("x").reason) == ("told", sentence)


def node_lost():
    story = red_and_blue()
    story.nodes(node("n1", 8))
    story.run("x", "red", on=("n1",))
    story.nodes(node("n2", 8))
    return story, "node-lost", "node n1 lost: its placement group is removed whole"


def node_lost_and_not_repaired():
    story = red_and_blue()
    story.nodes(node("n1", 8))
    story.run("x", "red", on=("n1",), on_node_loss="wait", repair_seconds=2.5)
    story.nodes(node("n2", 8))
    story.pass_seconds(2.5)
    sentence = "node n1 lost: Ray did not repair its placement group in 2.5 s, it is removed whole"
    return story, "node-lost", sentence


def group_lost():
    story = red_and_blue()
    story.run("x", "red")
    story.lost("x", "somebody outside of the broker removed it")
    return story, "group-lost", "its placement group is gone: somebody outside of the broker removed it"


def ran_too_long():
    story = red_and_blue()
    story.run("x", "red", max_duration_seconds=7200)
    story.pass_seconds(7200)
    return story, "max-duration", "ran longer than its 2 h"


LOST = [node_lost, node_lost_and_not_repaired, group_lost, ran_too_long]


@pytest.mark.parametrize("state", LOST, ids=lambda state: state.__name__)
def test_what_was_lost_or_over_says_how(state):
    story, rule, sentence = state()
    assert (story.status("x"), story.rule("x"), story.view("x").reason) == ("cancelled", rule, sentence)


# --- all of them ------------------------------------------------------------------------------


def all_reasons():
    return [one for _, one in inspect.getmembers(reasons, inspect.isclass) if issubclass(one, Reason)]


def test_every_reason_is_brought_about_by_a_test_here():
    seen = {state()[1] for state in WAITING + LOST} | {row[2] for row in REJECTED} | {"evicted", "told", Reason.rule}
    assert {one.rule for one in all_reasons()} == seen


def test_rules_are_unlike_each_other():
    rules = [one.rule for one in all_reasons()]
    assert len(set(rules)) == len(rules)


def test_amounts_leave_out_nothing_but_zeros():
    assert amounts({"gpu": 2, "mcpu": 0, "tpu": 1}) == "2 gpu, 1 tpu"
    assert amounts({}) == "nothing"


def test_a_reason_prints_as_its_sentence():
    story, _, sentence = preempted()
    reason = story.broker.requests["x"].reason
    assert isinstance(reason, Evicted)
    assert str(reason) == sentence


def test_the_parts_of_a_rejection_can_be_read_one_by_one():
    story = Story([pool("p"), pool("q", gpu=4)], [policy("red"), policy("red", "q")])
    story.submit("x", gpu=9)
    reason = story.broker.requests["x"].reason
    assert isinstance(reason, NoPoolTakesIt)
    assert [(one.pool, one.key, one.asked, one.allowed, one.bound) for one in reason.tried] == [
        ("p", "gpu", 9, 8, "capacity"),
        ("q", "gpu", 9, 4, "capacity"),
    ]


# --- explanations agree with the walk ---------------------------------------------------------


@pytest.mark.parametrize("state", WAITING, ids=lambda state: state.__name__)
def test_an_explanation_ends_as_the_walk_that_decides(state):
    story, _, _ = state()
    for one in story.broker.pools.values():
        noted, decided = explanation_of(one).outcome, one.outcome()
        assert (noted.ending, noted.request, list(noted.set_aside)) == (
            decided.ending,
            decided.request,
            list(decided.set_aside),
        )
        for request in one.queue:
            assert (explanation_of(one).reason(request).rule == "room-being-made") == (request in decided.set_aside)


def test_an_explanation_is_made_anew_when_the_pool_has_changed():
    story, _, _ = behind()
    assert story.view("x").position == 3
    story.cancel("second")
    assert (story.view("x").position, story.view("x").rule) == (2, "behind")
    story.cancel("head")
    assert (story.view("x").position, story.view("x").rule) == (1, "no-room")


def test_a_new_arrival_in_a_strict_pool_is_explained_too():
    story, _, _ = no_room()
    assert story.rule("x") == "no-room"
    story.submit("y", "blue", gpu=1)
    assert story.view("y").reason == "number 2 in line in pool 'p', behind 'x', which has no room yet"


def test_positions_and_who_is_ahead_are_in_the_order_of_the_walk():
    story = Story(
        [pool(gpu=6)],
        [policy("a", priority=1, reserved=2), policy("b", priority=1), policy("c", priority=5, reserved=1)],
    )
    story.run("holder", "b", gpu=6)
    for i in range(40):
        firm = i % 7 == 0 and "abc"[i % 3] != "b"
        story.submit(f"r{i}", "abc"[i % 3], gpu=1 if firm else 1 + i % 4, preemptible=not firm)
    (one,) = story.broker.pools.values()
    line = sorted(
        (rank(group.account, group, member.number), member)
        for group in one.queue.groups.values()
        for member in group.members
    )
    line = [member for _, member in line]
    assert len({(one.owner, one.preemptible) for one in line}) == 5
    for place, request in enumerate(line, start=1):
        assert view_request(story.broker, request).position == place
        assert explanation_of(one).ahead_of(request) == line[: place - 1][:5]
