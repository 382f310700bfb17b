"""Events, usage and the report of a real cluster: two teams, one preemption, from the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raypool
from raypool import ResourceSettings

from .conftest import SRC, Cluster, until
from .test_cli import MAIN
from .test_restart import kill_broker

NODES = [{"num_cpus": 4, "num_gpus": 4}]

POOLS = {
    "pools": [{"name": "gpus", "capacity": {"gpu": 4}}],
    "policies": [
        {"pool": "gpus", "component": "red", "priority": 1},
        {"pool": "gpus", "component": "blue", "priority": 5, "reserved": {"gpu": 2}},
    ],
}


def command(address: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), (words, done)
    return done.stdout


@pytest.fixture
def follower(cluster: Cluster, client: raypool.Client) -> Iterator[subprocess.Popen[str]]:
    """`raypool events --follow`, which has begun to follow: it has told of a change that was made since."""
    client.apply({"pools": [{"name": "gpus", "capacity": {"gpu": 3}}]}, by="nobody")
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", MAIN, "events", "--follow", "--since", "1h", "--pool", "gpus", "-o", "json"],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def followed_until(process: subprocess.Popen[str], kind: str, request: str | None) -> list[dict[str, Any]]:
    assert process.stdout is not None
    found: list[dict[str, Any]] = []
    for line in process.stdout:
        found.append(json.loads(line))
        if (found[-1]["kind"], found[-1]["request"]) == (kind, request):
            return found
    raise AssertionError(found)


def test_a_preemption_is_told_followed_and_reported(
    cluster: Cluster, client: raypool.Client, follower: subprocess.Popen[str]
) -> None:
    followed_until(follower, "pool-changed", None)
    client.apply(POOLS, by="ann", note="two teams")
    red = raypool.lease(ResourceSettings(gpu_count=4), component="red").acquire()
    blue = raypool.lease(ResourceSettings(gpu_count=2), component="blue").acquire()
    told = followed_until(follower, "ready", blue.request_id)

    (evicted,) = [one for one in told if one["kind"] == "evicted"]
    assert (evicted["request"], evicted["component"], evicted["rule"]) == (red.request_id, "red", "reclaim")
    assert evicted["by"] == {"request": blue.request_id, "component": "blue"}
    assert evicted["figures"]["before"]["gpu"]["used"] == evicted["figures"]["after"]["gpu"]["leaving"] == 4
    story = [one["kind"] for one in told if one["request"] == red.request_id]
    assert story == ["granted", "ready", "evicted", "preempted", "freed"]

    text = command(cluster.address, "events", "--since", "1h")
    assert "config-applied" in text and "by name ann, version 2" in text and "two teams" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    lines = command(cluster.address, "events", "--component", "blue", "--kind", "evicted", "-o", "json").splitlines()
    assert [json.loads(line)["request"] for line in lines] == [red.request_id]

    (file,) = log_folder(cluster).glob("raypool_events.jsonl")
    until(lambda: blue.request_id in file.read_text(), "the records are in Ray's log folder")
    before = client.events(pool="gpus")
    kill_broker(client)
    assert client.events(pool="gpus")[: len(before)] == before
    blue.release()
    until(lambda: client.events(kind="freed", component="blue"), "it is given back")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    places = [(row["event"], row["index"]) for row in rows if row["index"] is not None]
    assert places == sorted(set(places))
    assert [row["kind"] for row in rows].count("started") == 2

    found = csv.DictReader(
        io.StringIO(command(cluster.address, "report", "--since", "1h", "--key", "gpu", "-o", "csv"))
    )
    rows_of = {row["component"]: row for row in found}
    assert float(rows_of["red"]["lost"]) > 0 == float(rows_of["blue"]["lost"])
    assert float(rows_of["red"]["borrowed"]) == pytest.approx(float(rows_of["red"]["used"]))
    assert (rows_of["red"]["waits"], rows_of["blue"]["waits"]) == ("1", "1")
    assert float(rows_of["blue"]["lent"]) > 0
    usage = client.usage(3600.0, 60.0).pools["gpus"]["gpu"]
    assert any(usage["components"]["red"]) and any(usage["borrowed"]["red"])


def log_folder(cluster: Cluster) -> Path:
    return Path(cluster.head_node.get_logs_dir_path())
