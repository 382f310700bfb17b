"""Replays the jobs of a trace on the real core, in virtual time: what would have happened under these policies.

Every job is submitted when the trace says so, and runs for as long as it ran then, wherever and whenever the
core grants it. Grants are placed and removals confirmed in the same instant; nodes are not known. All that is
due up to a job's submission happens first; at one instant grace deadlines, then ends, each in order of
submission. A job of a component that no policy names is rejected, as the broker would reject it.

The same trace and the same policies give the same report: nothing here reads a clock or draws a number.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.instructions import ChangeStatus
from raypool.core.laws import held_up_inside_its_reserve
from raypool.core.reasons import Evicted
from raypool.core.status import Status
from raypool.errors import Refused, SpecError
from raypool.simulation.job import Job
from raypool.simulation.timeline import Timeline
from raypool.spec import BrokerConfig


@dataclass(frozen=True)
class AfterPreemption:
    """What becomes of a job that was preempted. It is asked again at once, at the end of the line.

    restart: it begins anew, and all that it had done is lost. resume: it goes on from where it was, and each
    time `resume_seconds` of work have to be done again (less, if it had done less).
    """

    how: Literal["restart", "resume"] = "restart"
    resume_seconds: float = 0.0

    def lost_of(self, ran: float) -> float:
        """How many of the seconds that it ran were for nothing."""
        return ran if self.how == "restart" else min(ran, self.resume_seconds)

    @property
    def sentence(self) -> str:
        if self.how == "restart":
            return "a preempted job starts again from nothing: all that it had done is lost"
        return f"a preempted job resumes: {self.resume_seconds:g} s of its work are lost each time"


@dataclass(frozen=True, slots=True)
class Eviction:
    """Who had to leave when, for whom, by which rule, and what was lost by it, in seconds by key."""

    at: float
    pool: str
    victim: str
    by: str
    rule: str
    lost: dict[str, float]


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A request that was blocked in a pool though it was inside its reserve. known_gap: the gap of semantics 7, law
    4, explains it, so that it is not a violation."""

    request: str
    component: str
    pool: str
    known_gap: bool


@dataclass
class Tally:
    """What happened to the jobs of one component. waits: of those that began, in seconds, beside when they were
    asked. held: (pool, key) -> amount times seconds. refusals: sentence -> how many jobs."""

    jobs: int = 0
    finished: int = 0
    first_at: float | None = None
    last_end: float | None = None
    asked: array[float] = field(default_factory=lambda: array("d"))
    waits: array[float] = field(default_factory=lambda: array("d"))
    refusals: Counter[str] = field(default_factory=Counter)
    held: dict[tuple[str, str], float] = field(default_factory=dict)
    preemptions: int = 0


@dataclass
class Workload:
    """What came of a replay. held_up: who was, inside his reserve. usage: (pool, component, key) -> what was held
    over time."""

    config: BrokerConfig
    after_preemption: AfterPreemption
    began_at: float = 0.0
    ended_at: float = 0.0
    events: int = 0
    components: dict[str, Tally] = field(default_factory=dict)
    evictions: list[Eviction] = field(default_factory=list)
    held_up: set[HeldUp] = field(default_factory=set)
    usage: dict[tuple[str, str, str], Timeline] = field(default_factory=dict)


def replay_workload(
    jobs: Iterable[Job],
    config: BrokerConfig,
    after_preemption: AfterPreemption | None = None,
    watch: Callable[[Broker], None] | None = None,
) -> Workload:
    """Runs the jobs, which come in order of submission. `watch` is shown the broker after every event.

    Raises SpecError if the pools and policies are refused.
    """
    run = _Run(config, after_preemption or AfterPreemption(), watch)
    for job in jobs:
        run.submit(job)
    return run.finish()


class _Running:
    """One attempt at a job. number: of its submission. left: seconds of work at its beginning. need: what it holds,
    by key."""

    __slots__ = (
        "attempt", "component", "evicted", "finished", "job", "left", "need", "number", "pool", "since", "tally",
    )  # fmt: skip

    def __init__(self, job: Job, component: str, tally: Tally, attempt: int, left: float) -> None:
        self.number = 0
        self.job = job
        self.component = component
        self.tally = tally
        self.attempt = attempt
        self.left = left
        self.pool = ""
        self.since = 0.0
        self.need: dict[str, int] = {}
        self.evicted: Evicted | None = None
        self.finished = False


class _Run:
    def __init__(self, config: BrokerConfig, after: AfterPreemption, watch: Callable[[Broker], None] | None) -> None:
        self.broker = Broker(World(confirms_placement=False, confirms_removal=False))
        self.workload = Workload(config, after)
        self.watch = watch
        self.clock = 0.0
        self.due: list[tuple[float, int, str]] = []
        self.present: dict[str, _Running] = {}
        self.again: deque[_Running] = deque()
        self.number = 0
        try:
            self.broker.handle(ev.ConfigApplied(config), 0.0)
        except Refused as refused:
            raise SpecError(f"pools, policies: {refused}", refused.faults) from None

    def submit(self, job: Job) -> None:
        """The trace's own clock begins with its first job: the core's runs from 0."""
        if not self.number:
            self.workload.began_at = job.submitted_at
        at = job.submitted_at - self.workload.began_at
        self._run_until(at)
        self.clock = at
        component, component_type = job.spec.owner
        name = component if component_type == "team" else f"{component} ({component_type})"
        tally = self.workload.components.get(name)
        if tally is None:
            tally = self.workload.components[name] = Tally(first_at=at)
        tally.jobs += 1
        self._feed(self._submission(_Running(job, name, tally, 1, job.duration_seconds)))

    def finish(self) -> Workload:
        self._run_until(float("inf"))
        self.workload.ended_at = self.workload.began_at + self.clock
        for line in self.workload.usage.values():
            line.reach(self.clock)
        return self.workload

    # --- the clock ----------------------------------------------------------------------------

    def _run_until(self, end: float) -> None:
        while True:
            deadline = self.broker.next_deadline
            first = self.due[0][0] if self.due else None
            if deadline is not None and deadline <= end and (first is None or deadline <= first):
                self.clock = deadline
                self._feed(ev.TimePassed())
            elif first is not None and first <= end:
                when, _, id = heapq.heappop(self.due)
                one = self.present.get(id)
                if one is not None:
                    self.clock = when
                    one.finished = True
                    self._feed(ev.Released(id))
            else:
                return

    def _submission(self, one: _Running) -> ev.Event:
        """Under an id of its own: those of a trace may be there twice. Without a limit on its duration: how long it
        ran in the trace is known, and what its limit made of that is in there."""
        self.number += 1
        one.number = self.number
        id = str(one.number)
        self.present[id] = one
        return ev.Submitted(
            one.job.spec.model_copy(update={"id": id, "max_duration_seconds": None, "retry_of": None})
        )

    def _feed(self, event: ev.Event) -> None:
        """The event, then the jobs that were preempted by it, asked again one by one."""
        self._handle(event)
        while self.again:
            self._handle(self._submission(self.again.popleft()))

    def _handle(self, event: ev.Event) -> None:
        self.workload.events += 1
        for instruction in self.broker.handle(event, self.clock):
            if isinstance(instruction, ChangeStatus):
                self._note(instruction)
        for pool in self.broker.pools.values():
            found = held_up_inside_its_reserve(pool)
            if found is not None:
                request, known_gap = found
                component = self.present[request.id].component
                self.workload.held_up.add(HeldUp(request.id, component, pool.name, known_gap))
        if self.watch is not None:
            self.watch(self.broker)

    # --- what the core decided ----------------------------------------------------------------

    def _note(self, change: ChangeStatus) -> None:
        one = self.present[change.request]
        match change.to:
            case Status.ALLOCATED:
                self._begins(one, change)
            case Status.PREEMPTING:
                assert isinstance(change.reason, Evicted), change
                one.evicted = change.reason
            case Status.PREEMPTED | Status.RELEASED:
                del self.present[change.request]
                self._ends(one)
            case Status.REJECTED:
                del self.present[change.request]
                one.tally.refusals[change.reason.sentence if change.reason else ""] += 1
            case _:
                assert change.to is Status.PENDING, change

    def _begins(self, one: _Running, change: ChangeStatus) -> None:
        one.since = self.clock
        if one.attempt == 1:
            asked = one.job.submitted_at - self.workload.began_at
            one.tally.asked.append(asked)
            one.tally.waits.append(self.clock - asked)
        allocation = self.broker.requests[change.request].allocation
        if allocation is not None and allocation.pool is not None:
            one.pool = allocation.pool.name
            one.need = allocation.pool.ledger.by_key(allocation.need)
        heapq.heappush(self.due, (self.clock + one.left, one.number, change.request))

    def _ends(self, one: _Running) -> None:
        """It gave back what it held, or that was taken away."""
        ran = self.clock - one.since
        one.tally.last_end = self.clock
        for key, amount in one.need.items():
            place = one.pool, key
            one.tally.held[place] = one.tally.held.get(place, 0.0) + amount * ran
            line = self.workload.usage.setdefault((one.pool, one.component, key), Timeline())
            line.add(one.since, self.clock, amount)
        if one.evicted is not None:
            self._was_preempted(one, one.evicted, ran)
        one.tally.finished += one.finished

    def _was_preempted(self, one: _Running, reason: Evicted, ran: float) -> None:
        """It is asked again, unless it came to its end within its grace: then nothing is lost."""
        lost = 0.0 if one.finished else self.workload.after_preemption.lost_of(ran)
        one.tally.preemptions += 1
        self.workload.evictions.append(
            Eviction(
                self.clock,
                reason.pool,
                one.component,
                reason.by_component,
                reason.why,
                {key: amount * lost for key, amount in one.need.items()},
            )
        )
        if not one.finished:
            left = one.left - ran + lost
            self.again.append(_Running(one.job, one.component, one.tally, one.attempt + 1, left))
