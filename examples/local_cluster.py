"""A Ray cluster on this machine, with fake GPUs and a broker, to try the examples on.

    python examples/local_cluster.py                # stays until Ctrl-C; prints what to set in a second terminal
    python examples/local_cluster.py --no-broker    # the same, for who starts the broker himself

The head has the dashboard, which takes jobs; three nodes have four GPUs each, as far as Ray can tell.
It keeps to a temporary directory of its own, answers only those who know its token, and touches no
other Ray on the machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POOLS = Path(__file__).with_name("pools.yaml")


@dataclass(frozen=True)
class LocalCluster:
    """address: for ray.init() and RAY_ADDRESS. dashboard: where `ray job submit` goes. token: a file."""

    address: str
    dashboard: str
    token: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs in its environment to find this cluster and no other."""
        return {
            "RAY_ADDRESS": self.address,
            "RAY_API_SERVER_ADDRESS": self.dashboard,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
        }


@contextlib.contextmanager
def local_cluster(nodes: int = 3, gpus_per_node: int = 4, cpus_per_node: int = 2) -> Iterator[LocalCluster]:
    """Starts the cluster, without a broker, and ends it. Ray must not be imported before it is entered."""
    if "ray" in sys.modules:
        raise RuntimeError("enter local_cluster() before Ray is imported: it reads its environment only then")
    directory = tempfile.mkdtemp(prefix="rp", dir="/tmp")  # short: the paths of Ray's sockets may have 107 bytes
    try:
        token = _set_environment(directory)
        with _running(nodes, gpus_per_node, cpus_per_node) as cluster:
            yield LocalCluster(cluster.address, f"http://{cluster.webui_url}", token)
    finally:
        _remove(directory)


def _set_environment(directory: str) -> Path:
    """For this process and all that it starts. Returns the file with the cluster's token."""
    token = Path(directory, "token")
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ.update(
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # so `-- python job.py` is this Python
        RAY_TMPDIR=directory,
        TMPDIR=directory,  # so that nothing of Ray's is left elsewhere
        RAY_AUTH_MODE="token",  # Ray listens on the network, and who can talk to it can run anything
        RAY_AUTH_TOKEN_PATH=str(token),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # silences a warning about a coming change
    )
    os.environ.pop("RAY_ADDRESS", None)
    return token


@contextlib.contextmanager
def _running(nodes: int, gpus_per_node: int, cpus_per_node: int) -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    began = time.time()
    cluster = Cluster()
    small = {"object_store_memory": 80 * 1024 * 1024}
    dashboard_port, agent_port = _free_ports(2)
    try:
        cluster.add_node(
            num_cpus=0,  # work goes to the nodes; drivers, the broker and the dashboard need none
            include_dashboard=True,
            dashboard_port=dashboard_port,
            dashboard_agent_listen_port=agent_port,
            no_monitor=True,  # nothing to scale here
            _system_config={"raylet_report_resources_period_milliseconds": 10},  # why: see cluster.yaml
            **small,
        )
        for _ in range(nodes):
            cluster.add_node(wait=False, num_cpus=cpus_per_node, num_gpus=gpus_per_node, **small)
        cluster.wait_for_nodes()
        exit_on_sigterm()
        yield cluster
    finally:
        with _undisturbed(), _nothing_left_since(began):
            ray.shutdown()
            cluster.shutdown()


@contextlib.contextmanager
def _nothing_left_since(began: float) -> Iterator[None]:
    """Afterwards all that this process has started since then has ended, down to the drivers of jobs and the
    agents of a node that Ctrl-C caught while it was starting."""
    import psutil  # Ray brings it along

    started = [one for one in psutil.Process().children(recursive=True) if one.create_time() >= began]
    yield
    for process in psutil.wait_procs(started, timeout=3)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _remove(directory: str) -> None:
    """Ray's agents may write for a moment after their raylet is gone."""
    for _ in range(50):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half of the cluster behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_on_sigterm() -> None:
    """Makes SIGTERM clean up as Ctrl-C does. Ray puts a handler of its own in the place of this one whenever
    it starts a node or connects a driver: call it again after that."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def main() -> None:
    with_broker = sys.argv[1:] != ["--no-broker"]
    if with_broker and sys.argv[1:]:
        sys.exit(f"usage: {sys.argv[0]} [--no-broker]")
    with contextlib.suppress(KeyboardInterrupt), local_cluster() as cluster:
        broker = "no broker"
        if with_broker:
            import raypool

            raypool.start(POOLS, address=cluster.address)
            broker = "a broker with examples/pools.yaml"
        exit_on_sigterm()
        # A shell that starts it in the background (or a CI) has it ignore Ctrl-C; whoever sends it means it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"\nThree nodes with four fake GPUs each, and {broker}. In a second terminal:\n")
        print("export " + " ".join(f"{name}={value}" for name, value in cluster.environment.items()))
        print("python examples/two_teams.py\n" if with_broker else "raypool start -f pools.yaml\n")
        print(f"Dashboard: {cluster.dashboard}   End: Ctrl-C", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
