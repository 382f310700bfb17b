"""When waiting requests will start, for whoever asks: worked out beside everything else, in slices, and kept.

A look ahead (core/eta.py) may cost seconds of work; others are answered between its slices. The rule that
must not break: whatever is asked, over time looks take no more than a twentieth of the broker's time.

1. Four hundredths are for looks at what has changed. Until the last one has had its rest, what was found is told
   again.
2. One hundredth is for who asks for a request of which nothing is known: he does not wait for that rest, and some
   seconds of work may be done in advance. It is a look at all who wait, so whoever asks next has an answer, too.
3. When those are spent, he is told nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from raypool.core.broker import Broker
from raypool.core.eta import Expected, Forecast

logger = logging.getLogger("raypool")

SLICE_SECONDS = 0.01
"""So long the broker's loop does nothing else."""

SHARE, SHARE_FOR_UNKNOWN = 0.04, 0.01
"""Of the broker's time, in the long run."""

ADVANCE_SECONDS = 3.0
"""So much work for who is unknown may be ahead of its share when one more look begins."""

STEADY_SECONDS = 30.0
"""While nothing happens a look is good for so long: what runs gets older."""


class Budget:
    """A share of the time, for work whose cost is known only when it is done. ahead: how much more was done than
    the share allows until now; it gets less as time passes. What begins while `ahead <= most` keeps
    `work in any T seconds <= share * T + most + the last piece of work`."""

    def __init__(self, share: float, now: Callable[[], float]) -> None:
        self._share = share
        self._now = now
        self._even_at = 0.0

    @property
    def ahead(self) -> float:
        return max(self._even_at - self._now(), 0.0) * self._share

    def charge(self, seconds: float) -> None:
        self._even_at = max(self._even_at, self._now()) + seconds / self._share


class Etas:
    """broker, version: the broker, and a number that changes with its state. now: the clock of the events. worked:
    a clock by which the work is measured."""

    def __init__(
        self,
        broker: Callable[[], Broker],
        version: Callable[[], int],
        now: Callable[[], float],
        worked: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._broker = broker
        self._version = version
        self._now = now
        self._worked = worked
        self._known: dict[str, Expected] = {}
        self._fresh: set[str] = set()  # those of `_known` that were worked out in the state as it is
        self._fresh_version = -1
        self._fresh_at = 0.0
        self._budget = Budget(SHARE, now)
        self._for_unknown = Budget(SHARE_FOR_UNKNOWN, now)
        self._looking = asyncio.Lock()

    async def of(self, ids: Collection[str], at_once: bool = False) -> dict[str, Expected]:
        """Of those among them that wait, as far as it is known. at_once: somebody asks for these and no others, and
        is to have an answer if there is any."""
        async with self._looking:
            self._notice_change()
            waiting = self._waiting(ids)
            if not self._fresh.issuperset(waiting):
                if self._budget.ahead <= 0:
                    await self._look(waiting if at_once else None, self._budget)
                elif at_once and not self._known.keys() >= set(waiting) and self._may_look_in_advance:
                    await self._look(None, self._for_unknown)
        return {id: self._known[id] for id in self._waiting(ids) if id in self._known}

    async def if_it_were(self, twin: Broker, request_id: str) -> Expected | None:
        """Of a request that waits on a copy of the broker only, for a dry run; None if that is too much work just
        now."""
        async with self._looking:
            if not self._may_look_in_advance:
                return None
            found = await self._work(
                lambda: Forecast(twin, [request_id], self._now(), past=self._broker()), self._for_unknown
            )
        return found.get(request_id)

    @property
    def _may_look_in_advance(self) -> bool:
        return self._for_unknown.ahead <= ADVANCE_SECONDS

    def _waiting(self, ids: Collection[str]) -> list[str]:
        requests = self._broker().requests
        return [id for id in ids if id in requests and requests[id].waiting]

    def _notice_change(self) -> None:
        version, now = self._version(), self._now()
        if version != self._fresh_version or now >= self._fresh_at + STEADY_SECONDS:
            self._fresh.clear()
            self._fresh_version, self._fresh_at = version, now

    async def _look(self, ids: list[str] | None, budget: Budget) -> None:
        """At these, or at all who wait."""
        found = await self._work(lambda: Forecast(self._broker(), ids, self._now()), budget)
        self._fresh.update(found)
        self._known.update(found)
        self._known = {id: self._known[id] for id in self._waiting(self._known)}

    async def _work(self, begin: Callable[[], Forecast], budget: Budget) -> dict[str, Expected]:
        """A look that fails is a bug of ours, and no reason to keep anybody from his view."""
        found: dict[str, Expected] = {}
        cost, began = 0.0, self._worked()
        try:
            forecast = begin()
            for _ in forecast.steps():
                spent = self._worked() - began
                if spent > SLICE_SECONDS:
                    cost += spent
                    await asyncio.sleep(0)
                    began = self._worked()
            found = forecast.expected
        except Exception:
            logger.exception("a bug of raypool's: when requests will start could not be worked out")
        budget.charge(cost + self._worked() - began)
        return found
