"""The baseline load of Kueue's performance tests, on this core, in virtual time."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.engine_turns import instant_broker
from benchmarks.harness import Benchmark, Row, Settings, at_most, cost, ratio_at_most, row
from raypool.core import events as ev
from raypool.core.instructions import ChangeStatus
from raypool.core.status import Status
from raypool.spec import RequestSpec

POOLS, TEAMS = 5, 6
SHARE = 20
"""Units of a pool's capacity for each of its teams."""

LONG_SECONDS = 3.0
"""A play that took so long is not repeated."""


@dataclass(frozen=True)
class Class:
    """Jobs of one class of a team: how many, how large, how long they run and how often they come, in ms."""

    name: str
    priority: int
    jobs: int
    units: int
    lasts: int
    every: int


CLASSES = (
    Class("low", 50, 350, 1, 200, 100),
    Class("middle", 100, 100, 5, 500, 500),
    Class("high", 200, 50, 20, 1_000, 1_200),
)


@dataclass
class Job:
    of: Class
    team: str
    pool: str
    asked_at: int
    left: int
    began_at: int = -1
    waited: int | None = None


@dataclass
class Played:
    """What came of it. Times in ms; lost: unit-ms of work that was done for nothing."""

    makespan: int = 0
    lost: int = 0
    evictions: int = 0
    finished: int = 0
    core_seconds: float = 0.0
    waits: dict[str, list[int]] = field(default_factory=lambda: {one.name: [] for one in CLASSES})


class Play:
    """The jobs through the core. At one instant ends come before arrivals, each in the order in which they became
    known; who is evicted asks again at once."""

    def __init__(self, reserved_for: str, resumes: bool, pools: int, teams: int) -> None:
        self.resumes = resumes
        self.played = Played()
        self.broker = instant_broker(
            [{"name": f"p{p}", "capacity": {"unit": SHARE * teams}, "queueing": "backfill"} for p in range(pools)],
            [
                {
                    "pool": f"p{p}",
                    "component": f"p{p}-t{t}-{one.name}",
                    "priority": one.priority,
                    "reserved": {"unit": SHARE if one.name == reserved_for else 0},
                }
                for p in range(pools)
                for t in range(teams)
                for one in CLASSES
            ],
        )
        self.arrivals = sorted(
            (
                Job(one, f"p{p}-t{t}-{one.name}", f"p{p}", one.every * number, one.lasts)
                for p in range(pools)
                for t in range(teams)
                for one in CLASSES
                for number in range(one.jobs)
            ),
            key=lambda job: job.asked_at,
        )
        self.running: dict[str, Job] = {}
        self.ends: list[tuple[int, int, str]] = []
        self.again: deque[Job] = deque()
        self.jobs: dict[str, Job] = {}
        self.number = 0
        self.now = 0

    def run(self) -> Played:
        arrivals = deque(self.arrivals)
        while arrivals or self.ends:
            if self.ends and (not arrivals or self.ends[0][0] <= arrivals[0].asked_at):
                self.now, _, id = heapq.heappop(self.ends)
                job = self.running.pop(id, None)
                if job is not None:
                    self.played.finished += 1
                    self.played.makespan = self.now
                    self.feed(ev.Released(id))
            else:
                self.now = arrivals[0].asked_at
                self.ask(arrivals.popleft())
        return self.played

    def ask(self, job: Job) -> None:
        self.number += 1
        id = f"{self.number}"
        self.jobs[id] = job
        resources = {"pool_resources": {"unit": job.of.units}}
        self.feed(
            ev.Submitted(
                RequestSpec.load({"id": id, "component": job.team, "pool": job.pool, "resources": resources})
            )
        )

    def feed(self, event: ev.Event) -> None:
        began = time.process_time()
        changes = self.broker.handle(event, self.now / 1000)
        self.played.core_seconds += time.process_time() - began
        for change in changes:
            if isinstance(change, ChangeStatus):
                self.note(change)
        while self.again:
            self.ask(self.again.popleft())

    def note(self, change: ChangeStatus) -> None:
        id = change.request
        if change.to is Status.ALLOCATED:
            job = self.running[id] = self.jobs.pop(id)
            job.began_at = self.now
            if job.waited is None:
                job.waited = self.now - job.asked_at
                self.played.waits[job.of.name].append(job.waited)
            heapq.heappush(self.ends, (self.now + job.left, self.number, id))
        elif change.to is Status.PREEMPTED:
            job = self.running.pop(id)
            ran = self.now - job.began_at
            self.played.evictions += 1
            if self.resumes:
                job.left -= ran
            else:
                self.played.lost += ran * job.of.units
            self.again.append(job)


def baseline(settings: Settings) -> Iterator[Row]:
    """15,000 jobs in 5 pools of 120 units, 6 teams each, three classes per team, each with a policy of its own; no
    grace, backfill, evicted jobs ask again at once. With every unit busy from the first instant it would last 66 s
    of virtual time. With the reserve at the high class it shall wait least. The processor time is that of all calls
    of `Broker.handle`; the events are made outside it."""
    pools, teams = settings.size(POOLS, 1), settings.size(TEAMS, 1)
    work = sum(one.jobs * one.units * one.lasts for one in CLASSES) / SHARE / 1000
    for reserved_for in ("middle", "high"):
        for resumes in (False, True):
            one = Play(reserved_for, resumes, pools, teams).run()
            results = [one]
            while len(results) < 3 and one.core_seconds < LONG_SECONDS:
                results.append(Play(reserved_for, resumes, pools, teams).run())
            jobs = pools * teams * sum(kind.jobs for kind in CLASSES)
            assert one.finished == jobs, (one.finished, jobs)
            name = f"baseline, {SHARE} reserved for {reserved_for}, victims {'resume' if resumes else 'restart'}"
            bar = ratio_at_most(1.05) if reserved_for == "middle" or resumes else None
            yield row(f"{name}: makespan", one.makespan / 1000, "s", bar, work, "all units always busy")
            lost = 100 * one.lost / (pools * teams * SHARE * work * 1000)
            yield row(f"{name}: work lost", lost, "% of the work")
            yield row(f"{name}: evictions", one.evictions, "evictions")
            means = {kind.name: statistics.mean(one.waits[kind.name]) / 1000 for kind in CLASSES}
            least = min(means[kind] for kind in ("low", "middle"))
            for kind, mean in means.items():
                bar = at_most(least) if kind == reserved_for == "high" else None
                yield row(f"{name}: mean wait of {kind}", mean, "s", bar)
            seconds = statistics.median(result.core_seconds for result in results)
            yield cost(f"{name}: {jobs:,} jobs decided", seconds, "s", at_most(1))


BENCHMARKS = (Benchmark("engine.baseline", baseline),)
