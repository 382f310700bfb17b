"""What a real cluster's endpoint says, as Prometheus would read it."""

from __future__ import annotations

import itertools
import urllib.request
from typing import Any

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray.cluster_utils import Cluster

import raypool
from raypool import ResourceSettings
from raypool.monitoring import metrics as m
from raypool.monitoring.metrics import Metric

from .conftest import until

HEAD = {
    "_system_config": {"raylet_report_resources_period_milliseconds": 10, "metrics_report_interval_ms": 1000},
}
NODES = [{"num_cpus": 4, "num_gpus": 8}]

NUMBERS = itertools.count()
"""What was counted of a pool stays counted when it is gone: each test has pools of its own."""


class Endpoint:
    """The metrics endpoint of the node that the broker runs on."""

    def __init__(self) -> None:
        head = next(one for one in ray.nodes() if "node:__internal_head__" in one["Resources"])
        self.url = f"http://{head['NodeManagerAddress']}:{head['MetricsExportPort']}/metrics"

    def samples(self) -> list[Any]:
        """Those of raypool, as they are now; those of brokers that another test had, too."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return [one for family in families for one in family.samples if one.name.startswith("ray_raypool_")]

    def value(self, metric: Metric, *labels: str, ending: str = "", **more: str) -> float | None:
        """None if there is no such sample."""
        wanted = {**dict(zip(metric.labels, labels, strict=True)), **more}
        for one in self.samples():
            if one.name == metric.exported + ending and wanted.items() <= one.labels.items():
                return float(one.value)
        return None

    def shows(self, value: float, metric: Metric, *labels: str, ending: str = "", **more: str) -> None:
        """Waits for it."""
        seen: list[float | None] = []

        def is_there() -> bool:
            seen.append(self.value(metric, *labels, ending=ending, **more))
            return seen[-1] == value

        try:
            until(is_there, "")
        except AssertionError:
            there = {
                (one.name, *one.labels.values()): one.value for one in self.samples() if "_bucket" not in one.name
            }
            raise AssertionError(f"{metric.name}{ending} {labels} is {seen[-1]}, not {value}: {there}") from None


@pytest.fixture
def endpoint(cluster: Cluster) -> Endpoint:
    return Endpoint()


def test_the_endpoint_shows_grants_a_wait_an_eviction_and_the_broker(
    client: raypool.Client, endpoint: Endpoint
) -> None:
    def is_granted(id: str) -> None:
        until(lambda: client.request(id).status == "allocated", f"{id} is granted")

    gpus, big = f"gpus{next(NUMBERS)}", f"big{next(NUMBERS)}"
    client.apply(
        {
            "pools": [
                {"name": gpus, "capacity": {"gpu": 8}, "grace_seconds": 1.0},
                {"name": big, "capacity": {"gpu": 9}},
            ],
            "policies": [
                {"pool": gpus, "component": "red", "priority": 1, "reserved": {"gpu": 2}},
                {"pool": gpus, "component": "blue", "priority": 5, "reserved": {"gpu": 4}},
            ],
        }
    )
    first = client.submit(component="red", resources=ResourceSettings(gpu_count=3), lifetime="detached")
    second = client.submit(component="red", resources=ResourceSettings(gpu_count=4), lifetime="detached")
    for one in (first, second):
        is_granted(one.id)

    for metric, value in ((m.CAPACITY, 8), (m.RESERVED, 6), (m.FREE, 1), (m.PHANTOM, 0), (m.SHORTFALL, 9)):
        endpoint.shows(value, metric, gpus, "gpu")
    endpoint.shows(9, m.SHORTFALL, big, "gpu")
    endpoint.shows(7, m.USED, gpus, "gpu", "red")
    endpoint.shows(5, m.BORROWED, gpus, "gpu", "red")
    endpoint.shows(2, m.WAIT, gpus, ending="_count")
    endpoint.shows(2, m.GRANT_LATENCY, gpus, ending="_count")
    endpoint.shows(2, m.GRANT_LATENCY, gpus, ending="_bucket", le="10.0")
    endpoint.shows(1, m.GRACE, gpus)
    endpoint.shows(0, m.DEGRADED)
    endpoint.shows(0, m.JOURNAL_PENDING)
    endpoint.shows(0, m.JOURNAL_LAG)

    third = client.submit(component="blue", resources=ResourceSettings(gpu_count=4), lifetime="detached")
    is_granted(third.id)
    assert client.request(second.id).status == "preempted"
    endpoint.shows(1, m.EVICTIONS, gpus, "reclaim")
    ended = client.request(second.id)
    assert ended.granted_at is not None and ended.ended_at is not None
    lost = until(lambda: endpoint.value(m.LOST_GPU_SECONDS, gpus, "reclaim"), "what it cost is counted")
    assert lost == pytest.approx(4 * (ended.ended_at - ended.granted_at), rel=0.01)
    endpoint.shows(3, m.WAIT, gpus, ending="_count")
    waits = [view.granted_at - view.submitted_at for view in client.requests(pool=gpus) if view.granted_at]
    for most in m.WAITS[:6]:
        endpoint.shows(sum(wait <= most for wait in waits), m.WAIT, gpus, ending="_bucket", le=str(most))

    client.submit(component="red", resources=ResourceSettings(gpu_count=2), lifetime="detached")
    endpoint.shows(1, m.WAITING, gpus, "red")
    until(lambda: (endpoint.value(m.HEAD_AGE, gpus) or 0) > 1, "the head of the queue grows old")
    endpoint.shows(0, m.RESERVE_WAIT, gpus)

    lags = endpoint.value(m.LOOP_LAG, ending="_count")
    assert lags is not None and lags >= 5
    until(lambda: (endpoint.value(m.LOOP_LAG, ending="_count") or 0) > lags, "the loop is measured all the time")
    names = {one.name for one in endpoint.samples()}
    missing = {one.name for one in m.METRICS if not {one.exported, f"{one.exported}_count"} & names}
    assert missing <= {m.PLACEMENT_FAILURES.name}, "all have a value but what did not happen"

    client.cancel(third.id, "room for the next")


def test_a_pool_that_is_gone_shows_as_0_and_labels_are_few(client: raypool.Client, endpoint: Endpoint) -> None:
    brief = f"brief{next(NUMBERS)}"
    client.apply({"pools": [{"name": brief, "capacity": {"gpu": 2}}]})
    endpoint.shows(2, m.CAPACITY, brief, "gpu")
    client.delete_pool(brief)
    endpoint.shows(0, m.CAPACITY, brief, "gpu")
    rays = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId", "le"}
    ours = {label for one in endpoint.samples() for label in one.labels if not label.startswith("otel_")} - rays
    assert ours <= {label for metric in m.METRICS for label in metric.labels}
