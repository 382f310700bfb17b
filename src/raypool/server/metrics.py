"""Fills in the metrics (monitoring/metrics.py): counts what events come to, and measures how things stand.

An event only leaves notes here; every `TELL_SECONDS` they are told to Ray, together with the gauges, in slices
between which the broker does other things. The rule that must not break: nothing here disturbs deciding. What fails
is logged, and the broker goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.instructions import ChangeStatus, CreatePlacementGroup, HandOverPlacementGroup, Instruction
from raypool.core.pool import Pool
from raypool.core.queue import REST
from raypool.core.reasons import Evicted, GroupLost, NodeLost
from raypool.core.request import Request
from raypool.core.status import ALLOCATED, PENDING, PREEMPTING
from raypool.monitoring import metrics as m
from raypool.monitoring.metrics import Metric
from raypool.server.cluster import RayCluster
from raypool.server.journal import Journal
from raypool.spec import GPU

logger = logging.getLogger("raypool")

TELL_SECONDS = 5.0
"""How often Ray is told. It exports every 10 s by default."""

LAG_SECONDS = 1.0
"""How often the loop's lag is measured."""

SLICE = 200
"""So many values are told at a time: about a millisecond."""

QUIET_SECONDS = 60.0
"""After one failure was logged, others are not for so long: events may come by the hundred."""

Labels = tuple[str, ...]
"""The values of a metric's labels, in its order."""

Figures = dict[tuple[Metric, Labels], float]


class Metrics:
    """`saw` hears of every event that was handled; `run` and `measure_lag` for ever.

    shortfalls: by pool and key. degraded: why the broker only answers questions. now: the clock of the events.
    """

    def __init__(
        self,
        cluster: RayCluster,
        broker: Callable[[], Broker],
        journal: Journal,
        shortfalls: Callable[[], Mapping[tuple[str, str], int]],
        degraded: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        self._meters = {metric: cluster.meter(metric) for metric in m.METRICS}
        self._broker = broker
        self._journal = journal
        self._shortfalls = shortfalls
        self._degraded = degraded
        self._now = now
        self._placing: dict[str, float] = {}  # by request: when its grant was decided
        self._counts: Figures = {}
        self._observed: list[tuple[Metric, Labels, float]] = []
        self._told: Figures = {}  # the gauges, as they were told last
        self._series: dict[Metric, set[Labels]] = {metric: set() for metric in m.METRICS}  # of gauges, ever told
        self._in_reserve: dict[str, dict[str, float]] = {}  # by pool and request: since when it is seen to wait there
        self._quiet_until = float("-inf")

    # --- what events come to ------------------------------------------------------------------

    def saw(self, at: float, event: ev.Event, instructions: list[Instruction]) -> None:
        """The event was handled, and this is to be done. Never raises."""
        try:
            for instruction in instructions:
                if isinstance(instruction, ChangeStatus):
                    self._changed(at, instruction)
                elif isinstance(instruction, CreatePlacementGroup):
                    self._placing[instruction.spec.id] = at
                elif isinstance(instruction, HandOverPlacementGroup):
                    self._placing[instruction.to] = at
            if isinstance(event, ev.PlacementFailed) and self._placing.pop(event.request, None) is not None:
                self._count(m.PLACEMENT_FAILURES, (_pool_of(self._broker().requests.get(event.request)),))
        except Exception:  # noqa: BLE001 - whatever it is, it is logged
            self._fails("counting an event")

    def _changed(self, at: float, change: ChangeStatus) -> None:
        """It left its place in line, or what it held. (ALLOCATED to ALLOCATED: its group was repaired.)"""
        pool = change.pool or m.NO_POOL
        if change.old is PENDING:
            decided_at = self._placing.pop(change.request, None)
            if change.to is ALLOCATED:
                submitted_at = self._broker().requests[change.request].submitted_at
                self._observed.append((m.WAIT, (pool,), at - submitted_at))
                if decided_at is not None:
                    self._observed.append((m.GRANT_LATENCY, (pool,), at - decided_at))
        elif change.to is PREEMPTING:
            if isinstance(change.reason, Evicted):
                self._count(m.EVICTIONS, (pool, change.reason.why))
        elif isinstance(change.reason, Evicted | NodeLost | GroupLost):
            cause = change.reason.why if isinstance(change.reason, Evicted) else change.reason.rule
            request = self._broker().requests[change.request]
            assert request.granted_at is not None, request
            self._count(m.LOST_GPU_SECONDS, (pool, cause), request.demand.get(GPU, 0) * (at - request.granted_at))

    def _count(self, metric: Metric, labels: Labels, amount: float = 1.0) -> None:
        if amount > 0:
            self._counts[metric, labels] = self._counts.get((metric, labels), 0.0) + amount

    # --- how things stand ---------------------------------------------------------------------

    async def run(self) -> None:
        """Tells Ray, for ever."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            try:
                await self.tell()
            except Exception:  # noqa: BLE001 - whatever it is, it is logged
                self._fails("telling Ray")

    async def measure_lag(self) -> None:
        """Of the loop that it runs in, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._observed.append((m.LOOP_LAG, (), max(loop.time() - due, 0.0)))

    async def tell(self) -> None:
        """Everything that was noted since the last time, and the gauges as they are now."""
        counts, self._counts = self._counts, {}
        observed, self._observed = self._observed, []
        await self._record([*_each(counts), *observed])
        figures: Figures = {}
        short = self._shortfalls()
        self._in_reserve = {name: seen for name, seen in self._in_reserve.items() if name in self._broker().pools}
        for name in sorted(self._broker().pools):
            pool = self._broker().pools.get(name)
            if pool is not None:  # others may have had their turn since
                self._pool_figures(pool, short, figures)
                await asyncio.sleep(0)
        self._broker_figures(figures)
        await self._tell_gauges(figures)

    async def _tell_gauges(self, figures: Figures) -> None:
        """Ray shows the last value of a gauge as long as this process lives: what is gone is told as 0, once."""
        gone = {one: 0.0 for one, value in self._told.items() if value and one not in figures}
        self._told |= gone | figures
        await self._record([*_each(gone), *_each(figures)])

    async def _record(self, values: list[tuple[Metric, Labels, float]]) -> None:
        for at, (metric, labels, value) in enumerate(values, start=1):
            self._meters[metric](value, dict(zip(metric.labels, labels, strict=True)))
            if at % SLICE == 0:
                await asyncio.sleep(0)

    def _pool_figures(self, pool: Pool, short: Mapping[tuple[str, str], int], figures: Figures) -> None:
        ledger, name = pool.ledger, pool.name
        for at, key in enumerate(ledger.keys):
            self._set(figures, m.CAPACITY, (name, key), ledger.capacity[at])
            self._set(figures, m.FREE, (name, key), ledger.free[at])
            self._set(figures, m.PHANTOM, (name, key), ledger.phantom[at])
            self._set(figures, m.SHORTFALL, (name, key), short.get((name, key), 0))
            reserved = sum(account.reserved[at] for account in ledger.accounts.values())
            self._set(figures, m.RESERVED, (name, key), reserved)
            for account in ledger.accounts.values():
                used = account.used[at]
                if used:
                    self._add(figures, m.USED, (name, key, account.owner[0]), used)
                if used > account.reserved[at]:
                    self._add(figures, m.BORROWED, (name, key, account.owner[0]), used - account.reserved[at])
        for group in pool.queue.groups.values():
            self._add(figures, m.WAITING, (name, group.account.owner[0]), len(group.members))
        self._set(figures, m.HEAD_AGE, (name,), self._head_age(pool))
        self._set(figures, m.RESERVE_WAIT, (name,), self._reserve_wait(pool))
        self._set(figures, m.GRACE, (name,), pool.spec.grace_seconds)

    def _broker_figures(self, figures: Figures) -> None:
        since = self._journal.unwritten_since
        self._set(figures, m.DEGRADED, (), float(bool(self._degraded())))
        self._set(figures, m.JOURNAL_PENDING, (), self._journal.number - self._journal.written)
        self._set(figures, m.JOURNAL_LAG, (), 0.0 if since is None else self._now() - since)

    def _head_age(self, pool: Pool) -> float:
        head = _head(pool)
        return 0.0 if head is None else self._now() - head.submitted_at

    def _reserve_wait(self, pool: Pool) -> float:
        """Of those for whom no room is being made in another pool, with a notice of its own."""
        now, before = self._now(), self._in_reserve.get(pool.name, {})
        seen = self._in_reserve[pool.name] = {
            group.first.id: before.get(group.first.id, now)
            for group in pool.queue.groups.values()
            if group.place(group.account) < REST and group.first.mark in (None, pool)
        }
        return max((now - since for since in seen.values()), default=0.0)

    # --- series -------------------------------------------------------------------------------

    def _set(self, figures: Figures, metric: Metric, labels: Labels, value: float) -> None:
        if self._has_series(metric, labels):
            figures[metric, labels] = value

    def _add(self, figures: Figures, metric: Metric, labels: Labels, value: float) -> None:
        """The last label is the component: those of one name and several types are summed, and those that have no
        series of their own."""
        if not self._has_series(metric, labels):
            labels = (*labels[:-1], m.OTHERS)
        figures[metric, labels] = figures.get((metric, labels), 0.0) + value

    def _has_series(self, metric: Metric, labels: Labels) -> bool:
        """Whether it has one, or still gets one."""
        series = self._series[metric]
        if labels not in series and len(series) < m.MOST_SERIES:
            series.add(labels)
        return labels in series

    def _fails(self, what: str) -> None:
        if self._now() >= self._quiet_until:
            logger.exception("a bug of raypool's: %s for the metrics failed; the broker goes on without", what)
            self._quiet_until = self._now() + QUIET_SECONDS


def _each(figures: Figures) -> Iterator[tuple[Metric, Labels, float]]:
    for (metric, labels), value in figures.items():
        yield metric, labels, value


def _head(pool: Pool) -> Request | None:
    """The first in line: who waits for others to leave, or there is no room for. If there is none, the first of those
    who would exceed their limit in a pool that they have to themselves: one that is the whole capacity."""
    outcome, ledger = pool.outcome(), pool.ledger
    head = next(iter(outcome.set_aside), None) or outcome.blocked
    if head is not None:
        return head
    alone = [
        group
        for group in pool.queue.groups.values()
        if group.preemptible and all(group.account.limit[at] >= ledger.capacity[at] for at, _ in group.need)
    ]
    return min(alone, key=lambda group: group.first_rank).first if alone else None


def _pool_of(request: Request | None) -> str:
    """Where its grant was."""
    allocation = request.allocation if request is not None else None
    return allocation.pool.name if allocation is not None and allocation.pool is not None else m.NO_POOL
