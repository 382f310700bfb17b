"""An event loop whose clock is the test's: when nothing is to be done, time jumps to the next timer.

So `await asyncio.sleep(30)` in a test lets 30 seconds pass, with everything in between, in no time; and
a test that waits for what will never come fails at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

MOST_SECONDS = 10_000.0


class _Jumping(selectors.SelectSelector):
    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits, and no timer will ever wake anybody"
        self.loop.now += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1000.0
        self.kept: list[asyncio.Future[None]] = []
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


async def for_ever() -> None:
    """Never comes back. The loop keeps it, so that whoever waits so is not collected as garbage."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.kept.append(loop.create_future())
    await loop.kept[-1]


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Runs the story to its end. What it left running is cancelled; an error there is raised."""
    loop = VirtualTimeLoop()
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    try:
        loop.run_until_complete(asyncio.wait_for(story(), MOST_SECONDS))
        while left := asyncio.all_tasks(loop):  # before 3.12 wait_for may swallow a cancellation
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=1))
    finally:
        loop.close()
    assert not failures, failures
