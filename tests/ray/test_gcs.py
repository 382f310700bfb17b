"""Ray's GCS goes away and comes back, with its state on disk: questions are answered, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator

import pytest
import ray
from ray._private import state
from ray.cluster_utils import Cluster

import raypool
from raypool import ResourceSettings

from .conftest import SMALL_STORE, until

POOLS = {
    "pools": [{"name": "shared", "capacity": {"gpu": 8}}],
    "policies": [{"pool": "shared", "component": "red", "priority": 1}],
}
FOUR = ResourceSettings(gpu_count=4)


@pytest.fixture(scope="module")
def durable() -> Iterator[Cluster]:
    """A cluster whose GCS keeps its state in the embedded RocksDB."""
    directory = tempfile.mkdtemp(prefix="rp", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_gcs_storage", "rocksdb")
        patch.setenv("RAY_gcs_storage_path", f"{directory}/gcs")
        patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "120")
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2, "object_store_memory": SMALL_STORE, "include_dashboard": False, "no_monitor": True,
                "_system_config": {"raylet_report_resources_period_milliseconds": 10},
            },
        )  # fmt: skip
        try:
            cluster.add_node(num_cpus=8, num_gpus=8, object_store_memory=SMALL_STORE)
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(directory, ignore_errors=True)


def test_questions_are_answered_and_what_was_acknowledged_stands(durable: Cluster) -> None:
    client = raypool.start(POOLS)
    lease = raypool.lease(FOUR, component="red").acquire()
    waits = client.submit(component="red", resources=FOUR, workers=2)
    durable.head_node.kill_gcs_server(check_alive=False)
    try:
        told = until(
            lambda: [one for one in client.status().warnings if "GCS has not answered" in one],
            "status answers, and says so",
        )
        assert "nothing is placed or removed meanwhile" in told[0]
        assert client.request(waits.id).reason and client.pool("shared").active == 1
        asked = threading.Thread(target=lambda: client.submit(id="asked", component="red", resources=FOUR))
        asked.start()
        asked.join(2)
        assert asked.is_alive(), "nothing is acknowledged that could be lost"
    finally:
        durable.head_node.start_gcs_server()
    asked.join(60)
    assert not asked.is_alive()
    until(lambda: not any("GCS" in one for one in client.status().warnings), "it says no more")
    assert client.request("asked").status == "pending"
    assert client.request(lease.request_id).status == "allocated"

    # And now both at once: the journal comes back with the GCS.
    pid = int(state.actors(client._line.actor._actor_id.hex())["Pid"])
    durable.head_node.kill_gcs_server(check_alive=False)
    os.kill(pid, signal.SIGKILL)
    durable.head_node.start_gcs_server()
    until(lambda: client.request(waits.id).number == waits.number, "the broker is there again", 60)
    assert [client.request(id).status for id in (lease.request_id, waits.id, "asked")] == [
        "allocated", "pending", "pending",
    ]  # fmt: skip
    lease.release()
    assert client.wait(waits.id, 60).status == "allocated"
    client.release(waits.id)
    assert client.wait("asked", 60).status == "allocated"
    raypool.stop()
