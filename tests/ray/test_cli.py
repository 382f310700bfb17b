"""The installed command against a real cluster: a head and a node with four GPUs that are only said to be there."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

POOLS = """
pools:
  - {name: gpus, capacity: {gpu: 4}}
policies:
  - {pool: gpus, component: red, priority: 10, reserved: {gpu: 2}}
"""

MAIN = "import sys; sys.argv[0] = 'raypool'; from raypool.cli.main import main; main()"

ASK = """
import time
from raypool.client.client import connect
client = connect()
first = client.submit(id="first-request", component="red", resources={"gpu_count": 3}, lifetime="detached")
client.submit(id="second-request", component="red", resources={"gpu_count": 2}, lifetime="detached")
client.submit(id="third-request", component="red", resources={"gpu_count": 1}, lifetime="detached", pool="gpus")
client.wait("first-request", 120)
"""


class Command:
    """Runs `raypool` as a process of its own. `address` is the cluster's."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, *words: str, code: int = 0, input: str = "", address: str | None = None) -> str:
        done = self.run([MAIN, *words], input, address or self.address)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        if code:
            assert done.stderr.count("Error: ") == 1, done.stderr
        else:
            assert done.stderr == ""
        return done.stdout if code == 0 else done.stderr

    def run(self, code_and_words: list[str], input: str, address: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", *code_and_words],
            input=input,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=os.environ | {"RAY_ADDRESS": address},
        )

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))


@pytest.fixture(scope="module")
def raypool() -> Iterator[Command]:
    folder = tempfile.mkdtemp(prefix="rp", dir="/tmp")
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = folder
    from ray.cluster_utils import Cluster

    memory = 80 * 1024 * 1024
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": memory, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=2, num_gpus=4, object_store_memory=memory)
        yield Command(cluster.address)
    finally:
        cluster.shutdown()
        if before is None:
            del os.environ["RAY_TMPDIR"]
        else:
            os.environ["RAY_TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_an_address_where_no_cluster_answers_exits_3(raypool: Command) -> None:
    nowhere = f"127.0.0.1:{_closed_port()}"
    assert f"no Ray cluster at '{nowhere}'" in raypool("status", code=3, address=nowhere)
    assert f"no Ray cluster at '{nowhere}'" in raypool("request", "list", "--address", nowhere, code=3)


def test_the_life_of_a_broker_from_the_command_line(raypool: Command, tmp_path: Path) -> None:
    assert "no broker runs" in raypool("status", code=3)
    assert "no broker runs" in raypool("stop", code=3)
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    assert "pools: gpus" in raypool("start", "-f", str(file))
    assert "pools: gpus" in raypool("start")

    _pools(raypool)
    _policies(raypool)
    _dry_run(raypool, file)
    _requests(raypool)
    _measure(raypool)

    assert "stopped" in raypool("stop")
    assert "no broker runs" in raypool("status", code=3)


def _pools(raypool: Command) -> None:
    raypool("pool", "create", "licences", "-c", "{seats: 3}", "-d", "for the solver")
    assert "raypool pool update" in raypool("pool", "create", "licences", "-c", "{seats: 4}", code=1)
    raypool("pool", "update", "licences", "-c", "{seats: 5}", "--grace-seconds", "2")
    assert "there is no pool" in raypool("pool", "update", "nope", "-c", "{seats: 5}", code=1)
    found = raypool.json("pool", "describe", "licences")
    assert (found["capacity"], found["grace_seconds"]) == ({"seats": 5}, 2.0)
    assert found["description"] == "for the solver"
    assert [one["name"] for one in raypool.json("pool", "list")] == ["gpus", "licences"]
    assert re.search(r"^licences +5 seats", raypool("pool", "list"), re.M)


def _policies(raypool: Command) -> None:
    raypool("pool", "attach-policy", "licences", "red", "-p", "3", "-r", "{seats: 1}")
    assert "reserved 9 seats" in raypool(
        "pool", "attach-policy", "licences", "red", "-p", "3", "-r", "{seats: 9}", code=1
    )
    assert len(raypool.json("pool", "list-policies")) == 2
    raypool("pool", "detach-policy", "licences", "red")
    raypool("pool", "delete", "licences", "-y")
    assert len(raypool.json("pool", "list-policies")) == 1


def _dry_run(raypool: Command, file: Path) -> None:
    assert "0 added, 0 changed, 2 unchanged" in raypool("apply", "-f", str(file), "--dry-run")
    refused = "policies: [{pool: gpus, component: red, priority: 1, reserved: {gpu: 5}}]"
    assert "above the pool's capacity 4" in raypool("apply", "-f", "-", "--dry-run", code=1, input=refused)
    changed = "unmanaged: allow\npools: [{name: gpus, capacity: {gpu: 4}, queueing: backfill}]"
    assert "2 changed" in raypool("apply", "-f", "-", "--dry-run", input=changed)
    assert raypool.json("status")["unmanaged"] == "reject"
    raypool("apply", "-f", "-", input=changed)
    assert raypool.json("status")["unmanaged"] == "allow"
    raypool("apply", "-f", "-", input="unmanaged: reject\npools: [{name: gpus, capacity: {gpu: 4}}]")
    found = raypool.json("status")
    assert (found["unmanaged"], found["pools"][0]["queueing"]) == ("reject", "strict")


def _requests(raypool: Command) -> None:
    asked = raypool.run([ASK], "", raypool.address)
    assert asked.returncode == 0, asked.stderr
    assert re.search(r"^first-request +allocated +red +gpus", raypool("request", "list"), re.M)
    assert [one["id"] for one in raypool.json("pool", "requests", "gpus", "--view", "active")] == ["first-request"]
    assert raypool("request", "why", "second").startswith("'second-request' waits: ")
    described = raypool.json("request", "describe", "first")
    assert described["nodes"]
    assert raypool("request", "describe", "first").startswith("id")
    assert "give more of it" not in raypool("request", "why", "f")
    assert "there is no request 'x'" in raypool("request", "describe", "x", code=1)
    assert "in use" in raypool("pool", "delete", "gpus", "-y", code=1)
    raypool("request", "delete", "first", code=1)
    assert "request 'second-request' is cancelled: " in raypool("request", "cancel", "second", "--reason", "not now")
    raypool("request", "cancel", "first")
    raypool("request", "delete", "second")
    _wait_until(lambda: raypool.json("request", "describe", "third")["status"] == "allocated")
    assert {one["id"] for one in raypool.json("request", "list")} == {"first-request", "third-request"}
    found = raypool.json("status")
    assert found["pools"][0]["used"] == {"gpu": 1}


def _wait_until(so: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "it did not come true in time"


def _measure(raypool: Command) -> None:
    """Printed, not judged: how long depends on what else runs here."""
    taken = []
    for _ in range(5):
        began = time.monotonic()
        raypool("status")
        taken.append(time.monotonic() - began)
    taken.sort()
    print(f"raypool status: {taken[0]:.2f} s at best, {taken[2]:.2f} s in the middle, load {os.getloadavg()[0]:.1f}")
