"""The benchmarks on a cluster run, and yield their figures; these are not judged here."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from benchmarks.__main__ import main
from benchmarks.ray_cluster import RUNNING


@pytest.fixture
def ended() -> Iterator[None]:
    """No cluster is left by a benchmark, also by one that failed."""
    yield
    RUNNING.end()
    assert not ray.is_initialized()
    assert logging.getLogger("raypool").level == logging.NOTSET, "other tests read what is logged"


def test_every_benchmark_on_a_cluster_runs_and_yields_figures(tmp_path: Path, ended: None) -> None:
    file = tmp_path / "figures.json"
    main(["--only", "ray-tuned", "--small", "--rounds", "1", "--idle-seconds", "1", "--json", str(file)])
    rows = {one["name"]: one for one in json.loads(file.read_text())["rows"]}
    for name in (
        "hand-over to another component, p50",
        "hand-over to the same component, p50",
        "eviction without grace to usable, p50",
        "lease where there is room, p50",
        "decorated task, new group, p50",
        "decorated task, in line, each",
        "grants of 1 bundle, 8 clients",
        "status with 50 waiting clients, p99",
        "50 clients woken after a release, the last",
        "submit_many of 500",
        "idle broker for 1 s: processor",
    ):
        one = rows[f"tuned: {name}"]
        assert one["value"] >= 0 and one["bar"] and one["met"] is not None, one
