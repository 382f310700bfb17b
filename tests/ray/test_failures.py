"""Ray's failures on a real cluster: nodes that are killed, groups removed by hand, GPUs used by others.

The GCS here declares a node dead after some 1.5 s, not 20: still later than work on it fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import ray.exceptions
from ray.cluster_utils import Cluster

import raypool
from raypool import NodeLost, ResourceSettings
from raypool.client.lease import group_handle

from .conftest import SMALL_STORE, no_groups_left, until

NODES: list[dict[str, Any]] = []
HEAD = {
    "_system_config": {
        "raylet_report_resources_period_milliseconds": 10,
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 300,
        "health_check_timeout_ms": 2000,
        "health_check_failure_threshold": 5,
    }
}
POOLS = {
    "pools": [{"name": "gpus", "capacity": {"gpu": 8}}],
    "policies": [{"pool": "gpus", "component": "team", "priority": 1}],
}
GANG: dict[str, Any] = {"component": "team", "workers": 2, "strategy": "STRICT_SPREAD"}
FOUR = ResourceSettings(gpu_count=4)


@ray.remote
class Member:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def stay(self) -> None:
        time.sleep(300)


class Nodes:
    """The cluster's GPU nodes; `kill` takes one away as a machine goes: without a word."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def live(self) -> list[str]:
        return [row["NodeID"] for row in ray.nodes() if row["Alive"] and row["Resources"].get("GPU")]

    def add(self) -> str:
        return str(self.cluster.add_node(num_cpus=4, num_gpus=4, object_store_memory=SMALL_STORE).node_id)

    def kill(self, node_id: str) -> None:
        node = next(one for one in self.cluster.worker_nodes if one.node_id == node_id)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def nodes(cluster: Cluster, client: raypool.Client) -> Iterator[Nodes]:
    """Two of four GPUs, whatever the tests before did."""
    made = Nodes(cluster)
    while len(made.live()) < 2:
        made.add()
    while len(made.live()) > 2:
        made.kill(made.live()[-1])
        until(lambda: len(made.live()) <= 2, "Ray notices")
    client.apply(POOLS)
    yield made


def test_a_gang_that_lost_a_node_is_removed_whole_and_taken_up_in_its_place(
    client: raypool.Client, nodes: Nodes
) -> None:
    with pytest.raises(NodeLost) as caught, raypool.lease(FOUR, **GANG) as lease:
        members = [Member.options(**lease.actor_options(i)).remote() for i in range(2)]
        assert ray.get([one.node.remote() for one in members], timeout=60) == list(lease.nodes)
        later = client.submit(component="team", workers=2, resources=FOUR)
        lost = lease.nodes[1]
        nodes.kill(lost)
        ray.get(members[1].stay.remote(), timeout=60)
    assert f"node {lost} lost: its placement group is removed whole" in str(caught.value)
    first = client.request(caught.value.request_id)
    assert (first.status, first.rule) == ("cancelled", "node-lost")
    until(no_groups_left, "the rest of the gang is gone from the node that lives", 10)
    again = client.submit(component="team", workers=2, resources=FOUR, retry_of=first.id)
    assert (again.number, again.number < later.number) == (first.number, True)
    nodes.add()
    assert client.wait(again.id, 60).status == "allocated"
    assert client.request(later.id).status == "pending"


def test_ray_may_repair_a_gang_that_waits(client: raypool.Client, nodes: Nodes) -> None:
    with raypool.lease(FOUR, **GANG, on_node_loss="wait", repair_seconds=60) as lease:
        stays, lost = lease.nodes
        member = Member.options(**lease.actor_options(0)).remote()
        assert ray.get(member.node.remote(), timeout=60) == stays
        nodes.kill(lost)
        until(lambda: client.request(lease.request_id).repair_until, "the broker knows")
        spare = nodes.add()
        until(lambda: lease.nodes == (stays, spare), "the lease knows its new node")
        assert client.request(lease.request_id).repair_until is None
        assert ray.get(member.node.remote(), timeout=60) == stays, "who lived goes on"
        again = Member.options(**lease.actor_options(1)).remote()
        assert ray.get(again.node.remote(), timeout=60) == spare


def test_a_gang_that_waits_in_vain_ends(client: raypool.Client, nodes: Nodes) -> None:
    lease = raypool.lease(FOUR, **GANG, on_node_loss="wait", repair_seconds=2)
    with pytest.raises(NodeLost, match="Ray did not repair its placement group in 2 s"), lease:
        nodes.kill(lease.nodes[0])
        until(lambda: lease.ended, "it ends")
        lease.require()
    until(no_groups_left, "nothing of it is left", 10)


@pytest.mark.parametrize("how", ["requeue", "wait"])
def test_a_decorated_task_whose_node_died_runs_again_in_its_place(
    client: raypool.Client, nodes: Nodes, tmp_path: Any, how: str
) -> None:
    @raypool.remote(component="team", resources=FOUR, on_node_loss=how)
    def work(path: str) -> str:
        here = str(ray.get_runtime_context().get_node_id())
        if not os.path.exists(path):
            with open(path, "w") as file:
                file.write(here)
            time.sleep(300)
        return here

    marker = tmp_path / "began-on"
    ref = work.remote(str(marker))
    until(marker.exists, "it has begun")
    first = client.requests(status="allocated")[0]
    holder = client.submit(component="team", resources=FOUR)
    later = client.submit(component="team", resources=FOUR)
    nodes.kill(marker.read_text())
    spare = nodes.add()
    assert ray.get(ref, timeout=90) == spare
    if how == "requeue":
        again = next(view for view in client.requests() if view.retry_of == first.id)
        assert (again.number, again.number < later.number) == (first.number, True)
        assert client.request(first.id).rule == "node-lost"
    else:
        assert client.request(first.id).status == "released", "it ran again in its own group"
    assert client.request(holder.id).status == "allocated"


def test_a_decorated_task_that_shall_fail_with_its_node_says_so(
    client: raypool.Client, nodes: Nodes, tmp_path: Any
) -> None:
    @raypool.remote(component="team", resources=FOUR, on_node_loss="fail")
    def work(marker: Any) -> None:
        marker.touch()
        time.sleep(300)

    ref = work.remote(tmp_path / "began")
    until((tmp_path / "began").exists, "it has begun")
    view = client.requests(status="allocated")[0]
    nodes.kill(view.nodes[0])
    with pytest.raises(NodeLost, match=f"node {view.nodes[0]} lost"):
        ray.get(ref, timeout=90)
    assert not [one for one in client.requests() if one.retry_of == view.id]


def test_a_worker_that_crashes_alone_is_no_dead_node(client: raypool.Client, nodes: Nodes) -> None:
    @raypool.remote(component="team", resources=FOUR)
    def crash() -> None:
        os._exit(3)

    began = time.monotonic()
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(crash.remote(), timeout=60)
    assert time.monotonic() - began < 20, "its error comes without waiting for what did not happen"


def test_a_group_that_is_removed_by_hand_ends_its_request(client: raypool.Client, nodes: Nodes) -> None:
    view = client.wait(client.submit(component="team", workers=2, resources=FOUR).id, 60)
    waits = client.submit(component="team", workers=2, resources=FOUR)
    assert view.group_id is not None
    ray.util.remove_placement_group(group_handle(view.group_id))
    until(lambda: client.request(view.id).status == "cancelled", "the broker notices", 5)
    assert client.request(view.id).reason == (
        "its placement group is gone: somebody outside of the broker removed it"
    )
    assert client.wait(waits.id, 30).status == "allocated"


def test_gpus_that_others_use_are_told_by_node_and_amount(client: raypool.Client, nodes: Nodes) -> None:
    client.wait(client.submit(component="team", resources=ResourceSettings(gpu_count=3)).id, 60)
    other = Member.options(num_gpus=2).remote()
    where = ray.get(other.node.remote(), timeout=60)
    outside = until(lambda: client.status().outside, "the broker sees it", 10)
    assert outside == [{"node": where, "resource": "GPU", "amount": 2.0, "pools": ["gpus"]}]
    assert any(f"uses 2 GPU on node {where}, which pool 'gpus' counts on" in one for one in client.status().warnings)
    ray.kill(other)
    until(lambda: not client.status().outside, "and that it is over", 10)
