"""What Ray loses and does not give back, and what others use: the broker notices, says so, and goes on."""

import asyncio

import pytest

from raypool.core.nodes import Node
from raypool.server.audit import broken_promises, counted_on, seen_twice, used_by_others
from raypool.server.placement import Placement
from raypool.spec import PoolSpec

from .fake_cluster import FakeCluster, HeldBackCluster, LateFigures, LeakingCluster, node
from .virtual_time import run
from .world import World, policy, pool


def four_nodes():
    return FakeCluster(*[node(f"n{i}", 4) for i in range(1, 5)])


GANG = {"gpu": 4, "workers": 2, "strategy": "STRICT_SPREAD"}

# --- a node dies ------------------------------------------------------------------------------


def test_a_gang_that_lost_a_node_is_removed_whole_within_two_seconds_and_then_its_room_is_free():
    async def story():
        cluster = four_nodes()
        async with World(cluster, [pool(gpu=16)]) as world:
            await world.run("a", **GANG)
            lost = cluster.named("/a").nodes[1]
            cluster.live = [one for one in cluster.live if one.id in cluster.named("/a").nodes]  # no spare node
            await world.pass_seconds(1.1)
            cluster.lose(lost)
            await world.pass_seconds(1.5)
            view = await world.view("a")
            assert (view["status"], view["rule"]) == ("cancelled", "node-lost")
            assert view["reason"] == f"node {lost} lost: its placement group is removed whole"
            assert cluster.there() == []
            await world.pass_seconds(5)
            assert world.free() == 16

    run(story)


def test_two_half_placed_gangs_never_wait_for_each_other():
    async def story():
        cluster = four_nodes()
        async with World(cluster, [pool(gpu=16)], [policy("red"), policy("blue")]) as world:
            await world.run("a", "red", **GANG)
            await world.run("b", "blue", **GANG)
            in_a, in_b = cluster.named("/a").nodes[0], cluster.named("/b").nodes[0]
            cluster.lose(in_a)
            cluster.lose(in_b)
            assert {cluster.named(id).state for id in ("/a", "/b")} == {"RESCHEDULING"}, (
                "each holds what the other lacks"
            )
            await world.pass_seconds(1.5)
            assert [await world.status(id) for id in "ab"] == ["cancelled", "cancelled"]
            await world.submit("a2", "red", retry_of="a", **GANG)
            await world.submit("b2", "blue", retry_of="b", **GANG)
            await world.until("a2", "allocated")
            await world.actor.release("a2")
            await world.until("b2", "allocated")

    run(story)


def test_ray_may_repair_a_gang_that_waits_and_its_owner_hears_of_the_new_nodes():
    async def story():
        cluster = FakeCluster(node("n1", 4), node("n2", 4))
        async with World(cluster, [pool(gpu=8)]) as world:
            await world.run("a", on_node_loss="wait", repair_seconds=30.0, **GANG)
            cluster.lose("n2")
            await world.pass_seconds(5)
            view = await world.view("a")
            assert (view["status"], view["repair_until"] is not None) == ("allocated", True)
            watching = asyncio.ensure_future(world.actor.watch("a", world.actor._versions["a"], 30.0))
            await world.pass_seconds(0.1)
            cluster.gain(node("n3", 4))
            told = (await watching)["request"]
            assert (sorted(told["nodes"]), told["repair_until"]) == (["n1", "n3"], None)
            await world.pass_seconds(60)
            assert await world.status("a") == "allocated"
            cluster.lose("n1")
            await world.pass_seconds(35)
            assert (await world.view("a"))["reason"] == (
                "node n1 lost: Ray did not repair its placement group in 30 s, it is removed whole"
            )

    run(story)


def test_a_group_whose_node_is_struck_off_the_list_just_when_it_is_ready_is_lost_too():
    class Racing(HeldBackCluster):
        async def created(self, group_id):
            nodes = await super().created(group_id)
            self.lose(nodes[0])
            await asyncio.sleep(1.5)  # the list of nodes is read meanwhile
            return nodes

    async def story():
        cluster = Racing(node("n1", 4), node("n2", 2))
        async with World(cluster) as world:
            await world.submit("a", gpu=4)
            await world.pass_seconds(0.1)
            cluster.let("/a")
            await world.until("a", "cancelled")
            assert (await world.view("a"))["rule"] == "node-lost"

    run(story)


def test_a_group_that_loses_a_node_before_it_is_ready_neither_hangs_nor_leaks():
    class Racing(HeldBackCluster):
        async def created(self, group_id):
            await super().created(group_id)
            if len(self.live) == 2:
                self.lose("n2")
            return await super().created(group_id)

    async def story():
        cluster = Racing(node("n1", 4), node("n2", 4))
        async with World(cluster) as world:
            await world.submit("a", **GANG)
            await world.pass_seconds(0.1)
            cluster.let("/a")
            await world.pass_seconds(5)
            assert (await world.view("a"))["placing"]
            await world.pass_seconds(28)
            assert cluster.there() == [], "Ray leaks nothing of a group that was CREATED once"
            assert (world.free(), world.phantom()) == (8, 0)
            assert (await world.view("a"))["rule"] == "infeasible"

    run(story)


# --- a group is gone --------------------------------------------------------------------------


def test_a_group_that_somebody_removes_by_hand_is_noticed_within_seconds():
    async def story():
        async with World() as world:
            await world.run("a", gpu=8)
            await world.submit("b", gpu=8)
            world.cluster.vanish(world.cluster.named("/a"))
            await world.pass_seconds(2)
            view = await world.view("a")
            assert (view["status"], view["rule"]) == ("cancelled", "group-lost")
            assert view["reason"] == "its placement group is gone: somebody outside of the broker removed it"
            assert await world.status("b") == "allocated"
            assert [key for key in world.cluster.store if "/a#" in key] == []

    run(story)


def test_a_group_that_no_report_has_shown_yet_is_not_gone():
    async def story():
        async with World(LateFigures()) as world:
            await world.run("a")
            await world.pass_seconds(10)
            assert await world.status("a") == "allocated"

    run(story)


# --- phantom room -----------------------------------------------------------------------------


def test_room_that_is_not_given_back_becomes_a_phantom_with_a_warning_until_it_is_seen_free():
    async def story():
        cluster = LeakingCluster(node("n1", 8))
        async with World(cluster) as world:
            await world.run("a", gpu=6)
            await world.actor.release("a")
            await world.pass_seconds(29)
            assert (world.phantom(), await world.warnings()) == (0, [])
            await world.pass_seconds(2)
            assert (world.free(), world.phantom()) == (2, 6)
            assert await world.warnings() == [
                "Ray has not given back the room of placement group 'raypool/p/red/a' (6 GPU on node n1) in 30 s "
                "since its removal: it counts as phantom until it is seen free"
            ]
            await world.run("b", gpu=2)
            await world.submit("c", gpu=4)
            await world.pass_seconds(100)
            cluster.give_back()
            await world.until("c", "allocated")
            assert (world.phantom(), await world.warnings()) == (0, [])

    run(story)


def test_a_stuck_removal_is_looked_for_once_a_second_and_not_all_the_time():
    class Counting(LeakingCluster):
        asked = 0

        async def free(self):
            self.asked += 1
            return await super().free()

    async def story():
        cluster = Counting(node("n1", 8))
        async with World(cluster) as world:
            await world.run("a")
            await world.actor.release("a")
            await world.pass_seconds(31)
            cluster.asked = 0
            await world.pass_seconds(10)
            assert 8 <= cluster.asked <= 12

    run(story)


def test_a_broker_is_stopped_though_a_removal_is_stuck():
    async def story():
        async with World(LeakingCluster(node("n1", 8))) as world:
            await world.run("a")
            await asyncio.wait_for(world.actor.end_all("stopped"), 40)

    run(story)


def test_a_group_that_never_leaves_pending_raises_an_alarm_and_its_room_is_a_phantom():
    async def story():
        cluster = HeldBackCluster()
        async with World(cluster) as world:
            await world.submit("a", gpu=6)
            await world.submit("b", gpu=2)
            await world.pass_seconds(0.1)
            cluster.let("/b")
            await world.until("b", "allocated")
            await world.pass_seconds(31)
            assert (world.free(), world.phantom()) == (0, 6)
            assert await world.warnings() == [
                "Ray has not created placement group 'raypool/p/red/a' in 30 s, though the room for it is visible: "
                "that counts as phantom until the group is created, and removed, or gone"
            ]
            await world.actor.cancel("a", "enough")
            await asyncio.wait_for(world.actor.end_all("stopped"), 5)
            assert len(cluster.there()) == 1, "it is in the store, for the next broker"

    run(story)


def test_an_alarm_says_when_others_took_the_room():
    async def story():
        cluster = HeldBackCluster()
        async with World(cluster) as world:
            await world.submit("a", gpu=6)
            await world.pass_seconds(0.1)
            cluster.live = [node("n1", 4)]
            await world.pass_seconds(31)
            assert "in 30 s, others took the room: that counts as phantom" in (await world.warnings())[-1]

    run(story)


def test_one_that_was_cancelled_and_never_leaves_pending_is_a_phantom_too():
    async def story():
        cluster = HeldBackCluster()
        async with World(cluster) as world:
            await world.submit("a", gpu=6)
            await world.pass_seconds(1)
            await world.actor.cancel("a", "enough")
            await world.pass_seconds(31)
            assert (world.free(), world.phantom(), await world.status("a")) == (2, 6, "cancelled")
            cluster.let("/a")
            await world.pass_seconds(1)
            assert (world.free(), world.phantom(), cluster.there()) == (8, 0, [])

    run(story)


# --- what others use, and what pools promise --------------------------------------------------


class Shared(FakeCluster):
    """Somebody outside of the broker uses so many GPUs of n1."""

    others = 3.0

    def truth(self):
        rooms = super().truth()
        rooms["n1"]["GPU"] -= self.others
        return rooms


def test_work_outside_is_told_by_node_and_amount_once_it_was_seen_twice():
    async def story():
        cluster = Shared(node("n1", 8, kind="a"), node("n2", 8))
        pools = [pool("p", gpu=8, node_labels={"kind": "a"}), pool("q", gpu=16)]
        async with World(cluster, pools, [policy(pool="p"), policy(pool="q")]) as world:
            await world.run("a", gpu=4, pool="p")
            await world.pass_seconds(2.5)
            overview = await world.actor.overview()
            assert overview["outside"] == [{"node": "n1", "resource": "GPU", "amount": 3.0, "pools": ["p", "q"]}]
            assert (
                "work outside of the broker uses 3 GPU on node n1, which pools 'p' and 'q' count on"
                in overview["warnings"]
            )
            cluster.others = 0.0
            await world.pass_seconds(1.1)
            assert (await world.actor.overview())["outside"] == []

    run(story)


def group(id, nodes, gpu, stage="created"):
    placement = Placement(id, 1, id, [{"GPU": float(gpu)}] * len(nodes), "PACK", {}, 0.0, id, tuple(nodes))
    placement.stage = stage
    return placement


@pytest.mark.parametrize(
    ("free", "groups", "used"),
    [
        ({"GPU": 8.0}, [], {}),
        ({"GPU": 5.0}, [], {("n1", "GPU"): 3.0}),
        ({}, [], {("n1", "GPU"): 8.0}),
        ({"GPU": 4.0, "bundle_group_a": 1000.0}, [group("a", ["n1", "n2"], 4)], {}),
        ({"GPU": 3.5, "bundle_group_a": 1000.0}, [group("a", ["n1"], 4)], {("n1", "GPU"): 0.5}),
        ({"GPU": 8.0}, [group("a", ["n1"], 4)], {}),
        ({"GPU": 4.0, "bundle_group_a": 999.0}, [group("a", ["n1"], 4, "leaving")], {}),
    ],
    ids=["nobody", "somebody", "all of it", "ours", "ours and somebody", "ours, not reported yet", "ours, leaving"],
)
def test_what_is_neither_free_nor_ours_is_others(free, groups, used):
    one = Node("n1", {"GPU": 8.0})
    assert used_by_others([one, Node("n2", {"GPU": 8.0})], {"n1": free}, groups) == used


def test_of_two_looks_the_smaller_counts():
    assert seen_twice({("n1", "GPU"): 3.0, ("n2", "GPU"): 1.0}, {("n1", "GPU"): 2.0, ("n3", "GPU"): 1.0}) == {
        ("n1", "GPU"): 2.0
    }


def test_only_what_pools_promise_counts_and_neither_cpus_nor_memory():
    used = {("n1", "CPU"): 1.0, ("n1", "memory"): 1e9, ("n1", "chip"): 2.0, ("n1", "disk"): 1.0}
    spec = PoolSpec(name="p", capacity={"mcpu": 1, "chips": 4, "memory_mb": 1}, ray_resources={"chips": "chip"})
    found = counted_on(used, [spec], [Node("n1", {})])
    assert [(one["resource"], one["amount"], one["pools"]) for one in found] == [("chip", 2.0, ["p"])]


A, B = {"node_labels": {"rack": "a"}}, {"node_labels": {"rack": "b"}}
NODES = [
    Node("n1", {"GPU": 8.0, "CPU": 16.0, "memory": 64e9, "chip": 2.0}, {"rack": "a"}),
    Node("n2", {"GPU": 4.0, "CPU": 16.0}, {"rack": "b"}),
]


@pytest.mark.parametrize(
    ("pools", "sentences"),
    [
        ([pool("p", gpu=12)], []),
        ([pool("p", gpu=13)], ["pool 'p' promises 13 gpu, and the nodes have 12"]),
        (
            [pool("p", gpu=12, **A)],
            ["pool 'p' promises 12 gpu, and the nodes with its labels have 8"],
        ),
        (
            [pool("p", gpu=8), pool("q", gpu=8)],
            ["pools 'p' and 'q' together promise 16 gpu, and their nodes have 12"],
        ),
        (
            [pool("p", gpu=8, **A), pool("q", gpu=4, **B)],
            [],
        ),
        (
            [pool("p", gpu=5, **A), pool("q", gpu=5, **A), pool("r", gpu=1)],
            ["pools 'p' and 'q' together promise 10 gpu, and their nodes have 8"],
        ),
        (
            [{"name": "p", "capacity": {"mcpu": 32_001, "memory_mb": 64_001, "licence": 9}}],
            [
                "pool 'p' promises 32001 mcpu, and the nodes have 32000",
                "pool 'p' promises 64001 memory_mb, and the nodes have 64000",
            ],
        ),
        (
            [{"name": "p", "capacity": {"chips": 3}, "ray_resources": {"chips": "chip"}}],
            ["pool 'p' promises 3 chips, and the nodes have 2"],
        ),
    ],
    ids=["kept", "too much", "too much on its nodes", "together", "side by side", "two of three", "cpus", "custom"],
)  # fmt: skip
def test_a_pool_that_promises_more_than_its_nodes_have_is_told(pools, sentences):
    assert broken_promises([PoolSpec.load(one) for one in pools], NODES) == sentences


def test_nothing_is_promised_too_much_before_nodes_are_known():
    assert broken_promises([PoolSpec.load(pool())], []) == []
