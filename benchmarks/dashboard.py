"""What the dashboard costs with 50 pools and 5,000 requests: first paint, bytes, and processor time.

    python -m benchmarks.dashboard

The real decision core behind a client without Ray, and a real browser: it needs Debian's `chromium` and
`chromium-driver`. Here the dashboard's process does the core's work, too; "one look" is the part that the broker
does on a cluster.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from raypool.server.pages import page_of, view_page
from raypool.server.views import view_broker
from tests.browser import browser, look
from tests.dashboard.crowd import crowd

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 20.0


@contextlib.contextmanager
def dashboard() -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "tests.dashboard.crowd"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


def share(process: psutil.Process, seconds: float = SECONDS) -> float:
    """Of a core, in percent."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


def loads(chrome: Any, url: str, rounds: int = 7) -> dict[str, float]:
    """Medians: ms until something is painted, until the pools and the line are there, and bytes over the network."""
    painted, whole, sizes = [], [], []
    for _ in range(rounds):
        chrome.execute_cdp_cmd("Network.clearBrowserCache", {})
        chrome.get_log("performance")
        chrome.get(url)
        ready = "return document.querySelectorAll('#waiting-rows tbody tr').length ? performance.now() : 0"
        while not (at := chrome.execute_script(ready)):
            time.sleep(0.005)
        paint = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime || 0"
        while not (first := chrome.execute_script(paint)):
            time.sleep(0.01)
        whole.append(at)
        painted.append(first)
        time.sleep(1)
        told = [json.loads(one["message"])["message"] for one in chrome.get_log("performance")]
        sizes.append(
            sum(
                one["params"].get("encodedDataLength", 0) or 0
                for one in told
                if one["method"] in ("Network.dataReceived", "Network.responseReceived")
            )
        )
    return {
        "first paint, ms": statistics.median(painted),
        "pools and line there, ms": statistics.median(whole),
        "loaded in the first second, KB": statistics.median(sizes) / 1000,
    }


def asked_of_the_broker() -> float:
    """Milliseconds of processor time of one look at the crowd, all pools."""
    broker = crowd().broker
    best = 1e9
    for _ in range(5):
        for pool in broker.pools.values():
            pool.explanation = None  # as if all had changed
        began = time.process_time()
        view_broker(broker).as_dict()
        for kind in ("waiting", "running"):
            view_page(broker, *page_of(broker, kind, None, None, 0, 50), 0, {}).as_dict()
        best = min(best, time.process_time() - began)
    return best * 1e3


def main() -> None:
    found = {"one look, ms of the broker": asked_of_the_broker()}
    with dashboard() as (url, process):
        found["nobody looks, % of a core"] = share(process)
        with browser() as chrome:
            chrome.execute_cdp_cmd("Network.enable", {})
            look(chrome)
            found |= loads(chrome, url)
            time.sleep(5)
            found["one looks, % of a core"] = share(process)
        found["its memory, MB"] = process.memory_info().rss / 1e6
    for name, value in found.items():
        print(f"{name:40} {value:8.1f}")


if __name__ == "__main__":
    main()
