"""Questions that pages ask by themselves: a request's story, a timeline, who has ended; and what people change.

A page that stays open asks again and again, so an answer is given to all who ask the same while it is fresh. The rule
that must not break: asking again takes no more than `SHARE` of the broker's time, however many pages are open, as
long as no answer takes longer than `MOST_OF_ANSWER_SECONDS`. What nobody has asked lately is asked at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from raypool.client.client import Client
from raypool.dashboard.feed import SHARE, Broker, Rest
from raypool.errors import BrokerUnavailable

T = TypeVar("T")

QUESTION_SECONDS = 15.0
"""A question that was not answered for so long is given up."""

MOST_QUESTIONS = 32
"""Questions that wait for an answer; one more is refused."""

MOST_OF_ANSWER_SECONDS = 1.0
"""What is longer of an answer is waiting on a busy machine, or patience for a look ahead (server/etas.py)."""

OLDEST_SECONDS = 60.0
"""An answer that is older is asked for again, whatever that costs."""


@dataclass(eq=False)
class _Known:
    """answer: pending while it is asked for. at: when that ended, by the monotonic clock."""

    answer: asyncio.Task[Any]
    at: float = 0.0


class Questions:
    """broker: asked on threads. away: why no broker answers, "" while one does: then nothing is asked."""

    def __init__(self, broker: Broker, away: Callable[[], str]) -> None:
        self._broker = broker
        self._away = away
        self._threads = ThreadPoolExecutor(2, "raypool-dashboard-questions")
        self._waiting = 0
        self._rest = Rest(SHARE)
        self._known: dict[Hashable, _Known] = {}

    async def ask(self, question: Callable[[Client], T]) -> T:
        """Raises what the question raises, and BrokerUnavailable when none answers, or not in time."""
        away = self._away()
        if away:
            raise BrokerUnavailable(away)
        if self._waiting >= MOST_QUESTIONS:
            raise BrokerUnavailable("too many questions are waiting for an answer; ask again in a moment")
        self._waiting += 1
        asking = asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._broker.ask(question))
        asking.add_done_callback(self._answered)
        done, _ = await asyncio.wait({asking}, timeout=QUESTION_SECONDS)
        if not done:
            raise BrokerUnavailable(f"the broker has not answered for {QUESTION_SECONDS:g} s")
        return asking.result()

    def _answered(self, asking: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not asking.cancelled():
            asking.exception()  # who asked may have gone

    async def ask_again(self, about: Hashable, fresh_seconds: float, question: Callable[[Client], T]) -> T:
        """The answer to what others have asked by the same name, if it is fresh, or its time has not come yet. Raises
        what `ask` raises."""
        now = time.monotonic()
        known = self._known.get(about)
        if known is None or self._is_old(known, fresh_seconds, now):
            self._known = {name: one for name, one in self._known.items() if not self._is_over(one, now)}
            known = self._known[about] = _Known(asyncio.create_task(self._charged(about, question)))
        answer: T = await asyncio.shield(known.answer)
        return answer

    async def _charged(self, about: Hashable, question: Callable[[Client], T]) -> T:
        began = time.monotonic()
        answer = await self.ask(question)
        ended = time.monotonic()
        self._rest.charge(ended, min(ended - began, MOST_OF_ANSWER_SECONDS))
        if about in self._known:
            self._known[about].at = ended
        return answer

    def _is_old(self, known: _Known, fresh_seconds: float, now: float) -> bool:
        if not known.answer.done():
            return False
        age = now - known.at
        return self._is_over(known, now) or (age >= fresh_seconds and not self._rest.left(now))

    def _is_over(self, known: _Known, now: float) -> bool:
        done = known.answer.done()
        return done and (known.answer.exception() is not None or now - known.at >= OLDEST_SECONDS)

    def forget(self) -> None:
        """Somebody has changed something: what is asked now is asked anew."""
        self._known.clear()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
