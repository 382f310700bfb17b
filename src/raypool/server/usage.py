"""Who used how much of what, when: exact integrals of the figures of pools, minute by minute.

Figures stand still between two moves, so what is summed up here is `amount x seconds` of each level, not samples. A
policy's series, for one key of one pool:

    reserved  what is reserved for it
    used      what it is charged with, leaving ones included
    borrowed  what of that is above its reserve
    lent      what of its idle reserve others use
    lost      what was granted to allocations that were evicted, from when they were ready until they had left

Borrowers are taken to use what nobody has reserved first. What they use beyond that is lent, by all idle reserves of
the pool in proportion: `lent = idle * (borrowed of all - unreserved) / idle of all`. That share is the same for every
policy, so its own integral is kept, and a move costs the same however many policies there are.

There is no clock here: time comes with each call, and never runs back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from raypool.core.moves import LEAVES, Level, Move, PoolMove
from raypool.core.pool import Owner

MINUTE, HOUR = 60, 3_600

KEPT_MINUTES = 1_440
"""So many closed minutes are kept in memory, if they are not too large."""

KEPT_HOURS = 24 * 40
"""So many closed hours wait at most for somebody to take them."""

KEPT_CELLS = 300_000
"""So many cells of them at most: with more, the oldest minutes go first. (What stands still costs a few bytes.)"""

WAIT_GROWTH = 1.1
"""Waits are counted in buckets that grow so: what is told of them is within 5 % of the truth."""

WAIT_LEAST = 0.001

Series = tuple[str, str, str, str]
"""Pool, component, component type, key."""


class Cell(NamedTuple):
    """Of one series in one span of time: amounts x seconds; how many waited how long until they ran, by bucket."""

    reserved: float = 0.0
    used: float = 0.0
    borrowed: float = 0.0
    lent: float = 0.0
    lost: float = 0.0
    waits: tuple[tuple[int, int], ...] = ()
    longest: float = 0.0


NOTHING = Cell()


@dataclass
class Span:
    """seconds: how much of it the figures are known for. capacity: by pool and key, x seconds."""

    start: int
    seconds: float = 0.0
    cells: dict[Series, Cell] = field(default_factory=dict)
    capacity: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, other: Span, times: int = 1) -> None:
        self.seconds += other.seconds * times
        for series, cell in other.cells.items():
            self.add_cell(series, cell if times == 1 else multiple(cell, times))
        for key, amount in other.capacity.items():
            self.capacity[key] = self.capacity.get(key, 0.0) + amount * times

    def add_cell(self, series: Series, cell: Cell) -> None:
        here = self.cells.get(series)
        self.cells[series] = cell if here is None else sum_of(here, cell)

    def row(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "start": self.start,
            "seconds": self.seconds,
            "cells": [
                [*series, *cell[:5], [list(one) for one in cell.waits], cell.longest]
                for series, cell in self.cells.items()
            ],
            "capacity": [[*key, amount] for key, amount in self.capacity.items()],
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Span:
        """Back from `row`. Raises KeyError, TypeError, ValueError for what is none."""
        cells = {}
        for pool, component, kind, key, reserved, used, borrowed, lent, lost, waits, longest in row["cells"]:
            waited = tuple((bucket, count) for bucket, count in waits)
            cells[pool, component, kind, key] = Cell(reserved, used, borrowed, lent, lost, waited, longest)
        return cls(
            row["start"], row["seconds"], cells, {(pool, key): amount for pool, key, amount in row["capacity"]}
        )


def sum_of(one: Cell, other: Cell) -> Cell:
    waits = one.waits or other.waits
    if one.waits and other.waits:
        counts = dict(one.waits)
        for bucket, count in other.waits:
            counts[bucket] = counts.get(bucket, 0) + count
        waits = tuple(sorted(counts.items()))
    return Cell(
        one.reserved + other.reserved,
        one.used + other.used,
        one.borrowed + other.borrowed,
        one.lent + other.lent,
        one.lost + other.lost,
        waits,
        max(one.longest, other.longest),
    )


def multiple(cell: Cell, times: int) -> Cell:
    return Cell(
        cell.reserved * times,
        cell.used * times,
        cell.borrowed * times,
        cell.lent * times,
        cell.lost * times,
        tuple((bucket, count * times) for bucket, count in cell.waits),
        cell.longest,
    )


def wait_bucket(seconds: float) -> int:
    """0 for what was granted and ready at once."""
    return 0 if seconds <= WAIT_LEAST else math.ceil(math.log(seconds / WAIT_LEAST) / math.log(WAIT_GROWTH))


def wait_of(bucket: int) -> float:
    """The middle of the bucket, in seconds."""
    return 0.0 if bucket == 0 else WAIT_LEAST * WAIT_GROWTH ** (bucket - 0.5)


def quantile(waits: Sequence[tuple[int, int]], share: float, longest: float) -> float | None:
    """So long waited that share of them at most; None if nobody did."""
    left = math.ceil(share * sum(count for _, count in waits))
    for bucket, count in waits:
        left -= count
        if left <= 0:
            return min(wait_of(bucket), longest)
    return None


class _Account:
    """A policy's levels, and what has gathered since it was collected, by key. since: when each was settled; share:
    what the lent share of its pool came to then."""

    __slots__ = ("borrowed", "lent", "level", "reserved", "share", "since", "used")

    def __init__(self, used: Sequence[int], reserved: Sequence[int], at: float) -> None:
        size = len(reserved)
        self.level = list(used)
        self.reserved = reserved
        self.since = [at] * size
        self.share = [0.0] * size
        self.used, self.borrowed, self.lent = [0.0] * size, [0.0] * size, [0.0] * size


class _Pool:
    """One pool's levels, by key. share: the integral of `rate`, the share of the idle reserves that is lent.
    collected: until when all of it is in the minute."""

    def __init__(self, name: str, level: Level, at: float) -> None:
        self.name = name
        self.keys, self.capacity = level.keys, level.capacity
        size = len(level.keys)
        self.since, self.share, self.rate = [at] * size, [0.0] * size, [0.0] * size
        self.collected = at
        self.borrowed, self.idle, self.unreserved = [0] * size, [0] * size, list(level.capacity)
        self.accounts = {owner: _Account(used, reserved, at) for owner, (used, reserved) in level.accounts.items()}
        for used, reserved in level.accounts.values():
            for key in range(size):
                self.unreserved[key] -= reserved[key]
                self.borrowed[key] += max(used[key] - reserved[key], 0)
                self.idle[key] += max(reserved[key] - used[key], 0)
        for key in range(size):
            self._set_rate(key)

    def _set_rate(self, key: int) -> None:
        idle, lent = self.idle[key], self.borrowed[key] - self.unreserved[key]
        self.rate[key] = 0.0 if idle <= 0 or lent <= 0 else min(lent / idle, 1.0)

    def use(self, owner: Owner, key: int, used: int, at: float) -> None:
        """From now on the policy uses so much. (Plain: it is done at every grant and every end.)"""
        account = self.accounts[owner]
        self._settle(account, key, at)
        reserved = account.reserved[key]
        before, above = account.level[key] - reserved, used - reserved
        account.level[key] = used
        if before > 0:
            self.borrowed[key] -= before
        else:
            self.idle[key] += before
        if above > 0:
            self.borrowed[key] += above
        else:
            self.idle[key] -= above
        self._set_rate(key)

    def _settle(self, account: _Account, key: int, at: float) -> None:
        rate = self.rate[key]
        if rate:
            self.share[key] += rate * (at - self.since[key])
        self.since[key] = at
        seconds, share = at - account.since[key], self.share[key]
        account.since[key] = at
        used = account.level[key]
        if used:
            account.used[key] += used * seconds
        above = used - account.reserved[key]
        if above > 0:
            account.borrowed[key] += above * seconds
        elif above < 0:
            account.lent[key] -= above * (share - account.share[key])
        account.share[key] = share

    def collect(self, at: float, span: Span) -> None:
        """All of it until then into that span."""
        seconds, self.collected = at - self.collected, at
        if seconds <= 0:
            return
        for key, name in enumerate(self.keys):
            place = (self.name, name)
            span.capacity[place] = span.capacity.get(place, 0.0) + self.capacity[key] * seconds
        for owner, account in self.accounts.items():
            for key, name in enumerate(self.keys):
                self._settle(account, key, at)
                used, borrowed, lent = account.used[key], account.borrowed[key], account.lent[key]
                reserved = account.reserved[key] * seconds
                if used or reserved:
                    span.add_cell((self.name, *owner, name), Cell(reserved, used, borrowed, lent))
                    account.used[key] = account.borrowed[key] = account.lent[key] = 0.0

    def skip_to(self, at: float) -> None:
        """What happens until then is told elsewhere."""
        self.collected = at
        self.since = [at] * len(self.since)
        for account in self.accounts.values():
            account.since = [at] * len(account.since)


class Usage:
    """All pools'. at: until when it is told. minutes: those that are over, oldest first. fresh_minutes, fresh_hours:
    those of them that nobody has taken yet: they are written to files."""

    def __init__(self) -> None:
        self.at = 0.0
        self.minutes: deque[Span] = deque()
        self.fresh_minutes: deque[Span] = deque(maxlen=KEPT_MINUTES)
        self.fresh_hours: deque[Span] = deque(maxlen=KEPT_HOURS)
        self._pools: dict[str, _Pool] = {}
        self._minute = Span(0)
        self._told_from = 0.0  # since when this minute is told, but for what was collected
        self._waits: dict[Series, dict[int, int]] = {}  # of this minute, as far as they are not in it yet
        self._longest: dict[Series, float] = {}
        self._hour: list[Span] = []  # the minutes of this hour so far
        self._cells = 0

    # --- what happens -------------------------------------------------------------------------

    def begin(
        self,
        at: float,
        levels: Mapping[str, Level],
        gathered: Mapping[str, Any] | None = None,
        minutes: Iterable[Span] = (),
    ) -> None:
        """The pools as they are. gathered: what `gathered` said of this minute at that time, if it did; minutes:
        those that nobody had taken then."""
        for minute in minutes:
            self._keep(minute)
        self.at = self._told_from = at
        self._minute = Span(_floor(at, MINUTE)) if gathered is None else Span.of(gathered)
        self._pools = {name: _Pool(name, level, at) for name, level in levels.items()}

    def remember(self, minutes: Iterable[Span]) -> None:
        """Minutes that were over before it began; those that are there already stay. All hours that are over now are
        fresh then: whoever takes them knows which of them he has."""
        known = list(self.minutes)
        first = known[0].start if known else self._minute.start
        old = sorted((one for one in minutes if one.start < first), key=lambda one: one.start)
        self.minutes, self._cells = deque(), 0
        self.fresh_hours.clear()
        self._hour = []
        for minute in (*old, *known):
            self._keep(minute, fresh=False)

    def gathered(self, at: float) -> dict[str, Any]:
        """This minute until then, as plain data."""
        self.advance(at)
        self._collect()
        return self._minute.row()

    def moved(self, at: float, moves: Iterable[Move | PoolMove]) -> None:
        if at >= self._minute.start + MINUTE:
            self.advance(at)
        elif at > self.at:
            self.at = at
        at = self.at
        for move in moves:
            if isinstance(move, PoolMove):
                self._pool_moved(move, at)
            elif move.change is not LEAVES and move.account is not None:
                pool, owner = self._pools[move.pool.name], move.account.owner
                for (key, _), after in zip(move.need, move.after, strict=True):
                    pool.use(owner, key, after[0], at)

    def waited(self, pool: str, owner: Owner, keys: Iterable[str], seconds: float) -> None:
        """One began to run that had asked so long ago."""
        bucket = wait_bucket(seconds)
        for key in keys:
            series = (pool, *owner, key)
            counts = self._waits.get(series)
            if counts is None:
                counts = self._waits[series] = {}
            counts[bucket] = counts.get(bucket, 0) + 1
            if seconds > self._longest.get(series, -1.0):
                self._longest[series] = seconds

    def lost(self, pool: str, owner: Owner, amounts: Mapping[str, int], seconds: float) -> None:
        """One was evicted that had run so long."""
        for key, amount in amounts.items():
            self._minute.add_cell((pool, *owner, key), Cell(lost=amount * seconds))

    def _pool_moved(self, move: PoolMove, at: float) -> None:
        old = self._pools.pop(move.pool, None)
        if old is not None:
            old.collect(at, self._minute)
        if move.after is not None:
            self._pools[move.pool] = _Pool(move.pool, move.after, at)

    # --- time ---------------------------------------------------------------------------------

    def advance(self, at: float) -> None:
        """Nothing has changed until then."""
        while at >= self._minute.start + MINUTE:
            self._close()
            if at >= self._minute.start + MINUTE:
                self._stand_still(at)
        self.at = max(self.at, at)

    def _close(self) -> None:
        """This minute is over."""
        self.at = float(self._minute.start + MINUTE)
        self._collect()
        self._keep(self._minute)
        self._minute = Span(int(self.at))

    def _stand_still(self, at: float) -> None:
        """Whole minutes in which nothing changes are alike: one is worked out."""
        one, end = self._minute, _floor(at, MINUTE)
        self.at = float(one.start + MINUTE)
        self._collect()
        for start in range(one.start, end, MINUTE):
            self._keep(Span(start, one.seconds, one.cells, one.capacity), fresh=end - start <= KEPT_MINUTES * MINUTE)
        self._minute = Span(end)
        self.at = self._told_from = float(end)
        for pool in self._pools.values():
            pool.skip_to(self.at)

    def _collect(self) -> None:
        for pool in self._pools.values():
            pool.collect(self.at, self._minute)
        self._minute.seconds += self.at - self._told_from
        self._told_from = self.at
        for series, counts in self._waits.items():
            waits = tuple(sorted(counts.items()))
            self._minute.add_cell(series, Cell(waits=waits, longest=self._longest[series]))
        self._waits, self._longest = {}, {}

    def _keep(self, minute: Span, fresh: bool = True) -> None:
        """What is as it was in the minute before is the same object."""
        last = self.minutes[-1] if self.minutes else None
        if last is not None and minute.cells is not last.cells:
            minute.cells = {
                series: same if (same := last.cells.get(series)) == cell and same is not None else cell
                for series, cell in minute.cells.items()
            }
            minute.cells = last.cells if minute.cells == last.cells else minute.cells
        if last is None or minute.cells is not last.cells:
            self._cells += len(minute.cells)
        self.minutes.append(minute)
        while len(self.minutes) > KEPT_MINUTES or (self._cells > KEPT_CELLS and len(self.minutes) > 1):
            oldest = self.minutes.popleft()
            if oldest.cells is not self.minutes[0].cells:
                self._cells -= len(oldest.cells)
        if fresh:
            self.fresh_minutes.append(minute)
        self._into_the_hour(minute)

    def _into_the_hour(self, minute: Span) -> None:
        if self._hour and _floor(self._hour[0].start, HOUR) != _floor(minute.start, HOUR):
            self._close_hour()
        self._hour.append(minute)
        if (minute.start + MINUTE) % HOUR == 0:
            self._close_hour()

    def _close_hour(self) -> None:
        self.fresh_hours.append(sum_of_spans(self._hour, _floor(self._hour[0].start, HOUR)))
        self._hour = []

    # --- questions ----------------------------------------------------------------------------

    def spans(self, since: float, at: float) -> list[Span]:
        """The minutes that are kept from then on, in any case those of this hour, and this one until now."""
        self.advance(at)
        self._collect()
        now = Span(self._minute.start, self._minute.seconds, dict(self._minute.cells), dict(self._minute.capacity))
        first = self.minutes[0].start if self.minutes else now.start
        of_this_hour = [one for one in self._hour if one.start < first]
        known = (*of_this_hour, *self.minutes, now)
        return [one for one in known if one.start + MINUTE > since and one.seconds]


def _floor(at: float, size: int) -> int:
    return int(at // size) * size


def sum_of_spans(spans: Iterable[Span], start: int) -> Span:
    """Those that are alike are added once."""
    whole = Span(start)
    for _, group in groupby(spans, key=lambda one: (id(one.cells), id(one.capacity), one.seconds)):
        first, *others = group
        whole.add(first, 1 + len(others))
    return whole


# --- what people ask ----------------------------------------------------------------------------


MOST_STEPS = 2_000


def step_of(asked: float, since_seconds: float, hours: bool) -> int:
    """The step that is told, in seconds. hours: there are hours among the spans."""
    unit = HOUR if hours else MINUTE
    return max(math.ceil(max(asked, since_seconds / MOST_STEPS) / unit), 1) * unit


def timeline(spans: Iterable[Span], since: float, until: float, step: int, only: str | None = None) -> dict[str, Any]:
    """Means over steps: {"times": the beginning of each, "step_seconds", "pools": {pool: {key: {"capacity": [...],
    "components": {component: [...]}, "borrowed": {component: [...]}}}}}. None where nothing is known. The types of a
    component are put together. only: of that pool, which takes far less time than all."""
    first = _floor(since, step)
    count = max(-(-int(until - first) // step), 1)
    seconds = [0.0] * count
    pools: dict[str, dict[str, Any]] = {}

    def series(pool: str, key: str, *names: str) -> list[float]:
        found: Any = pools.setdefault(pool, {}).setdefault(
            key, {"capacity": [0.0] * count, "components": {}, "borrowed": {}}
        )
        for name in names[:-1]:
            found = found[name]
        row: list[float] = found.setdefault(names[-1], [0.0] * count)
        return row

    for span in spans:
        at = (span.start - first) // step
        if not 0 <= at < count:
            continue
        seconds[at] += span.seconds
        for (pool, key), amount in span.capacity.items():
            if only is None or pool == only:
                series(pool, key, "capacity")[at] += amount
        for (pool, component, _, key), cell in span.cells.items():
            if only is not None and pool != only:
                continue
            if cell.used:
                series(pool, key, "components", component)[at] += cell.used
            if cell.borrowed:
                series(pool, key, "borrowed", component)[at] += cell.borrowed

    def means(sums: list[float]) -> list[float | None]:
        return [round(one / known, 6) if known else None for one, known in zip(sums, seconds, strict=True)]

    return {
        "times": [float(first + at * step) for at in range(count)],
        "step_seconds": step,
        "pools": {
            pool: {
                key: {
                    "capacity": means(one["capacity"]),
                    "components": {name: means(row) for name, row in sorted(one["components"].items())},
                    "borrowed": {name: means(row) for name, row in sorted(one["borrowed"].items())},
                }
                for key, one in sorted(keys.items())
            }
            for pool, keys in sorted(pools.items())
        },
    }


def report_rows(spans: Iterable[Span], waiting: Mapping[Series, int]) -> list[dict[str, Any]]:
    """One row for each series, amounts in hours. waiting: how many wait still."""
    whole = sum_of_spans(spans, 0)
    rows = []
    for series in sorted(whole.cells.keys() | waiting.keys()):
        cell = whole.cells.get(series, NOTHING)
        pool, component, kind, key = series
        rows.append(
            {
                "component": component, "component_type": kind, "pool": pool, "key": key,
                "reserved": cell.reserved / HOUR, "used": cell.used / HOUR, "borrowed": cell.borrowed / HOUR,
                "lent": cell.lent / HOUR, "lost": cell.lost / HOUR,
                "waits": sum(count for _, count in cell.waits),
                "wait_p50_seconds": quantile(cell.waits, 0.5, cell.longest),
                "wait_p90_seconds": quantile(cell.waits, 0.9, cell.longest),
                "wait_max_seconds": cell.longest if cell.waits else None,
                "waiting": waiting.get(series, 0),
            }
        )  # fmt: skip
    return rows
