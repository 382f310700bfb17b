"""A group that is handed over: Ray is asked nothing, and whatever happens to it is told of its present holder."""

import asyncio

import pytest

from raypool.errors import Refused

from .fake_cluster import FakeCluster, node
from .virtual_time import run
from .world import World, policy, pool


class CountingCluster(FakeCluster):
    """Notes what is asked of Ray that changes anything."""

    def __init__(self, *nodes):
        super().__init__(*nodes)
        self.asked = []

    async def create_group(self, name, bundles, strategy, labels):
        self.asked.append(("create", name))
        return await super().create_group(name, bundles, strategy, labels)

    async def remove_group(self, group_id):
        self.asked.append(("remove", self.groups[group_id].name))
        await super().remove_group(group_id)


def a_full_house(**more):
    """'a' has all 8 GPUs, 'b' and 'c' wait for the same."""

    async def begin(world):
        await world.run("a", gpu=8)
        await world.submit("b", gpu=8)
        await world.submit("c", gpu=8)

    return World(CountingCluster(node("n1", 8), node("n2", 8)), **({"pools": [pool(gpu=8)]} | more)), begin


def test_the_next_has_the_same_group_and_ray_is_asked_nothing():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            began = asyncio.get_running_loop().time()
            await world.actor.release("a", None, True)
            await world.until("b", "allocated")
            assert asyncio.get_running_loop().time() == began, "nothing was waited for"
            first, second = await world.view("a"), await world.view("b")
            assert second["group_id"] == first["group_id"]
            assert second["nodes"] == first["nodes"] != []
            assert second["group_name"] == "raypool/p/red/a"
            await world.actor.release("b", None, True)
            await world.until("c", "allocated")
            assert world.cluster.asked == [("create", "raypool/p/red/a")]
            await world.actor.release("c", None, True)
            await world.pass_seconds(1)
            assert world.cluster.asked[1:] == [("remove", "raypool/p/red/a")]
            assert world.free() == 8

    run(story)


def test_without_the_word_clean_it_is_removed_and_made_again():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            await world.actor.release("a")
            await world.until("b", "allocated")
            assert [what for what, _ in world.cluster.asked] == ["create", "remove", "create"]
            assert (await world.view("b"))["group_name"] == "raypool/p/red/b"

    run(story)


def test_a_group_is_asked_after_by_its_id_and_by_its_name():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            group = (await world.view("a"))["group_id"]
            for text in (group, "raypool/p/red/a"):
                assert (await world.view(text))["id"] == "a"
            await world.actor.release("a", None, True)
            for text in (group, "raypool/p/red/a"):
                assert (await world.view(text))["id"] == "b"
            assert (await world.actor.request_of_group(group))["id"] == "b"
            assert (await world.view("a"))["id"] == "a"
            for text in ("raypool/p/red/b", "raypool/q/red/a", "a/a"):
                with pytest.raises(Refused):
                    await world.view(text)

    run(story)


@pytest.mark.parametrize("change", [{"node_labels": {"zone": "a"}}, {"ray_resources": {"seats": "seat"}}])
def test_a_group_that_would_be_made_otherwise_now_is_not_handed_over(change):
    async def story():
        capacity = {"gpu": 8, "seats": 1}
        made, _ = a_full_house(pools=[pool(capacity=capacity)])
        made.cluster.live = [node("n1", 8), node("n2", 8, zone="a")]
        made.cluster.live[1].resources["seat"] = 1.0
        async with made as world:
            await world.run("a", resources={"gpu_count": 8, "pool_resources": {"seats": 1}})
            await world.submit("b", resources={"gpu_count": 8, "pool_resources": {"seats": 1}})
            await world.actor.apply({"pools": [pool(capacity=capacity, **change)]})
            await world.actor.release("a", None, True)
            await world.until("b", "allocated")
            assert [what for what, _ in world.cluster.asked] == ["create", "remove", "create"]

    run(story)


def test_a_group_of_an_earlier_life_is_not_handed_over():
    """Nobody knows by which words of the pool it was made."""

    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            await world.begin_again()
            await world.pass_seconds(1)
            await world.actor.release("a", None, True)
            await world.until("b", "allocated")
            assert [what for what, _ in world.cluster.asked] == ["create", "remove", "create"]

    run(story)


def test_after_a_restart_the_group_is_its_present_holders():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            await world.actor.release("a", None, True)
            await world.begin_again()
            await world.pass_seconds(1)
            view = await world.view("b")
            assert (view["status"], view["group_name"]) == ("allocated", "raypool/p/red/a")
            assert (await world.view("raypool/p/red/a"))["id"] == "b"
            assert (await world.actor.request_of_group(view["group_id"]))["id"] == "b"
            assert world.cluster.there() == ["raypool/p/red/a"]
            await world.actor.release("b", None, True)
            await world.until("c", "allocated")
            await world.actor.release("c")
            await world.pass_seconds(1)
            assert (world.cluster.there(), world.free()) == ([], 8)

    run(story)


def test_a_group_that_goes_while_it_is_handed_over_is_missed_by_its_new_holder():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            group = world.cluster.named("/a")
            await world.actor.release("a", None, True)
            world.cluster.vanish(group)
            await world.until("b", "cancelled")
            assert (await world.view("b"))["rule"] == "group-lost"
            assert await world.status("a") == "released"
            await world.until("c", "allocated")

    run(story)


def test_a_group_that_is_found_gone_before_the_hand_over_is_carried_out_is_missed_too():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            placements = world.actor._placements
            released = asyncio.ensure_future(world.actor.release("a", None, True))
            await asyncio.sleep(0)  # decided, and not yet in the journal
            assert world.actor.broker.requests["b"].status.value == "allocated"
            world.cluster.vanish(world.cluster.named("/a"))
            placements._lost(placements._placements["a", 1])
            await released
            await world.until("b", "cancelled")
            await world.until("c", "allocated")

    run(story)


def test_a_node_that_dies_under_a_group_ends_its_present_holder():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            await world.actor.release("a", None, True)
            world.cluster.lose((await world.view("b"))["nodes"][0])
            await world.until("b", "cancelled")
            assert (await world.view("b"))["rule"] == "node-lost"
            await world.until("c", "allocated")
            assert (await world.view("c"))["group_name"] == "raypool/p/red/c"

    run(story)


def test_a_repeated_release_is_answered_and_changes_nothing():
    async def story():
        made, begin = a_full_house()
        async with made as world:
            await begin(world)
            for _ in range(2):
                assert (await world.actor.release("a", None, True))["status"] == "released"
            assert [await world.status(id) for id in "bc"] == ["allocated", "pending"]

    run(story)


def test_another_pool_or_component_never_has_it():
    async def story():
        pools = [pool("p", 8), pool("q", 8)]
        made = World(CountingCluster(node("n1", 8)), pools, [policy("red"), policy("red", "q"), policy("blue", "q")])
        async with made as world:
            await world.run("a", gpu=8, pool="p")
            await world.submit("b", gpu=8, pool="q")  # waits for nodes: both pools count on the same
            await world.submit("c", "blue", gpu=8)
            await world.actor.release("a", None, True)
            await world.until("b", "allocated")
            assert (await world.view("b"))["group_name"] == "raypool/q/red/b"

    run(story)
