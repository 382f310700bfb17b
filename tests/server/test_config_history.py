"""The history of pools and policies, its preview and the way back, as a client calls them."""

import json

import pytest

from raypool.errors import BrokerDegraded, Refused
from raypool.server.views import MOST_CONSEQUENCES
from raypool.view import PreviewView, VersionView

from .fake_cluster import FakeCluster, node
from .virtual_time import run
from .world import World, policy, pool


async def versions(world):
    return [(one["number"], one["what"], one["by"]) for one in await world.actor.history()]


def journal_of(world):
    return world.actor._journal.number, world.actor._journal.text()


def test_a_preview_tells_what_would_follow_and_leaves_no_trace():
    async def story():
        async with World(FakeCluster(node("n1", 8)), [pool(gpu=8)], [policy("red"), policy("blue")]) as world:
            await world.run("a", gpu=8)
            for n in range(MOST_CONSEQUENCES + 3):
                await world.submit(f"w{n:02}", gpu=8)
            await world.pass_seconds(1)
            before = journal_of(world)
            found = PreviewView.from_dict(await world.actor.preview({"pools": [pool(gpu=6)]}))
            assert [one.kind for one in found.consequences] == ["rejected"] * MOST_CONSEQUENCES
            assert found.consequences[0].sentence == (
                "request 'w00' of 'red' is rejected: asks for 8 gpu, pool 'p' has 6"
            )
            assert (found.more, found.number, found.promises) == ({"rejected": 3}, 2, [])
            assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
            found = PreviewView.from_dict(
                await world.actor.preview({"policies": [policy("red", reserved={"gpu": 3})]})
            )
            assert (found.consequences, found.more) == ([], {})
            assert journal_of(world) == before
            assert (await world.view("w00"))["status"] == "pending"

    run(story)


def test_a_preview_says_what_pools_would_promise_beyond_their_nodes_and_do_not_now():
    async def story():
        async with World(FakeCluster(node("n1", 8)), [pool(gpu=9)]) as world:
            await world.pass_seconds(1)
            found = PreviewView.from_dict(
                await world.actor.preview({"policies": [policy("red", reserved={"gpu": 3})]})
            )
            assert found.promises == []
            found = PreviewView.from_dict(await world.actor.preview({"pools": [pool(gpu=12)]}))
            assert found.promises == ["pool 'p' promises 12 gpu, and the nodes have 8"]
            await world.actor.apply({"pools": [pool(gpu=8)]})
            found = PreviewView.from_dict(await world.actor.preview_rollback(1))
            assert found.promises == ["pool 'p' promises 9 gpu, and the nodes have 8"]

    run(story)


def test_whoever_makes_a_pool_promise_more_than_its_nodes_have_is_warned():
    too_much = ["pool 'p' promises 12 gpu, and the nodes have 8"]

    async def story():
        async with World(FakeCluster(node("n1", 8))) as world:
            for call in (world.actor.check, world.actor.apply):
                assert await call({"pools": [pool(gpu=12)]}) == too_much
                assert await call({"pools": [pool(gpu=8)]}) == []
            await world.actor.apply({"pools": [pool(gpu=12)]})
            found = PreviewView.from_dict(await world.actor.preview({"pools": [pool(gpu=12, grace_seconds=3)]}))
            assert (found.promises, found.warnings) == ([], too_much), "it is so already"
            assert await world.actor.rollback(1) == []
            assert await world.actor.rollback(2) == too_much

    run(story)


def test_what_would_be_refused_is_refused_by_its_preview():
    async def story():
        async with World() as world:
            with pytest.raises(Refused, match="there is no pool 'x'"):
                await world.actor.preview({"policies": [policy(pool="x")]})
            for call in (world.actor.preview_rollback, world.actor.rollback, world.actor.config_of):
                with pytest.raises(Refused, match="there is no version 7: those from 1 to 1 are kept"):
                    await call(7)

    run(story)


def test_the_history_says_who_did_what_and_when_and_survives_the_process():
    async def story():
        async with World(pools=[pool()], policies=[policy()]) as world:
            await world.actor.apply({"pools": [pool("q")]}, "ann", "more room")
            await world.actor.apply({"pools": [pool("q")]}, "ben")
            await world.actor.detach_policy("p", "red", "team", by="ben")
            await world.actor.delete_pool("q", by="ben")
            history = await world.actor.history()
            assert await versions(world) == [
                (1, "pool 'p' added; policy of 'red' in pool 'p' added", ""),
                (2, "pool 'q' added", "ann"),
                (3, "policy of 'red' in pool 'p' detached", "ben"),
                (4, "pool 'q' deleted", "ben"),
            ]
            second = VersionView.from_dict(history[1])
            assert second.note == "more room"
            assert history[0]["at"] <= second.at <= world.actor._now()
            config = await world.actor.config_of(2)
            await world.begin_again()
            assert (await world.actor.history(), await world.actor.config_of(2)) == (history, config)
            await world.actor.rollback(2, "ann", "again")
            assert await world.actor.config() == config
            last = VersionView.from_dict((await world.actor.history())[-1])
            assert (last.number, last.back_to, last.by, last.note) == (5, 2, "ann", "again")
            await world.begin_again()
            assert await world.actor.config() == config

    run(story)


def test_going_back_is_all_or_none():
    async def story():
        async with World(pools=[pool(gpu=8)]) as world:
            await world.actor.apply({"pools": [pool(gpu=4), pool("q")], "policies": [policy("blue", "q")]})
            await world.run("b", "blue")
            before = journal_of(world)
            for call in (world.actor.rollback, world.actor.preview_rollback):
                with pytest.raises(Refused, match="pool 'q' is in use: 0 queued, 1 charged"):
                    await call(1)
            assert journal_of(world) == before
            await world.actor.release("b")
            await world.pass_seconds(1)
            await world.actor.rollback(1)
            assert list(world.actor.broker.pools) == ["p"]

    run(story)


def test_a_broker_that_is_degraded_shows_its_history_and_goes_nowhere():
    async def story():
        async with World() as world:
            world.actor._degrade("for a test")
            assert len(await world.actor.history()) == 1
            assert (await world.actor.preview({"pools": [pool("q")]}))["number"] == 2
            with pytest.raises(BrokerDegraded):
                await world.actor.rollback(1)

    run(story)
