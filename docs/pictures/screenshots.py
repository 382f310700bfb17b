"""Makes the pictures of the dashboard that the README shows, from a real run.

    python docs/pictures/screenshots.py

A Ray cluster of its own on this machine with twelve fake GPUs, the broker, three teams that borrow, wait and preempt,
`raypool dashboard`, and headless Chromium (Debian's `chromium` and `chromium-driver`). Takes about five minutes, so
that the timeline has something to show.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"

POOLS = {
    "pools": [
        {"name": "gpus", "capacity": {"gpu": 12}, "grace_seconds": 45.0, "description": "the GPU nodes"},
        {"name": "cpus", "capacity": {"mcpu": 4000}, "queueing": "backfill", "description": "preparing data"},
    ],
    "policies": [
        {"pool": "gpus", "component": "production", "priority": 100, "reserved": {"gpu": 6}},
        {"pool": "gpus", "component": "team-ml", "priority": 50, "reserved": {"gpu": 4}, "limit": {"gpu": 8}},
        {"pool": "gpus", "component": "sandbox", "priority": 10, "reserved": {"gpu": 2}},
        {"pool": "cpus", "component": "team-ml", "priority": 50, "reserved": {"mcpu": 2000}},
        {"pool": "cpus", "component": "sandbox", "priority": 10},
    ],
}


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    from local_cluster import local_cluster

    with local_cluster() as cluster:
        import raypool

        client = raypool.start(POOLS, address=cluster.address)
        command = [sys.executable, "-m", "raypool", "dashboard", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dashboard:
            try:
                assert dashboard.stdout is not None
                url = dashboard.stdout.readline().split()[1]
                play(client)
                take(url)
            finally:
                dashboard.terminate()


def play(client: Any) -> None:
    """Three teams at work: sandbox borrows, production takes back what is its own, twice; the second time is on."""

    def ask(id: str, component: str, gpus: int = 0, cpus: float = 0, workers: int = 1, description: str = "") -> None:
        resources = {"gpu_count": gpus, "cpu_count": cpus} if cpus else {"gpu_count": gpus}
        asked = {key: value for key, value in resources.items() if value}
        client.submit(
            {
                "id": id,
                "component": component,
                "resources": asked,
                "workers": workers,
                "description": description,
            }
        )

    def until(id: str, status: str) -> None:
        wait_for(lambda: client.request(id).status == status, f"'{id}' is {status}")

    ask("tokenize-3", "team-ml", cpus=2, description="tokens for the next run")
    ask("plots", "sandbox", cpus=1)
    ask("sweep-16", "sandbox", gpus=1, workers=3, description="seeds")
    until("sweep-16", "allocated")
    time.sleep(50)
    client.release("sweep-16")
    ask("sweep-17", "sandbox", gpus=1, workers=4, description="learning rates")
    until("sweep-17", "allocated")
    time.sleep(50)
    ask("finetune-8b", "team-ml", gpus=2, workers=2, description="8B, second epoch")
    ask("sweep-18", "sandbox", gpus=1, workers=4, description="batch sizes")
    until("sweep-18", "allocated")
    time.sleep(60)
    ask("serve-eu", "production", gpus=3, description="answers for the EU")
    until("sweep-18", "preempting")
    time.sleep(6)
    client.release("sweep-18")
    until("serve-eu", "allocated")
    ask("notebook", "sandbox", gpus=1, description="looking at examples")
    until("notebook", "allocated")
    time.sleep(60)
    ask("rollout-us", "production", gpus=3, description="the new model for the US")
    until("sweep-17", "preempting")
    ask("eval-8b", "team-ml", gpus=4, description="evaluation of the second epoch")
    ask("sweep-19", "sandbox", gpus=2, description="warm-up")
    time.sleep(3)


def take(url: str) -> None:
    from tests.browser import PHONE, WIDE, browser, complaints, look, picture

    with browser() as chrome:
        look(chrome)
        chrome.get(url)
        there = "return document.querySelectorAll('#first li').length && document.querySelector('#timeline svg') && 1"
        wait_for(lambda: chrome.execute_script(there), "the page is complete")
        for dark in (False, True):
            theme = "dark" if dark else "light"
            look(chrome, WIDE, dark)
            time.sleep(0.5)  # for the eye of the camera: the layout follows the size
            picture(chrome, PICTURES / f"dashboard-{theme}.png")
            look(chrome, PHONE, dark)
            time.sleep(0.5)
            picture(chrome, PICTURES / f"phone-{theme}.png")
        look(chrome, WIDE)
        chrome.execute_script("document.getElementById('timeline').scrollIntoView()")
        time.sleep(1.5)
        picture(chrome, PICTURES / "timeline.png")
        chrome.get(f"{url}/requests/sweep-17")
        wait_for(lambda: chrome.execute_script("return document.querySelectorAll('.story li').length"), "the story")
        picture(chrome, PICTURES / "request.png")
        assert not complaints(chrome)


def wait_for(true: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
