"""Grants become placement groups and go again, over a cluster that does what it likes."""

import asyncio

import pytest

from .fake_cluster import (
    AwayCluster,
    FakeCluster,
    ForgetfulFigures,
    HeldBackCluster,
    LateFigures,
    LostAnswers,
    RefusingCluster,
    SilentCluster,
    SlowCluster,
    node,
)
from .virtual_time import run
from .world import World, policy, pool

# --- creating ---------------------------------------------------------------------------------


def test_a_grant_becomes_a_group_with_its_name_bundles_strategy_and_labels():
    async def story():
        cluster = FakeCluster(node("n1", 8, zone="b"), node("n2", 8, zone="a"))
        async with World(cluster, [pool(node_labels={"zone": "a"})]) as world:
            await world.run("a", gpu=2, workers=3, strategy="STRICT_PACK")
            group = cluster.named("/a")
            assert group.name == "raypool/p/red/a"
            assert group.bundles == [{"GPU": 2.0}] * 3
            assert (group.strategy, group.labels) == ("STRICT_PACK", {"zone": "a"})
            view = await world.view("a")
            assert (view["pool"], view["group_id"], view["nodes"]) == ("p", group.id, ["n2"] * 3)
            assert view["bundles"] == [{"GPU": 2.0}] * 3

    run(story)


def test_a_grant_is_allocated_only_when_its_group_is_created():
    async def story():
        async with World(HeldBackCluster()) as world:
            await world.submit("a")
            await world.pass_seconds(20)
            assert (await world.view("a"))["reason"] == "being placed in pool 'p'"
            world.cluster.let("/a")
            await world.until("a", "allocated")

    run(story)


def test_a_group_that_ray_does_not_create_in_time_ends_its_charge_and_is_removed_once_it_is_there():
    async def story():
        cluster = HeldBackCluster()
        async with World(cluster) as world:
            await world.submit("a", gpu=8)
            await world.pass_seconds(30.5)
            assert (world.free(), world.phantom()) == (0, 8)
            assert "Ray did not create its placement group in 30 s" in (await world.view("a"))["reason"]
            await world.pass_seconds(10)  # the back-off is over, and its first group may still come
            assert "placement group of its earlier grant" in (await world.view("a"))["reason"]
            assert len(cluster.groups) == 1, "it is not asked for twice"
            first = cluster.named("/a").id
            cluster.let("/a")
            await world.until("a", "allocated")
            assert (await world.view("a"))["group_id"] != first, "the first group was removed, not used"

    run(story)


def test_no_group_is_created_while_there_is_no_room_for_it():
    async def story():
        cluster = FakeCluster(node("n1", 4))
        async with World(cluster, [pool(gpu=8)]) as world:
            await world.run("a", gpu=3)
            await world.submit("b", gpu=3)
            await world.pass_seconds(5)
            assert cluster.there() == ["raypool/p/red/a"]
            assert (await world.view("b"))["reason"] == (
                "being placed in pool 'p': bundle 0 (3 GPU) found no node; the largest free block is 1 GPU"
            )
            await world.actor.release("a")
            await world.until("b", "allocated")
            assert cluster.overcommitted == []

    run(story)


def test_two_grants_do_not_claim_the_same_room_before_the_nodes_report_shows_it():
    async def story():
        cluster = LateFigures(node("n1", 8), node("n2", 8))
        async with World(cluster, [pool(gpu=32)]) as world:
            await world.run("a", gpu=8)
            await world.submit("b", gpu=4)
            await world.submit("c", gpu=8)
            await world.pass_seconds(1)
            assert [group.nodes for group in cluster.groups.values()] == [("n1",), ("n2",)]
            assert (await world.view("c"))["placing"]
            cluster.report()
            await world.pass_seconds(1)
            assert (await world.view("c"))["placing"]
            assert cluster.overcommitted == []

    run(story)


def test_room_stays_claimed_while_a_group_is_being_removed_that_no_report_has_shown():
    class SlowRemoval(LateFigures):
        async def remove_group(self, group_id):
            await asyncio.sleep(0.5)
            await super().remove_group(group_id)

    async def story():
        cluster = SlowRemoval(node("n1", 8))
        async with World(cluster, [pool(gpu=16)]) as world:
            await world.run("a", gpu=8)
            await world.submit("b", gpu=8)
            await world.actor.release("a")
            await world.pass_seconds(0.3)
            assert cluster.overcommitted == []
            await world.until("b", "allocated")
            assert cluster.overcommitted == []

    run(story)


def test_a_group_that_ray_refuses_gives_the_charge_back_with_rays_words():
    async def story():
        async with World(RefusingCluster()) as world:
            await world.submit("a")
            await world.pass_seconds(0.5)
            view = await world.view("a")
            assert (view["status"], view["rule"]) == ("pending", "placement")
            assert "Ray refused the placement group: bundles may not be so" in view["reason"]
            assert world.free() == 8
            assert world.cluster.there() == []
            await world.pass_seconds(1)  # its back-off is over, it tries again
            assert (await world.view("a"))["attempt"] == 2

    run(story)


def test_a_group_whose_answer_was_lost_is_found_by_its_name_and_not_leaked():
    async def story():
        async with World(LostAnswers()) as world:
            await world.run("a")
            assert (await world.view("a"))["group_id"] == world.cluster.named("/a").id
            await world.actor.release("a")
            await world.pass_seconds(1)
            assert world.cluster.there() == []

    run(story)


def test_a_group_that_somebody_removes_before_it_is_ready_is_a_failed_placement():
    async def story():
        async with World(HeldBackCluster()) as world:
            await world.submit("a")
            await world.pass_seconds(0.1)
            world.cluster.vanish(world.cluster.named("/a"))
            await world.pass_seconds(0.1)
            view = await world.view("a")
            assert view["rule"] == "placement"
            assert "somebody removed its placement group before it was ready" in view["reason"]

    run(story)


# --- the placement timeout --------------------------------------------------------------------


def test_who_finds_no_nodes_in_time_gives_his_room_back_and_others_pass():
    async def story():
        cluster = FakeCluster(node("n1", 6), node("n2", 6))
        teams = [policy("red"), policy("blue")]
        async with World(cluster, [pool(gpu=12, placement_timeout_seconds=5)], teams) as world:
            await world.run("one", gpu=4)
            await world.run("two", gpu=4)  # on the other node: 2 free on each
            await world.submit("large", "blue", gpu=4)
            await world.submit("small", "blue", gpu=2)
            await world.pass_seconds(4.9)
            assert (await world.view("large"))["placing"]
            assert await world.status("small") == "pending"
            await world.until("small", "allocated")
            view = await world.view("large")
            assert view["reason"] == (
                "granted once in pool 'p' but not placed: bundle 0 (4 GPU) found no node; "
                "the largest free block is 2 GPU; others pass until it tries again"
            )

    run(story)


# --- removing ---------------------------------------------------------------------------------


def test_the_charge_ends_only_when_no_node_shows_the_group():
    async def story():
        cluster = LateFigures(node("n1", 8), node("n2", 8))
        async with World(cluster, [pool(gpu=16)]) as world:
            await world.run("a", gpu=8, workers=2)
            cluster.report()
            await world.actor.release("a")
            await world.pass_seconds(3)
            assert cluster.there() == []
            assert world.free() == 0
            cluster.reported["n1"] = cluster.truth()["n1"]
            await world.pass_seconds(1)
            assert world.free() == 0
            cluster.report()
            await world.pass_seconds(0.1)
            assert world.free() == 16

    run(story)


def test_a_request_cancelled_while_it_looks_leaves_nothing_behind():
    async def story():
        cluster = FakeCluster(node("n1", 1))
        async with World(cluster) as world:
            await world.run("holder")
            await world.submit("a")
            await world.pass_seconds(0.1)
            assert world.free() == 6
            await world.actor.cancel("a", "enough")
            assert world.free() == 7
            await world.pass_seconds(60)
            assert cluster.there() == ["raypool/p/red/holder"]

    run(story)


def test_a_request_cancelled_while_its_group_is_made_is_removed_once_it_is_created_never_before():
    async def story():
        async with World(HeldBackCluster()) as world:
            await world.submit("a")
            await world.pass_seconds(0.1)
            await world.actor.cancel("a", "enough")
            await world.pass_seconds(20)
            assert (await world.status("a"), world.free()) == ("cancelled", 7)
            assert world.cluster.named("/a").state == "PENDING"
            world.cluster.let("/a")
            await world.pass_seconds(0.1)
            assert world.cluster.named("/a").state == "REMOVED"
            assert world.free() == 8

    run(story)


# --- what fails -------------------------------------------------------------------------------


def test_a_gcs_that_is_away_delays_and_loses_nothing():
    async def story():
        cluster = AwayCluster()
        async with World(cluster) as world:
            await world.run("a", gpu=8)
            cluster.away = True
            asked = asyncio.create_task(world.submit("b", gpu=8))
            given_back = asyncio.create_task(world.actor.release("a"))
            await world.pass_seconds(30)
            assert not asked.done() and not given_back.done()  # nothing is acknowledged that could be lost
            assert (await world.status("a"), world.free()) == ("released", 0)  # and every question is answered
            assert "the GCS is away" in (await world.actor.overview())["warnings"][-1]
            cluster.away = False
            await asked
            await given_back
            await world.until("b", "allocated")
            assert cluster.there() == ["raypool/p/red/b"]

    run(story)


def test_a_gcs_that_goes_away_while_a_group_is_made_does_not_leak_it():
    async def story():
        cluster = HeldBackAndAway()
        async with World(cluster) as world:
            await world.submit("a")
            await world.pass_seconds(0.1)
            cluster.away = True
            cluster.let("/a")
            await world.pass_seconds(10)
            cluster.away = False
            await world.until("a", "allocated")
            await world.actor.release("a")
            await world.pass_seconds(1)
            assert cluster.there() == []

    class HeldBackAndAway(HeldBackCluster, AwayCluster):
        async def created(self, group_id):
            nodes = await super().created(group_id)
            await self._answer()
            return nodes

    run(story)


def test_a_slow_cluster_is_only_slow():
    async def story():
        cluster = SlowCluster(node("n1", 8), seconds=0.4)
        async with World(cluster) as world:
            for id in "abcd":
                await world.submit(id, gpu=4)
            for id in "abcd":
                await world.until(id, "allocated")
                await world.actor.release(id)
            await world.pass_seconds(10)
            assert (world.free(), cluster.there(), cluster.overcommitted) == (8, [], [])

    run(story)


def test_while_the_gcs_gives_no_answer_questions_are_answered_and_it_is_said():
    async def story():
        cluster = SilentCluster()
        async with World(cluster) as world:
            await world.run("a", gpu=6)
            await world.submit("b", gpu=4)
            cluster.silence()
            given_back = asyncio.create_task(world.actor.release("a"))
            await world.pass_seconds(30)
            assert not given_back.done()
            assert (await world.view("b"))["position"] == 1
            assert (await world.actor.pool("p"))["active"] == 1
            [warning] = (await world.actor.overview())["warnings"]
            assert warning == "Ray's GCS has not answered for 30 s: nothing is placed or removed meanwhile"
            cluster.speak()
            await given_back
            await world.until("b", "allocated")
            assert (await world.actor.overview())["warnings"] == []

    run(story)


@pytest.mark.parametrize("late", [["n1", "n2"], ["n1"], ["n2"]])
def test_figures_that_cannot_be_true_are_not_believed(late):
    """Ray shows every node wholly free for a second or two after its GCS was started again."""

    async def story():
        cluster = ForgetfulFigures(node("n1"), node("n2"))
        async with World(cluster, [pool(gpu=16)]) as world:
            await world.run("stays", gpu=4)
            await world.run("there", gpu=8)
            await world.run("goes", gpu=4)
            await world.pass_seconds(2)  # a look at the cluster, in which each group shows
            cluster.unreported = set(late)
            await world.actor.release("goes")
            await world.submit("next", gpu=4)
            await world.pass_seconds(3)
            assert (await world.status("next"), world.free()) == ("pending", 0)
            assert [await world.status(id) for id in ("stays", "there")] == ["allocated", "allocated"]
            cluster.unreported = set()
            await world.until("next", "allocated")
            assert cluster.overcommitted == []

    run(story)


# --- nodes ------------------------------------------------------------------------------------


def test_a_node_that_joins_is_seen_and_used():
    async def story():
        cluster = FakeCluster(node("n1", 4))
        async with World(cluster) as world:
            await world.submit("a", gpu=8)
            assert (await world.view("a"))["rule"] == "infeasible"
            cluster.live.append(node("n2", 8))
            await world.until("a", "allocated")
            assert (await world.view("a"))["nodes"] == ["n2"]

    run(story)
