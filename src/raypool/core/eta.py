"""When a waiting request will start: the broker run forward on copies of it, by its own code.

What is not known is how long things last, and who will still come. Both are taken from what was seen: lifetimes from
the histograms that each policy keeps (lifetimes.py), what runs now included, at its age; arrivals from the requests
that came lately, which come once more. There is no randomness: a fixed number of futures, in which each allocation
lives through a different slice of its distribution (a Latin hypercube, turned by the request's number), so the same
state gives the same answer. The rule that must not break: nothing here touches the broker that it is asked about.

It cannot know: what will be cancelled while it waits, changes of pools, nodes that come or go, and arrivals unlike
those before. Placing takes a moment more than nothing, as here.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.copy import copy_of
from raypool.core.instructions import ChangeStatus, Instruction
from raypool.core.lifetimes import ALL_OF_IT, BOUNDS, ONE, Kind, Lifetimes, bucket_of, share_class, size_class
from raypool.core.reasons import Infeasible
from raypool.core.request import Allocation, Request
from raypool.core.status import Status
from raypool.spec import RequestSpec

FUTURES = 13
"""A prime: every step through the slices of a distribution then meets each of them once."""

HORIZON_SECONDS = 60 * 86400.0
"""Further ahead nobody looks."""

WORK_MOST = 25_000
GROUPS_PER_WORK = 300
"""So much work at most, in all futures together: some seconds. What has not started then, starts "later". An event
is one, and one more for each so many groups of requests alike that stand in the lines: a decision walks through
those."""

ARRIVALS_MOST = 400
"""So many of the latest submissions come once more in each future."""

RATE_SECONDS = 3600.0
"""When they came within less than this they come once more and not again: it may have been a burst."""

ENOUGH = 20 * ONE
"""From so much history on a policy's allocations of one size are judged by themselves."""

NO_HISTORY_SECONDS = 900.0
"""Where nothing was ever seen to end, nothing is expected to before: half of it lasts half an hour, then."""

PRIOR = 0.25 * ONE
PRIOR_HAZARD = 1 - 2**-0.25
"""Of what gets older than all that was seen, half end before they are twice as old: that is what is to be said of
something of which only its age is known. It has the weight of a quarter of an observation: wherever something was
seen, that decides."""

DOUBT = 2.0
"""Where nothing was ever seen to end, all of that may be wrong together by a factor of seven, up or down: one
standard deviation. Lifetimes differ among themselves by a factor of e or so: each end that was seen makes it less."""

TO_COME, AGAIN = "to come/", "again/"
"""How the ids of those begin that are made up: nobody's id has a slash."""

Arrivals = list[tuple[float, RequestSpec]]
"""When each came, and what comes once more."""


@dataclass(frozen=True, slots=True)
class Expected:
    """When it starts, in seconds on the broker's clock: in half of the cases before p50, in nine of ten before p90.
    None: later than was looked ahead, which is `beyond` for the first of them that is None; without that nothing is
    known."""

    p50: float | None
    p90: float | None
    beyond: float | None = None

    def seconds_from(self, now: float) -> tuple[float | None, float | None, float | None]:
        """From then on; what should have come is due now; a look that reached no further than now says nothing."""
        beyond = None if self.beyond is None or self.beyond < now + 1 else self.beyond - now
        return _from(now, self.p50), _from(now, self.p90), beyond


def _from(now: float, when: float | None) -> float | None:
    return None if when is None else max(when - now, 0.0)


def expected_starts(broker: Broker, asked: Iterable[str] | None = None) -> dict[str, Expected]:
    """Of the waiting requests with these ids, or of all; and of those that start before them in every future."""
    forecast = Forecast(broker, asked)
    for _ in forecast.steps():
        pass
    return forecast.expected


class Forecast:
    """One look ahead, in slices: whoever wants `expected` goes through `steps` when there is time. The state is that
    of the moment when this was made. now: that moment; what runs has got older since the last event. past: who came
    lately is asked of this broker, if `broker` is a copy of it: a copy leaves out most of what is over."""

    def __init__(
        self,
        broker: Broker,
        asked: Iterable[str] | None = None,
        now: float | None = None,
        past: Broker | None = None,
    ) -> None:
        self.now = broker.now if now is None else max(now, broker.now)
        self.expected: dict[str, Expected] = {}
        self._start = copy_of(broker, World(confirms_placement=False, confirms_removal=False))
        self._start.ended_kept, self._start.now = 100, self.now
        self._again = _asks_again(past or broker)
        self._arrivals = _latest_arrivals(past or broker)
        self._survivals = Survivals(broker, self.now)
        self._waiting = [request.id for request in self._start.requests.values() if request.waiting]
        wanted = self._waiting if asked is None else list(asked)
        self._wanted = dict.fromkeys(wanted)
        self._asked = [id for id in wanted if id in self._start.requests and _may_start(self._start.requests[id])]

    def steps(self) -> Iterator[None]:
        """Each step is one event of one future, or a copy of the broker: milliseconds, with thousands who wait tens
        of them."""
        starts: dict[str, list[float]] = {id: [] for id in self._waiting}
        ends: dict[str, list[float]] = {id: [] for id in self._asked}
        most = WORK_MOST // FUTURES
        for future in range(FUTURES if self._asked else 0):
            run = _Future(future, copy_of(self._start), self._survivals, self._arrivals, self._asked, self._again)
            yield
            for _ in run.events(most):
                yield
            for id, when in run.started.items():
                if id in starts:
                    starts[id].append(when)
            for id in ends.keys() - run.started.keys():
                ends[id].append(run.looked_until)
        told = {id: found for id, found in starts.items() if len(found) == FUTURES or id in self._wanted}
        self.expected = {id: expected_of(found, ends.get(id, ())) for id, found in told.items()}


def _may_start(request: Request) -> bool:
    """It waits, and not only for nodes: of those that will come nobody knows."""
    aside = [reason for reason in request.held_out.values() if not isinstance(reason, Infeasible)]
    return request.waiting and bool(request.queued or aside)


def expected_of(starts: list[float], ends: Collection[float]) -> Expected:
    """Of the starts in those futures in which it started at all, and how far the others were looked at."""
    ordered = [*sorted(starts), *[math.inf] * (FUTURES - len(starts))]
    p50, p90 = _quantile(ordered, 0.5), _quantile(ordered, 0.9)
    at_least = sorted([*starts, *ends])
    beyond = _quantile(at_least, 0.5 if p50 is None else 0.9) if p90 is None and ends else None
    return Expected(p50, p90, beyond if beyond is None or p50 is None else max(beyond, p50))


def _quantile(ordered: list[float], share: float) -> float | None:
    """That which a further one stays below with that chance."""
    at = share * (len(ordered) + 1) - 1
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    found = low if low == high else low + (high - low) * (at - math.floor(at))
    return None if math.isinf(found) or math.isnan(found) else found


# --- one future -------------------------------------------------------------------------------


class _Future:
    """The broker's copy, and what happens to it. started: when each that waited began to run. looked_until: what has
    not started, starts later."""

    def __init__(
        self, number: int, broker: Broker, survivals: Survivals, arrivals: Arrivals, asked: list[str], again: bool
    ) -> None:
        self.number = number
        self.broker = broker
        self.survivals = survivals
        self.started: dict[str, float] = {}
        self.looked_until = broker.now
        self._left = dict.fromkeys(asked)
        self._holding: dict[str, Request] = {}  # the broker may forget who ends as soon as he does
        self._again = again
        self._due: list[tuple[float, int, ev.Event]] = []
        self._pushed = 0
        self._take_over()
        self._coming = self._arrivals_once_more(arrivals)
        self._await_next()

    def _take_over(self) -> None:
        """What runs ends some time; what is being placed is placed at once, and what is being removed is gone."""
        now = self.broker.now
        for request in list(self.broker.requests.values()):
            allocation = request.allocation
            if allocation is None or allocation.gone or allocation.phantom:
                continue
            if request.status is not None and request.status.running:
                self._holding[request.id] = request
            if allocation is not request.current:
                self._push(now, ev.PlacementRemoved(request.id, allocation.attempt))
            elif not allocation.placed:
                self._push(now, ev.PlacementReady(request.id, allocation.attempt))
            elif request.granted_at is not None and request.status is Status.ALLOCATED:
                self._ends(request, now - request.granted_at)

    def _arrivals_once_more(self, arrivals: Arrivals) -> Iterator[tuple[float, ev.Submitted]]:
        """The latest arrivals once more, over and over; each future begins elsewhere among them."""
        now = self.broker.now
        window = now - arrivals[0][0] if arrivals else 0.0
        if window <= 0:
            return
        turn = window * self.number / FUTURES
        times = [(when - arrivals[0][0] - turn, spec) for when, spec in arrivals]
        come = [one for one in times if one[0] >= 0] + [(after + window, spec) for after, spec in times if after < 0]
        serial = 0
        for again in itertools.count() if window >= RATE_SECONDS else range(1):
            for after, spec in come:
                serial += 1
                submitted = ev.Submitted(spec.model_copy(update={"id": f"{TO_COME}{serial}"}))
                yield now + after + again * window, submitted

    def _await_next(self) -> None:
        arrival = next(self._coming, None)
        if arrival is not None:
            self._push(*arrival)

    def _push(self, when: float, event: ev.Event) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (when, self._pushed, event))

    def _ends(self, request: Request, age: float) -> None:
        """Schedules its end, some way into the slice of its lifetime that this future has for it."""
        allocation = request.allocation
        if allocation is None or allocation.pool is None:
            return
        share = slice_of(request.number + request.grants, self.number)
        seconds = self.survivals.left(allocation, age, share, self.number)
        self._push(self.broker.now + seconds, ev.Cancelled(request.id))

    def events(self, most: int) -> Iterator[None]:
        """One at a time, until all that was asked for has started, or so much work is done."""
        broker, end, work = self.broker, self.broker.now + HORIZON_SECONDS, 0
        while work < most:
            work += 1 + sum(len(pool.queue.groups) for pool in broker.pools.values()) // GROUPS_PER_WORK
            when, event = self._next()
            self.looked_until = min(when, end)
            if when > end or not self._left:
                return
            if isinstance(event, ev.Cancelled) and event.request not in broker.requests:
                continue
            if isinstance(event, ev.Submitted) and event.spec.id.startswith(TO_COME):
                self._await_next()
            self._heard(broker.handle(event, max(when, broker.now)))
            yield

    def _next(self) -> tuple[float, ev.Event]:
        deadline = self.broker.next_deadline
        if deadline is not None and (not self._due or deadline <= self._due[0][0]):
            return deadline, ev.TimePassed()
        if not self._due:
            return math.inf, ev.TimePassed()
        when, _, event = heapq.heappop(self._due)
        return when, event

    def _heard(self, instructions: list[Instruction]) -> None:
        broker = self.broker
        for one in instructions:
            if not isinstance(one, ChangeStatus):
                continue
            if one.to is Status.ALLOCATED and one.request in broker.requests:
                self.started.setdefault(one.request, broker.now)
                self._left.pop(one.request, None)
                self._holding[one.request] = broker.requests[one.request]
                self._ends(broker.requests[one.request], 0.0)
            elif one.to.terminal:
                self._left.pop(one.request, None)
                held = self._holding.pop(one.request, None)
                if one.to is Status.PREEMPTED and self._again and held is not None:
                    self._asked_again(held)

    def _asked_again(self, request: Request) -> None:
        spec = request.spec.model_copy(update={"id": f"{AGAIN}{self._pushed}"})
        self._push(self.broker.now, ev.Submitted(spec))


def slice_of(key: int, future: int) -> float:
    """Between 0 and 1: over all futures, each key meets every slice of that range once, in an order of its own."""
    mixed = key * 2654435761 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 2246822519 & 0xFFFFFFFF
    step, first = 1 + mixed % (FUTURES - 1), (mixed >> 8) % FUTURES
    within = ((mixed >> 12) % 1021 + 0.5) / 1021
    return ((step * future + first) % FUTURES + within) / FUTURES


OPINIONS = [NormalDist().inv_cdf(slice_of(7, future)) for future in range(FUTURES)]
"""Of each future: how many standard deviations all lasts longer than was seen."""


def _latest_arrivals(broker: Broker) -> Arrivals:
    """Who came lately, first come first; what was asked again is not new."""
    fresh = [one for one in broker.requests.values() if one.retry_of is None]
    fresh.sort(key=lambda one: (one.submitted_at, one.number))
    return [(one.submitted_at, one.spec) for one in fresh[-ARRIVALS_MOST:]]


def _asks_again(broker: Broker) -> bool:
    """Whether those who are evicted ask again, as decorated tasks do and most leases do not: what most did lately."""
    evicted = [one.id for one in broker.requests.values() if one.status is Status.PREEMPTED]
    taken_up = {one.retry_of for one in broker.requests.values()}
    return 2 * sum(id in taken_up for id in evicted) >= len(evicted)


# --- how long things last ---------------------------------------------------------------------


class Survivals:
    """What is expected of each kind of allocation, by what was seen until now; what runs is seen up to its age."""

    def __init__(self, broker: Broker, now: float) -> None:
        self._seen = {kind: _counts(found) for kind, found in broker.lifetimes.items()}
        self._made: dict[Kind, Survival] = {}
        for request in broker.requests.values():
            pool, since = request.pool, request.granted_at
            if request.status is Status.ALLOCATED and since is not None and pool is not None:
                age, most = now - since, request.ask.spec.max_duration_seconds
                self._still_runs((pool, *request.owner, size_class(request.demand)), age)
                if most is not None:
                    self._still_runs((pool, *request.owner, share_class(most)), age / most * ALL_OF_IT)

    def _still_runs(self, kind: Kind, age: float) -> None:
        _, censored = self._seen.setdefault(kind, _counts(None))
        censored[bucket_of(age)] += ONE

    def left(self, allocation: Allocation, age: float, share: float, future: int) -> float:
        """How many seconds longer it lasts in that future: `share` of those like it that got so old end before. How
        long they last as a whole each future takes for another, the less was seen the more so."""
        assert allocation.pool is not None
        request, pool = allocation.request, allocation.pool.name
        most = request.ask.spec.max_duration_seconds
        if most is not None:
            used = self._survival((pool, *request.owner, share_class(most)))
            if used.seen >= ENOUGH:
                return used.left(age / most * ALL_OF_IT, share) * most / ALL_OF_IT
        survival = self._survival((pool, *request.owner, size_class(request.demand)))
        scale = math.exp(OPINIONS[future] * survival.doubt)
        return survival.left(age / scale, share) * scale

    def _survival(self, kind: Kind) -> Survival:
        if kind not in self._made:
            self._made[kind] = self._from_those_like(kind)
        return self._made[kind]

    def _from_those_like(self, kind: Kind) -> Survival:
        """Its own history; with little of that, its policy's; then its pool's."""
        ended, censored = _counts(None)
        for alike in (4, 3, 1):
            ended, censored = _counts(None)
            for other, counts in self._seen.items():
                if other[:alike] == kind[:alike] and (other[3] < 0) == (kind[3] < 0):
                    for at, (whole, cut) in enumerate(zip(*counts, strict=True)):
                        ended[at] += whole
                        censored[at] += cut
            if sum(ended) >= ENOUGH:
                break
        return Survival(ended, censored)


def _counts(found: Lifetimes | None) -> tuple[list[int], list[int]]:
    if found is None:
        return [0] * (len(BOUNDS) + 1), [0] * (len(BOUNDS) + 1)
    return list(found.ended), list(found.censored)


class Survival:
    """The share of allocations that last longer than so many seconds, from whole and censored lifetimes (the
    actuary's life table, by bucket). alive[i]: longer than BOUNDS[i]. seen: so much has ended. doubt: by so much all
    of it may be wrong together, as one standard deviation of the logarithm."""

    def __init__(self, ended: list[int], censored: list[int]) -> None:
        self.seen = sum(ended)
        self.doubt = 1 / math.sqrt(1 / DOUBT**2 + self.seen / ONE)
        at_risk = self.seen + sum(censored)
        first = next((at for at, count in enumerate(ended) if count), bucket_of(NO_HISTORY_SECONDS))
        self.alive: list[float] = []
        alive = 1.0
        for at in range(len(BOUNDS)):
            prior = PRIOR_HAZARD if at >= first else 0.0
            exposed = max(at_risk - censored[at] / 2, ended[at])
            alive *= 1 - (ended[at] + PRIOR * prior) / (exposed + PRIOR)
            self.alive.append(alive)
            at_risk -= ended[at] + censored[at]
        self._gone = [1 - share for share in self.alive]

    def left(self, age: float, share: float) -> float:
        """How much longer one of that age lasts: `share` of those that got so old end before."""
        target = self._alive_at(age) * (1 - share)
        at = bisect_left(self._gone, 1 - target)
        if at >= len(self.alive):
            return max(BOUNDS[-1] - age, 0.0)
        above = self.alive[at - 1] if at else 1.0
        part = (above - target) / (above - self.alive[at]) if above > self.alive[at] else 1.0
        return max(_inside(at, part) - age, 0.0)

    def _alive_at(self, age: float) -> float:
        at = bucket_of(age)
        if at >= len(BOUNDS):
            return self.alive[-1]
        above = self.alive[at - 1] if at else 1.0
        low, high = (BOUNDS[at - 1] if at else 0.0), BOUNDS[at]
        part = math.log(age / low) / math.log(high / low) if low else age / high
        return above + (self.alive[at] - above) * part


def _inside(at: int, part: float) -> float:
    """So far into that bucket: evenly in the logarithm, as the buckets are."""
    high = BOUNDS[at]
    return BOUNDS[at - 1] * (high / BOUNDS[at - 1]) ** part if at else high * part
