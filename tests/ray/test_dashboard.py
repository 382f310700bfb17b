"""The dashboard of a real broker in a real browser: what a person sees, reaches with the keyboard, and does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from selenium.webdriver import Keys

import raypool

from ..browser import PHONE, WIDE, complaints, look
from .conftest import SRC, until
from .page import Page
from .test_restart import pid_of

MARKUP = "<img src=x onerror=document.title='broken'><b>bold</b>"

POOLS = {
    "pools": [{"name": "gpus", "capacity": {"gpu": 8}, "grace_seconds": 300.0}],
    "policies": [
        {"pool": "gpus", "component": "production", "priority": 100, "reserved": {"gpu": 4}},
        {"pool": "gpus", "component": "team-ml", "priority": 50, "reserved": {"gpu": 2}, "limit": {"gpu": 6}},
        {"pool": "gpus", "component": "<i>sandbox", "priority": 10},
    ],
}


@contextlib.contextmanager
def dashboard(cluster: Cluster, *options: str, token: str = "") -> Iterator[str]:
    """Its address, as it prints it."""
    environment = {
        **os.environ,
        "RAY_ADDRESS": cluster.address,
        "PYTHONPATH": str(SRC),
        "RAYPOOL_DASHBOARD_TOKEN": token,
    }
    command = [sys.executable, "-m", "raypool", "dashboard", "--port", "0", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


@pytest.fixture
def busy(client: raypool.Client) -> Iterator[raypool.Client]:
    """Sandbox has to leave for production; team-ml waits behind."""
    client.apply(POOLS)
    client.submit(id="serve", component="production", resources={"gpu_count": 2})
    client.submit(
        id="sweep",
        component="<i>sandbox",
        workers=3,
        resources={"gpu_count": 2},
        description=MARKUP,
    )
    client.wait("sweep", 60)
    client.wait("serve", 60)
    client.submit(id="rollout", component="production", resources={"gpu_count": 2})
    client.submit(id="train", component="team-ml", resources={"gpu_count": 4})
    until(lambda: client.request("sweep").status == "preempting", "sandbox has to leave")
    yield client
    for view in client.requests(ended=False):
        client.cancel(view.id)
    until(lambda: not any(pool.active for pool in client.pools()), "all that was charged is given back")
    for view in client.requests():  # the next test asks with the same ids
        client.forget(view.id)


def test_the_first_screen_says_who_holds_what_who_waits_and_why(cluster: Cluster, busy: Any, page: Page) -> None:
    with dashboard(cluster) as url:
        page.open(url)
        # Told with what would start it, which is looked for at first.
        page.until_it_says("sweep of <i>sandbox holds 6 GPU and leaves in", "#first")
        assert "rollout" in page.text("#first")
        pools = page.text("#pools")
        assert "8 of 8 in use" in pools and "6 leaving" in pools and "0 free" in pools
        ends = page("[...document.querySelectorAll('.bar, #first')].map((e) => e.getBoundingClientRect().bottom)")
        assert max(ends) < WIDE[1], "the bars, and why the first one waits, are in view without scrolling"
        label = page("document.querySelector('.bar').getAttribute('aria-label')")
        assert "production: 2 within its reserve" in label and "<i>sandbox: 6 leaving" in label
        rows = page("[...document.querySelectorAll('#waiting-rows tbody tr')].map((e) => e.dataset.key)")
        assert rows == ["waiting rollout", "waiting train"]
        assert page("document.querySelectorAll('#running-rows [title]').length") > 1, "with the nodes"
        left = page("document.querySelector('#running-rows [data-until]').innerText")
        assert left.startswith(("4:", "5:00"))
        until(
            lambda: page("document.querySelector('#running-rows [data-until]').innerText") != left,
            "the notice counts down",
        )
        page.until_it_says("1 eviction", "#timeline")
        # Names and descriptions are text, whatever they say.
        assert MARKUP in page.text("#running-rows") and "<i>sandbox" in page.text("#pools")
        assert (
            page("document.title") == "raypool"
            and page("document.querySelectorAll('main img, main i i').length") == 0
        )
        assert complaints(page.chrome) == []


def test_it_is_live_and_says_when_the_broker_is_away(cluster: Cluster, busy: Any, page: Page) -> None:
    with dashboard(cluster) as url:
        page.open(url)
        page("window.here = 'still'")
        busy.cancel("train")
        until(lambda: page("document.querySelectorAll('#waiting-rows tbody tr').length") == 1, "the row is gone")
        busy.submit(id="late", component="team-ml", resources={"gpu_count": 1})
        page.until_it_says("late", "#waiting-rows")
        pid = pid_of(busy)
        os.kill(pid, signal.SIGSTOP)
        try:
            page.until_it_says("The broker has not answered for", "#alarm")
            assert "rollout" in page.text("#waiting-rows"), "what was known stays"
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: page("document.querySelector('#alarm').hidden"), "it is back")
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid_of(busy) not in (0, pid), "Ray has started the broker again")
        busy.cancel("late")
        page.until_it_does_not_say("late", "#waiting-rows")
        assert page("window.here") == "still", "without the page being loaded again"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_it_fits_and_can_be_read_at_any_width_in_light_and_dark(
    cluster: Cluster, busy: Any, page: Page, size: tuple[int, int], dark: bool
) -> None:
    look(page.chrome, size, dark)
    with dashboard(cluster, "--allow-actions") as url:
        for path, there in (("/", "#first li"), ("/requests/sweep", ".story li"), ("/requests/train", ".figures")):
            page.open(url + path, there)
            assert page.flaws == [], path
        assert ("rgb(17" in page("getComputedStyle(document.body).backgroundColor")) == dark


def test_everything_is_reached_with_the_keyboard(cluster: Cluster, busy: Any, page: Page) -> None:
    with dashboard(cluster, "--allow-actions") as url:
        page.open(url)
        page.until_it_says("Nothing has ended", "#ended")
        reached = []
        for _ in range(60):
            page.press(Keys.TAB)
            reached.append(page.focused)
        for what in (
            "#main",
            "pool",
            "component",
            "/requests/rollout",
            "why-rollout",
            "cancel-rollout",
            "timeline-key",
        ):
            assert what in reached, f"{what} is not reached: {reached}"
        assert any(one.startswith("edit-gpus-gpu-team-ml") for one in reached)
        page("document.getElementById('why-train').focus()")
        outline = page("getComputedStyle(document.getElementById('why-train')).outlineStyle")
        assert outline != "none"
        page.press(Keys.ENTER)
        page.until_it_says("What would start it, as of", "#waiting-rows")
        assert page.focused == "why-train", "it is drawn anew, and the keyboard is where it was"
        page("document.querySelector('#waiting-rows a').focus()")
        page.press(Keys.ENTER)
        page.until_it_says("Story")
        assert page("location.pathname") == "/requests/rollout"


def test_the_page_of_a_request_tells_its_story(cluster: Cluster, busy: Any, page: Page) -> None:
    with dashboard(cluster) as url:
        page.open(f"{url}/requests/sweep", ".story li")
        story = page.text(".story")
        assert "submitted: asks for 6 GPU in 3 bundles" in story and "granted in pool gpus" in story
        assert "evicted for production rollout" in story and "left" in story
        busy.release("sweep")
        page.until_it_says("after it ran for", ".story")
        page.open(f"{url}/requests/rollout", ".story li")
        page.until_it_says("It may be taken by")
        page.open(f"{url}/requests/nobody", "main .error")
        assert "There is no request 'nobody'" in page.text("main")
        assert "Cancel" not in page.text()


def test_requests_are_cancelled_and_policies_changed_after_a_preview_where_that_is_allowed(
    cluster: Cluster, busy: Any, page: Page
) -> None:
    with dashboard(cluster, "--allow-actions", token="secret") as url:
        page.open(url, "main form")
        page.fill("#token", "wrong")
        page.press(Keys.ENTER)
        page.until_it_says("not the token")
        page.fill("#token", "secret")
        page.press(Keys.ENTER)
        page.until_it_says("rollout", "#waiting-rows")
        page.click("#cancel-train")
        page.fill("#reason", "not today")
        page.press(Keys.ENTER)
        until(lambda: busy.request("train").status == "cancelled", "it is cancelled")
        assert "not today" in busy.request("train").reason
        page.until_it_says("not today", "#ended")
        page.click("[id='edit-gpus-gpu-production']")
        until(lambda: page.text("#preview"), "the form is there")
        field = "fieldset input"
        page.fill(field, "5")
        assert page("document.querySelector('#apply').disabled"), "nothing is applied that was not looked at"
        page.click("#preview")
        page.until_it_says("What would follow", "#dialog")
        page.fill(field, "3")
        assert page("document.querySelector('#apply').disabled"), "what was changed since is looked at again"
        page.click("#preview")
        page.until_it_says("What would follow", "#dialog")
        page.click("#apply")
        until(lambda: busy.policies("gpus", "production")[0].reserved == {"gpu": 3}, "the policy is changed")
        assert busy.history()[-1].by == "dashboard"
        until(lambda: not page("document.querySelector('dialog').open"), "the form is closed")
