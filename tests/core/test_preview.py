"""What a change would do is told before it is made, by the code that would do it."""

import os
import random

import pytest

from raypool.core import events as ev
from raypool.core.broker import World
from raypool.core.pool import borrowed_by
from raypool.core.preview import KINDS, preview
from raypool.core.snapshot import Snapshots
from raypool.errors import Refused
from raypool.server.views import view_request
from raypool.spec import BrokerConfig, PolicySpec

from .core_rules import CoreRules
from .histories import feed, random_history
from .story import Story, node, policy, pool
from .test_placement_walk import Walk

SEEDS = int(os.environ.get("RAYPOOL_HISTORIES", "10"))


def change(pools=(), policies=(), **config):
    return ev.ConfigApplied(BrokerConfig.load({"pools": list(pools), "policies": list(policies), **config}))


def told(story, event):
    """The sentences of the preview, which must change nothing."""
    before = list(Snapshots().lines_of(story.broker, 0))
    found = preview(story.broker, event, story.now)
    assert list(Snapshots().lines_of(story.broker, 0)) == before
    return [one.sentence for one in found.consequences]


def test_nothing_follows_from_nothing():
    story = Story()
    story.run("a")
    story.submit("b", gpu=8)
    assert told(story, change([pool()])) == []


def test_who_is_rejected():
    story = Story()
    story.run("a", gpu=8)
    story.submit("b", gpu=6)
    assert told(story, change([pool(gpu=4)])) == [
        "request 'b' of 'red' is rejected: asks for 6 gpu, pool 'p' has 4",
    ]


def test_who_starts_and_what_of_it_is_borrowed():
    story = Story(policies=[policy(reserved=8)])
    story.run("a", gpu=8)
    story.submit("b", gpu=3)
    assert told(story, change([pool(gpu=16)])) == [
        "request 'b' of 'red' starts in pool 'p' with 3 gpu, 3 gpu of it borrowed",
    ]
    story.apply([pool(gpu=9)])
    assert told(story, change([pool(gpu=16)], [policy(reserved=16)])) == [
        "request 'b' of 'red' starts in pool 'p' with 3 gpu",
    ]


def test_whose_borrowed_part_grows():
    story = Story(policies=[policy(reserved=6)])
    story.run("a", gpu=4)
    story.run("b", gpu=3)
    story.run("firm", gpu=1, preemptible=False)
    assert told(story, change(policies=[policy(reserved=4)])) == [
        "request 'a' of 'red' borrows 1 gpu in pool 'p' instead of nothing, and may be evicted for it",
        "request 'b' of 'red' borrows 3 gpu in pool 'p' instead of 2 gpu, and may be evicted for it",
    ]
    assert told(story, change(policies=[policy(reserved=8)])) == []


def test_who_has_to_leave_for_whom():
    story = Story(policies=[policy("red"), policy("blue")])
    story.run("a", gpu=8)
    story.submit("b", "blue", gpu=2)
    assert told(story, change(policies=[policy("blue", priority=5)])) == [
        "request 'a' of 'red' has to make room in pool 'p' for 'b' of 'blue', which lacks 2 gpu: priority 5 goes "
        "before 1; it borrowed 8 gpu",
    ]


def test_who_is_being_placed_goes_back():
    story = Story(policies=[policy("red"), policy("blue")])
    story.submit("a", gpu=8)
    story.submit("b", "blue", gpu=2)
    assert told(story, change(policies=[policy("blue", priority=5)])) == [
        "request 'a' of 'red' is being placed in pool 'p', and goes back to its place in line",
    ]


def test_who_changes_place_and_who_joins_or_leaves_a_line():
    story = Story([pool("p", 2), pool("q", 2)], [policy("red"), policy("blue"), policy("red", "q")])
    story.run("a", "blue", gpu=2, preemptible=True)
    story.run("in-q", "red", gpu=2, pool="q")
    story.submit("b", gpu=2, pool="p")
    story.submit("c", "blue", gpu=2)
    assert told(story, change([pool("q", 2), pool("p", 3)], [policy("blue", priority=5), policy("blue", "q")])) == [
        "request 'b' of 'red' moves from number 1 to number 2 in the line of pool 'p'",
        "request 'c' of 'blue' moves from number 2 to number 1 in the line of pool 'p'",
        "request 'c' of 'blue' joins the line of pool 'q' as number 1",
    ]
    story.submit("d", gpu=2)
    assert told(story, change([pool("q", 1)])) == [
        "request 'd' of 'red' leaves the line of pool 'q', where it is number 1",
    ]
    story.nodes(node("n1", 8, zone="a"))
    assert told(story, change([pool("q", 2, node_labels={"zone": "b"})])) == [
        "request 'd' of 'red' leaves the line of pool 'q', where it is number 1: infeasible on today's nodes: "
        "needs 2 GPU, no node has the pool's labels (pool 'q')",
    ]


def test_going_back_detaching_and_deleting_are_previewed_too():
    story = Story([pool("p", 8)])
    story.apply([pool("p", 4), pool("q")], [policy("blue")])
    story.run("a", gpu=4)
    story.submit("b", gpu=2)
    assert told(story, ev.RolledBack(1)) == [
        "request 'b' of 'red' starts in pool 'p' with 2 gpu, 2 gpu of it borrowed",
    ]
    assert told(story, ev.PoolDeleted("q")) == told(story, ev.PolicyDetached("p", "blue")) == []


def test_what_would_be_refused_is_refused_with_every_fault():
    story = Story()
    bad = change(policies=[policy(reserved=9), policy(pool="x")])
    with pytest.raises(Refused) as told_before:
        told(story, bad)
    with pytest.raises(Refused) as done:
        story.feed(bad)
    assert told_before.value.faults == done.value.faults
    assert len(done.value.faults) == 3


def test_a_rejected_one_is_told_though_it_would_be_forgotten_at_once():
    story = Story(world=World())
    story.broker.ended_kept = 1
    for n in range(4):
        story.submit(f"r{n}", gpu=8)
    assert len(told(story, change([pool(gpu=2)]))) == 3


# --- a preview is what happens ----------------------------------------------------------------


def standing(broker):
    """How everybody stands, as people see it: pool, status, what is borrowed, and the place in each line."""
    found = {}
    for request in broker.requests.values():
        view = view_request(broker, request)
        places = {
            pool.name: 1 + sorted(pool.queue, key=lambda one: rank_of(pool, one)).index(request)
            for pool in request.queued.values()
        }
        found[request.id] = view, places, borrowed_by(request)
    return found


def rank_of(pool, request):
    account = pool.ledger.accounts[request.owner]
    inside = account.inside_reserve(pool.need(request), request.preemptible)
    return (int(request.preemptible) if inside else 2, -account.priority, request.number)


def what_happened(before, after):
    """The same consequences, found from how it stood before and after; as a set of plain tuples."""
    found = set()
    for id, (was, places, borrowed) in before.items():
        if was.ended:
            continue
        now, places_now, borrowed_now = after[id]
        waited, waits = bool(was.status == "pending" and not was.placing), now.status == "pending" and not now.placing
        if now.status == "rejected":
            found.add(("rejected", id, now.reason))
        elif now.status != was.status and now.preempted_by:
            found.add(("evicted", id, now.reason))
        elif was.placing and waits:
            found.add(("goes-back", id, None))
        elif waited and not waits:
            found.add(("starts", id, tuple(borrowed_now.items())))
        elif not waits and now.preemptible and now.status != "preempting" and grew(borrowed, borrowed_now):
            found.add(("evictable", id, (tuple(borrowed.items()), tuple(borrowed_now.items()))))
        if waited and waits:
            for name in {*places, *places_now}:
                if places.get(name) != places_now.get(name):
                    found.add(("moves", id, (name, places.get(name), places_now.get(name))))
    return found


def grew(before, after):
    return any(amount > before.get(key, 0) for key, amount in after.items())


def as_tuples(consequences):
    figures = {
        "rejected": lambda one: one.reason.sentence,
        "evicted": lambda one: one.reason.sentence,
        "goes-back": lambda one: None,
        "starts": lambda one: tuple(one.borrowed.items()),
        "evictable": lambda one: (tuple(one.before.items()), tuple(one.after.items())),
        "moves": lambda one: (one.pool, one.before, one.after),
    }
    return {(one.kind, one.request, figures[one.kind](one)) for one in consequences}


class Foretold:
    """Previews every change of pools before it is made, and compares what was told with what happens."""

    def __init__(self):
        self.kinds = {}
        self.refused = 0

    def of(self, broker, event, now, feed):
        before, number = standing(broker), broker.history.number
        lines = list(Snapshots().lines_of(broker, 0))
        try:
            found, refused = preview(broker, event, now), None
        except Refused as error:
            found, refused = None, error
        assert list(Snapshots().lines_of(broker, 0)) == lines, "a preview has changed something"
        if found is None:
            with pytest.raises(Refused) as caught:
                broker.handle(event, now)
            assert (str(caught.value), caught.value.faults) == (str(refused), refused.faults)
            self.refused += 1
            return
        feed(event)
        assert as_tuples(found.consequences) == what_happened(before, standing(broker))
        assert len(as_tuples(found.consequences)) == len(found.consequences)
        assert found.after.config == broker.config
        assert (found.after.history.number > number) == (broker.history.number > number)
        for one in found.consequences:
            self.kinds[one.kind] = self.kinds.get(one.kind, 0) + 1
            assert one.sentence.startswith(f"request '{one.request}' of '{one.component}' ")


class ForetoldWalk(Walk):
    """Ray answers late, loses nodes and groups; grants are being placed."""

    def __init__(self, seed, foretold):
        super().__init__(seed)
        self.broker.ended_kept = 60
        self.foretold = foretold
        self.feed(ev.ConfigApplied(self.config()))

    def apply(self):
        for _ in range(3):
            self.foretold.of(self.broker, self.a_change(), self.now, self.feed)

    def a_change(self):
        draw = self.draw
        if draw.random() < 0.2 and self.broker.history.versions:
            return ev.RolledBack(draw.choice(self.broker.history.versions).number)
        if draw.random() < 0.1:
            return draw.choice([ev.PolicyDetached("q", draw.choice(["red", "blue", "green"])), ev.PoolDeleted("q")])
        return ev.ConfigApplied(self.config(draw.choice([3, 6, 8, 12])))


class ForetoldRules(CoreRules):
    """The histories, where much is evicted. Before each event that is none, one team's policy is made better."""

    def __init__(self, seed, setup, foretold):
        super().__init__(setup["grace"], setup["removal"])
        self.draw = random.Random(seed)
        self.foretold = foretold

    def feed(self, event):
        if isinstance(event, ev.Submitted) and self.draw.random() < 0.8:
            self.help_somebody()
        if isinstance(event, ev.ConfigApplied | ev.PolicyDetached | ev.PoolDeleted | ev.RolledBack):
            self.foretold.of(self.broker, event, self.broker.now, super().feed)
        else:
            super().feed(event)

    def help_somebody(self):
        if self.broker.config.policies:
            policy = self.draw.choice(self.broker.config.policies)
            priority = max(policy.priority + self.draw.choice([-5, 5, 10]), 0)
            policy = PolicySpec.load({**policy.dump(), "priority": priority})
            self.feed(ev.ConfigApplied(BrokerConfig(policies=(policy,))))


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_a_preview_is_what_happens_at_any_state(first):
    foretold = Foretold()
    for seed in range(first, first + 10):
        walk = ForetoldWalk(seed, foretold)
        for _ in range(100):
            walk.step()
            if walk.draw.random() < 0.05:
                walk.apply()
        setup, events = random_history(seed)
        rules = ForetoldRules(seed, setup, foretold)
        rules.apply(setup["pools"], setup["policies"])
        for event in events:
            feed(rules, event)
    assert foretold.refused
    if first == 0:
        assert set(foretold.kinds) == {kind.kind for kind in KINDS}
