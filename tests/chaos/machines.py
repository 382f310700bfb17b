"""The cluster that a chaos run lives in: its nodes, its GCS, its processes; how each is killed and comes back.

It lives in a private, short temp dir, keeps its GCS's state in RocksDB there, and is reached by an explicit
address. A process is only ever killed when it is a child of one of this cluster's own raylets: other Rays on the
machine are neither seen nor disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

SMALL_STORE = 80 * 1024 * 1024
REPOSITORY = Path(__file__).parents[2]

SETTINGS = {
    "gcs_storage": "rocksdb",
    "gcs_rpc_server_reconnect_timeout_s": "120",
    # A dead raylet is noticed within a second or two, and a busy one on a slow machine is not taken for dead.
    "health_check_initial_delay_ms": "0",
    "health_check_period_ms": "300",
    "health_check_timeout_ms": "2000",
    "health_check_failure_threshold": "5",
    "DEDUP_LOGS_SKIP_REGEX": ".",  # what Ray prints of each process that dies is no news here
}

NURSE_SECONDS = 1.0
"""How often it is looked whether the GCS has ended by itself: Ray has bugs (docs/explanation/ray-facts.md)."""

SHAKY = 2
"""Nodes that may be killed."""

BROKER = "ray::BrokerActor"
IN_LEASES = ("ray::work", "ray::nested")
DISPATCHER = ("ray::Dispatcher",)
"""How Ray titles its processes: the broker, tasks of the drivers inside their leases, what runs these tasks."""


def prepare(directory: Path) -> None:
    """Sets what Ray reads from the environment. It must be called before ray is imported."""
    store = directory / "gcs"
    store.mkdir()
    os.environ["RAY_TMPDIR"] = str(directory)
    for name, value in {**SETTINGS, "gcs_storage_path": str(store)}.items():
        os.environ[f"RAY_{name}"] = value
    paths = (str(REPOSITORY), str(REPOSITORY / "src"))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for drivers and, through the raylets, for workers


class Machines:
    """A head without GPUs, a node that is never killed, and two that are; 4 fake GPUs each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "object_store_memory": SMALL_STORE,
                "include_dashboard": False,
                "no_monitor": True,
                "_system_config": {"raylet_report_resources_period_milliseconds": 10},
            },
        )
        self.lost: set[str] = set()  # the ids of nodes that were killed
        self.killed: dict[int, float] = {}  # when a worker was killed, alone or with its node, by pid
        self.gcs_crashes = 0  # how often it has ended by itself
        self._gcs = threading.Lock()
        self._stopping = threading.Event()
        self._add("steady")
        self._shaky = [self._add("shaky") for _ in range(SHAKY)]
        self.cluster.wait_for_nodes()
        threading.Thread(target=self._nurse, name="nurse of the GCS", daemon=True).start()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def _add(self, kind: str) -> Any:
        return self.cluster.add_node(
            wait=False, num_cpus=4, num_gpus=4, object_store_memory=SMALL_STORE, labels={"chaos": kind}
        )

    def stop(self) -> None:
        self._stopping.set()
        self._gcs.acquire(timeout=30)
        self.cluster.shutdown()

    # --- processes ----------------------------------------------------------------------------

    def broker_process(self) -> psutil.Process | None:
        """The broker's process, also while it starts; None between two of them."""
        return next(iter(_children(self.cluster.head_node, (BROKER,))), None)

    def client_processes(self, titles: tuple[str, ...]) -> list[psutil.Process]:
        """Processes that Ray runs for the drivers, by pid."""
        nodes = [self.cluster.head_node, *self.cluster.worker_nodes]
        found = [one for node in nodes for one in _children(node, titles)]
        return sorted(found, key=lambda process: process.pid)

    # --- what is killed and comes back --------------------------------------------------------

    def kill_gcs(self) -> None:
        self._gcs.acquire()  # until it is started: whoever looks after it must not think that it has crashed
        self.cluster.head_node.kill_gcs_server(check_alive=False)

    def start_gcs(self) -> None:
        self.cluster.head_node.start_gcs_server()
        self._gcs.release()

    def _nurse(self) -> None:
        """Starts the GCS again when it has ended by itself, as whoever runs a cluster with a durable GCS does."""
        while not self._stopping.wait(NURSE_SECONDS):
            with self._gcs:
                servers = self.cluster.head_node.all_processes.get("gcs_server", ())
                if all(server.process.poll() is None for server in servers) or self._stopping.is_set():
                    continue
                self.gcs_crashes += 1
                self.cluster.head_node.kill_gcs_server(check_alive=False)
                self.cluster.head_node.start_gcs_server()

    def kill_raylet(self, rng: random.Random) -> str:
        """Kills one of the two nodes with all its processes. Returns the node's id."""
        node = self._shaky.pop(rng.randrange(len(self._shaky)))
        self.lost.add(node.node_id)
        workers = _children(node, ("ray::",))
        self.cluster.remove_node(node, allow_graceful=False)
        for worker in workers:  # a machine that dies leaves no process behind
            self.kill_worker(worker)
        return str(node.node_id)

    def kill_worker(self, worker: psutil.Process) -> bool:
        """False if it was gone already."""
        self.killed[worker.pid] = time.time()
        return kill(worker)

    @property
    def missing(self) -> int:
        return SHAKY - len(self._shaky)

    def add_raylets(self) -> None:
        """New nodes take the places of those that were killed."""
        for _ in range(self.missing):
            self._shaky.append(self._add("shaky"))


def kill(process: psutil.Process) -> bool:
    """SIGKILL; False if it was gone already (psutil knows a pid that was given to another)."""
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return False
    return True


def _children(node: Any, titles: tuple[str, ...]) -> list[psutil.Process]:
    """The children of a node's raylet whose titles begin so."""
    raylets = node.all_processes.get("raylet", ())
    found = []
    for raylet in raylets:
        found += _of_living(lambda pid=raylet.process.pid: psutil.Process(pid).children()) or []  # type: ignore[misc]
    return [one for one in found if (_of_living(one.cmdline) or [""])[0].startswith(titles)]


def _of_living(ask: Callable[[], Any]) -> Any:
    """The answer, or None if the process that is asked about is gone."""
    try:
        return ask()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
