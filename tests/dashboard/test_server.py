"""The dashboard's server over the real decision core: what it answers, pushes, refuses and changes. No Ray."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from importlib import resources

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from raypool.dashboard import feed, questions, server, serving
from raypool.dashboard.feed import Feed, Look, Rest
from raypool.dashboard.guards import CSRF, Guard
from raypool.dashboard.questions import Questions
from raypool.dashboard.server import Dashboard
from raypool.errors import BrokerUnavailable, Refused
from raypool.view import EventView, UsageView

from .crowd import MARKUP, PagedClient, crowd, three_teams


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other at once: a test waits for what must come, and not for a pause."""
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.02)
    for module in (feed, questions):
        monkeypatch.setattr(module, "SHARE", 1000.0)
    monkeypatch.setattr(server, "FRESH_SECONDS", {"page": 0.0, "request": 0.0, "timeline": 0.0})


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: object, **fields: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **fields), 60))

    return run


@asynccontextmanager
async def served(client: PagedClient | None = None, **guard):
    """(a browser, the guard, the broker's client)."""
    broker = client or three_teams()
    made = Guard("127.0.0.1", **guard)
    dashboard = Dashboard(lambda: broker, made)
    async with TestClient(TestServer(dashboard.application(), host="127.0.0.1")) as browser:
        yield browser, made, broker


@asynccontextmanager
async def watched(path: str = "/api/live", **fields):
    """The same, and a live page."""
    async with served(**fields) as (browser, guard, broker), browser.get(path) as answer:
        yield Live(answer), browser, guard, broker


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

    async def hear(self) -> set[str]:
        """The next message: the names of what has changed."""
        while True:
            line = await self.answer.content.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                break
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


@story
async def test_the_state_says_who_holds_what_and_who_waits_in_order():
    async with served() as (browser, _, _):
        told = (await json_of(browser, "/api/state"))["set"]
        assert told["broker"]["pools"] == ["gpus"]
        assert told["pool:gpus"]["leaving"] == {"gpu": 6}
        assert told["waiting"] == {"ids": ["rollout", "train", "play"], "in_all": 3, "first": 0}
        assert [told[f"request:{id}"]["place"] for id in told["waiting"]["ids"]] == [
            ["gpus", 1],
            ["gpus", 2],
            ["gpus", 3],
        ]
        assert told["running"]["ids"] == ["sweep", "serve"]
        assert "waits for 'sweep' to leave" in told["request:rollout"]["reason"]
        sweep = told["request:sweep"]
        assert (sweep["preempted_by"], sweep["borrowed"]) == ("rollout", {"gpu": 6})
        assert sweep["deadline"] is not None


@story
async def test_a_live_page_is_told_why_the_first_one_waits_and_what_would_start_it():
    async with watched() as (live, _, _, _):
        await live.until(lambda: live.parts.get("first"))
        first = live.parts["first"]
        assert first["id"] == "rollout" and first["would_start"]
        assert first["waits"][0]["waits_for"][0]["id"] == "sweep"


@story
async def test_a_live_page_is_sent_only_what_has_changed():
    async with watched() as (live, _, _, broker):
        assert live.answer.content_type == "text/event-stream"
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


@story
async def test_pages_of_a_table_a_pool_and_a_component_are_looks_of_their_own():
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


@story
async def test_the_page_of_a_request_has_its_story_and_an_unknown_one_is_not_found():
    async with served() as (browser, _, broker):
        await json_of(browser, "/api/state")
        told = await json_of(browser, "/api/requests/sweep")
        assert told["request"]["description"] == MARKUP
        assert told["why"]["evicted"]["by"] == "rollout"
        assert told["events"] == [] and told["at"] <= told["now"]
        assert "there is no request" in (await json_of(browser, "/api/requests/none", 404))["error"]
        at = told["request"]["submitted_at"]
        broker.happened = [
            EventView(6, 0, at - 1, "released", request="sweep"),  # of one that had the same id
            EventView(7, 0, at, "submitted", request="sweep"),
            EventView(8, 0, at + 1, "evicted", request="other", by={"request": "sweep"}),
        ]
        assert [one["event"] for one in (await json_of(browser, "/api/requests/sweep"))["events"]] == [7]


@story
async def test_the_timeline_begins_with_what_is_known_and_has_who_left_the_pool_for_whom_last_first():
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
        assert (told["times"], told["step_seconds"]) == ([120.0, 180.0], 60)
        assert told["keys"] == {"gpu": {"capacity": [8, None], "components": {"a": [1.5, None]}, "borrowed": {}}}
        assert [one["request"] for one in told["evictions"]] == ["w", "x"]
        assert told["evictions"][1] == {
            "at": at, "request": "x", "component": "a", "by": taken, "rule": "preempt", "why": "because",
        }  # fmt: skip


class Silent:
    """A broker that answers nothing until it is told to."""

    def __init__(self, broker: PagedClient) -> None:
        self._loop, self._again, self._status = asyncio.get_running_loop(), asyncio.Event(), broker.status
        broker.status = self._silent

    def _silent(self):
        asyncio.run_coroutine_threadsafe(self._again.wait(), self._loop).result()
        return self._status()

    def answers(self) -> None:
        self._again.set()


class Away:
    """A broker that is not there until it is."""

    def __init__(self, broker: PagedClient) -> None:
        self._broker = broker
        broker.away = BrokerUnavailable("no broker runs here")

    def answers(self) -> None:
        self._broker.away = None


@pytest.mark.parametrize(
    ("trouble", "silent_seconds", "told"),
    [(Away, 60.0, "no broker runs here"), (Silent, 0.1, "the broker has not answered for 0.1 s")],
    ids=["away", "silent"],
)
@story
async def test_a_broker_that_does_not_answer_is_said_so_what_was_known_stays_and_it_is_found_again(
    monkeypatch, trouble, silent_seconds, told
):
    monkeypatch.setattr(feed, "SILENT_SECONDS", silent_seconds)
    async with watched() as (live, browser, _, broker):
        await live.until(lambda: live.link.get("up") and live.parts.get("waiting"))
        made = trouble(broker)
        await live.until(lambda: not live.link["up"])
        assert live.link["why"] == told and live.link["looked_at"]
        assert live.parts["waiting"]
        assert (await json_of(browser, "/api/requests/sweep", 503))["error"] == told
        made.answers()
        await live.until(lambda: live.link["up"])
        await json_of(browser, "/api/requests/sweep")


# --- when it does not begin, or ends ----------------------------------------------------------


def stumbles(monkeypatch, broker):
    monkeypatch.setattr(broker, "status", lambda: 1 / 0)
    return "127.0.0.1", 0


def on_a_port_that_is_taken(monkeypatch, broker):
    taken = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(broker, "keeps", taken, raising=False)
    return taken.getsockname()


def on_the_host_of_another_machine(monkeypatch, broker):
    return "192.0.2.1", 0


@pytest.mark.parametrize(
    ("trouble", "raised", "told"),
    [
        (stumbles, ZeroDivisionError, "division"),
        (on_a_port_that_is_taken, Refused, rf"port [0-9]+ \({os.strerror(errno.EADDRINUSE)}\); give another --port"),
        (
            on_the_host_of_another_machine,
            Refused,
            rf"\({os.strerror(errno.EADDRNOTAVAIL)}\).* --host of this machine",
        ),
    ],
)
@story
async def test_a_dashboard_that_cannot_go_on_says_why(monkeypatch, trouble, raised, told):
    broker = three_teams()
    host, port = trouble(monkeypatch, broker)
    with pytest.raises(raised, match=told):
        await serving._serve(Dashboard(lambda: broker, Guard("127.0.0.1")), host, port, lambda url: None)


SILENT_BROKER = """
import threading
from raypool.dashboard.guards import Guard
from raypool.dashboard.serving import serve

class Client:
    def status(self):
        print("asked", flush=True)
        threading.Event().wait()

serve(Client, Guard("127.0.0.1"), 0, lambda url: None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_told_to_though_the_broker_does_not_answer(number):
    with subprocess.Popen([sys.executable, "-c", SILENT_BROKER], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "asked\n"
            process.send_signal(number)
            assert process.wait(60) == 0
        finally:
            process.kill()


# --- what it costs the broker -----------------------------------------------------------------


def test_looks_rest_so_that_they_take_their_share_of_the_time_and_no_more():
    rest = Rest(0.04)
    rest.charge(now=100.0, seconds=1.0)
    assert rest.left(100.0) == 25.0
    rest.charge(now=110.0, seconds=1.0)
    assert rest.left(110.0) == 40.0
    assert rest.left(151.0) == 0.0


@story
async def test_any_number_of_viewers_of_the_same_cost_one_look_and_nobody_costs_next_to_nothing():
    client = three_teams()
    made = Feed(lambda: client)
    with made.viewer(Look()), made.viewer(Look()), made.viewer(Look(pool="gpus")):
        client.calls.clear()
        await made._look()
        assert sorted(name for name in client.calls if name != "why") == 4 * ["page"] + ["status"]
    client.calls.clear()
    await made._look()
    assert "page" not in client.calls and client.calls.count("status") == 1


@story
async def test_more_different_pages_than_one_look_takes_have_their_turn(monkeypatch):
    monkeypatch.setattr(feed, "MOST_LOOKS", 2)
    client = three_teams()
    made = Feed(lambda: client)
    looks = [Look(waiting=50 * i) for i in range(5)]
    with ExitStack() as viewers:
        for one in looks:
            viewers.enter_context(made.viewer(one))
        for _ in range(3):
            await made._look()
        assert all(made.has(one) for one in looks)
        turns = []
        for _ in range(5):
            turns += made._whose_turn_it_is()
        assert set(turns) == set(looks)


@pytest.mark.parametrize("path", ["/api/live", "/api/state"])
@story
async def test_no_more_pages_than_can_be_served_are_kept_open(monkeypatch, path):
    monkeypatch.setattr(server, "MOST_VIEWERS", 1)
    async with watched() as (live, browser, _, _):
        await live.hear()
        assert "open already" in (await json_of(browser, path, 503))["error"]


class Asked:
    """Questions to a broker, counted; `fails`: what the next ones raise."""

    def __init__(self) -> None:
        self.away, self.times, self.fails = "", 0, None
        broker = three_teams()
        self.questions = Questions(feed.Broker(lambda: broker), lambda: self.away)

    def _question(self, client):
        self.times += 1
        if self.fails is not None:
            raise self.fails
        return self.times

    async def __call__(self, about="x", fresh_seconds=100.0):
        return await self.questions.ask_again(about, fresh_seconds, self._question)


@story
async def test_all_who_ask_the_same_have_one_answer_while_it_is_fresh():
    asked = Asked()
    assert await asyncio.gather(*(asked() for _ in range(50))) == 50 * [1]
    assert await asked() == 1
    assert await asked("y") == 2
    assert await asked(fresh_seconds=0.0) == 3
    asked.questions.forget()
    assert await asked() == 4


@story
async def test_what_took_long_is_not_asked_again_before_its_time_has_come_but_what_is_new_is(monkeypatch):
    monkeypatch.setattr(questions, "SHARE", 1e-9)
    asked = Asked()
    assert await asked(fresh_seconds=0.0) == 1
    assert await asked(fresh_seconds=0.0) == 1
    assert await asked("y", fresh_seconds=0.0) == 2
    monkeypatch.setattr(questions, "OLDEST_SECONDS", 0.0)
    assert await asked(fresh_seconds=0.0) == 3, "it is too old for that"


@story
async def test_a_question_that_failed_is_asked_again_and_none_while_the_broker_is_away():
    asked = Asked()
    asked.fails = Refused("not now")
    for times in (1, 2):
        with pytest.raises(Refused, match="not now"):
            await asked()
        assert asked.times == times
    asked.fails, asked.away = None, "it is away"
    with pytest.raises(BrokerUnavailable, match="it is away"):
        await asked()
    assert asked.times == 2
    asked.away = ""
    assert await asked() == 3


@story
async def test_too_many_questions_are_refused(monkeypatch):
    monkeypatch.setattr(questions, "MOST_QUESTIONS", 1)
    asked = Asked()
    one, other = await asyncio.gather(asked("x"), asked("y"), return_exceptions=True)
    assert one == 1 and "too many questions" in str(other)


# --- guards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/requests/x", "/static/app.js", "/api/session", "/api/live", "/api/nothing"])
@story
async def test_every_answer_forbids_scripts_frames_and_requests_of_others(path):
    async with served() as (browser, _, _):
        answer = await browser.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
        answer.close()


@pytest.mark.parametrize("path", ["/", "/api/state", "/api/live", "/api/requests/sweep", "/static/app.js"])
@story
async def test_a_foreign_name_for_this_server_is_refused_before_anything_is_asked(path):
    async with served() as (browser, _, _):
        assert (await browser.get(path, headers={"Host": "evil.example"})).status == 403
        answer = await browser.get(path, headers={"Host": "localhost:1"})
        assert answer.status == 200
        answer.close()


TOLD = ["/api/session", "/api/state", "/api/live", "/api/requests/sweep", "/api/timeline?pool=gpus", "/api/policies"]


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer s\u00e9cret"])
@pytest.mark.parametrize("path", TOLD)
@story
async def test_with_a_token_nothing_is_told_without_it(path, authorization):
    async with served(token="secret") as (browser, _, _):
        assert (await browser.get("/")).status == 200, "the page itself holds nothing"
        sent = {} if authorization is None else {"Authorization": authorization}
        assert "token" in (await json_of(browser, path, 401, headers=sent))["error"]


@story
async def test_the_cookie_is_not_for_scripts_or_other_sites_and_opens_what_the_token_does():
    async with served(token="secret") as (browser, guard, _):
        answer = await browser.get("/api/session", headers={"Authorization": "Bearer secret"})
        assert answer.status == 200
        name, value = guard.cookie
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith(f"{name}={value};") and "HttpOnly" in cookie and "SameSite=Strict" in cookie
        async with ClientSession(cookies={name: value}) as other:
            assert (await other.get(browser.make_url("/api/state"))).status == 200


POSTS = ["/api/requests/play/cancel", "/api/preview", "/api/apply"]


def right(browser, guard):
    origin = str(browser.make_url("/")).rstrip("/")
    return {"Origin": origin, CSRF: guard.csrf}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("actions", "wrong", "told"),
    [
        (False, {}, "read-only"),
        (True, {"Origin": "http://evil.example"}, "Origin"),
        (True, {"Origin": ""}, "Origin"),
        (True, {"Origin": "http://["}, "Origin"),
        (True, {CSRF: "x"}, CSRF),
        (True, {"Host": "evil.example"}, "evil.example"),
    ],
)
@story
async def test_without_the_option_and_for_a_page_of_another_site_nothing_is_changed(path, actions, wrong, told):
    async with served(actions=actions) as (browser, guard, broker):
        before = broker.config()
        answer = await browser.post(path, json={}, headers={**right(browser, guard), **wrong})
        assert answer.status == 403 and told in (await answer.json())["error"]
        assert broker.request("play").status == "pending" and broker.config() == before


@story
async def test_a_form_is_no_action():
    async with served(actions=True) as (browser, guard, broker):
        answer = await browser.post(POSTS[0], data={"reason": "x"}, headers=right(browser, guard))
        assert answer.status == 400
        assert broker.request("play").status == "pending"


# --- actions ----------------------------------------------------------------------------------


@story
async def test_a_request_is_cancelled_with_the_reason_that_was_given_and_who_asks_is_told_so_at_once(monkeypatch):
    monkeypatch.setattr(server, "FRESH_SECONDS", {"page": 100.0})
    async with served(actions=True) as (browser, guard, broker):
        await json_of(browser, "/api/state")
        assert (await json_of(browser, "/api/page?kind=ended"))["in_all"] == 0
        answer = await browser.post(POSTS[0], json={"reason": "the disk is full"}, headers=right(browser, guard))
        assert answer.status == 200
        view = broker.request("play")
        assert view.status == "cancelled" and "the disk is full" in view.reason
        assert (await json_of(browser, "/api/page?kind=ended"))["in_all"] == 1
        answer = await browser.post("/api/requests/none/cancel", json={}, headers=right(browser, guard))
        assert answer.status == 409


@story
async def test_a_policy_is_changed_after_its_preview_and_not_if_somebody_was_there_first():
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


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"policies": [{"pool": "gpus", "component": "sandbox", "priority": 1, "reserved": {"gpu": 99}}]}, 409),
        ({}, 400),
        ({"policies": []}, 400),
        ({"policies": [{"pool": 3}]}, 400),
        ([], 400),
    ],
)
@story
async def test_a_policy_that_is_not_allowed_and_what_is_none_are_told_apart(body, status):
    async with served(actions=True) as (browser, guard, _):
        await json_of(browser, "/api/state")
        answer = await browser.post("/api/preview", json=body, headers=right(browser, guard))
        told = await answer.json()
        assert answer.status == status and told["error"] and ("faults" in told) == (status == 409)


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


@story
async def test_what_a_page_loads_first_is_small():
    async with served() as (browser, _, _):
        loaded = 0
        for path in ("/", "/static/app.js", "/static/style.css", "/static/icon.svg"):
            answer = await browser.get(path)
            loaded += int(answer.headers["Content-Length"])
        assert loaded < 40_000
