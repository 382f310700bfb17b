"""Is the expected start right? Replays of made-up workloads; at submission the prediction, later what came of it.

    python benchmarks/eta.py            # some minutes
    python benchmarks/eta.py --few      # a fifth of the predictions

Pure core, virtual time. For each workload: of the requests that had to wait, in how many cases the actual start was
before p90 (it should be nine of ten), before p50 (half), and how wide the promise is. The first part of each replay
only makes history. Work that is evicted is asked for again at once, as decorated tasks are, and runs as long again.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.eta import expected_starts
from raypool.core.instructions import ChangeStatus
from raypool.core.status import Status
from raypool.spec import BrokerConfig, PolicySpec, PoolSpec, RequestSpec, ResourceSettings

GPUS = 64
HISTORY = 400
"""Submissions before the first prediction."""

JOBS = 1_600


@dataclass(frozen=True)
class Team:
    """share of the submissions; how long its jobs last: median seconds, and sigma of the logarithm."""

    name: str
    share: float
    median: float
    sigma: float
    sizes: tuple[int, ...] = (1, 1, 2, 4, 8)
    priority: int = 1
    reserved: int = 0
    limit: int = GPUS


@dataclass(frozen=True)
class Workload:
    """load: of the pool, on average. bursts: submissions come so many at once. day: the load swings over 24 h by this
    share. capped: share of the jobs that say `max_duration_seconds`, about twice what they need."""

    name: str
    teams: tuple[Team, ...]
    load: float = 0.95
    bursts: int = 1
    day: float = 0.0
    capped: float = 0.0
    grace_seconds: float = 0.0
    queueing: str = "strict"
    history: int = HISTORY


EVEN = (Team("a", 0.5, 1800, 1.0), Team("b", 0.5, 1800, 1.0))
UNEQUAL = (
    Team("prod", 0.2, 1200, 0.8, priority=10, reserved=24),
    Team("ml", 0.4, 2400, 1.2, priority=5, reserved=16),
    Team("sandbox", 0.4, 600, 1.5, sizes=(1, 1, 2), priority=1),
)
WORKLOADS = (
    Workload("steady, one priority", EVEN),
    Workload("long tails", (Team("a", 1.0, 900, 2.0),)),
    Workload("overloaded", EVEN, load=1.15),
    Workload("bursts of 40", EVEN, load=0.8, bursts=40),
    Workload("day and night", EVEN, load=0.9, day=0.6),
    Workload("all say max_duration", EVEN, capped=1.0),
    Workload("priorities, reserves, preemption", UNEQUAL, load=0.9, grace_seconds=30),
    Workload("the same, half say max_duration", UNEQUAL, load=0.9, grace_seconds=30, capped=0.5),
    Workload("backfill", EVEN, queueing="backfill"),
    Workload("no history", EVEN, load=1.0, history=0),
)


@dataclass
class Replay:
    """One workload, played once. promised: id -> (now, p50, p90)."""

    workload: Workload
    random: random.Random
    every: int
    broker: Broker = field(default_factory=lambda: Broker(World(confirms_placement=False, confirms_removal=False)))
    promised: dict[str, tuple[float, float | None, float | None]] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    evictions: int = 0
    _due: list[tuple[float, int, ev.Event]] = field(default_factory=list)
    _durations: dict[str, float] = field(default_factory=dict)
    _pushed: int = 0
    _waited: int = 0

    def play(self) -> None:
        workload = self.workload
        pool = PoolSpec(
            name="p",
            capacity={"gpu": GPUS},
            grace_seconds=workload.grace_seconds,
            queueing=workload.queueing,  # type: ignore[arg-type]
        )
        policies = tuple(
            PolicySpec(
                pool="p", component=team.name, priority=team.priority,
                reserved={"gpu": team.reserved}, limit={"gpu": team.limit},
            )
            for team in workload.teams
        )  # fmt: skip
        self._feed(ev.ConfigApplied(BrokerConfig(pools=(pool,), policies=policies)), 0.0)
        for when, event in self._submissions():
            self._push(when, event)
        submitted = 0
        while self._due:
            deadline = self.broker.next_deadline
            if deadline is not None and deadline <= self._due[0][0]:
                self._feed(ev.TimePassed(), deadline)
                continue
            when, _, event = heapq.heappop(self._due)
            if isinstance(event, ev.Released) and event.request not in self.broker.requests:
                continue
            self._feed(event, when)
            if isinstance(event, ev.Submitted):
                submitted += 1
                if submitted > workload.history:
                    self._predict(event.spec.id)

    def _predict(self, id: str) -> None:
        if not self.broker.requests[id].waiting:
            return
        self._waited += 1
        if self._waited % self.every == 0:
            found = expected_starts(self.broker, [id])[id]
            self.promised[id] = (self.broker.now, found.p50, found.p90)

    def _submissions(self) -> list[tuple[float, ev.Submitted]]:
        workload, chance = self.workload, self.random
        work = sum(
            team.share * statistics.mean(team.sizes) * team.median * math.exp(team.sigma**2 / 2)
            for team in workload.teams
        )
        gap = work / (GPUS * workload.load)
        made, when = [], 0.0
        for number in range(JOBS):
            if number % workload.bursts == 0:
                swing = 1 + workload.day * math.sin(2 * math.pi * when / 86400)
                when += chance.expovariate(1 / (gap * workload.bursts)) / swing
            team = chance.choices(workload.teams, [one.share for one in workload.teams])[0]
            id, lasts = f"{number}", chance.lognormvariate(math.log(team.median), team.sigma)
            self._durations[id] = lasts
            most = lasts * chance.uniform(0.9, 3) if chance.random() < workload.capped else None
            made.append((when, ev.Submitted(self._spec(id, team.name, chance.choice(team.sizes), most))))
        return made

    @staticmethod
    def _spec(id: str, component: str, gpus: int, most: float | None) -> RequestSpec:
        settings = ResourceSettings(gpu_count=gpus)
        return RequestSpec(id=id, component=component, resources=settings, max_duration_seconds=most)

    def _push(self, when: float, event: ev.Event) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (when, self._pushed, event))

    def _feed(self, event: ev.Event, now: float) -> None:
        for one in self.broker.handle(event, now):
            if not isinstance(one, ChangeStatus):
                continue
            if one.to is Status.ALLOCATED:
                self.started.setdefault(one.request, now)
                self._push(now + self._durations[one.request], ev.Released(one.request))
            elif one.to is Status.PREEMPTED:
                self.evictions += 1
                spec = self.broker.requests[one.request].spec
                again = spec.model_copy(update={"id": f"{spec.id}'", "retry_of": spec.retry_of or spec.id})
                self._durations[again.id] = self._durations[spec.id]
                self._push(now, ev.Submitted(again))


def row(workload: Workload, replays: list[Replay]) -> list[str]:
    """What came of the promises of several replays: those of one lean on each other."""
    waits, first, last, late = [], [], [], 0
    for replay in replays:
        for id, (now, p50, p90) in replay.promised.items():
            if p50 is None or p90 is None:
                late += 1
                continue
            waits.append(replay.started.get(id, math.inf) - now)
            first.append(p50 - now)
            last.append(p90 - now)
    if not waits:
        return [workload.name, "0", *["-"] * 4, f"{late}", "-"]
    under_90 = statistics.mean(wait <= most for wait, most in zip(waits, last, strict=True))
    under_50 = statistics.mean(wait <= most for wait, most in zip(waits, first, strict=True))
    verdict = "" if 0.85 <= under_90 <= 0.95 else " !"
    return [
        workload.name, f"{len(waits)}", f"{100 * under_90:.0f} %{verdict}", f"{100 * under_50:.0f} %",
        f"{statistics.median(waits) / 60:.0f} min", f"{statistics.median(last) / 60:.0f} min", f"{late}",
        f"{sum(replay.evictions for replay in replays)}",
    ]  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--few", action="store_true")
    options.add_argument("--seeds", type=int, default=6)
    options.add_argument("--only", default="")
    given = options.parse_args()
    headings = ("predicted", "start <= p90", "start <= p50", "wait p50", "promised p90", "later", "evictions")
    headings = ("predicted", "start <= p90", "start <= p50", "wait p50", "promised p90", "later", "evictions")
    table = Table("workload", *headings)
    for workload in WORKLOADS:
        if given.only in workload.name:
            replays = [
                Replay(workload, random.Random(seed), every=100 if given.few else 20) for seed in range(given.seeds)
            ]
            for replay in replays:
                replay.play()
            table.add_row(*row(workload, replays))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
