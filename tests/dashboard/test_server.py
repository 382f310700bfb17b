"""The dashboard's server over the real decision core: what it answers, pushes, refuses and changes. No Ray."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from raypool.dashboard import feed, server, serving
from raypool.dashboard.feed import Feed, Look, Rest
from raypool.dashboard.guards import COOKIE, CSRF, Guard
from raypool.dashboard.server import Dashboard
from raypool.errors import BrokerUnavailable, Refused
from raypool.view import EventView, UsageView

from .crowd import MARKUP, PagedClient, crowd, three_teams


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other at once: a test waits for what must come, and not for a pause."""
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(feed, "SHARE", 1000.0)


@asynccontextmanager
async def served(client: PagedClient | None = None, **guard):
    """(a browser, the guard, the broker's client)."""
    broker = client or three_teams()
    made = Guard("127.0.0.1", **guard)
    dashboard = Dashboard(lambda: broker, made)
    async with TestClient(TestServer(dashboard.application(), host="127.0.0.1")) as browser:
        yield browser, made, broker


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


async def json_of(browser, path: str, status: int = 200, **more):
    answer = await browser.get(path, **more)
    assert answer.status == status, await answer.text()
    return await answer.json()


class Live:
    """A live page: `parts` as the page has them, after each message."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.parts: dict[str, object] = {}
        self.link: dict[str, object] = {}
        self.messages = 0
        self.bytes = 0

    async def hear(self) -> set[str]:
        """The next message: the names of what has changed."""
        while True:
            line = await self.answer.content.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                break
        self.bytes += len(line)
        self.messages += 1
        news = json.loads(line[6:])
        for name in news["gone"]:
            del self.parts[name]
        self.parts.update(news["set"])
        self.link = news["link"]
        return {*news["gone"], *news["set"]}

    async def until(self, true: Callable[[], object]) -> None:
        while not true():
            await self.hear()


# --- what is seen -----------------------------------------------------------------------------


def test_the_state_says_who_holds_what_who_waits_in_order_and_why_the_first_one_does():
    async def story():
        async with served() as (browser, _, _):
            told = (await json_of(browser, "/api/state"))["set"]
            assert told["broker"]["pools"] == ["gpus"]
            assert told["pool:gpus"]["leaving"] == {"gpu": 6}
            assert told["waiting"] == {"ids": ["rollout", "train", "play"], "in_all": 3, "first": 0}
            assert told["running"]["ids"] == ["sweep", "serve"]
            assert "waits for 'sweep' to leave" in told["request:rollout"]["reason"]
            sweep = told["request:sweep"]
            assert (sweep["preempted_by"], sweep["borrowed"]) == ("rollout", {"gpu": 6})
            assert sweep["deadline"] is not None
            async with browser.get("/api/live") as answer:
                live = Live(answer)
                await live.until(lambda: live.parts.get("first"))
                first = live.parts["first"]
                assert first["id"] == "rollout" and first["would_start"]
                assert first["waits"][0]["waits_for"][0]["id"] == "sweep"

    run(story)


def test_a_live_page_is_sent_only_what_has_changed():
    async def story():
        async with served() as (browser, _, broker), browser.get("/api/live") as answer:
            assert answer.content_type == "text/event-stream"
            live = Live(answer)
            await live.until(lambda: live.parts.get("first"))
            assert {"broker", "pool:gpus", "waiting", "running", "first", "request:play"} <= set(live.parts)
            broker.cancel("play")
            await live.until(lambda: "request:play" not in live.parts)
            assert live.parts["waiting"]["ids"] == ["rollout", "train"]
            broker.cancel("train")
            changed: set[str] = set()
            while "request:train" in live.parts:
                changed |= await live.hear()
            assert "request:serve" not in changed and "request:rollout" not in changed

    run(story)


def test_pages_of_a_table_a_pool_and_a_component_are_looks_of_their_own():
    async def story():
        async with served(crowd(3, 400)) as (browser, _, _):
            everybody = (await json_of(browser, "/api/state"))["set"]["waiting"]
            assert len(everybody["ids"]) == 50 and everybody["in_all"] > 200
            second = (await json_of(browser, "/api/state?waiting=50"))["set"]["waiting"]
            assert second["first"] == 50 and not set(second["ids"]) & set(everybody["ids"])
            one = (await json_of(browser, "/api/state?pool=pool-01&component=team-1-2"))["set"]
            rows = [one[f"request:{id}"] for id in one["waiting"]["ids"]]
            assert rows and {row["component"] for row in rows} == {"team-1-2"}
            assert {next(iter(row["reasons"])) for row in rows} == {"pool-01"}
            page = await json_of(browser, "/api/page?kind=ended&first=0")
            assert page == {"requests": [], "in_all": 0, "first": 0}
            await json_of(browser, "/api/page?first=-1", 400)
            await json_of(browser, "/api/state?waiting=x", 400)

    run(story)


def test_the_page_of_a_request_has_its_story_and_an_unknown_one_is_not_found():
    async def story():
        async with served() as (browser, _, broker):
            await json_of(browser, "/api/state")
            told = await json_of(browser, "/api/requests/sweep")
            assert told["request"]["description"] == MARKUP
            assert told["why"]["evicted"]["by"] == "rollout"
            assert told["events"] == []
            assert "there is no request" in (await json_of(browser, "/api/requests/none", 404))["error"]
            broker.happened = [
                EventView(7, 0, 5.0, "evicted", request="sweep"),
                EventView(8, 0, 6.0, "evicted", request="other", by={"request": "sweep"}),
            ]
            assert [one["event"] for one in (await json_of(browser, "/api/requests/sweep"))["events"]] == [7]

    run(story)


def test_the_timeline_begins_with_what_is_known_and_has_who_left_the_pool_for_whom_last_first():
    async def story():
        async with served() as (browser, _, broker):
            told = await json_of(browser, "/api/timeline?pool=gpus&seconds=3600")
            assert (told["times"], told["keys"], told["evictions"]) == ([], {}, [])
            lines = {"capacity": [None, 8, None], "components": {"a": [None, 1.5, None]}, "borrowed": {}}
            broker.used = UsageView([60.0, 120.0, 180.0], 60, {"gpus": {"gpu": lines}})
            at = time.time() - 60
            taken = {"request": "y", "component": "b"}
            broker.happened = [
                EventView(7, 0, at, "evicted", "x", 3, "a", "team", "gpus", taken, "preempt", "because"),
                EventView(8, 0, at, "evicted", "z", 4, "a", "team", "other", taken),
                EventView(9, 0, at, "granted", "y", 5, "b", "team", "gpus"),
                EventView(10, 0, at + 1, "evicted", "w", 6, "a", "team", "gpus", taken),
                EventView(11, 0, at - 3600, "evicted", "v", 7, "a", "team", "gpus", taken),
            ]
            told = await json_of(browser, "/api/timeline?pool=gpus&seconds=3600")
            assert told["times"] == [120.0, 180.0]
            assert told["keys"] == {"gpu": {"capacity": [8, 0], "components": {"a": [1.5, 0]}, "borrowed": {}}}
            assert [one["request"] for one in told["evictions"]] == ["w", "x"]
            assert told["evictions"][1] == {
                "at": at, "request": "x", "component": "a", "by": taken, "rule": "preempt", "why": "because",
            }  # fmt: skip

    run(story)


def test_a_broker_that_is_away_is_said_so_and_found_again():
    async def story():
        async with served() as (browser, _, broker), browser.get("/api/live") as answer:
            live = Live(answer)
            await live.until(lambda: live.link.get("up") and live.parts.get("waiting"))
            broker.away = BrokerUnavailable("no broker runs here")
            await live.until(lambda: not live.link["up"])
            assert live.link["why"] == "no broker runs here" and live.link["looked_at"]
            assert live.parts["waiting"], "what was known stays on the page"
            assert "no broker runs here" in (await json_of(browser, "/api/requests/sweep", 503))["error"]
            broker.away = None
            await live.until(lambda: live.link["up"])
            await json_of(browser, "/api/requests/sweep")

    run(story)


def test_a_broker_that_is_silent_is_away_before_its_call_fails(monkeypatch):
    monkeypatch.setattr(feed, "SILENT_SECONDS", 0.1)

    async def story():
        async with served() as (browser, _, broker), browser.get("/api/live") as answer:
            live = Live(answer)
            await live.until(lambda: live.link.get("up"))
            answers = asyncio.Event()
            loop = asyncio.get_running_loop()
            status = broker.status

            def silent():
                asyncio.run_coroutine_threadsafe(answers.wait(), loop).result()
                return status()

            broker.status = silent
            await live.until(lambda: not live.link["up"])
            assert "not answered" in live.link["why"]
            answers.set()
            await live.until(lambda: live.link["up"])

    run(story)


def test_a_bug_ends_the_dashboard_and_is_not_kept_quiet(monkeypatch):
    async def story():
        broker = three_teams()
        monkeypatch.setattr(broker, "status", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await serving._serve(Dashboard(lambda: broker, Guard("127.0.0.1")), "127.0.0.1", 0, lambda url: None)

    run(story)


def test_a_port_that_is_taken_is_said_so():
    async def story():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            dashboard = Dashboard(three_teams, Guard("127.0.0.1"))
            with pytest.raises(Refused, match="give another --port"):
                await serving._serve(dashboard, "127.0.0.1", taken.getsockname()[1], lambda url: None)

    run(story)


# --- what it costs the broker -----------------------------------------------------------------


def test_looks_rest_so_that_they_take_their_share_of_the_time_and_no_more():
    rest = Rest(0.04)
    rest.charge(now=100.0, seconds=1.0)
    assert rest.left(100.0) == 25.0
    rest.charge(now=110.0, seconds=1.0)
    assert rest.left(110.0) == 40.0
    assert rest.left(151.0) == 0.0


def test_any_number_of_viewers_of_the_same_cost_one_look_and_nobody_costs_next_to_nothing():
    async def story():
        client = three_teams()
        made = Feed(lambda: client)
        with made.viewer(Look()), made.viewer(Look()), made.viewer(Look(pool="gpus")):
            client.calls.clear()
            await made._look()
            assert [name for name in client.calls if name != "why"] == ["status"] + 4 * ["page"]
        client.calls.clear()
        await made._look()
        assert "page" not in client.calls and client.calls.count("status") == 1

    run(story)


def test_more_different_pages_than_one_look_takes_have_their_turn(monkeypatch):
    monkeypatch.setattr(feed, "MOST_LOOKS", 2)

    async def story():
        client = three_teams()
        made = Feed(lambda: client)
        looks = [Look(waiting=50 * i) for i in range(5)]
        viewers = [made.viewer(one) for one in looks]
        for one in viewers:
            one.__enter__()
        for _ in range(3):
            await made._look()
        assert all(made.has(one) for one in looks)
        turns = []
        for _ in range(5):
            turns += made._whose_turn_it_is()
        assert set(turns) == set(looks)
        for one in viewers:
            one.__exit__(None, None, None)

    run(story)


def test_no_more_pages_than_can_be_served_are_kept_open(monkeypatch):
    monkeypatch.setattr(server, "MOST_VIEWERS", 1)

    async def story():
        async with served() as (browser, _, _), browser.get("/api/live") as answer:
            await Live(answer).hear()
            assert "open already" in (await json_of(browser, "/api/live", 503))["error"]

    run(story)


# --- guards -----------------------------------------------------------------------------------


def test_every_answer_forbids_scripts_frames_and_requests_of_others():
    async def story():
        async with served() as (browser, _, _):
            for path in ("/", "/requests/x", "/static/app.js", "/api/session", "/api/live", "/api/nothing"):
                answer = await browser.get(path)
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, path
                assert "unsafe" not in policy and "http" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "Access-Control-Allow-Origin" not in answer.headers
                answer.close()

    run(story)


@pytest.mark.parametrize("path", ["/", "/api/state", "/api/live", "/api/requests/sweep", "/static/app.js"])
def test_a_foreign_name_for_this_server_is_refused_before_anything_is_asked(path):
    async def story():
        async with served() as (browser, _, _):
            assert (await browser.get(path, headers={"Host": "evil.example"})).status == 403
            answer = await browser.get(path, headers={"Host": "localhost:1"})
            assert answer.status == 200
            answer.close()

    run(story)


def test_with_a_token_nothing_is_told_without_it_and_the_cookie_is_not_for_scripts_or_other_sites():
    async def story():
        async with served(token="secret") as (browser, _, _):
            assert (await browser.get("/")).status == 200
            for path in ("/api/session", "/api/state", "/api/live", "/api/requests/sweep", "/api/timeline?pool=gpus"):
                await json_of(browser, path, 401)
                await json_of(browser, path, 401, headers={"Authorization": "Bearer wrong"})
            answer = await browser.get("/api/session", headers={"Authorization": "Bearer secret"})
            assert answer.status == 200
            cookie = answer.headers["Set-Cookie"]
            assert cookie.startswith(f"{COOKIE}=secret") and "HttpOnly" in cookie and "SameSite=Strict" in cookie
            async with ClientSession(cookies={COOKIE: "secret"}) as other:
                assert (await other.get(browser.make_url("/api/state"))).status == 200

    run(story)


POSTS = ["/api/requests/play/cancel", "/api/preview", "/api/apply"]


def right(browser, guard):
    origin = str(browser.make_url("/")).rstrip("/")
    return {"Origin": origin, CSRF: guard.csrf}


@pytest.mark.parametrize("path", POSTS)
def test_without_the_option_nothing_can_be_changed(path):
    async def story():
        async with served() as (browser, guard, broker):
            answer = await browser.post(path, json={}, headers=right(browser, guard))
            assert answer.status == 403 and "read-only" in (await answer.json())["error"]
            assert not {"cancel", "apply"} & set(broker.calls[1:])

    run(story)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "wrong",
    [{"Origin": "http://evil.example"}, {"Origin": ""}, {CSRF: "x"}, {"Host": "evil.example"}],
    ids=lambda one: next(iter(one)),
)
def test_a_page_of_another_site_changes_nothing(path, wrong):
    async def story():
        async with served(actions=True) as (browser, guard, broker):
            answer = await browser.post(path, json={}, headers={**right(browser, guard), **wrong})
            assert answer.status == 403
            assert broker.request("play").status == "pending"

    run(story)


def test_a_form_is_no_action():
    async def story():
        async with served(actions=True) as (browser, guard, broker):
            answer = await browser.post(POSTS[0], data={"reason": "x"}, headers=right(browser, guard))
            assert answer.status == 400
            assert broker.request("play").status == "pending"

    run(story)


# --- actions ----------------------------------------------------------------------------------


def test_a_request_is_cancelled_with_the_reason_that_was_given():
    async def story():
        async with served(actions=True) as (browser, guard, broker):
            await json_of(browser, "/api/state")
            answer = await browser.post(POSTS[0], json={"reason": "the disk is full"}, headers=right(browser, guard))
            assert answer.status == 200
            view = broker.request("play")
            assert view.status == "cancelled" and "the disk is full" in view.reason
            answer = await browser.post("/api/requests/none/cancel", json={}, headers=right(browser, guard))
            assert answer.status == 409

    run(story)


def test_a_policy_is_changed_after_its_preview_and_not_if_somebody_was_there_first():
    async def story():
        async with served(actions=True) as (browser, guard, broker):
            await json_of(browser, "/api/state")
            sent = right(browser, guard)
            policies = (await json_of(browser, "/api/policies?pool=gpus"))["policies"]
            sandbox = next(one for one in policies if one["component"] == "sandbox")
            wanted = {"policies": [{**sandbox, "reserved": {"gpu": 2}}]}
            follows = await (await browser.post("/api/preview", json=wanted, headers=sent)).json()
            assert follows["number"] == 2 and "consequences" in follows
            assert broker.policies("gpus", "sandbox")[0].reserved == {}
            broker.apply({"pools": [{"name": "other", "capacity": {"gpu": 1}}]}, by="ann")
            answer = await browser.post("/api/apply", json={**wanted, "number": 2}, headers=sent)
            assert answer.status == 409 and "meanwhile" in (await answer.json())["error"]
            assert broker.policies("gpus", "sandbox")[0].reserved == {}
            answer = await browser.post("/api/apply", json={**wanted, "number": 3, "note": "as agreed"}, headers=sent)
            assert answer.status == 200, await answer.text()
            assert broker.policies("gpus", "sandbox")[0].reserved == {"gpu": 2}
            last = broker.history()[-1]
            assert (last.by, last.note) == ("dashboard", "as agreed")
            wrong = {"policies": [{**sandbox, "reserved": {"gpu": 99}}]}
            answer = await browser.post("/api/preview", json=wrong, headers=sent)
            assert answer.status == 409 and (await answer.json())["faults"]
            for nonsense in ({}, {"policies": []}, {"policies": [{"pool": 3}]}, []):
                assert (await browser.post("/api/preview", json=nonsense, headers=sent)).status == 400

    run(story)


# --- the static part --------------------------------------------------------------------------


def static(name: str) -> str:
    return resources.files("raypool.dashboard").joinpath("static").joinpath(name).read_text(encoding="utf-8")


def test_the_page_takes_text_from_outside_as_text_only_and_nothing_from_elsewhere():
    code = static("app.js")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", code)
    for name in ("index.html", "style.css", "app.js"):
        outside = [one for one in re.findall(r"https?://[^\s\"']+", static(name)) if "w3.org" not in one]
        assert outside == [], name
    assert not re.search(r"\son\w+=|style=|<script(?! src=\"/static/)", static("index.html"))


def test_what_a_page_loads_first_is_small():
    async def story():
        async with served() as (browser, _, _):
            loaded = 0
            for path in ("/", "/static/app.js", "/static/style.css", "/static/icon.svg"):
                answer = await browser.get(path)
                loaded += int(answer.headers["Content-Length"])
            assert loaded < 40_000

    run(story)
