"""What it costs to choose who has to leave, with many who could."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.engine_turns import instant_broker
from benchmarks.harness import (
    Benchmark,
    Patience,
    Row,
    Settings,
    at_most,
    cost,
    median_round,
    percentile,
    processor_seconds,
    ratio_at_most,
    row,
)
from raypool.core import cycle
from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.instructions import ChangeStatus
from raypool.core.pool import Pool
from raypool.core.status import Status
from raypool.core.victims import Victim, choose
from raypool.core.walk import Outcome
from raypool.spec import BrokerConfig, RequestSpec

TEAMS = 10
SAMPLES = 300


def crowd(running: int) -> Broker:
    """A pool that ten teams of ten priorities have filled with requests for one GPU each; nothing is reserved, so
    all borrow. There is a key that nobody uses, and one that only the highest of them uses."""
    teams: list[dict[str, Any]] = [
        {"pool": "p", "component": f"c{i}", "priority": 10 * (i + 1)} for i in range(TEAMS)
    ]
    asks = [{"pool": "p", "component": f"above-{i}", "priority": 10 * (i + 1) + 5} for i in range(TEAMS)]
    capacity = {"gpu": running, "licence": 100}
    broker = instant_broker([{"name": "p", "capacity": capacity}], [*teams, *asks])
    for number in range(running):
        run_one(broker, f"r{number}", number % TEAMS)
    licences = {"id": "licences", "component": f"c{TEAMS - 1}", "resources": {"pool_resources": {"licence": 100}}}
    broker.handle(ev.Submitted(RequestSpec.load(licences)), 0.0)
    return broker


def run_one(broker: Broker, request_id: str, team: int) -> None:
    spec = RequestSpec.load({"id": request_id, "component": f"c{team}", "resources": {"gpu_count": 1}})
    broker.handle(ev.Submitted(spec), 0.0)
    assert broker.requests[request_id].current is not None


def choices(running: int, component: str, resources: dict[str, Any], samples: int) -> tuple[list[float], int]:
    """Processor seconds of `choose` for requests that block the pool, each in another state of it; and how many
    each chose, who have left then and are there again before the next."""
    broker = crowd(running)
    taken: list[float] = []
    chosen = 0
    for sample in Patience(samples):
        again(broker, f"r{sample * 7919 % running}", sample * 7919 % running % TEAMS)
        spec = RequestSpec.load({"id": "waiter", "component": component, "resources": resources})
        with clocked_choices() as clocked:
            changes = broker.handle(ev.Submitted(spec), 0.0)
        assert len(clocked) == 1, clocked
        taken.append(clocked[0])
        victims = [one.request for one in changes if isinstance(one, ChangeStatus) and one.to is Status.PREEMPTED]
        chosen = len(victims)
        broker.handle(ev.Cancelled("waiter"), 0.0)
        broker.handle(ev.Forgotten("waiter"), 0.0)
        for victim in victims:
            again(broker, victim, int(victim[1:]) % TEAMS)
    return taken, chosen


def again(broker: Broker, request_id: str, team: int) -> None:
    """It ends, if it has not, and the same is the newest of its team."""
    broker.handle(ev.Released(request_id), 0.0)
    broker.handle(ev.Forgotten(request_id), 0.0)
    run_one(broker, request_id, team)


@contextmanager
def clocked_choices() -> Iterator[list[float]]:
    """Processor seconds of each call of `choose` that the cycle makes meanwhile."""
    taken: list[float] = []

    def clocked(pool: Pool, outcome: Outcome) -> list[Victim]:
        began = time.process_time()
        try:
            return choose(pool, outcome)
        finally:
            taken.append(time.process_time() - began)

    with patch.object(cycle, "choose", clocked):
        yield taken


def enough(settings: Settings) -> Iterator[Row]:
    """`victims.choose` as the cycle calls it for a request that was just submitted and blocks the pool: candidates,
    sparing, looking ahead. The walk and the eviction are not in it. All who run borrow one GPU; between two choices
    those who had to leave come back, and one ends and begins anew."""
    samples = settings.size(SAMPLES, 10)
    for needed, bar in ((1, 0.1), (64, 0.5)):
        first = 0.0
        for running in (1_000, 10_000, 50_000):
            running = settings.size(running, max(running // 50, 80))
            taken, chosen = choices(running, f"above-{TEAMS - 1}", {"gpu_count": needed}, samples)
            assert chosen == needed, (chosen, needed)
            name = f"victims: {needed} of {running:,}"
            p50 = percentile(taken, 50)
            yield cost(f"{name}, p50", p50, "ms", at_most(bar))
            yield cost(f"{name}, p99", percentile(taken, 99), "ms")
            first = first or p50
        yield row(f"{name}, growth", p50 * 1e3, "ms", ratio_at_most(1.5), first * 1e3, "of the fewest")


def not_enough(settings: Settings) -> Iterator[Row]:
    """The same where no set of victims is enough, so that nobody is evicted: the request asks for more than those
    below it hold together; or for GPUs that it could have, and for a key that only those above it hold."""
    running, samples = settings.size(50_000, 1_000), settings.size(SAMPLES, 10)
    for name, level, resources in (
        ("more than those below hold", 4, {"gpu_count": running * 6 // 10}),
        ("a key that those below do not hold", 4, {"gpu_count": 1, "pool_resources": {"licence": 1}}),
        ("nobody is below", 0, {"gpu_count": running // 2}),
    ):
        taken, chosen = choices(running, f"above-{level}", resources, samples)
        assert chosen == 0, chosen
        name = f"no victims among {running:,}: {name}"
        yield cost(f"{name}, p50", percentile(taken, 50), "ms", at_most(0.1))
        yield cost(f"{name}, p99", percentile(taken, 99), "ms")


def burst_seconds(arrivals: int, running: int) -> float:
    """Of all arrivals together."""
    broker = Broker(World(confirms_placement=False, confirms_removal=False))
    pool = {"name": "p", "capacity": {"gpu": running}, "grace_seconds": 30.0}
    policies = [{"pool": "p", "component": name, "priority": n} for n, name in enumerate(("c0", "urgent"))]
    broker.handle(ev.ConfigApplied(BrokerConfig.load({"pools": [pool], "policies": policies})), 0.0)
    for number in range(running):
        run_one(broker, f"r{number}", 0)
    events = [
        ev.Submitted(RequestSpec.load({"id": f"u{i}", "component": "urgent", "resources": {"gpu_count": 1}}))
        for i in range(arrivals)
    ]

    def work() -> None:
        for event in events:
            broker.handle(event, 1.0)

    seconds = processor_seconds(work)
    leaving = sum(one.leaving for one in broker.pools["p"].ledger.allocations())
    assert leaving == arrivals, leaving
    return seconds


def burst(settings: Settings) -> Iterator[Row]:
    """Requests of a higher priority that arrive one after the other at a pool full of 8,000 borrowers, each of whom
    evicts one; with a grace of 30 s, so that all victims are still there and all arrivals still wait at the end.
    One `Broker.handle` per arrival: walk, choice, notice."""
    running = settings.size(8_000, 200)
    first = 0.0
    for arrivals in (1_000, 2_000, 4_000):
        arrivals = settings.size(arrivals, arrivals // 40)
        seconds = median_round(settings, lambda count=arrivals: burst_seconds(count, running))  # type: ignore[misc]
        each = seconds / arrivals
        yield cost(f"a burst of {arrivals:,} that each evict one: all", seconds, "s")
        yield cost(f"a burst of {arrivals:,} that each evict one: each", each, "ms", at_most(0.5))
        first = first or each
    yield row("a burst: each of the most", each * 1e3, "ms", ratio_at_most(1.5), first * 1e3, "of the fewest")


BENCHMARKS = (
    Benchmark("engine.victims", enough),
    Benchmark("engine.no-victims", not_enough),
    Benchmark("engine.burst", burst),
)
