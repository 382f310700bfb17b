"""Real Ray clusters on this machine: several nodes with fake GPUs, shared by the tests of a module.

Every cluster lives in a private, short temp dir (unix sockets have short paths) and is reached by an
explicit address, so that other Rays on the machine are neither seen nor disturbed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="rp", dir="/tmp")

import ray
from ray.cluster_utils import Cluster
from selenium.webdriver import Chrome

import raypool

from ..browser import browser, complaints, look

if TYPE_CHECKING:
    from .page import Page

SRC = Path(__file__).parents[2] / "src"
SMALL_STORE = 80 * 1024 * 1024


LONGEST = ("manual", "owners", "examples", "hand_over", "dashboard", "restart", "cli", "readme", "failures", "tasks")
"""Modules that take minutes. They come first: where several modules run at a time, none is left over at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_sessionfinish() -> None:
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)


def until(true: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Waits until `true()` is, and returns it; fails with the sentence `what`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = true()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with browser() as found:
        yield found


@pytest.fixture
def page(chrome: Chrome) -> Page:
    """Of the wide size, light."""
    from .page import Page

    chrome.get("about:blank")  # the page of the test before asks no more
    look(chrome)
    complaints(chrome)
    return Page(chrome)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A head without GPUs and three nodes of 4 fake GPUs; a module's NODES says otherwise."""
    nodes = getattr(
        request.module, "NODES", [{"num_cpus": 4, "num_gpus": 4, "labels": {"rack": str(i)}} for i in range(3)]
    )
    head = getattr(request.module, "HEAD", {})
    if head.get("include_dashboard"):
        dashboard, agent = free_ports(2)  # job submission goes through the head's agent
        head = {**head, "dashboard_port": dashboard, "dashboard_agent_listen_port": agent}
    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "object_store_memory": SMALL_STORE,
            "include_dashboard": False,
            "no_monitor": True,
            "_system_config": {"raylet_report_resources_period_milliseconds": 10},
            **head,
        },
    )
    try:
        for node in nodes:
            made.add_node(wait=False, object_store_memory=SMALL_STORE, **node)
        made.wait_for_nodes()
        ray.init(address=made.address, log_to_driver=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[raypool.Client]:
    """A broker without pools; afterwards everything that a test left has ended, and no group is left."""
    client = raypool.start()
    yield client
    for view in client.requests(ended=False):
        client.cancel(view.id, "the test is over")
    until(lambda: not any(pool.active for pool in client.pools()), "all that was charged is given back")
    for pool in client.pools():
        client.delete_pool(pool.name)
    until(lambda: no_groups_left(), "no placement group is left on any node")


def no_groups_left() -> bool:
    from ray._private import state

    rooms = state.available_resources_per_node().values()
    return not any("_group_" in resource for room in rooms for resource in room)


class Driver:
    """Another Ray driver: a program in a process of its own. `line()` waits for its next line."""

    def __init__(self, address: str, program: str, env: dict[str, str] | None = None) -> None:
        preamble = "import os, sys, time, ray, raypool\nfrom raypool import ResourceSettings\n"
        connect = "ray.init(address=os.environ['RAY_ADDRESS'], log_to_driver=False)\n"
        code = preamble + connect + textwrap.dedent(program)
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(SRC), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            _, errors = self.process.communicate(timeout=60)
            raise AssertionError(f"the driver ended with {self.process.returncode}: {errors[-3000:]}")
        return line

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def finish(self, seconds: float = 60.0) -> int:
        self.process.communicate(timeout=seconds)
        return self.process.returncode


@pytest.fixture
def drivers(cluster: Cluster) -> Iterator[Callable[..., Driver]]:
    """Starts drivers; those that still run at the end are killed."""
    started: list[Driver] = []

    def start(program: str, env: dict[str, str] | None = None) -> Driver:
        started.append(Driver(cluster.address, program, env))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            driver.kill()
        driver.process.communicate()
