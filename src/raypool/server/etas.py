"""When waiting requests will start, for whoever asks: worked out beside everything else, in slices, and kept.

A look ahead (core/eta.py) may cost seconds of work, with thousands who wait a minute. It is a task of its own, one at
a time, and others are answered between its slices. The rules that must not break: who only waits for his grant is
never held up by a look; and whatever is asked, over time looks take no more than a twentieth of the broker's time.

1. Four hundredths are for looks at what has changed. Until the last one has had its rest, what was found is told
   again.
2. One hundredth is for who asks for a request of which nothing is known: he does not wait for that rest, and some
   seconds of work may be done in advance. It is a look at all who wait, so whoever asks next has an answer, too.
3. When those are spent, he is told nothing.
4. Who asks a question waits for a look as long as his patience lasts; then he is told what is known until then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from raypool.core.broker import Broker
from raypool.core.eta import Expected, Forecast
from raypool.server.spare import Budget

logger = logging.getLogger("raypool")

SLICE_SECONDS = 0.01
"""So long the broker's loop does nothing else."""

SHARE, SHARE_FOR_UNKNOWN = 0.04, 0.01
"""Of the broker's time, in the long run."""

ADVANCE_SECONDS = 3.0
"""So much work for who is unknown may be ahead of its share when one more look begins."""

PATIENCE_SECONDS = 5.0
"""So long who asks a question waits for a look."""

REST = 4
"""While nobody waits for a look it rests so many times as long as it works, after each slice."""

STEADY_SECONDS = 30.0
"""While nothing happens a look is good for so long: what runs gets older."""


class Etas:
    """broker, version: the broker, and a number that changes with its state. now: the clock of the events. worked:
    a clock by which the work is measured. spawn: starts a task that lives as long as the broker."""

    def __init__(
        self,
        broker: Callable[[], Broker],
        version: Callable[[], int],
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        worked: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._broker = broker
        self._version = version
        self._now = now
        self._spawn = spawn
        self._worked = worked
        self._known: dict[str, Expected] = {}
        self._fresh: set[str] = set()  # those of `_known` that were worked out in the state as it is
        self._fresh_version = -1
        self._fresh_at = 0.0
        self._budget = Budget(SHARE, now)
        self._for_unknown = Budget(SHARE_FOR_UNKNOWN, now)
        self._look: asyncio.Task[dict[str, Expected]] | None = None
        self._awaited = 0  # by so many

    async def of(self, ids: Collection[str], at_once: bool = False) -> dict[str, Expected]:
        """Of those among them that wait, as far as it is known, after a look if it is time for one. at_once: somebody
        asks for these and no others, and is to have an answer if there is any."""
        with self._patience() as patient:
            while self._is_looking and not self._knows(ids):
                if not await patient():
                    return self.known(ids)
            if not self._is_looking and self._begin_look(ids, at_once):
                await patient()
        return self.known(ids)

    def look_beside(self, ids: Collection[str]) -> None:
        """Begins a look at all, if it is time for one and these are not known as things are; nobody waits for it."""
        if not self._is_looking:
            self._begin_look(ids, at_once=False)

    def known(self, ids: Collection[str]) -> dict[str, Expected]:
        """Of those among them that wait, as far as it is known, without a look."""
        return {id: self._known[id] for id in self._waiting(ids) if id in self._known}

    async def if_it_were(self, twin: Broker, request_id: str) -> Expected | None:
        """Of a request that waits on a copy of the broker only, for a dry run; None if that is too much work just
        now."""
        with self._patience() as patient:
            while self._is_looking:
                if not await patient():
                    return None
            if not self._may_look_in_advance:
                return None
            look = self._begin(
                self._work(lambda: Forecast(twin, [request_id], self._now(), past=self._broker()), self._for_unknown)
            )
            if await patient():
                return look.result().get(request_id)
            look.cancel()  # it is of use to nobody else
            return None

    @contextmanager
    def _patience(self) -> Iterator[Callable[[], Coroutine[Any, Any, bool]]]:
        """What waits for the look under way, which does not rest meanwhile, and says whether it was done in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_SECONDS

        async def patient() -> bool:
            assert self._look is not None
            look = self._look
            await asyncio.wait({look}, timeout=max(until - loop.time(), 0))
            return look.done()

        self._awaited += 1
        try:
            yield patient
        finally:
            self._awaited -= 1

    @property
    def _is_looking(self) -> bool:
        return self._look is not None and not self._look.done()

    @property
    def _may_look_in_advance(self) -> bool:
        return self._for_unknown.ahead <= ADVANCE_SECONDS

    def _waiting(self, ids: Collection[str]) -> list[str]:
        requests = self._broker().requests
        return [id for id in ids if id in requests and requests[id].waiting]

    def _knows(self, ids: Collection[str]) -> bool:
        return self._known.keys() >= set(self._waiting(ids))

    def _notice_change(self) -> None:
        version, now = self._version(), self._now()
        if version != self._fresh_version or now >= self._fresh_at + STEADY_SECONDS:
            self._fresh.clear()
            self._fresh_version, self._fresh_at = version, now

    def _begin_look(self, ids: Collection[str], at_once: bool) -> bool:
        """Whether it has begun: not if these are known as things are, or there is no time."""
        self._notice_change()
        waiting = self._waiting(ids)
        if self._fresh.issuperset(waiting):
            return False
        if self._budget.ahead <= 0:
            self._begin(self._look_at(waiting if at_once else None, self._budget))
            return True
        if at_once and not self._knows(ids) and self._may_look_in_advance:
            self._begin(self._look_at(None, self._for_unknown))
            return True
        return False

    def _begin(self, work: Coroutine[Any, Any, dict[str, Expected]]) -> asyncio.Task[dict[str, Expected]]:
        assert not self._is_looking
        self._look = self._spawn(work)
        return self._look

    async def _look_at(self, ids: list[str] | None, budget: Budget) -> dict[str, Expected]:
        """These, or all who wait."""
        found = await self._work(lambda: Forecast(self._broker(), ids, self._now()), budget)
        self._fresh.update(found)
        self._known.update(found)
        self._known = {id: self._known[id] for id in self._waiting(self._known)}
        return found

    async def _work(self, begin: Callable[[], Forecast], budget: Budget) -> dict[str, Expected]:
        """A look that fails is a bug of ours, and no reason to keep anybody from his view."""
        found: dict[str, Expected] = {}
        began = self._worked()
        try:
            forecast = begin()
            for _ in forecast.steps():
                spent = self._worked() - began
                if spent > SLICE_SECONDS:
                    budget.charge(spent)
                    await asyncio.sleep(0 if self._awaited else REST * spent)
                    began = self._worked()
            found = forecast.expected
        except Exception:
            logger.exception("a bug of raypool's: when requests will start could not be worked out")
        budget.charge(self._worked() - began)
        return found
