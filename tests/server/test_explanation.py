"""The facts behind "why?", and a dry run with what the server knows of nodes: nothing is left of either."""

import asyncio
from itertools import count

import pytest

from raypool.core.instructions import ChangeStatus
from raypool.core.reasons import Evicted
from raypool.core.snapshot import Snapshots
from raypool.core.status import Status
from raypool.core.victims import takers
from raypool.core.what_if import search
from raypool.errors import BrokerDegraded, Refused
from raypool.server import actor, spare
from raypool.server.explanation import view_explanation
from raypool.view import DryRunView

from ..core.core_rules import CoreRules
from ..core.histories import feed, random_history
from ..core.story import Story, policy, pool
from ..core.test_reasons import REJECTED, WAITING
from ..core.test_rules import HISTORIES
from .fake_cluster import FakeCluster, SilentCluster, node
from .virtual_time import run
from .world import World


def explained(story, id="x"):
    return view_explanation(story.broker, story.broker.requests[id], story.now)


# --- who waits --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", WAITING, ids=lambda state: state.__name__)
def test_every_wait_is_explained_in_each_of_its_pools_with_figures_that_add_up(state):
    story, rule, sentence = state()
    answer = explained(story)
    assert (rule, sentence) in [(one.rule, one.sentence) for one in answer.waits]
    assert answer.sentence == f"'x' waits: {answer.waits[0].sentence}"
    assert answer.waits[0].rule == story.rule("x")
    for wait in answer.waits:
        ledger = story.broker.pools[wait.pool].ledger
        have = wait.figures["gpu"]
        assert have["asks"] == story.broker.requests["x"].demand["gpu"]
        assert sum(have["held"].values()) + have["phantom"] + have["free"] == have["capacity"] == ledger.capacity[0]
        assert have["others"] == 0
        assert wait.sentence in str(answer)
        assert (wait.position is None) == ("x" not in [one.id for one in story.broker.pools[wait.pool].queue])
        assert wait.position is None or wait.position == wait.ahead_in_all + 1
    assert type(answer).from_dict(answer.as_dict()) == answer


def test_when_it_is_expected_to_start_is_said_where_it_is_known():
    story, _, _ = WAITING[0]()
    answer = view_explanation(story.broker, story.broker.requests["x"], story.now, (60.0, 300.0, None))
    assert "expected to start in about 60 s, in 9 of 10 cases within 5 min" in str(answer)
    assert "expected to start" not in str(explained(story))


def test_who_is_ahead_is_named_and_the_rest_counted():
    story = Story([pool()], [policy("red"), policy("blue")])
    story.run("holder", "red", gpu=8)
    for i in range(7):
        story.submit(f"b{i}", "blue")
    story.submit("x", "blue")
    (wait,) = explained(story).waits
    assert (wait.position, wait.ahead, wait.ahead_in_all) == (8, ["b0", "b1", "b2", "b3", "b4"], 7)
    assert "ahead of it: 'b0', 'b1', 'b2', 'b3', 'b4' and 2 more" in str(explained(story))


def test_whose_leaving_it_waits_for_and_by_when():
    story = Story([pool(grace_seconds=10)], [policy("high", priority=9), policy("red")])
    story.run("warned", "red", gpu=4)
    story.run("ended", "red", gpu=4)
    story.release("ended")
    story.submit("x", "high", gpu=8)
    story.pass_seconds(4)
    (wait,) = explained(story).waits
    assert wait.waits_for == [
        {"id": "warned", "component": "red", "holds": {"gpu": 4}, "leaves_by": 10.0},
        {"id": "ended", "component": "red", "holds": {"gpu": 4}, "leaves_by": None},
    ]
    text = str(explained(story))
    assert "waits for 'warned' of 'red' (4 gpu), which leaves in 6 s at the latest" in text
    assert "waits for 'ended' of 'red' (4 gpu), which leaves any moment" in text


def test_a_team_and_an_orchestrator_of_the_same_name_are_two():
    story = Story([pool()], [policy("red"), policy("red", component_type="orchestrator"), policy("blue")])
    story.run("a", "red", gpu=3)
    story.run("b", "red", gpu=4, component_type="orchestrator")
    story.submit("x", "blue", gpu=2)
    (wait,) = explained(story).waits
    assert wait.figures["gpu"]["held"] == {"red (orchestrator)": 4, "red (team)": 3}


def test_who_holds_most_is_named_and_the_rest_summed_and_of_many_leavers_some():
    teams = [f"t{i:02}" for i in range(12)]
    story = Story([pool(gpu=30)], [policy(team) for team in teams] + [policy("blue", priority=9)])
    for i, team in enumerate(teams):
        story.run(team, team, gpu=1 + (i >= 4))
        if i < 7:
            story.release(team)
    story.submit("x", "blue", gpu=14)
    (wait,) = explained(story).waits
    have = wait.figures["gpu"]
    assert have["held"] == dict.fromkeys(teams[4:], 2)
    assert (have["others"], have["free"], wait.waits_for_in_all) == (4, 10, 7)
    assert [one["id"] for one in wait.waits_for] == teams[:5]
    text = str(explained(story))
    assert "'t11' 2, others 4; its own component" in text
    assert "and for 2 more to leave" in text


def test_what_is_being_placed_stands_neither_in_line_nor_aside():
    story = Story()
    story.submit("x", gpu=2)
    assert "\n  pool 'p', granted\n" in str(explained(story))


# --- who was refused, had to leave, or runs ---------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rule", "sentence"), [row[1:] for row in REJECTED], ids=[row[0] for row in REJECTED]
)
def test_a_rejection_is_explained_pool_by_pool(fields, rule, sentence):
    story = Story(
        [pool("p"), pool("q", gpu=4)],
        [policy("red", reserved=2, limit=6), policy("both"), policy("both", "q"), policy("blue", "q")],
    )
    story.submit("x", **{"component": "red", **fields})
    answer = explained(story)
    assert "; ".join(one["sentence"] for one in answer.tried) == sentence
    assert [one["rule"] for one in answer.tried] == (["ineligible"] * 2 if rule == "rejected" else [rule])
    assert str(answer).startswith(f"'x' is rejected: {sentence}")


@pytest.mark.parametrize("after", [0, 10])
def test_an_eviction_is_explained_with_the_figures_before_and_after(after):
    story = Story([pool(grace_seconds=10)], [policy("red", reserved=1), policy("blue", reserved=4)])
    story.run("stays", "red", gpu=2)
    story.run("x", "red", gpu=4)
    story.submit("b", "blue", gpu=4)
    story.pass_seconds(after)
    assert explained(story).evicted == {
        "by": "b", "by_component": "blue", "why": "reclaim", "pool": "p", "missing": {"gpu": 2},
        "borrowed": {"gpu": 4}, "before": {"gpu": 6}, "after": {"gpu": 2}, "reserved": {"gpu": 1},
        "leaves_by": None if after else 10.0,
    }  # fmt: skip
    assert "gpu: 'red' used 6, 2 without it, 1 reserved" in str(explained(story))


def test_a_running_one_says_what_is_borrowed_and_who_could_take_it():
    story = Story(
        [pool(queueing="backfill")],
        [policy("red", 'p', 1), policy("high", priority=9), policy("blue", reserved=3), policy("same")],
    )  # fmt: skip
    story.run("blues", "blue", gpu=1)
    story.run("x", "red", gpu=4)
    answer = explained(story)
    assert answer.borrowed == {"gpu": 4}
    assert [(one["component"], one["why"]) for one in answer.takers] == [("high", "preempt"), ("blue", "reclaim")]
    assert "'high': priority 9 goes before 1" in str(answer)
    assert "'blue': 2 gpu reserved for it are not in use" in str(answer)


def test_what_ran_ahead_of_its_turn_may_be_taken_by_those_whose_turn_it_was():
    story = Story([pool(queueing="backfill")], [policy("red"), policy("blue"), policy("green")])
    story.run("long", "blue", gpu=5)
    story.submit("head", "green", gpu=6)
    story.run("x", "red", gpu=3)
    assert {(one["component"], one["why"]) for one in explained(story).takers} == {
        ("blue", "backfilled"), ("green", "backfilled"),
    }  # fmt: skip


def test_what_lies_inside_the_reserve_can_be_taken_by_its_own_non_preemptible_work_only():
    story = Story([pool()], [policy("red", reserved=4), policy("high", priority=9)])
    story.run("firm", "red", gpu=1, preemptible=False)
    story.run("x", "red", gpu=3)
    assert [one["sentence"] for one in explained(story).takers] == [
        "'red', with non-preemptible work: that uses all but 3 gpu of its reserve"
    ]


def test_what_is_not_preemptible_can_be_taken_by_nobody():
    story = Story([pool()], [policy("red", reserved=4), policy("high", priority=9)])
    story.run("x", "red", gpu=4, preemptible=False)
    assert explained(story).takers == []
    assert str(explained(story)).endswith("nobody could take it from there")


@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_who_takes_something_was_among_those_who_could(first):
    seen = 0
    for seed in range(first, first + (10 if HISTORIES > 10 else 3)):
        setup, events = random_history(seed)
        rules = CoreRules(grace=setup["grace"], removal=setup["removal"])
        rules.apply(setup["pools"], setup["policies"])
        for event in events:
            could = {}
            for request in rules.broker.requests.values():
                allocation = request.allocation
                if request.status is Status.ALLOCATED:
                    borrowed = dict(allocation.account.line())[allocation]
                    could[request.id] = {one.account.owner[0] for one in takers(allocation, borrowed)}
            before = len(rules.changes)
            feed(rules, event)
            for change in rules.changes[before:]:
                if event[0] == "submit" and change.to is Status.PREEMPTING and change.request in could:
                    assert isinstance(change, ChangeStatus) and isinstance(change.reason, Evicted)
                    assert change.reason.by_component in could[change.request], (seed, event, change)
                    seen += 1
    assert seen > 0


# --- asked over the wire ----------------------------------------------------------------------


def everything(asked):
    return list(Snapshots().lines_of(asked.broker, 0)), asked._journal.number, asked._journal.text()


def test_why_says_what_would_start_it_and_changes_nothing():
    async def story():
        async with World(FakeCluster(node("n1", 8)), policies=[policy("red"), policy("blue")]) as world:
            await world.run("holder", "red", gpu=6)
            await world.submit("x", "blue", gpu=4)
            before = everything(world.actor)
            answer = await world.actor.why("x")
            assert everything(world.actor) == before
            assert [(one["rule"], one["leaving"]) for one in answer["would_start"]] == [
                ("ask-less", []), ("raise-reserved", ["holder"]), ("other-ends", []),
            ]  # fmt: skip
            assert answer["waits"][0]["rule"] == "no-room"
            with pytest.raises(Refused, match="there is no request 'y'"):
                await world.actor.why("y")

    run(story)


def test_other_calls_are_answered_while_it_is_looked_for_what_would_start_it(monkeypatch):
    begun = []
    monkeypatch.setattr(actor, "search", lambda *args: begun.append(args) or search(*args))

    async def story():
        async with World(FakeCluster(node("n1", 8)), policies=[policy("red"), policy("blue")]) as world:
            await world.run("holder", "red", gpu=6)
            await world.submit("x", "blue", gpu=4)
            why = asyncio.ensure_future(world.actor.why("x"))
            while not begun:
                await asyncio.sleep(0)
            await world.actor.release("holder")
            assert not why.done()
            assert (await why)["would_start"], "it speaks of the state in which it was asked"

    run(story)


async def crowd(world):
    """One holds, five wait; the five as they are told why, one just after the other."""
    await world.run("holder", "red", gpu=6)
    for i in range(5):
        await world.submit(f"x{i}", "blue", gpu=4 + i % 2)
    return [world.actor.watch(f"x{i}", 10**9, 5 + i / 1000, explain=True) for i in range(5)]


class Ticking:
    """A clock that goes on by a ten-thousandth of a second whenever somebody looks."""

    def __init__(self):
        self.perf_counter = (tick / 10_000 for tick in count()).__next__


def test_who_still_waits_is_told_the_facts_and_the_first_who_asks_what_would_start_it_too(monkeypatch):
    monkeypatch.setattr(spare, "time", Ticking())

    async def story():
        async with World(FakeCluster(node("n1", 8)), policies=[policy("red"), policy("blue")]) as world:
            answers = await asyncio.gather(*await crowd(world))
            for place, answer in enumerate(answers, start=1):
                assert answer["why"]["waits"][0]["position"] == place
                assert answer["why"]["sentence"] == f"'x{place - 1}' waits: {answer['request']['reason']}"
            found = [[one["rule"] for one in answer["why"]["would_start"]] for answer in answers]
            assert found == [["raise-reserved", "other-ends"], [], [], [], []]
            await world.pass_seconds(spare.REST * spare.MOST_SECONDS)
            again = await world.actor.watch("x0", 10**9, 0, explain=True)
            assert again["why"]["would_start"], "by now there is time again"

    run(story)


def test_who_does_not_ask_or_does_not_wait_any_more_is_not_told_why():
    async def story():
        async with World(FakeCluster(node("n1", 8)), policies=[policy("red"), policy("blue")]) as world:
            await world.run("holder", "red", gpu=6)
            await world.submit("x", "blue", gpu=4)
            assert "why" not in await world.actor.watch("x", 10**9, 1)
            seen = (await world.actor.watch("x", -1, 1, explain=True))["version"]
            granted = asyncio.ensure_future(world.actor.watch("x", seen, 5, explain=True))
            await world.pass_seconds(1)
            await world.actor.release("holder")
            assert "why" not in await granted

    run(story)


def test_a_search_that_fails_keeps_nobody_from_his_facts_or_his_grant(monkeypatch, caplog):
    monkeypatch.setattr(actor, "search", lambda *_: 1 / 0)

    async def story():
        async with World(FakeCluster(node("n1", 8)), policies=[policy("red"), policy("blue")]) as world:
            first, *_ = await asyncio.gather(*await crowd(world))
            assert (first["why"]["waits"][0]["rule"], first["why"]["would_start"]) == ("no-room", [])
            assert "what would start x0 could not be worked out" in caplog.text

    run(story)


def test_what_would_find_no_nodes_is_not_told():
    async def story():
        async with World(FakeCluster(node("n1", 4), node("n2", 4)), [pool(gpu=8)]) as world:
            await world.run("a", gpu=1, strategy="STRICT_SPREAD", workers=2)
            await world.submit("x", gpu=7)
            answer = await world.actor.why("x")
            assert [one["sentence"] for one in answer["would_start"]] == [
                "asked again with 3 gpu instead of 7, it would start now"
            ]

    run(story)


def test_what_the_end_of_another_gives_back_on_its_nodes_counts():
    async def story():
        async with World(FakeCluster(node("n1", 4), node("n2", 4)), policies=[policy(), policy("blue")]) as world:
            await world.run("a", gpu=3)
            await world.run("b", gpu=4)
            await world.submit("x", "blue", gpu=4)
            answer = await world.actor.why("x")
            assert [one["rule"] for one in answer["would_start"]] == ["ask-less", "raise-reserved", "other-ends"]
            assert "if 'a' ended (3 gpu" in answer["would_start"][-1]["sentence"]

    run(story)


@pytest.mark.parametrize("gpu", [2, 4, 9])
def test_a_dry_run_leaves_nothing_behind(gpu):
    async def story():
        async with World(FakeCluster(node("n1", 8)), policies=[policy("red"), policy("high", priority=9)]) as world:
            await world.run("holder", "red", gpu=6)
            before = everything(world.actor)
            spec = {"id": "dry", "component": "high", "resources": {"gpu_count": gpu}}
            answer = await world.actor.dry_run(spec, None)
            await world.pass_seconds(5)
            assert everything(world.actor) == before
            assert answer["starts"] == (gpu == 2)
            assert [one["id"] for one in answer["evicts"]] == (["holder"] if gpu == 4 else [])
            assert answer["places"] == (None if gpu == 9 else True)
            real = await world.actor.submit(spec, None)
            expected = answer["request"]["eta_p50_seconds"]
            assert expected == (0 if gpu == 4 else None)  # with a grace of 0 they have left at once
            unlike = {"submitted_at": 0, "ended_at": 0, "eta_p50_seconds": 0, "eta_p90_seconds": 0}
            assert {**real, **unlike} == {**answer["request"], **unlike}

    run(story)


def test_a_dry_run_says_when_the_nodes_are_in_pieces():
    async def story():
        async with World(FakeCluster(node("n1", 4), node("n2", 4))) as world:
            await world.run("a", gpu=3, strategy="STRICT_SPREAD", workers=2)
            answer = await world.actor.dry_run({"component": "red", "resources": {"gpu_count": 2}}, None)
            assert (answer["starts"], answer["pool"], answer["places"]) == (True, "p", False)
            assert answer["nodes"] == (
                "it would not be placed yet: bundle 0 (2 GPU) found no node; the largest free block is 1 GPU"
            )

    run(story)


def test_while_the_gcs_is_silent_a_dry_run_says_all_but_where():
    async def story():
        cluster = SilentCluster(node("n1", 8))
        async with World(cluster) as world:
            cluster.silence()
            answer = await world.actor.dry_run({"component": "red", "resources": {"gpu_count": 2}}, None)
            assert (answer["starts"], answer["places"], answer["nodes"]) == (True, None, None)

    run(story)


def test_a_dry_run_of_a_broker_that_takes_nothing_is_refused_as_the_submission_is():
    async def story():
        async with World() as world:
            world.actor._degrade("its journal cannot be written")
            spec = {"id": "a", "component": "red", "resources": {"gpu_count": 2}}
            for call in (world.actor.submit, world.actor.dry_run):
                with pytest.raises(BrokerDegraded, match="its journal cannot be written"):
                    await call(spec, None)

    run(story)


def test_what_was_asked_for_already_is_what_a_dry_run_of_it_says():
    async def story():
        async with World() as world:
            await world.run("a", gpu=2)
            spec = {"id": "a", "component": "red", "resources": {"gpu_count": 2}}
            answer = DryRunView.from_dict(await world.actor.dry_run(spec, None))
            assert answer.request.as_dict() == await world.view("a")
            told = "it was asked for already, and asking again changes nothing: "
            assert str(answer) == f"{told}'a' runs in pool 'p', of which 2 gpu borrowed"
            await world.actor.release("a")
            answer = DryRunView.from_dict(await world.actor.dry_run(spec, None))
            assert str(answer) == f"{told}'a' is released: given back by its owner"
            waits = {"id": "b", "component": "red", "resources": {"gpu_count": 8}}
            await world.actor.submit(waits, None)
            again = (await world.actor.dry_run(waits, None))["request"]
            assert again == await world.view("b")
            with pytest.raises(Refused, match="request id 'a' is taken"):
                await world.actor.dry_run({**spec, "workers": 2}, None)

    run(story)
