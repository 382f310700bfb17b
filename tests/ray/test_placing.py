"""What the broker makes of nodes: labels, resources, fragmentation, what is too large for any node."""

from __future__ import annotations

import ray
from ray.cluster_utils import Cluster

import raypool
from raypool import ResourceSettings

from .conftest import SMALL_STORE, until

NODES = [
    {"num_cpus": 4, "num_gpus": 4, "labels": {"kind": "a100"}},
    {"num_cpus": 4, "num_gpus": 4, "labels": {"kind": "h100"}, "resources": {"trt": 2}},
]


def policies(*pools: str) -> list[dict[str, object]]:
    return [{"pool": pool, "component": "team", "priority": 1} for pool in pools]


def node_of_kind(kind: str) -> str:
    return next(row["NodeID"] for row in ray.nodes() if row["Alive"] and row["Labels"].get("kind") == kind)


def test_a_pool_is_a_set_of_nodes(client: raypool.Client) -> None:
    pools = [{"name": kind, "capacity": {"gpu": 4}, "node_labels": {"kind": kind}} for kind in ("a100", "h100")]
    client.apply({"pools": pools, "policies": policies("a100", "h100")})
    for kind in ("a100", "h100"):
        with raypool.lease(ResourceSettings(gpu_count=1), component="team", pool=kind, workers=3) as lease:
            assert set(lease.nodes) == {node_of_kind(kind)}


def test_pool_keys_become_ray_resources_and_licences_stay_logical(client: raypool.Client) -> None:
    pool = {
        "name": "p",
        "capacity": {"gpu": 8, "trt_sessions": 2, "licence": 1},
        "ray_resources": {"trt_sessions": "trt"},
    }
    client.apply({"pools": [pool], "policies": policies("p")})
    settings = ResourceSettings(
        gpu_count=1, cpu_count=0.5, memory="10MB", pool_resources={"trt_sessions": 1, "licence": 1}
    )
    with raypool.lease(settings, component="team") as lease:
        bundle = lease.describe()["placement_group"]["bundles"][0]
        assert bundle == {"GPU": 1.0, "CPU": 0.5, "memory": 10_000_000.0, "trt": 1.0}
        assert lease.nodes == (node_of_kind("h100"),)


def test_a_request_without_resources_still_gets_a_group(client: raypool.Client) -> None:
    client.apply({"pools": [{"name": "p", "capacity": {"step_run": 1}}], "policies": policies("p")})
    with raypool.lease(component="team") as lease:
        assert ray.get(ray.remote(lambda: 1).options(**lease.task_options()).remote(), timeout=60) == 1


def test_what_is_larger_than_any_node_is_explained_and_blocks_nobody(client: raypool.Client) -> None:
    client.apply({"pools": [{"name": "p", "capacity": {"gpu": 8}}], "policies": policies("p")})
    big = client.submit(component="team", resources=ResourceSettings(gpu_count=8))
    assert client.request(big.id).reason == (
        "infeasible on today's nodes: needs 8 GPU on one node, the largest has 4 (pool 'p')"
    )
    with raypool.lease(ResourceSettings(gpu_count=4), component="team", workers=2):
        assert client.request(big.id).status == "pending"


def test_a_pool_may_reject_what_is_infeasible(client: raypool.Client) -> None:
    client.apply(
        {"pools": [{"name": "p", "capacity": {"gpu": 8}, "infeasible": "reject"}], "policies": policies("p")}
    )
    view = client.submit(component="team", resources=ResourceSettings(gpu_count=8))
    assert view.status == "rejected"
    assert "needs 8 GPU on one node, the largest has 4" in (view.reason or "")


def test_a_node_that_joins_wakes_what_was_infeasible(client: raypool.Client, cluster: Cluster) -> None:
    client.apply({"pools": [{"name": "p", "capacity": {"gpu": 8}}], "policies": policies("p")})
    big = client.submit(component="team", resources=ResourceSettings(gpu_count=6))
    assert "infeasible" in (client.request(big.id).reason or "")
    node = cluster.add_node(num_cpus=1, num_gpus=6, object_store_memory=SMALL_STORE)
    try:
        view = client.wait(big.id, 60)
        assert view.status == "allocated"
        client.release(big.id)
        until(lambda: client.pool("p").used == {"gpu": 0}, "the group is gone")
    finally:
        cluster.remove_node(node)
    until(lambda: len([row for row in ray.nodes() if row["Alive"]]) == 3, "the node has left", 60)


def test_a_grant_that_finds_no_nodes_gives_its_room_back_and_others_pass(client: raypool.Client) -> None:
    client.apply(
        {
            "pools": [{"name": "p", "capacity": {"gpu": 8}, "placement_timeout_seconds": 0.5}],
            "policies": policies("p"),
        }
    )
    blockers = [
        ray.remote(num_gpus=2, num_cpus=0)(Holder).options(label_selector={"kind": kind}).remote()
        for kind in ("a100", "h100")
    ]
    ray.get([one.ping.remote() for one in blockers], timeout=60)
    wide = client.submit(component="team", resources=ResourceSettings(gpu_count=4))

    def backing_off() -> str | None:
        reason = client.request(wide.id).reason or ""
        return reason if "but not placed" in reason else None

    reason = until(backing_off, "it stands aside after its time to be placed")
    assert "bundle 0 (4 GPU) found no node; the largest free block is 2 GPU" in reason
    with raypool.lease(ResourceSettings(gpu_count=2), component="team", workers=2, wait_timeout_seconds=30):
        assert client.request(wide.id).status == "pending"
    for one in blockers:
        ray.kill(one)
    assert client.wait(wide.id, 60).status == "allocated"


class Holder:
    def ping(self) -> str:
        return "here"


def test_a_victim_that_is_not_placed_yet_goes_back_without_being_told_to_leave(client: raypool.Client) -> None:
    client.apply(
        {
            "pools": [{"name": "p", "capacity": {"gpu": 4}}],
            "policies": [
                {"pool": "p", "component": "low", "priority": 1},
                {"pool": "p", "component": "high", "priority": 9},
            ],
        }
    )
    blockers = [
        ray.remote(num_gpus=4, num_cpus=0)(Holder).options(label_selector={"kind": kind}).remote()
        for kind in ("a100", "h100")
    ]
    ray.get([one.ping.remote() for one in blockers], timeout=60)
    low = client.submit(component="low", resources=ResourceSettings(gpu_count=4))
    until(lambda: "being placed" in (client.request(low.id).reason or ""), "it looks for nodes")
    high = client.submit(component="high", resources=ResourceSettings(gpu_count=4))
    ray.kill(blockers[0])
    assert client.wait(high.id, 60).status == "allocated"
    view = client.request(low.id)
    assert (view.status, view.preempted_by) == ("pending", None)
    client.release(high.id)
    assert client.wait(low.id, 60).status == "allocated"
    ray.kill(blockers[1])


def test_a_request_cancelled_while_its_group_is_made_leaves_nothing_behind(client: raypool.Client) -> None:
    client.apply({"pools": [{"name": "p", "capacity": {"gpu": 8}}], "policies": policies("p")})
    for _ in range(20):
        view = client.submit(component="team", resources=ResourceSettings(gpu_count=1), workers=8)
        client.cancel(view.id, "changed my mind")
    until(lambda: client.pool("p").used == {"gpu": 0}, "everything came back")
    with raypool.lease(ResourceSettings(gpu_count=4), component="team", workers=2):
        pass
