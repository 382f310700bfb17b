"""What the dashboard costs with 50 pools and 5,000 requests: first paint, first content, bytes, and processor time.

    python -m benchmarks.dashboard

The real decision core behind a client without Ray, and a real browser: it needs Debian's `chromium` and
`chromium-driver`. Here the dashboard's process does the core's work, too; "one look" is the part that the broker
does on a cluster. The spin is one step of a fixed loop of plain Python: between two machines compare the ratios.
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
ROUNDS = 7

WATCH = """
window.seen = {};
new MutationObserver(() => {
  for (const [name, what] of [["pools", "#cards .card"], ["line", "#waiting-rows tbody tr"]]) {
    if (window.seen[name] || !document.querySelector(what)) continue;
    window.seen[name] = performance.now();
    requestAnimationFrame(() => setTimeout(() => { window.seen[`${name} painted`] = performance.now(); }));
  }
}).observe(document, {childList: true, subtree: true});
"""
"""In the page, before its own script: when the first of each is there, and when it has been painted."""


@contextlib.contextmanager
def dashboard() -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "tests.dashboard.crowd"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


def spin() -> float:
    """Microseconds of a thousand steps of plain Python, the best of some."""
    best = 1e9
    for _ in range(20):
        began = time.process_time()
        total = 0
        for i in range(100_000):
            total += i
        best = min(best, time.process_time() - began)
    return best * 1e6 / 100


def share(process: psutil.Process, seconds: float = SECONDS) -> float:
    """Of a core, in percent."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


def loads(chrome: Any, url: str) -> dict[str, float]:
    """ms until something, the pools and the line are painted, the median and the best, which other work on the
    machine disturbs least; and bytes over the network."""
    chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    times: dict[str, list[float]] = {"first paint": [], "pools painted": [], "line painted": []}
    sizes, first_sizes = [], []
    for _ in range(ROUNDS):
        chrome.get("about:blank")
        chrome.execute_cdp_cmd("Network.clearBrowserCache", {})
        time.sleep(2)  # nobody looks meanwhile, and nothing that was asked for before is new
        chrome.get_log("performance")
        chrome.get(url)
        time.sleep(3)
        seen = chrome.execute_script("return window.seen")
        paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        times["first paint"].append(chrome.execute_script(paint))
        for name in ("pools painted", "line painted"):
            times[name].append(seen[name])
        told = [json.loads(one["message"])["message"] for one in chrome.get_log("performance")]
        received = [one for one in told if one["method"] in ("Network.dataReceived", "Network.responseReceived")]
        sizes.append(sum(one["params"].get("encodedDataLength", 0) or 0 for one in received))
        first_sizes.append(sum(one["params"].get("dataLength", 0) for one in received))
    return {
        **{f"{name}, ms": statistics.median(each) for name, each in times.items()},
        **{f"{name}, ms, the best": min(each) for name, each in times.items()},
        "in the first 3 s over the network, KB": statistics.median(sizes) / 1000,
        "the same, unpacked, KB": statistics.median(first_sizes) / 1000,
    }


def asked_of_the_broker() -> dict[str, float]:
    """Milliseconds of processor time of one look at the crowd: all pools, and two pages."""
    broker = crowd().broker
    pools, pages = 1e9, 1e9
    for _ in range(5):
        for pool in broker.pools.values():
            pool.explanation = None  # as if all had changed
        began = time.process_time()
        view_broker(broker).as_dict()
        between = time.process_time()
        for kind in ("waiting", "running"):
            view_page(broker, *page_of(broker, kind, None, None, 0, 50), 0, {}).as_dict()
        pools, pages = min(pools, between - began), min(pages, time.process_time() - between)
    return {"one look at the pools, ms of the broker": pools * 1e3, "one look at two pages, ms": pages * 1e3}


def main() -> None:
    found = {"spin, us": spin(), **asked_of_the_broker()}
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
        print(f"{name:45} {value:8.1f}")


if __name__ == "__main__":
    main()
