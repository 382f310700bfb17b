"""The journal: an event is durable before anything comes of it.

The core decides at once, in memory. What it decided is carried out, and told to whoever asked, only when the
event is in the store. Events that come while a write is under way go into the next one together, so a busy
broker writes once per turn of its loop. From time to time a write is a snapshot instead of lines: reading
the journal does not take longer because the broker is older.

This file knows nothing of what the events mean, nor of Ray.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.instructions import Instruction
from raypool.core.records import line_of
from raypool.core.replay import Step, Unreadable, opened, replay
from raypool.server.stores import Saved, Store, StoreTaken

logger = logging.getLogger("raypool")

SNAPSHOT_EVENTS = 1_000
"""After so many events a generation ends with a snapshot; after more of them, if the last snapshot had more requests
that were not over. Each of them is written out anew every time: so that costs each event about one, however many
there are. Many submissions in one event count as one: in a snapshot they would be no shorter."""

SNAPSHOT_BYTES = 8_000_000
"""Or after so much text; after more of it, if the last snapshot was larger."""

RETRY_SECONDS = 0.5
"""How soon a write that failed is tried again: the GCS may be away."""


@dataclass(frozen=True)
class Turn:
    """One event that was handled: its line, and what is to be done when the line is durable."""

    number: int
    at: float
    line: str
    instructions: list[Instruction]


class Journal:
    """One broker's journal. `number` is that of the last event handled, `written` that of the last durable;
    `cluster` tells the cluster that the journal which was taken up speaks of; `trouble` says why the store
    cannot be written just now; `head` has what the snapshot that was taken up begins with.

    carry_out: does what was decided. snapshot: the broker as lines, up to `number`. living: how many of its requests
    are not over.
    lost: is told, once, why nothing can be written any more.
    """

    def __init__(
        self,
        store: Store,
        carry_out: Callable[[int, list[Instruction]], None],
        snapshot: Callable[[int], Iterator[str]],
        living: Callable[[], int],
        lost: Callable[[str], None],
    ) -> None:
        self.store = store
        self.number = 0
        self.written = 0
        self.generation = 0
        self.cluster = ""
        self.head: Mapping[str, Any] = {}
        self.trouble = ""
        self._carry_out = carry_out
        self._snapshot = snapshot
        self._living = living
        self._lost = lost
        self._base = b""
        self._most_events = SNAPSHOT_EVENTS
        self._most_bytes = SNAPSHOT_BYTES
        self._unread: Saved | None = None  # what was saved, until all of it is read
        self._lines: list[str] = []  # of this generation, also those that are not written yet
        self._text_size = 0
        self._turns: list[Turn] = []
        self._being_written: list[Turn] = []
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._added = asyncio.Event()
        self._closed = False

    # --- reading ------------------------------------------------------------------------------

    def take_up(self, saved: Saved) -> Iterator[tuple[Broker, Step | None]]:
        """Reads what was saved; yields the broker as the snapshot has it, with None, and then after each event, so
        that what could be read is there when the rest raises Unreadable."""
        self._base, self.generation, self._unread = saved.snapshot, saved.generation, saved
        lines = unpacked(saved.snapshot)
        broker, self.number, head = opened(lines)
        self.cluster, self.head = str(head.get("cluster", "")), head
        yield broker, None
        self._bound_generation(lines)
        for batch in saved.batches:
            for line in batch.decode(errors="replace").splitlines():
                (step,) = replay(broker, self.number, [line])
                self.number = step.number
                self._keep(line)
                yield broker, step
        self.written, self._unread = self.number, None

    def again(self) -> Broker:
        """The broker as this journal tells it, in memory, with what is not written yet. For a core that an
        event has spoilt."""
        broker, number, _ = opened(unpacked(self._base))
        for _ in replay(broker, number, self._lines):
            pass
        return broker

    def text(self) -> str:
        """Snapshot and lines, one JSON value in each line; of a journal that cannot be read, all that is there."""
        if self._unread is None:
            return "\n".join([*unpacked(self._base), *self._lines]) + "\n"
        try:
            snapshot = unpacked(self._unread.snapshot)
        except Unreadable as damage:
            snapshot = [json.dumps({"damaged": str(damage), "base64": b64encode(self._unread.snapshot).decode()})]
        return "\n".join([*snapshot, *(batch.decode(errors="replace") for batch in self._unread.batches)]) + "\n"

    # --- writing ------------------------------------------------------------------------------

    def add(self, at: float, event: ev.Event, instructions: list[Instruction]) -> None:
        """The event was handled. What was decided is done once it is durable."""
        line = line_of(self.number + 1, at, event, instructions)
        self.number += 1
        self._keep(line)
        self._turns.append(Turn(self.number, at, line, instructions))
        self._added.set()

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        self._text_size += len(line)

    @property
    def unwritten_since(self) -> float | None:
        """When the oldest event was handled that is not durable yet; None if all are."""
        turns = self._being_written or self._turns
        return turns[0].at if turns else None

    async def flushed(self) -> None:
        """Until all that was added so far is durable and carried out. Raises StoreTaken if it never will be."""
        if self.written >= self.number:
            return
        if self._closed:
            raise StoreTaken(self.store.where)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.number, future))
        await future

    async def run(self) -> None:
        """Writes for ever what is added."""
        try:
            while not self._closed:
                await self._added.wait()
                self._added.clear()
                while self._turns and not self._closed:
                    await self._commit()
        except StoreTaken as error:
            self._stop(f"another broker writes to the same journal ({self.store.where}, {error})")
        except Exception as error:
            logger.exception("writing the journal failed")
            self._stop(f"a bug of raypool's: the journal cannot be written ({type(error).__name__}: {error})")

    async def _commit(self) -> None:
        turns, self._turns = self._turns, []
        self._being_written = turns
        await (self._begin_generation() if self._is_long() else self._append(turns))
        self.written, self._being_written = turns[-1].number, []
        for turn in turns:
            self._carry_out(turn.number, turn.instructions)
        self._wake()

    def _is_long(self) -> bool:
        return len(self._lines) >= self._most_events or self._text_size > self._most_bytes

    def _bound_generation(self, snapshot: list[str]) -> None:
        self._most_events = max(SNAPSHOT_EVENTS, self._living())
        self._most_bytes = max(SNAPSHOT_BYTES, sum(map(len, snapshot)))

    async def _append(self, turns: list[Turn]) -> None:
        batch = "\n".join(turn.line for turn in turns).encode()
        await self._written(lambda: self.store.append(self.generation, turns[0].number, batch))

    async def _begin_generation(self) -> None:
        """A snapshot of all that was handled. Events that come while it is written belong to the next
        generation."""
        self.generation, self._lines, self._text_size = self.number, [], 0
        snapshot = list(self._snapshot(self.number))
        self._base = packed(snapshot)
        self._bound_generation(snapshot)
        await self._written(lambda: self.store.begin(self.generation, self._base))

    async def begin(self) -> None:
        """The first generation of a journal that is empty."""
        await self._begin_generation()

    async def _written(self, write: Callable[[], object]) -> None:
        while not self._closed:
            try:
                await write()  # type: ignore[misc]
                self.trouble = ""
                return
            except StoreTaken:
                raise
            except Exception as error:
                self.trouble = f"{type(error).__name__}: {error}"
                logger.exception("writing the journal (%s) failed; trying again", self.store.where)
                await asyncio.sleep(RETRY_SECONDS)

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.written:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _stop(self, why: str) -> None:
        self._closed = True
        self._lost(why)
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(StoreTaken(why))
        self._waiting.clear()

    async def erase(self) -> None:
        """Ends it: nothing is written any more."""
        self._closed = True
        self._added.set()
        self.written = self.number
        self._wake()
        await self.store.erase()


def packed(lines: Iterable[str]) -> bytes:
    return zlib.compress("\n".join(lines).encode(), 1)


def unpacked(snapshot: bytes) -> list[str]:
    """Raises Unreadable."""
    try:
        return zlib.decompress(snapshot).decode().split("\n")
    except (zlib.error, UnicodeDecodeError) as error:
        raise Unreadable(f"its snapshot is damaged ({error})") from None
