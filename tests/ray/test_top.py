"""`raypool top` in a terminal and `raypool watch`, on a real cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

import raypool
from raypool.client.broker import NAME, NAMESPACE
from raypool.client.listening import find_again

from ..terminal import Terminal
from .conftest import SRC

NODES = [{"num_cpus": 2, "num_gpus": 4}]
RAYPOOL = "import sys; from raypool.cli.main import main; sys.argv[0] = 'raypool'; main()"
POOLS = {
    "pools": [{"name": "gpus", "capacity": {"gpu": 4}, "grace_seconds": 12}],
    "policies": [
        {"pool": "gpus", "component": "owner", "priority": 9, "reserved": {"gpu": 4}},
        {"pool": "gpus", "component": "guest", "priority": 1},
    ],
}


def ask(client: raypool.Client, id: str, component: str, gpus: int) -> None:
    client.submit(id=id, component=component, resources={"gpu_count": gpus}, lifetime="detached")


@pytest.fixture(autouse=True)
def pools(client: raypool.Client) -> None:
    """A pool, and nothing that an earlier test has asked for under the same id."""
    for view in client.requests():
        client.forget(view.id)
    client.apply(POOLS)


@pytest.fixture
def top(cluster: Cluster, client: raypool.Client, pools: None) -> Iterator[Terminal]:
    """On a pool that `guest` has whole; `owner` does not ask yet."""
    ask(client, "runs", "guest", 4)
    assert client.wait("runs", 60).status == "allocated"
    terminal = Terminal(RAYPOOL, "top", "--interval", "0.5", RAY_ADDRESS=cluster.address)
    yield terminal
    terminal.close()


def test_a_person_sees_who_holds_the_gpus_who_waits_and_the_notice_counting_down(
    client: raypool.Client, top: Terminal
) -> None:
    top.until(lambda: "runs" in top.frame, "it is there")
    assert re.search(r"^gpu +\[a+\] 4 of 4 used$", top.frame, re.M), top.frame
    node = client.request("runs").nodes[0]
    assert re.search(rf"^runs +guest +4 gpu +4 gpu .* {node[:8]}$", top.frame, re.M), top.frame
    ask(client, "waits", "guest", 2)
    top.until(lambda: re.search(r"^ 1 waits +guest +2 gpu", top.frame, re.M), "the first in line")
    assert "over the limit of 'guest' in pool 'gpus': asks for 2 gpu, uses 4 of 4" in top.frame
    ask(client, "comes", "owner", 2)
    top.until(lambda: re.search(r"^ 1 comes +owner +2 gpu", top.frame, re.M), "the owner goes before")
    top.until(lambda: "~" * 50 in top.frame, "what leaves is drawn")
    seen: set[str] = set()

    def counted_down() -> bool:
        seen.update(re.findall(r"! leaves in (\d+) s", top.frame))
        return len(seen) >= 3

    top.until(counted_down, "the notice counts down")
    top.until(lambda: re.search(r"^comes +owner +2 gpu", top.frame, re.M), "the owner runs")
    top.press("q")
    assert top.ended() == 0
    assert top.is_restored()


def test_a_broker_that_dies_or_is_stopped_is_found_again_and_ctrl_c_ends_it(
    client: raypool.Client, top: Terminal
) -> None:
    top.until(lambda: "runs" in top.frame, "it is there")
    ask(client, "first", "guest", 1)
    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE), no_restart=False)
    ask(client, "second", "guest", 1)
    top.until(lambda: re.search(r"^ 2 second ", top.frame, re.M), "the next life of the broker is found")
    raypool.stop()
    top.until(lambda: "! no broker runs on the Ray cluster" in " ".join(top.frame.split()), "it is away")
    assert "runs" in top.frame, "what was seen last stays"
    raypool.start(POOLS)
    assert find_again(client._line)  # for the other tests, which use this client
    top.until(lambda: "nobody waits" in top.frame and "!" not in top.frame, "the new one is found")
    top.press("\x03")
    assert top.ended() == 0
    assert top.is_restored()


def watch(address: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RAYPOOL, "watch", *words],
        env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str], code: int) -> str:
    out, errors = process.communicate(timeout=90)
    assert process.returncode == code, (out, errors)
    assert errors == "", errors
    return out


def test_a_request_is_followed_through_wait_grant_notice_and_preemption(
    cluster: Cluster, client: raypool.Client
) -> None:
    ask(client, "before", "guest", 4)
    client.wait("before", 60)
    ask(client, "followed", "guest", 3)
    text, data = watch(cluster.address, "foll"), watch(cluster.address, "followed", "-o", "json")
    followers = [text, data]
    try:
        rows = [_row(data)]
        first = _line(text)
        assert rows[0]["status"] == "pending" and "over the limit of 'guest'" in first, first
        client.release("before")
        client.wait("followed", 60)
        rows.append(_row(data, "allocated"))
        ask(client, "comes", "owner", 4)
        lines = first + told(text, 4)
        rows += [json.loads(line) for line in told(data, 4).splitlines()]
    finally:
        for one in followers:
            if one.poll() is None:
                one.kill()
                one.communicate()
    flat = " ".join(lines.split())
    order = [
        "pending",
        "allocated in pool 'gpus': 3 gpu, of which 3 gpu borrowed",
        "preempting, leaves in 1",
        "preempted:",
    ]
    places = [flat.find(one) for one in order]
    assert -1 not in places and places == sorted(places), lines
    assert re.search(r"^\d\d:\d\d:\d\d  leaves in (10|[6-9]) s$", lines, re.M), lines
    statuses = [row["status"] for row in rows]
    assert statuses == sorted(statuses, key=["pending", "allocated", "preempting", "preempted"].index)
    assert {"pending", "allocated", "preempting", "preempted"} == set(statuses)


def test_one_that_is_given_back_ends_with_0_and_one_that_is_cancelled_with_5(
    cluster: Cluster, client: raypool.Client
) -> None:
    for id in ("kept", "dropped"):
        ask(client, id, "guest", 1)
        client.wait(id, 60)
    followers = {id: watch(cluster.address, id) for id in ("kept", "dropped")}
    heard = {id: _line(process) for id, process in followers.items()}
    assert all("allocated in pool 'gpus'" in line for line in heard.values()), heard
    client.release("kept")
    client.cancel("dropped", "not today")
    assert "released" in told(followers["kept"], 0)
    assert "cancelled: not today" in told(followers["dropped"], 5)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line


def _row(process: subprocess.Popen[str], status: str | None = None) -> dict[str, Any]:
    while True:
        row: dict[str, Any] = json.loads(_line(process))
        if status in (None, row["status"]):
            return row
