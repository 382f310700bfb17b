"""The trail that the broker leaves: every decision as a record, and who used how much.

It hears of an event twice. When it was handled (`handled`), figures are summed up (usage.py), and what happened is
kept as it is; when it is durable (`durable`), it can be read, and is written to files in Ray's log folder, in a
thread, some moments later (trail_files.py). The rule that must not break: each decision is recorded once, whenever
the process dies. So what is not in the files yet goes into the journal's snapshots, what a snapshot has not is made
again from the journal's lines, and what is in the files already is not written again.

Where there is no folder, or it cannot be written, all is well but for that: deciding never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.instructions import ChangeStatus, Instruction
from raypool.core.moves import level_of
from raypool.core.nodes import Node
from raypool.core.request import Request
from raypool.core.status import ALLOCATED, PREEMPTED
from raypool.server.cluster import RayCluster
from raypool.server.record import (
    Record,
    Turn,
    matching,
    started,
    subject_of,
    text_of,
    told_of_nodes,
)
from raypool.server.trail_files import Files, Kept, Place, made
from raypool.server.usage import HOUR, KEPT_HOURS, KEPT_MINUTES, MINUTE, Series, Span, Usage
from raypool.version import __version__

logger = logging.getLogger("raypool")

RECENT = 5_000
"""So many records are kept in memory at least; for older ones the files are read."""

WRITE_SECONDS = 0.2
"""How long records gather before they are written: one write for many."""

RETRY_SECONDS = 5.0

FLUSH_SECONDS = 3.0
"""So long `raypool stop` waits at most for the last records."""

UNWRITTEN = 50_000
"""So many records wait for a folder that cannot be written; then the oldest are given up."""

GATHER_SECONDS = 0.05
"""Whoever follows is told what came in so long, together."""

CONFIG_EVENTS = (ev.ConfigApplied, ev.RolledBack, ev.PolicyDetached, ev.PoolDeleted)
TOLD = (*CONFIG_EVENTS, ev.NodesChanged, ev.Forgotten, ev.BoundToActor)
"""Events that are records themselves, also where nothing was decided on them."""


class Trail:
    """number: of the last event that can be read. trouble: why the files cannot be written just now."""

    def __init__(self, cluster: RayCluster, broker: Callable[[], Broker], now: Callable[[], float]) -> None:
        self.number = 0
        self.trouble = ""
        self.usage = Usage()
        self._cluster = cluster
        self._broker = broker
        self._now = now
        self.usage.begin(now(), {})
        self._journal = ""  # tells this journal from those of earlier brokers on this cluster
        self._nodes: tuple[Node, ...] | None = None
        self._version = 0
        self._recent: deque[Kept] = deque()  # these two also what is not durable yet
        self._recent_size = 0
        self._unwritten: deque[Kept] = deque()
        self._unwritten_size = 0
        self._minutes: deque[tuple[int, Span]] = deque(
            maxlen=KEPT_MINUTES
        )  # not written yet, each with the last event before its end
        self._hours: deque[Span] = deque(maxlen=KEPT_HOURS)
        self._writes = True
        self._read_back = False
        self._files: Files | None = None
        self._followers: list[asyncio.Future[None]] = []
        self._something = asyncio.Event()

    # --- beginning ----------------------------------------------------------------------------

    def begin(self, number: int, left: Mapping[str, Any] | None = None) -> None:
        """The broker is as it was after that event. left: what `left` said then; None: it is a new one."""
        broker = self._broker()
        self.number = number
        self._nodes, self._version = broker.nodes, broker.history.number
        levels = {name: level_of(pool) for name, pool in broker.pools.items()}
        if left is None:
            self._journal = uuid4().hex
            self.usage.begin(broker.now if number else self._now(), levels)
        else:
            self._journal = left["journal"]
            self.usage.begin(left["at"], levels, left["minute"], [Span.of(row) for row in left["minutes"]])
            self._take_minutes(number)
            for records in _by_event(left["records"]):
                self._keep(made(records))
        self.listen()

    def listen(self) -> None:
        """To the broker as it is now."""
        self._broker().listen()

    def started(self) -> None:
        """All that is known of earlier lives is taken up."""
        self._keep(made([self._started()]))

    def _started(self, continues: bool = False) -> Record:
        return started(self.number, self._now(), self._journal, __version__, continues)

    def left(self) -> dict[str, Any]:
        """All that is not in the files, up to the last event that was handled; for a snapshot. Plain data."""
        left = (record for kept in self._unwritten for record in kept.records)
        records = [record for record in left if record["index"] is not None]
        minute = self.usage.gathered(self.usage.at)
        minutes = [span.row() for _, span in self._minutes]
        return {
            "journal": self._journal, "records": records, "minutes": minutes, "minute": minute, "at": self.usage.at,
        }  # fmt: skip

    # --- what happens -------------------------------------------------------------------------

    def handled(self, number: int, at: float, event: ev.Event, instructions: list[Instruction]) -> None:
        """That event was handled."""
        broker = self._broker()
        moves = broker.take_moves()
        if moves:
            self.usage.moved(at, moves)
        known = broker.requests.get
        requests: list[Request | None] = []
        for one in instructions:
            if type(one) is ChangeStatus:
                request = known(one.request)
                to = one.to
                if request is not None and (to is PREEMPTED or (to is ALLOCATED and one.old is not to)):
                    self._count(request, at, to is PREEMPTED)
            else:
                request = known(subject_of(one))
            requests.append(request)
        if self.usage.fresh_minutes:
            self._take_minutes(number - 1)
        told = self._told_of(event, broker) if type(event) in TOLD else None
        if requests or moves or type(event) in TOLD:
            turn = Turn(number, at, event, instructions, moves, requests, told)
            self._keep(Kept(number, at, len(requests) + len(moves), turn, None))

    def _told_of(self, event: ev.Event, broker: Broker) -> Any:
        if isinstance(event, ev.NodesChanged):
            before, self._nodes = self._nodes, event.nodes
            return told_of_nodes(before, event.nodes)
        if broker.history.number == self._version:
            return None
        self._version = broker.history.number
        return broker.history.versions[-1]

    def _count(self, request: Request, at: float, evicted: bool) -> None:
        allocation = request.allocation
        if allocation is None or allocation.pool is None:
            return
        pool, owner = allocation.pool, request.owner
        keys, need = pool.ledger.keys, allocation.need
        self.usage.advance(at)
        if not evicted:
            self.usage.waited(pool.name, owner, [keys[key] for key, _ in need], at - request.submitted_at)
        elif request.granted_at is not None:
            self.usage.lost(pool.name, owner, pool.ledger.by_key(need), at - request.granted_at)

    def durable(self, number: int) -> None:
        """Events up to that one are durable, and may be read."""
        self.number = number
        self._something.set()
        if self._followers:
            followers, self._followers = self._followers, []
            for future in followers:
                if not future.done():
                    future.set_result(None)

    def _keep(self, kept: Kept) -> None:
        self._recent.append(kept)
        self._recent_size += kept.size
        if self._writes:
            self._unwritten.append(kept)
            self._unwritten_size += kept.size
            if self._unwritten_size > UNWRITTEN and len(self._unwritten) > 1:
                self._give_up()
        self._forget()

    def _forget(self) -> None:
        """The oldest of what is recent, but nothing that is not in the files yet."""
        first = self._unwritten[0].number if self._unwritten else self._recent[-1].number
        recent = self._recent
        while self._recent_size - recent[0].size > RECENT and recent[0].number < first:
            self._recent_size -= recent.popleft().size

    def _give_up(self) -> None:
        lost = 0
        while self._unwritten_size > UNWRITTEN and len(self._unwritten) > 1:
            oldest = self._unwritten.popleft()
            self._unwritten_size -= oldest.size
            lost += oldest.size
        if self._files is not None:
            logger.error("%d records of events are not in %s: %s", lost, self._files.events.path, self.trouble)

    def _take_minutes(self, number: int) -> None:
        """Those that are over, to be written once that event is durable."""
        self._minutes.extend((number, one) for one in self.usage.fresh_minutes)
        self.usage.fresh_minutes.clear()
        if self._read_back:
            self._take_hours()
        self._something.set()

    def _take_hours(self) -> None:
        self._hours.extend(self.usage.fresh_hours)
        self.usage.fresh_hours.clear()

    # --- writing ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes for ever what is to be written."""
        folder = await self._cluster.log_folder()
        if folder is None:
            self._writes = False
            self._unwritten.clear()
            return
        self._files = Files(folder, lambda: text_of(self._started(continues=True)))
        while not self._read_back:
            await self._or_trouble(self._take_up_files)
        while True:
            await self._something.wait()
            await asyncio.sleep(WRITE_SECONDS)
            self._something.clear()
            await self._or_trouble(self._write)

    async def _or_trouble(self, work: Callable[[], Any]) -> None:
        try:
            await work()
            self.trouble = ""
        except OSError as error:
            if not self.trouble:
                logger.error("records of events cannot be written just now: %s", error)
            self.trouble = str(error)
            self._something.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _take_up_files(self) -> None:
        """What they have already is not written again."""
        assert self._files is not None
        files, journal = self._files, self._journal
        place, minutes, hour = await self._cluster.in_thread(lambda: files.read_back(journal))
        self.usage.advance(self._now())
        self._take_minutes(self._last())
        self.usage.remember(minutes)
        last = minutes[-1].start if minutes else -1
        self._minutes = deque([kept for kept in self._minutes if kept[1].start > last], KEPT_MINUTES)
        self._take_hours()
        self._hours = deque([one for one in self._hours if one.start > hour], KEPT_HOURS)
        self._skip_until(place)
        self._read_back = True
        self._something.set()

    def _skip_until(self, place: Place) -> None:
        rest: list[Kept] = []
        for kept in self._unwritten:
            if kept.number > place[0] or kept.records[0]["index"] is None:
                rest.append(kept)
            elif kept.number == place[0]:
                records = [record for record in kept.records if record["index"] > place[1]]
                rest += [made(records)] if records else []
        self._unwritten = deque(rest)
        self._unwritten_size = sum(kept.size for kept in rest)

    async def _write(self) -> None:
        assert self._files is not None
        files = self._files
        kept = [one for one in self._unwritten if one.number <= self.number]
        minutes = [span for number, span in self._minutes if number <= self.number]
        hours = list(self._hours) if len(minutes) == len(self._minutes) else []
        if kept or minutes or hours:
            await self._cluster.in_thread(lambda: files.write(kept, minutes, hours))
        written = set(map(id, kept))  # what was given up meanwhile is not there any more
        while self._unwritten and id(self._unwritten[0]) in written:
            self._unwritten_size -= self._unwritten.popleft().size
        for _ in minutes:
            self._minutes.popleft()
        for _ in hours:
            self._hours.popleft()

    async def keep_time(self) -> None:
        """A minute is over also when nothing happens."""
        while True:
            await asyncio.sleep(MINUTE - self._now() % MINUTE + 0.01)
            try:
                self.usage.advance(self._now())
                self._take_minutes(self._last())
            except Exception:
                logger.exception("a bug of raypool's: usage was not summed up")

    def _last(self) -> int:
        """The last event that was handled, as far as anything came of it."""
        return max(self._recent[-1].number, self.number) if self._recent else self.number

    async def flush(self) -> None:
        """Until all that can be read is written, or that takes too long."""
        until = self._now() + FLUSH_SECONDS
        while self._writes and self._unwritten and not self.trouble and self._now() < until:
            await asyncio.sleep(WRITE_SECONDS / 4)

    # --- questions ----------------------------------------------------------------------------

    async def events(self, since: float | None, after: int | None, limit: int, **about: str | None) -> list[Record]:
        """Those about all that is given, oldest first: after that event the first `limit`, and what belongs to the
        same event; else the last `limit`."""
        recent = [kept for kept in self._recent if kept.number <= self.number]
        first = recent[0].number if recent else self.number + 1
        asked = [
            kept for kept in recent if (after is None or kept.number > after) and (since is None or kept.at >= since)
        ]
        found = await self._cluster.in_thread(
            lambda: [record for kept in asked for record in matching(kept.records, **about)]
        )
        if self._needs_files(recent, since, after, len(found), limit):
            assert self._files is not None
            files, journal = self._files, self._journal
            before = await self._cluster.in_thread(lambda: files.older(journal, first, since, after, limit, about))
            found = [*before, *found]
        if after is None:
            return found[-limit:]
        end = limit
        while end < len(found) and found[end]["event"] == found[end - 1]["event"]:
            end += 1
        return found[:end]

    def _needs_files(
        self, recent: list[Kept], since: float | None, after: int | None, found: int, limit: int
    ) -> bool:
        if self._files is None:
            return False
        if after is not None:
            return not recent or after + 1 < recent[0].number
        if found >= limit:
            return False
        return since is None or not recent or since < recent[0].at

    async def next_events(
        self, after: int | None, limit: int, timeout_seconds: float, **about: str | None
    ) -> dict[str, Any]:
        """What comes after that event, as soon as there is any, or nothing when time is up: {"events": [...], "last":
        the event to ask after the next time}. after=None: from now on."""
        if after is None:
            return {"events": [], "last": self.number}
        until = self._now() + timeout_seconds
        while True:
            number = self.number
            found = await self.events(None, after, limit, **about) if number > after else []
            if len(found) >= limit:
                return {"events": found, "last": found[-1]["event"]}
            after = max(after, number)
            if found or self._now() >= until:
                return {"events": found, "last": after}
            await self._more(until - self._now())

    async def _more(self, timeout_seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers.append(future)
        done, _ = await asyncio.wait([future], timeout=timeout_seconds)
        if done:
            await asyncio.sleep(GATHER_SECONDS)
        elif future in self._followers:
            self._followers.remove(future)

    async def spans(self, since: float) -> tuple[list[Span], bool]:
        """Minutes, and hours where there are no minutes any more; whether there are such. From the beginning of the
        first of them on."""
        minutes = self.usage.spans(since, self._now())
        first = minutes[0].start if minutes else int(self._now())
        if self._files is None or first <= since:
            return minutes, False
        files = self._files
        until = -(-first // HOUR) * HOUR
        unwritten = [one for one in self._hours if one.start + HOUR > since and one.start < until]
        hours = [*await self._cluster.in_thread(lambda: files.hours(since, until)), *unwritten]
        while hours and _is_covered(hours[-1], minutes):  # the last of a broker that is not older than its minutes
            hours.pop()
        if not hours:
            return minutes, False
        end = hours[-1].start + HOUR
        return [*hours, *(one for one in minutes if one.start >= end)], True

    def waiting(self) -> dict[Series, int]:
        """How many wait now, by what they ask for, in each pool that may grant them."""
        counts: dict[Series, int] = {}

        def count(pool: str, owner: tuple[str, str], keys: Iterable[str], members: int) -> None:
            for key in keys:
                series = (pool, *owner, key)
                counts[series] = counts.get(series, 0) + members

        broker = self._broker()
        for name, pool in broker.pools.items():
            for group in pool.queue.groups.values():
                count(name, group.account.owner, pool.ledger.by_key(group.need), len(group.members))
        for request in broker.requests.values():
            for name in request.held_out if request.held_out and request.waiting else ():
                pool = broker.pools[name]
                count(name, request.owner, pool.ledger.by_key(pool.need(request)), 1)
        return counts


def _is_covered(hour: Span, minutes: Iterable[Span]) -> bool:
    """Whether all that is known of the hour is known by the minute, too."""
    known = sum(one.seconds for one in minutes if hour.start <= one.start < hour.start + HOUR)
    return hour.seconds <= known + 0.5


def _by_event(records: Iterable[Record]) -> Iterator[list[Record]]:
    group: list[Record] = []
    for record in records:
        if group and group[0]["event"] != record["event"]:
            yield group
            group = []
        group.append(record)
    if group:
        yield group
