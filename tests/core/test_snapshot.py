"""A broker that was written down and read back, or copied, is the same broker, after every event of any history."""

import json

import pytest

from raypool.core import events as ev
from raypool.core.broker import World
from raypool.core.records import decision_of, event_of, line_of, plain
from raypool.core.replay import Unreadable, opened, replay
from raypool.core.request import Allocation, Request
from raypool.core.snapshot import ALLOCATION_FACTS, REQUEST_FACTS, SCHEMA, Snapshots, broker_of
from raypool.errors import Refused
from raypool.spec import RequestSpec

from .core_rules import CoreRules
from .histories import random_history, trace
from .story import Story, node, policy, pool

WORKED_OUT = {
    "request": {"id", "ask", "retry_of"},
    "allocation": {"request", "account", "need", "preemptible", "search"},
}
"""Slots that follow from the rest, or are looked for again."""

WRITTEN_BY_HAND = {
    "request": {"status", "reason", "queued", "held_out", "back_offs", "allocation", "mark"},
    "allocation": {"pool", "nodes"},
}


@pytest.mark.parametrize(
    ("kind", "facts"), [(Request, REQUEST_FACTS), (Allocation, ALLOCATION_FACTS)], ids=["request", "allocation"]
)
def test_every_slot_is_accounted_for(kind, facts):
    name = kind.__name__.lower()
    assert set(kind.__slots__) == set(facts) | WORKED_OUT[name] | WRITTEN_BY_HAND[name]


class Twins:
    """A broker, and one that is read back from lines before every event. Both must decide alike. (Copies are
    compared in test_copy.py.)"""

    def __init__(self, broker):
        self.broker = broker
        self.number = 0
        self.lines = []
        self.first = self.snapshot()

    def snapshot(self):
        return list(Snapshots().lines_of(self.broker, self.number))

    def handle(self, event, now):
        twin, _ = broker_of(self.snapshot(), self.broker.world)
        try:
            done = type(self.broker).handle(self.broker, event, now)
        except Refused:
            with pytest.raises(Refused):
                twin.handle(event, now)
            raise
        assert [decision_of(one) for one in twin.handle(event, now)] == [decision_of(one) for one in done]
        self.number += 1
        self.lines.append(line_of(self.number, now, event, done))
        assert list(Snapshots().lines_of(twin, self.number)) == self.snapshot()
        twin.check()
        return done


class TwinRules(CoreRules):
    def __init__(self, grace=False, removal=False):
        super().__init__(grace, removal)
        self.broker.ended_kept = 10_000
        self.twins = Twins(self.broker)
        self.broker.handle = self.twins.handle
        made.append(self)


made = []


@pytest.mark.parametrize("first", range(0, 10, 5))
def test_a_broker_read_back_before_any_event_decides_the_same(first):
    for seed in range(first, first + 5):
        made.clear()
        trace(random_history(seed), TwinRules)
        (rules,) = made
        assert rules.twins.number > 5


def story(**more):
    told = Story(**more)
    twins = Twins(told.broker)
    told.broker.handle = twins.handle
    return told, twins


def eventful():
    """Grace, back-offs, groups that linger, marks, nodes, unlike pools: what the histories do not have."""
    told, twins = story(
        pools=[pool("p", 4, grace_seconds=10.0), pool("q", 2, queueing="backfill"), pool("former", 1)],
        policies=[
            policy("red", "p", 1), policy("blue", "p", 5, reserved=2), policy("blue", "q", 1), policy("red", "q", 2),
            policy("old", "former", 1),
        ],
    )  # fmt: skip
    told.nodes(node("n1", 4), node("n2", 2, zone="a"))
    told.run("o1", "old")
    told.release("o1")
    told.removed("o1")
    told.feed(ev.PoolDeleted("former"))
    told.run("r1", "red", 3, pool="p")
    told.run("r2", "red", 2, pool="q")
    told.submit("wide", "red", 4, pool="p", workers=1)
    told.submit("b1", "blue", 2, preemptible=False)
    told.waits("wide", "no room")
    told.pass_seconds(4)
    told.pass_seconds(7)
    told.removed("r1")
    told.ready("b1")
    told.submit("b2", "blue", 1)
    told.failed("b2")
    told.pass_seconds(0.5)
    told.feed(ev.PlacementFailed("b2", told.broker.requests["b2"].grants, "late", group_pending=True))
    told.pass_seconds(1)
    told.nodes(node("n1", 3))
    told.apply([pool("p", 5, grace_seconds=3.0)], [policy("blue", "p", 7, reserved=2, limit=3)])
    told.submit("free", "nobody")
    told.apply(unmanaged="allow")
    told.submit("unpooled", "nobody")
    told.ready("unpooled")
    told.cancel("unpooled", "enough")
    told.feed(ev.RolledBack(1, by="ann", note="as it was"))
    told.feed(ev.RolledBack(2))
    told.feed(many())
    return told, twins


def many():
    """One that is granted or waits, one that no pool takes, and one that nobody's job ends."""
    fields = [
        {"component": "red", "resources": {"gpu_count": 2}},
        {"component": "blue", "resources": {"gpu_count": 4000}},
        {"component": "red", "lifetime": "detached"},
    ]
    bodies = tuple(RequestSpec.load({**one, "id": "?"}) for one in fields)
    return ev.ManySubmitted(bodies, ("m1", "m2", "m3", "m4"), (0, 1, 2, 0), "job1")


def losses():
    """Nodes that die, groups that vanish, room that Ray keeps, and what is asked again in its place."""
    told, twins = story(
        pools=[pool("p", 12, ray_resources={}), pool("q", 4)],
        policies=[policy("red", "p", 1, reserved=4), policy("blue", "p", 5), policy("blue", "q", 1)],
        owner_timeout_seconds=20.0,
    )
    told.nodes(node("n1", 4), node("n2", 4), node("n3", 4))
    told.run("again", "red", 2, workers=2, on=("n1", "n2"))
    told.run("waits", "red", 1, on_node_loss="wait", repair_seconds=5.0, on=("n2",))
    told.run("repaired", "red", 1, on_node_loss="wait", repair_seconds=5.0, on=("n2",))
    told.run("fails", "red", 1, on_node_loss="fail", on=("n2",))
    told.run("vanishes", "red", 1, on=("n1",))
    told.nodes(node("n1", 4), node("n3", 4))
    told.submit("taken-up", "red", 2, workers=2, retry_of="again")
    told.feed(ev.PlacementReady("repaired", 1, "g", ("n3",)))
    told.feed(ev.PlacementLost("vanishes", 1, "somebody removed it"))
    told.submit("anew", "red", 1, retry_of="vanishes")
    told.removed("again")
    told.pass_seconds(4)
    told.feed(ev.PlacementStuck("fails", 1))
    told.pass_seconds(3)
    told.run("late", "blue", 1, pool="q")
    told.release("late")
    told.feed(ev.PlacementStuck("late", 1))
    told.apply([pool("q", 6)])
    told.submit("pending", "blue", 1, pool="q")
    told.feed(ev.PlacementFailed("pending", 1, "late", group_pending=True))
    told.pass_seconds(2)
    told.feed(ev.BoundToActor("repaired", "ab"))
    told.removed("late")
    told.removed("pending")
    told.run("pending-2", "blue", 1)
    return told, twins


def test_what_ray_loses():
    told, _ = losses()
    assert told.view("anew").number == told.view("vanishes").number
    assert {told.status(id) for id in ("again", "waits", "fails", "vanishes")} == {"cancelled"}
    assert told.status("repaired") == "allocated"


def test_what_the_histories_do_not_have():
    told, twins = eventful()
    assert twins.number > 20
    assert {"released", "preempted", "allocated", "pending", "rejected"} <= set(told.statuses().values())


def test_a_journal_replays_to_the_same_state_and_the_same_decisions():
    _, twins = eventful()
    broker, number, _ = opened(twins.first)
    steps = list(replay(broker, number, twins.lines))
    assert [step.number for step in steps] == list(range(1, twins.number + 1))
    assert list(Snapshots().lines_of(broker, twins.number)) == twins.snapshot()


def test_the_line_of_an_ended_request_is_made_once():
    told, _ = eventful()
    writer = Snapshots()
    first = list(writer.lines_of(told.broker, 1))
    told.submit("last", "red", 1)
    told.cancel("last")
    again = list(writer.lines_of(told.broker, 1))
    assert again == list(Snapshots().lines_of(told.broker, 1))
    assert set(first) & set(again)


def test_an_event_comes_back_as_it_was_written():
    _, twins = eventful()
    for line in twins.lines:
        row = json.loads(line)
        assert plain(event_of(row)) == row["with"]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda lines: [*lines[:3], *lines[4:]], "event 4 is missing: the next line is event 5"),
        (lambda lines: [*lines[:3], "{half a li"], "the line of event 4 is not understood"),
        (lambda lines: [lines[0].replace("NodesChanged", "Moved")], "the line of event 1 is not understood"),
        (lambda lines: [lines[0], lines[1].replace('"create","o1"', '"create","o7"')], "on event 2 (Submitted)"),
        (lambda lines: [lines[0], lines[1], lines[1].replace('"n":2', '"n":3')], "event 3 (Submitted) cannot be"),
    ],
    ids=["a gap", "half a line", "an unknown event", "another decision", "what cannot have happened"],
)  # fmt: skip
def test_lines_that_cannot_be_taken_for_what_happened_say_so(spoil, sentence):
    _, twins = eventful()
    broker, number, _ = opened(twins.first)
    with pytest.raises(Unreadable) as caught:
        list(replay(broker, number, spoil(twins.lines)))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda lines: [], "no head"),
        (lambda lines: ["[]"], "no head"),
        (lambda lines: [lines[0].replace(f'"schema":{SCHEMA}', '"schema":99'), *lines[1:]], "it has schema 99"),
        (lambda lines: [lines[0], lines[1].replace('"name"', '"names"')], "its snapshot is not understood"),
    ],
    ids=["nothing", "something else", "a newer schema", "a pool that is none"],
)
def test_a_snapshot_that_is_none_says_so(spoil, sentence):
    _, twins = eventful()
    with pytest.raises(Unreadable) as caught:
        opened(spoil(twins.first))
    assert sentence in str(caught.value)


def test_the_world_of_the_simulator_is_kept():
    rules = CoreRules()
    broker, _ = broker_of(Snapshots().lines_of(rules.broker, 0), World(confirms_placement=False))
    assert not broker.world.confirms_placement
