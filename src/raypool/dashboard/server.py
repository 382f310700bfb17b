"""The dashboard's HTTP server: the page, what it asks as JSON, and what it is told as it happens.

Handlers are thin: they take a question apart, ask the client on a thread, and answer with plain data. Who may ask is
decided in guards.py before a handler is called. What cannot be answered is {"error": a sentence} with a status: 400
not written correctly, 401 no token, 403 not allowed, 404 no such thing, 409 refused by the rules, 503 no broker
answers.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import resources
from typing import Any, TypeVar

from aiohttp import web

from raypool.client.client import Client
from raypool.dashboard.feed import ROWS, Feed, Look
from raypool.dashboard.guards import Guard
from raypool.dashboard.questions import Questions
from raypool.dashboard.rows import rows_of
from raypool.dashboard.timeline import LONGEST_SECONDS, timeline_of
from raypool.errors import BrokerUnavailable, RaypoolError, Refused, SpecError
from raypool.version import __version__
from raypool.view import RequestView

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MOST_VIEWERS = 200
"""Open pages at a time; one more is answered with 503."""

BEAT_SECONDS = 5.0
"""A live page is told the time at least so often, so that it sees when this process is gone."""

FIRST_SECONDS = 15.0
"""Who asks for the state waits at most so long for a look at it."""

FRESH_SECONDS = {"page": 3.0, "request": 2.0, "timeline": 10.0}
"""How old an answer may be that is given to who asks again: somewhat less than after which the page does."""

MOST_BYTES = 256 * 1024
"""Of what a page may send."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_STREAM = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
"""The second is for proxies of nginx's kind: a message is not kept back until there are more."""

_STATIC = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Dashboard:
    """connect: finds the broker's client; called on a thread, and again after the broker was lost. by: who changes
    pools and policies through it, for the history.

    asking: while the application runs; it ends only by a bug of ours, after which nothing would be live any more.
    """

    asking: asyncio.Task[None]

    def __init__(self, connect: Callable[[], Client], guard: Guard, by: str = "dashboard") -> None:
        self.feed = Feed(connect)
        self._guard = guard
        self._by = by
        self._questions = Questions(self.feed.broker, lambda: self.feed.away)
        self._files = {name: gzip.compress(_read(name), mtime=0) for name in _STATIC}

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._answer], client_max_size=MOST_BYTES)
        app.router.add_get("/", self._page, name="page")
        app.router.add_get("/requests/{id}", self._page)
        for name in _STATIC:
            app.router.add_get(f"/static/{name}", self._page)
        for path, get in {
            "/api/session": self._session,
            "/api/state": self._state,
            "/api/live": self._live,
            "/api/page": self._some,
            "/api/requests/{id}": self._request,
            "/api/timeline": self._timeline,
            "/api/policies": self._policies,
        }.items():
            app.router.add_get(path, get, allow_head=False)
        for path, post in {
            "/api/requests/{id}/cancel": self._cancel,
            "/api/preview": self._preview,
            "/api/apply": self._apply,
        }.items():
            app.router.add_post(path, post)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        self.asking = asyncio.create_task(self.feed.run())
        yield
        self.asking.cancel()
        await asyncio.wait({self.asking})
        self._questions.close()

    # --- before and after every answer --------------------------------------------------------

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refusal = self._refusal(request)
            answer = await handler(request) if refusal is None else refusal
        except web.HTTPException as error:
            answer = _error(error.status, error.reason)
        except SpecError as error:
            answer = _error(400, str(error))
        except BrokerUnavailable as error:
            answer = _error(503, str(error))
        except Refused as error:
            answer = _error(404 if request.method == "GET" else 409, str(error), error.faults)
        except RaypoolError as error:
            answer = _error(500, str(error))
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    def _refusal(self, request: web.Request) -> web.Response | None:
        why = self._guard.refuses_host(request.headers)
        if why:
            return _error(403, why)
        if request.path.startswith("/api/"):
            why = self._guard.refuses_token(request.headers, request.cookies)
            if why:
                return _error(401, why)
        if request.method not in ("GET", "HEAD"):
            why = self._guard.refuses_action(request.headers)
            if why:
                return _error(403, why)
        return None

    # --- the page -----------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.Response:
        path = request.path
        name = path.removeprefix("/static/") if path.startswith("/static/") else "index.html"
        return web.Response(
            body=self._files[name],
            headers={"Content-Encoding": "gzip", "Content-Type": _STATIC[name]},
        )

    async def _session(self, request: web.Request) -> web.Response:
        answer = _json({"version": __version__, "actions": self._guard.actions, "csrf": self._guard.csrf})
        if self._guard.token:
            answer.set_cookie(*self._guard.cookie, httponly=True, samesite="Strict", path="/")
        return answer

    # --- what is seen -------------------------------------------------------------------------

    async def _state(self, request: web.Request) -> web.Response:
        """All at once, as the first message of a live page."""
        look = _look(request.query)
        if self.feed.viewers >= MOST_VIEWERS:
            return _too_many()
        with self.feed.viewer(look) as viewer:
            deadline = time.monotonic() + FIRST_SECONDS
            while not self.feed.has(look) and time.monotonic() < deadline and not self.feed.away:
                viewer.news.clear()
                await _wait(viewer.news, deadline - time.monotonic())
            return _text(self.feed.news(viewer))

    async def _live(self, request: web.Request) -> web.StreamResponse:
        look = _look(request.query)
        if self.feed.viewers >= MOST_VIEWERS:
            return _too_many()
        stream = web.StreamResponse(headers={**_HEADERS, **_STREAM})
        await stream.prepare(request)
        with self.feed.viewer(look) as viewer:
            while not _is_over(request):
                await _wait(viewer.news, BEAT_SECONDS)
                try:
                    await stream.write(f"data: {self.feed.news(viewer)}\n\n".encode())
                except ConnectionError:  # the page was closed
                    break
        return stream

    async def _some(self, request: web.Request) -> web.Response:
        query = request.query
        kind, pool, component = (
            query.get("kind", "waiting"),
            query.get("pool") or None,
            query.get("component") or None,
        )
        skip, count = _number(query, "first"), _number(query, "count", ROWS)
        page = await self._questions.ask_again(
            ("page", kind, pool, component, skip, count),
            FRESH_SECONDS["page"],
            lambda client: client.page(kind, pool=pool, component=component, skip=skip, count=count),
        )
        return _json({"requests": rows_of(page), "in_all": page.in_all, "first": page.first})

    async def _request(self, request: web.Request) -> web.Response:
        """All of one request, why it is as it is, and what happened to it as far as the broker kept that."""
        id = request.match_info["id"]

        def ask(client: Client) -> dict[str, Any]:
            view = client.request(id)
            told = client.events(request=view.id, since=view.submitted_at)  # also those of whom it had to leave
            return {
                "at": time.time(),
                "request": _whole(view),
                "why": client.why(view.id).as_dict(),
                "events": [one.as_dict() for one in told if one.request == view.id],
            }

        told = await self._questions.ask_again(("request", id), FRESH_SECONDS["request"], ask)
        return _json({"now": time.time(), **told})

    async def _timeline(self, request: web.Request) -> web.Response:
        pool = request.query.get("pool", "")
        seconds = min(max(_number(request.query, "seconds", 3600), 60), int(LONGEST_SECONDS))
        told = await self._questions.ask_again(
            ("timeline", pool, seconds),
            FRESH_SECONDS["timeline"],
            lambda client: timeline_of(client, pool, seconds, time.time()),
        )
        return _json(told)

    async def _policies(self, request: web.Request) -> web.Response:
        """As they are written, which is what a change begins with; a view has what holds now."""
        pool = request.query.get("pool", "")
        config = await self._questions.ask(lambda client: client.config())
        return _json({"policies": [one.dump() for one in config.policies if one.pool == pool]})

    # --- what is changed ----------------------------------------------------------------------

    async def _cancel(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        reason = str((await _body(request)).get("reason") or "cancelled by an operator")
        view = await self._changed(lambda client: client.cancel(id, reason))
        return _json({"request": _whole(view)})

    async def _preview(self, request: web.Request) -> web.Response:
        config = _config(await _body(request))
        view = await self._questions.ask(lambda client: client.preview(config))
        return _json(view.as_dict())

    async def _apply(self, request: web.Request) -> web.Response:
        """number: what the preview said that the change would be numbered, so that nobody's change in between is
        written over unseen."""
        body = await _body(request)
        config, number, note = _config(body), body.get("number"), str(body.get("note") or "")

        def change(client: Client) -> list[str]:
            now = client.preview(config).number
            if now != number:
                raise Refused(
                    f"somebody has changed pools or policies meanwhile: it would be change {now}, not {number}; "
                    "look at what would follow again"
                )
            return client.apply(config, by=self._by, note=note)

        return _json({"warnings": await self._changed(change)})

    async def _changed(self, change: Callable[[Client], T]) -> T:
        try:
            return await self._questions.ask(change)
        finally:
            self._questions.forget()


def _whole(view: RequestView) -> dict[str, Any]:
    """A request with the sentences that the page shows of it."""
    return {**view.as_dict(), "eta": view.eta, "story": view.story}


def _config(body: Mapping[str, Any]) -> dict[str, Any]:
    """Raises SpecError."""
    policies = body.get("policies")
    if not isinstance(policies, list) or not policies:
        raise SpecError("policies: must be a list of at least one policy")
    return {"policies": policies}


async def _body(request: web.Request) -> dict[str, Any]:
    """Raises SpecError. Only JSON is taken: no form of a foreign page can send that."""
    if request.content_type != "application/json":
        raise SpecError("the body must be application/json")
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError:
        raise SpecError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise SpecError("the body must be a mapping")
    return body


def _look(query: Mapping[str, str]) -> Look:
    return Look(
        query.get("pool") or None,
        query.get("component") or None,
        _number(query, "waiting"),
        _number(query, "running"),
    )


def _number(query: Mapping[str, str], name: str, default: int = 0) -> int:
    """Raises SpecError."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise SpecError(f"{name}: must be a whole number, got '{text[:40]}'")
    return int(text)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until it is set, or time is up."""
    try:
        await asyncio.wait_for(event.wait(), max(seconds, 0.0))
    except asyncio.TimeoutError:
        return


def _is_over(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _json(data: Any) -> web.Response:
    return _text(json.dumps(data, separators=(",", ":")))


def _text(text: str) -> web.Response:
    answer = web.Response(text=text, content_type="application/json")
    if len(text) > 2_000:
        answer.enable_compression()
    return answer


def _too_many() -> web.Response:
    return _error(503, f"{MOST_VIEWERS} pages are open already: close one, and this one goes on by itself")


def _error(status: int, sentence: str, faults: tuple[str, ...] = ()) -> web.Response:
    return web.json_response({"error": sentence, **({"faults": list(faults)} if faults else {})}, status=status)


def _read(name: str) -> bytes:
    return resources.files("raypool.dashboard").joinpath("static").joinpath(name).read_bytes()
