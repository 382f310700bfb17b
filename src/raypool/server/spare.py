"""A bounded share of the broker's time, for what nobody has to have: the thousands who wait are told more than why
only as far as it goes, first come first served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

Found = TypeVar("Found")

MOST_SECONDS = 0.1
"""So long one piece of work may take, in slices between which the broker does other things."""

REST = 20
"""After work that took a second, there is none for so many: a twentieth of the broker's time."""


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


class Spare:
    """now: the clock by which it rests."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._budget = Budget(1 / REST, now)
        self._busy = False

    async def spend(self, begin: Callable[[], Awaitable[Iterator[Found | None]]]) -> list[Found]:
        """What the work yields until its time is up; nothing if somebody else works, or it is time to rest. begin:
        awaits what the work needs, and returns it."""
        if self._busy or self._budget.ahead > 0:
            return []
        self._busy = True
        try:
            return await self._spent_on(await begin())
        finally:
            self._busy = False

    async def _spent_on(self, work: Iterator[Found | None]) -> list[Found]:
        cost, found = 0.0, []
        began = time.perf_counter()
        try:
            for piece in work:
                if piece is not None:
                    found.append(piece)
                cost, began = cost + time.perf_counter() - began, time.perf_counter()
                if cost >= MOST_SECONDS:
                    break
                await asyncio.sleep(0)
                began = time.perf_counter()
        finally:
            self._budget.charge(cost + time.perf_counter() - began)
        return found
