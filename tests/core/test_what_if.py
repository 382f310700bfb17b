"""What would start a request now: each kind of suggestion, its sentence, and that it does what it says."""

import random

import pytest

from raypool.core import events as ev
from raypool.core import what_if
from raypool.core.broker import World
from raypool.core.instructions import RemovePlacementGroup, WarnHolder
from raypool.core.pool import borrowed_by
from raypool.core.snapshot import Snapshots, broker_of
from raypool.core.what_if import search, suggestions
from raypool.spec import RequestSpec

from .core_rules import CoreRules
from .histories import feed, random_history
from .story import Story, node, policy, pool
from .test_placement_walk import Walk
from .test_rules import HISTORIES


def told(story, id="x"):
    """The suggestions by rule, each sentence."""
    return {one.rule: one.sentence for one in suggestions(story.broker, story.broker.requests[id], story.now)}


# --- each kind --------------------------------------------------------------------------------


def test_less_of_a_key_a_raised_reserve_and_the_end_of_another():
    story = Story([pool(gpu=8)], [policy("red"), policy("blue", reserved=2)])
    story.run("small", "red", gpu=2)
    story.run("large", "red", gpu=3)
    story.submit("x", "blue", gpu=4)
    story.now = 3600.0 * 4
    assert told(story) == {
        "ask-less": "asked again with 3 gpu instead of 4, it would start now",
        "raise-reserved": "with 2 gpu more reserved for 'blue' in pool 'p' (4 gpu in all), "
        "it would start once 'large' had left, evicted for it",
        "other-ends": "if 'small' ended (2 gpu of 'red' in pool 'p', running for 4 h), it would start now",
    }


def test_fewer_workers():
    story = Story([pool(gpu=8)], [policy("red"), policy("blue")])
    story.run("holder", "red", gpu=3)
    story.submit("x", "blue", gpu=2, workers=4)
    said = told(story)
    assert said["fewer-workers"] == "asked again with 2 instead of 4 workers, it would start now"
    assert said["ask-less"] == "asked again with 1 gpu instead of 2 for each of its 4 workers, it would start now"


def test_preemptible_where_the_reserve_is_in_use():
    story = Story([pool(gpu=8)], [policy("red", reserved=2)])
    story.run("firm", gpu=2, preemptible=False)
    story.submit("x", gpu=2, preemptible=False)
    assert told(story) == {
        "preemptible": "asked again as preemptible (2 gpu of it borrowed), it would start now",
        "raise-reserved": "with 2 gpu more reserved for 'red' in pool 'p' (4 gpu in all), it would start now",
        "other-ends": "if 'firm' ended (2 gpu of 'red' in pool 'p', running for 0 s), it would start now",
    }


def test_without_the_pin():
    story = Story([pool("p", gpu=2), pool("q", gpu=2)], [policy("red", "p"), policy("red", "q")])
    story.run("holder", gpu=2, pool="p")
    story.submit("x", gpu=2, pool="p")
    assert told(story)["any-pool"] == "asked again without the pin to pool 'p', it would start now"


def test_a_raised_limit():
    story = Story([pool(gpu=8)], [policy("red", limit=4)])
    story.run("holder", gpu=3)
    story.submit("x", gpu=3)
    said = told(story)
    assert said["raise-limit"] == "with the limit of 'red' in pool 'p' raised by 2 gpu to 6 gpu, it would start now"
    assert said["ask-less"] == "asked again with 1 gpu instead of 3, it would start now"


def test_a_reserve_that_cannot_be_raised_so_far_is_not_told():
    story = Story([pool(gpu=8)], [policy("red", reserved=6), policy("blue", reserved=2)])
    story.run("holder", "red", gpu=6)
    story.submit("x", "blue", gpu=4)
    assert "raise-reserved" not in told(story)


def test_of_those_that_run_the_smallest_that_is_enough_and_of_those_the_newest():
    story = Story([pool(gpu=8)], [policy("red"), policy("blue")])
    for id, gpu in (("too-small", 1), ("old", 3), ("new", 3), ("one", 1)):
        story.run(id, "red", gpu=gpu)
    story.submit("x", "blue", gpu=3)
    assert told(story)["other-ends"].startswith("if 'new' ended (3 gpu of 'red' in pool 'p'")


def test_less_per_node_for_what_no_node_can_hold():
    story = Story([pool(gpu=8)], [policy("red")])
    story.nodes(node("n1", 4))
    story.submit("x", gpu=8)
    assert told(story) == {"ask-less": "asked again with 4 gpu instead of 8, it would start now"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cpu_count": 8}, "asked again with 5000 mcpu instead of 8000, it would start now"),
        ({"pool_resources": {"mcpu": 8000}}, "asked again with 5000 mcpu instead of 8000, it would start now"),
    ],
)
def test_cpus_are_told_in_whole_ones(settings, sentence):
    story = Story([{"name": "p", "capacity": {"mcpu": 8000}}], [policy("red"), policy("blue")])
    story.submit("holder", "red", resources={"cpu_count": 2.5})
    story.submit("x", "blue", resources=settings)
    assert told(story)["ask-less"] == sentence


def test_memory_is_told_in_whole_gigabytes():
    story = Story([{"name": "p", "capacity": {"memory_mb": 20_000}}], [policy("red"), policy("blue")])
    story.submit("holder", "red", resources={"memory": "10GB"})
    story.submit("x", "blue", resources={"memory": "16GiB"})
    assert told(story)["ask-less"] == "asked again with 10000 memory_mb instead of 17180, it would start now"


def test_one_behind_many_is_told_only_what_starts_it():
    story = Story([pool(gpu=4)], [policy("red"), policy("blue")])
    story.run("holder", "red", gpu=4)
    for i in range(50):
        story.submit(f"b{i}", "blue", gpu=2)
    story.submit("x", "blue", gpu=2)
    assert told(story) == {}  # whatever room there is is for those ahead of it
    assert "other-ends" in told(story, "b0")


@pytest.mark.parametrize("state", ["runs", "is over", "is being placed", "finds no nodes"])
def test_nothing_is_told_for_what_does_not_wait_in_line(state):
    story = Story()
    story.submit("x", gpu=2)
    if state in ("runs", "is over"):
        story.ready("x")
    if state == "is over":
        story.release("x")
    if state == "finds no nodes":
        story.failed("x")
    assert told(story) == {}


def test_the_work_is_bounded_and_done_in_pieces(monkeypatch):
    world = World(confirms_placement=False, confirms_removal=False)
    story = Story([pool(gpu=400)], [policy("red", reserved=100), policy("blue", reserved=100)], world)
    for i in range(100):
        story.broker.handle(submitted(f"r{i}", 4), 0.0)
    for i in range(200):
        story.broker.handle(submitted(f"w{i}", 5 + i % 90), 0.0)
    monkeypatch.setattr(what_if, "MOST_COPIED", 3_000)
    copied = []
    copy = what_if.copy_of
    monkeypatch.setattr(
        what_if, "copy_of", lambda *args, **more: copied.append(len(args[0].requests)) or copy(*args, **more)
    )
    pieces = list(search(story.broker, story.broker.requests["w199"], 0.0))
    assert sum(copied) < 3_000 + 3 * 300
    assert len(pieces) >= len(copied) > 5
    monkeypatch.setattr(what_if, "MOST_REQUESTS", 200)
    assert told(story, "w199") == {}


def submitted(id, gpu):
    return ev.Submitted(RequestSpec.load({"id": id, "component": "red", "resources": {"gpu_count": gpu}}))


# --- each does what it says -------------------------------------------------------------------


def applied(broker, suggestion):
    """The change made on a broker that was read back from its lines; who is asked to leave leaves."""
    twin, _ = broker_of(Snapshots().lines_of(broker, 0), broker.world)
    todo = suggestion.events(twin)
    while todo:
        for one in twin.handle(todo.pop(0), twin.now):
            if isinstance(one, WarnHolder):
                todo.append(ev.Released(one.request))
            if isinstance(one, RemovePlacementGroup):
                todo.append(ev.PlacementRemoved(one.request, one.attempt))
        twin.check()
    return twin


def followed(broker, request, now):
    """What is suggested for it, each made and seen to do what it says; nothing comes of the asking alone."""
    before = list(Snapshots().lines_of(broker, 0))
    found = suggestions(broker, request, now)
    assert list(Snapshots().lines_of(broker, 0)) == before
    for one in found:
        twin = applied(broker, one)
        assert twin.requests[one.starts].current is not None, one
        if one.rule == "preemptible":
            assert borrowed_by(twin.requests[one.starts]) == dict(one.borrowed)
        for id in one.leaving:
            assert twin.requests[id].status.value == "preempted", one
    return {one.rule for one in found}


@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_every_suggestion_starts_the_request_when_it_is_followed(first):
    seen = set()
    for seed in range(first, first + (10 if HISTORIES > 10 else 3)):
        setup, events = random_history(seed)
        chance = random.Random(seed)
        rules = CoreRules(grace=setup["grace"], removal=setup["removal"])
        rules.apply(setup["pools"], setup["policies"])
        for event in events:
            feed(rules, event)
            waiting = [one for one in rules.broker.requests.values() if one.waiting]
            if waiting and chance.random() < 0.1:
                seen |= followed(rules.broker, chance.choice(waiting), rules.broker.now)
    assert seen


@pytest.mark.parametrize("seed", range(max(HISTORIES // 10, 1)))
def test_so_it_does_whatever_ray_answers_with_gangs_nodes_and_pins(seed):
    walk, chance, seen = Walk(seed), random.Random(seed), set()
    walk.feed(ev.ConfigApplied(walk.config()))
    for step in range(1000):
        walk.step()
        waiting = [one for one in walk.broker.requests.values() if one.waiting]
        if waiting and chance.random() < 0.15:
            seen |= followed(walk.broker, chance.choice(waiting), walk.now)
        if seen and step >= 200:
            break
    assert seen
