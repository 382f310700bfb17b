"""Asks the broker for what somebody looks at, and tells each viewer what has changed.

One thread asks, one question after the other, so any number of browsers costs the broker what one does, as long as
they look at the same. The rules that must not break: over time the questions take no more than `SHARE` of the
broker's time, whoever looks and however often, as long as none takes longer than `MOST_OF_LOOK_SECONDS`; and while
nobody looks, only the pools are asked for, every `IDLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from raypool.client.client import Client
from raypool.dashboard.rows import Parts, first_of, parts_of_broker, parts_of_page
from raypool.errors import BrokerDegraded, BrokerUnavailable, RaypoolError

logger = logging.getLogger("raypool")

T = TypeVar("T")

PAUSE_SECONDS = 1.0
"""The least time between two looks at the broker."""

IDLE_SECONDS = 15.0
"""The same while nobody looks: who comes sees something at once."""

SHARE = 0.04
"""Of the broker's time, at most, for the looks of all viewers together: one that took a second is followed by a pause
of 24. As much for saying why the first of those who wait does."""

ADVANCE_SECONDS = 10.0
"""Who opens a page or turns to another does not wait for a pause, as long as no more than this is left of it."""

SILENT_SECONDS = 3.0
"""A broker that has not answered for so long is away, as far as the page is concerned."""

WHY_SECONDS = 10.0
"""What would start the first request is asked again after so long, or when its reason is another."""

MOST_OF_LOOK_SECONDS = 0.4
"""A look at 50 pools and 5,000 requests takes the broker a twentieth of a second; what is longer than this is waiting
on a busy machine. So a page is never older than some 10 s."""

MOST_OF_WHY_SECONDS = 1.0
"""What is longer of an answer to "why?" is patience for a look ahead (server/etas.py), which has its own share."""

ROWS = 50
"""Requests on a page of each table."""

MOST_LOOKS = 8
"""So many different pages are asked for in one look; those of further viewers have their turn in the next."""


@dataclass(frozen=True)
class Look:
    """What somebody looks at: one pool's requests or all, those of one component or of all, from which place on."""

    pool: str | None = None
    component: str | None = None
    waiting: int = 0
    running: int = 0


@dataclass(eq=False)
class Viewer:
    """One open page. told: what it was sent of each part, as JSON. news: there may be more."""

    look: Look
    told: dict[str, str] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Broker:
    """The broker's client, found when it is needed, and found again when it was lost. Blocks: for threads only."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._asked: set[int] = set()

    @property
    def is_asked(self) -> bool:
        """Whether a thread waits for an answer."""
        return bool(self._asked)

    def ask(self, question: Callable[[Client], T]) -> T:
        """Raises what the question raises."""
        thread = threading.get_ident()
        self._asked.add(thread)
        try:
            client = self._client
            if client is None:
                client = self._client = self._connect()
            return question(client)
        except BrokerUnavailable as error:
            if not isinstance(error, BrokerDegraded):
                self._client = None  # `raypool stop` and `start` make another
            raise
        finally:
            self._asked.discard(thread)


class Rest:
    """Keeps work to a share of the time: after each piece it rests as long as that asks for."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._over = 0.0

    def charge(self, now: float, seconds: float) -> None:
        self._over = max(self._over, now) + seconds / self._share

    def left(self, now: float) -> float:
        return max(self._over - now, 0.0)


class Feed:
    """`run()` asks until it is cancelled. The rest is for the event loop's thread too."""

    def __init__(self, connect: Callable[[], Client], now: Callable[[], float] = time.time) -> None:
        self.broker = Broker(connect)
        self._now = now
        self._link: dict[str, Any] = {"up": False, "why": "", "looked_at": None}
        self._viewers: dict[Viewer, None] = {}
        self._somebody_is_new = asyncio.Event()
        self._whole: dict[str, str] = {}
        self._pages: dict[Look, dict[str, str]] = {}
        self._firsts: dict[str, _First] = {}
        self._turn = 0
        self._rest, self._rest_of_why = Rest(SHARE), Rest(SHARE)
        self._looks = ThreadPoolExecutor(1, "raypool-dashboard-looks")
        self._whys = ThreadPoolExecutor(1, "raypool-dashboard-why")
        self._why: asyncio.Task[None] | None = None

    # --- for viewers --------------------------------------------------------------------------

    @property
    def away(self) -> str:
        """Why no broker answers; "" while one does, and until one was asked."""
        return str(self._link["why"])

    @contextmanager
    def viewer(self, look: Look) -> Iterator[Viewer]:
        """Somebody who looks. What there is already is news to him; the rest comes soon."""
        viewer = Viewer(look)
        viewer.news.set()
        self._viewers[viewer] = None
        if look not in self._pages:
            self._somebody_is_new.set()
        try:
            yield viewer
        finally:
            del self._viewers[viewer]

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def has(self, look: Look) -> bool:
        """Whether what it looks at is known."""
        return look in self._pages

    def news(self, viewer: Viewer) -> str:
        """What has changed since it was last told, as JSON: `now`; `link`, whether the broker answers; `set`, the
        parts that are new or different; `gone`, those that are no more."""
        viewer.news.clear()
        page = self._pages.get(viewer.look)
        parts = {**self._whole, **(page or {})}
        told = viewer.told
        different = {name: text for name, text in parts.items() if told.get(name) != text}
        gone = [name for name in told if name not in parts] if page is not None else []
        told.update(different)
        for name in gone:
            del told[name]
        new = ",".join(f"{json.dumps(name)}:{text}" for name, text in different.items())
        head = json.dumps({"now": self._now(), "link": self._link, "gone": gone})
        return f'{head[:-1]},"set":{{{new}}}}}'

    def _tell_all(self) -> None:
        for viewer in self._viewers:
            viewer.news.set()

    # --- asking -------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            while True:
                await self._look()
                await self._pause()
        finally:
            self._looks.shutdown(wait=False, cancel_futures=True)
            self._whys.shutdown(wait=False, cancel_futures=True)

    async def _pause(self) -> None:
        """Until it is time for the next look: sooner for somebody who is new, later while nobody looks."""
        began = time.monotonic()
        rest = max(self._rest.left(began), PAUSE_SECONDS)
        if not self._viewers:
            rest = max(rest, IDLE_SECONDS)
        try:
            await asyncio.wait_for(self._somebody_is_new.wait(), rest)
        except asyncio.TimeoutError:
            return
        finally:
            self._somebody_is_new.clear()
        await asyncio.sleep(max(self._rest.left(time.monotonic()) - ADVANCE_SECONDS, 0.0))

    async def _look(self) -> None:
        """Who is new is told his rows first: he sees the pools already, as they were at the last look."""
        looks = self._whose_turn_it_is()
        new = [look for look in looks if self._whole and look not in self._pages]
        known = [look for look in looks if look not in new]
        wanted = {viewer.look for viewer in self._viewers}
        self._pages = {look: parts for look, parts in self._pages.items() if look in wanted}
        try:
            if new:
                self._take(await self._asked(lambda: self._pages_of(new)))
            whole, pages = await self._asked(lambda: (self._parts_of_broker(), self._pages_of(known)))
        except RaypoolError as error:
            self._lost(str(error))
            return
        self._whole = _as_json(whole)
        self._take(pages)

    async def _asked(self, question: Callable[[], T]) -> T:
        """Asks on the thread that looks, charges its time, and says whether the broker answers."""
        began = time.monotonic()
        asking = asyncio.get_running_loop().run_in_executor(self._looks, question)
        done, _ = await asyncio.wait({asking}, timeout=SILENT_SECONDS)
        if not done:
            self._lost(f"the broker has not answered for {SILENT_SECONDS:g} s")
        answer = await asking
        if done:  # else it was away, and the time was not its own
            ended = time.monotonic()
            self._rest.charge(ended, min(ended - began, MOST_OF_LOOK_SECONDS))
        self._link = {"up": True, "why": "", "looked_at": self._now()}
        return answer

    def _take(self, pages: dict[Look, Parts]) -> None:
        for look, parts in pages.items():
            self._pages[look] = _as_json({**parts, **self._first(look, parts)})
        self._tell_all()

    def _whose_turn_it_is(self) -> list[Look]:
        """New looks first, then the others by turns."""
        looks = list(dict.fromkeys(viewer.look for viewer in self._viewers))
        new = [look for look in looks if look not in self._pages]
        known = [look for look in looks if look in self._pages]
        if known:
            self._turn = (self._turn + MOST_LOOKS) % len(known) if len(looks) > MOST_LOOKS else 0
        return [*new, *known[self._turn :], *known[: self._turn]][:MOST_LOOKS]

    def _parts_of_broker(self) -> Parts:
        return parts_of_broker(self.broker.ask(lambda client: client.status()))

    def _pages_of(self, looks: list[Look]) -> dict[Look, Parts]:
        return {look: {**self._page("waiting", look), **self._page("running", look)} for look in looks}

    def _page(self, kind: str, look: Look) -> Parts:
        skip = look.waiting if kind == "waiting" else look.running
        return parts_of_page(
            kind,
            self.broker.ask(
                lambda client: client.page(kind, pool=look.pool, component=look.component, skip=skip, count=ROWS)
            ),
        )

    def _lost(self, why: str) -> None:
        self._link = {**self._link, "up": False, "why": why}
        self._tell_all()

    # --- why the first one waits --------------------------------------------------------------

    def _first(self, look: Look, parts: Parts) -> Parts:
        """As it was found last; asks again when it is time."""
        ids = parts.get("waiting", {}).get("ids", [])
        if look.waiting or not ids:
            return {"first": None}
        reason = parts[f"request:{ids[0]}"]["reason"]
        known, now = self._firsts.get(ids[0]), time.monotonic()
        stale = known is None or now > known.asked_at + WHY_SECONDS or known.reason != reason
        idle = self._why is None or self._why.done()
        if self._why is not None and idle:
            self._why.result()  # a bug of ours is not kept quiet
        if stale and idle and self._rest_of_why.left(now) <= ADVANCE_SECONDS:
            self._why = asyncio.get_running_loop().create_task(self._ask_why(ids[0], reason))
        return {"first": None if known is None else known.part}

    async def _ask_why(self, id: str, reason: str | None) -> None:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            why = await loop.run_in_executor(self._whys, lambda: self.broker.ask(lambda client: client.why(id)))
        except RaypoolError as error:  # it may be gone meanwhile, and so may the broker: the next look will see
            logger.debug("why '%s' waits could not be asked: %s", id, error)
            return
        ended = time.monotonic()
        self._rest_of_why.charge(ended, min(ended - began, MOST_OF_WHY_SECONDS))
        self._firsts = {other: one for other, one in self._firsts.items() if ended < one.asked_at + 10 * WHY_SECONDS}
        self._firsts[id] = _First(ended, reason, first_of(why))
        for look, parts in self._pages.items():
            if not look.waiting and json.loads(parts.get("waiting", '{"ids":[]}'))["ids"][:1] == [id]:
                parts["first"] = json.dumps(self._firsts[id].part)
        self._tell_all()


@dataclass(frozen=True)
class _First:
    asked_at: float
    reason: str | None
    part: dict[str, Any]


def _as_json(parts: Parts) -> dict[str, str]:
    return {name: json.dumps(part, separators=(",", ":")) for name, part in parts.items()}
