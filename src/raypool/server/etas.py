"""When waiting requests will start, for whoever asks: worked out beside everything else, in slices, and kept.

A look ahead (core/eta.py) may cost a second of work. So nobody waits for one but who asked, one is made at a time,
and what was found is told again until the state has changed, or for as long as looking again would take more than
a twentieth of the broker's time.
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

REST = 20
"""A look ahead that took a second is good for so many."""

STEADY_SECONDS = 30.0
"""While nothing happens it is good for so long: what runs gets older."""


class Etas:
    """broker, version: the broker, and a number that changes with its state. now: the clock of the events."""

    def __init__(self, broker: Callable[[], Broker], version: Callable[[], int], now: Callable[[], float]) -> None:
        self._broker = broker
        self._version = version
        self._now = now
        self._known: dict[str, Expected] = {}
        self._known_at_version = -1
        self._known_at = 0.0
        self._good_until = 0.0
        self._looking = asyncio.Lock()

    async def of(self, ids: Collection[str], at_once: bool = False) -> dict[str, Expected]:
        """Of those among them that wait, as far as it is known. at_once: looks for those of whom nothing is known;
        otherwise only when it is time for another look at all who wait."""
        async with self._looking:
            waiting = self._waiting(ids)
            if waiting and self._stale:
                await self._look(waiting if at_once else None)
            missing = [id for id in waiting if id not in self._known]
            if missing and at_once:
                await self._look(missing)
        return {id: self._known[id] for id in ids if id in self._known}

    def _waiting(self, ids: Collection[str]) -> list[str]:
        requests = self._broker().requests
        return [id for id in ids if id in requests and requests[id].waiting]

    @property
    def _stale(self) -> bool:
        now = self._now()
        changed = self._version() != self._known_at_version or now >= self._known_at + STEADY_SECONDS
        return changed and now >= self._good_until

    async def _look(self, ids: list[str] | None) -> None:
        """Replaces what is stale, or adds to what is not. A look that fails is a bug of ours, and no reason to keep
        anybody from his view."""
        stale, version, now, cost = self._stale, self._version(), self._now(), 0.0
        found: dict[str, Expected] = {}
        began = time.perf_counter()
        try:
            forecast = Forecast(self._broker(), ids, now)
            for _ in forecast.steps():
                if time.perf_counter() - began > SLICE_SECONDS:
                    cost += time.perf_counter() - began
                    await asyncio.sleep(0)
                    began = time.perf_counter()
            found = forecast.expected
        except Exception:
            logger.exception("a bug of raypool's: when requests will start could not be worked out")
        cost += time.perf_counter() - began
        if not stale:
            self._known |= found
            return
        self._known, self._known_at_version, self._known_at = found, version, now
        self._good_until = self._now() + REST * cost
