"""The dashboard's page in a real browser, over the decision core without a cluster: what it does when things change
under its eyes, when its server goes and comes, and how it looks with long names and many pools."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from aiohttp import web
from selenium.webdriver import Keys

from raypool.dashboard import feed, server
from raypool.dashboard.guards import Guard
from raypool.dashboard.server import Dashboard
from raypool.view import EventView, UsageView

from ..browser import PHONE, WIDE, complaints, look
from ..dashboard.crowd import PagedClient, crowd, three_teams
from .conftest import until
from .page import Page


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(feed, "SHARE", 1000.0)


@contextlib.contextmanager
def served(broker: PagedClient, port: int = 0, token: str = "", actions: bool = False) -> Iterator[str]:
    """Its address. A server on a thread of its own, as long as this lasts."""
    loop, there, over, found = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), []

    async def serve() -> None:
        dashboard = Dashboard(lambda: broker, Guard("127.0.0.1", token, actions))  # type: ignore[arg-type,return-value]
        runner = web.AppRunner(dashboard.application(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        found.append(runner.addresses[0][1])
        there.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert there.wait(30)
        yield f"http://127.0.0.1:{found[0]}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


# --- what changes under its eyes --------------------------------------------------------------


@pytest.mark.parametrize(
    "within", ["#cards .card a", "#first a", "#waiting-rows tbody tr:nth-child(2) a", "#waiting-rows #why-train"]
)
def test_the_keyboard_stays_where_it_is_when_what_it_is_at_is_drawn_anew(page: Page, within: str) -> None:
    broker = three_teams()
    with served(broker) as url:
        page.open(url, "#first li")
        page(f"document.querySelector('{within}').focus()")
        where = page.focused
        assert where not in ("", "main")
        page(f"window.was = document.querySelector('{within}')")
        broker.submit(id="urgent", component="production", resources={"gpu_count": 2})  # before train and play
        page.until_it_says("urgent", "#waiting-rows")
        until(lambda: "4 waiting" in page.text("#cards"), "the card is drawn anew")
        assert page.focused == where
        if "cards" in within:
            assert not page("window.was.isConnected"), "it is another by now"


def test_what_was_shut_or_opened_stays_so(page: Page) -> None:
    broker = three_teams()
    at = time.time() - 60
    taken = {"request": "rollout", "component": "production"}
    broker.happened = [
        EventView(7, 0, at, "evicted", "sweep", 3, "sandbox", "team", "gpus", taken, "reclaim", "because")
    ]
    with served(broker) as url:
        page.open(url)
        page.until_it_says("1 eviction", "#timeline")
        page.click("#timeline summary")
        until(lambda: not page("document.querySelector('#timeline details').open"), "it is shut")
        page("window.was = document.querySelector('#timeline details')")
        page("document.querySelector('#timeline-span').dispatchEvent(new Event('change'))")
        until(lambda: not page("window.was.isConnected"), "the timeline is drawn anew")
        assert not page("document.querySelector('#timeline details').open")


def test_a_component_has_one_colour_everywhere_when_there_are_others_by_now(page: Page) -> None:
    broker = crowd(pools=3, requests=60)
    with served(broker) as url:
        page.open(url)
        # Only one pool changes, and its new component comes before all others.
        broker.apply({"policies": [{"pool": "pool-01", "component": "a-first", "priority": 1}]})
        page.until_it_says("a-first", "#cards")
        colours = page("""
            (() => {
              const found = {};
              for (const one of document.querySelectorAll(".named")) {
                const colour = [...one.firstChild.classList].find((name) => /^c[0-9]$/.test(name));
                (found[one.textContent] ||= new Set()).add(colour);
              }
              return Object.entries(found).filter(([, colours]) => colours.size > 1).map(([name]) => name);
            })()
        """)
        assert colours == []


def test_the_line_that_is_looked_at_gives_the_places(page: Page) -> None:
    broker = PagedClient()
    broker.apply(
        {
            "pools": [{"name": "a", "capacity": {"gpu": 1}}, {"name": "b", "capacity": {"gpu": 1}}],
            "policies": [
                {"pool": "a", "component": "both", "priority": 2},
                {"pool": "b", "component": "both", "priority": 1},
                {"pool": "b", "component": "own", "priority": 5},
            ],
        }
    )
    for id, component in (("x", "both"), ("y", "own"), ("first-of-a", "both"), ("first-of-b", "own")):
        broker.submit(id=id, component=component, resources={"gpu_count": 1})
    places = "[...document.querySelectorAll('#waiting-rows td:first-child')].map((e) => e.innerText)"
    with served(broker) as url:
        page.open(url)
        assert page(places) == ["1 in a", "1 in b"]
        page.open(f"{url}/?pool=b")
        assert page(places) == ["1 in b", "2 in b"]
        page.until_it_says("First in line: first-of-b", "#cards")


def test_the_timeline_has_a_gap_where_nothing_is_known(page: Page) -> None:
    broker = three_teams()
    began = time.time() // 60 * 60 - 600
    lines = {
        "capacity": [None, 8, 8, None, None, 8, 8, 8],
        "components": {"production": [None, 2, 2, None, None, 2, 2, 2], "sandbox": [None, 6, 6, None, None, 6, 8, 6]},
        "borrowed": {"sandbox": [None, 6, 6, None, None, 6, 8, 6]},
    }
    broker.used = UsageView([began + 60 * i for i in range(8)], 60, {"gpus": {"gpu": lines}})
    with served(broker) as url:
        page.open(url, "#timeline .legend")
        assert page("document.querySelectorAll('#timeline polyline').length") == 2
        assert page("document.querySelectorAll('#timeline .area').length") == 4
        tops = page("[...document.querySelectorAll('#timeline polygon')].map((e) => e.getBBox().y)")
        assert min(tops) >= 0, "what was used beyond the capacity is within the picture"
        assert "The broker has figures since" in page.text("#timeline")


# --- when its server is not there -------------------------------------------------------------


def test_it_says_that_its_own_process_is_gone_and_goes_on_when_it_is_back(page: Page) -> None:
    broker = three_teams()
    with served(broker) as url:
        page.open(url)
        page("window.here = 'still'")
    page.until_it_says(
        "The dashboard's own process does not answer. Trying again; what is shown is as it was at", "#alarm"
    )
    assert "disconnected" in page.text("#link") and "rollout" in page.text("#waiting-rows")
    with served(broker, port_of(url)):
        until(lambda: page("document.querySelector('#alarm').hidden"), "it is back", 60)
        assert page("window.here") == "still" and "live" in page.text("#link")


@pytest.mark.parametrize(("path", "token"), [("/", "secret"), ("/requests/sweep", "secret-too")])
def test_who_has_to_sign_in_again_can_type_in_peace(page: Page, path: str, token: str) -> None:
    broker = three_teams()
    with served(broker, token="one") as url:
        page.open(f"{url}{path}#token=one", "main h2")
        assert "token" not in page("location.href")
    with served(broker, port_of(url), token=token):
        page.until_it_says("asks for its token", "h1")
        page.fill("#token", token[:3])
        asked = "performance.getEntriesByType('resource').length"
        before, began = page(asked), time.monotonic()
        # Twice as long as the page waits before it asks again.
        until(lambda: time.monotonic() > began + 6, "time passes")
        assert page(asked) == before and page("document.querySelector('#token').value") == token[:3]
        page.press(token[3:], Keys.ENTER)
        page.until_it_says("rollout", "main")


def test_one_page_too_many_says_so_and_goes_on_when_another_is_closed(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(three_teams()) as url:
        monkeypatch.setattr(server, "MOST_VIEWERS", 0)
        page.chrome.get(url)
        page.until_it_says("0 pages are open already: close one, and this one goes on by itself.", "#alarm")
        monkeypatch.setattr(server, "MOST_VIEWERS", 1)
        page.until_it_says("rollout", "#waiting-rows")
        assert page("document.querySelector('#alarm').hidden")


def test_a_request_that_is_no_more_is_said_so_and_its_story_stays(page: Page) -> None:
    broker = three_teams()
    with served(broker) as url:
        page.open(f"{url}/requests/train", ".story li")
        del broker.broker.requests["train"]
        page.until_it_says("There is no request 'train'", "#alarm")
        assert "What is shown is as it was at" in page.text("#alarm") and page.text(".story li")


def test_a_server_that_stumbles_is_said_so_in_a_sentence(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = three_teams()
    monkeypatch.setattr(broker, "why", lambda id: 1 / 0)
    with served(broker) as url:
        page.chrome.get(f"{url}/requests/train")
        page.until_it_says(
            "The dashboard stumbled (500): what it printed where it was started says why.", "main .error"
        )


# --- how it looks -----------------------------------------------------------------------------


def long_names() -> PagedClient:
    """Two keys, names as long as they may reasonably be, a request in two lines, a reserve and a limit in use."""
    client = PagedClient()
    team = "research-and-development-of-large-models"
    client.apply(
        {
            "pools": [
                {
                    "name": "accelerators-of-the-second-hall",
                    "capacity": {"gpu": 16, "mcpu": 512_000, "memory_mb": 2_000_000, "licences-of-the-simulator": 4},
                    "queueing": "backfill",
                    "description": "bought in the spring, shared by all teams",
                    "grace_seconds": 120.0,
                },
                {"name": "b", "capacity": {"gpu": 2}},
            ],
            "policies": [
                {"pool": "accelerators-of-the-second-hall", "component": team, "priority": 9, "reserved": {"gpu": 8}},
                {
                    "pool": "accelerators-of-the-second-hall",
                    "component": "x" * 40,
                    "priority": 1,
                    "limit": {"gpu": 12},
                },
                {
                    "pool": "accelerators-of-the-second-hall",
                    "component": "etl",
                    "component_type": "orchestrator",
                    "priority": 1,
                },
                {"pool": "b", "component": "x" * 40, "priority": 1},
            ],
        }
    )
    client.submit(id="a" * 60, component="x" * 40, resources={"gpu_count": 9}, description="w" * 120)
    client.submit(
        id="etl", component="etl", component_type="orchestrator", resources={"gpu_count": 4, "cpu_count": 2.5}
    )
    client.place_all()
    client.submit(id="b" * 60, component=team, resources={"gpu_count": 8}, workers=1)
    client.submit(id="c-1", component="x" * 40, resources={"gpu_count": 2})
    client.submit(id="c-2", component="x" * 40, resources={"gpu_count": 2})
    return client


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, (768, 1024), PHONE, (320, 640)], ids=["wide", "tablet", "phone", "narrow"])
@pytest.mark.parametrize("made", [long_names, crowd], ids=["long names", "many"])
def test_it_fits_and_can_be_read_with_long_names_and_with_many_pools(
    page: Page, made: type[PagedClient], size: tuple[int, int], dark: bool
) -> None:
    look(page.chrome, size, dark)
    broker = made()
    first = broker.page("waiting").requests[0].id
    with served(broker, actions=True) as url:
        page.open(url, "#first li")
        assert page.flaws == []
        page.open(f"{url}/requests/{first}", ".figures")
        assert page.flaws == [] and first in page.text("h1")
        assert complaints(page.chrome) == []
