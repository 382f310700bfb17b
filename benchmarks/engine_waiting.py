"""What one event costs when many merely wait, and what each who waits costs in memory."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import psutil

from benchmarks.engine_turns import instant_broker
from benchmarks.harness import Benchmark, Patience, Row, Settings, at_most, cost, percentile, ratio_at_most, row
from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.status import Status
from raypool.spec import RequestSpec

SHAPES = 50
EVENTS = 2_000
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)


def submitted(request_id: str, component: str, gpus: int, **more: Any) -> ev.Submitted:
    settings = {"gpu_count": gpus, **more}
    return ev.Submitted(RequestSpec.load({"id": request_id, "component": component, "resources": settings}))


def over_their_limits(waiting: int) -> Broker:
    """Ten runners of one team, one of it waits. The stuck are of five teams that go before it, each of ten shapes;
    what they run leaves no room for another under their limits, so that every walk passes all of them over."""
    teams = [f"stuck-{i}" for i in range(5)]
    broker = instant_broker(
        [{"name": "p", "capacity": {"gpu": 5 * 100 + 10}}],
        [
            *({"pool": "p", "component": one, "priority": 5, "limit": {"gpu": 100}} for one in teams),
            {"pool": "p", "component": "busy", "priority": 1},
        ],
    )
    for one in teams:
        broker.handle(submitted(f"{one}-runs", one, 100), 0.0)
    for number in range(waiting):
        shape = number % SHAPES
        broker.handle(submitted(f"w{number}", teams[shape % 5], 1 + shape), 0.0)
    return broker


def behind_the_head(waiting: int) -> Broker:
    """The same team of runners goes before the stuck, who are of 50 shapes and stand behind a blocked one."""
    broker = instant_broker(
        [{"name": "p", "capacity": {"gpu": 10}}],
        [
            {"pool": "p", "component": "busy", "priority": 5, "reserved": {"gpu": 10}},
            *({"pool": "p", "component": f"stuck-{i}", "priority": 1} for i in range(10)),
        ],
    )
    for number in range(waiting):
        shape = number % SHAPES
        broker.handle(submitted(f"w{number}", f"stuck-{shape % 10}", 1 + shape % 10, cpu_count=1 + shape), 0.0)
    return broker


def hand_overs(broker: Broker, events: int) -> list[float]:
    """Processor seconds of each release of one of ten runners, with the grant to the one of theirs who waits."""
    for number in range(11):
        broker.handle(submitted(f"b{number}", "busy", 1), 0.0)
    taken = []
    for number in Patience(events):
        broker.handle(submitted(f"b{number + 11}", "busy", 1), 0.0)
        leaver, next_one = ev.Released(f"b{number}"), broker.requests[f"b{number + 10}"]
        assert next_one.waiting
        began = time.process_time()
        broker.handle(leaver, 0.0)
        taken.append(time.process_time() - began)
        assert next_one.status is Status.ALLOCATED
    return taken


def hand_over(settings: Settings) -> Iterator[Row]:
    """`Broker.handle` of a release, in which the one request that fits is granted, with the others of 50 shapes
    stuck in the same strict pool: passed over by each walk, since their teams are at their limits; or behind the
    one that is granted, who has a reserve. Between two releases another is submitted."""
    crowds: tuple[tuple[str, Callable[[int], Broker]], ...] = (
        ("passed over", over_their_limits),
        ("behind", behind_the_head),
    )
    for where, crowd in crowds:
        first = 0.0
        for waiting in SIZES:
            waiting = settings.size(waiting, waiting // 100)
            broker = crowd(waiting)
            hand_overs_before = settings.size(200, 5)
            taken = hand_overs(broker, hand_overs_before + settings.size(EVENTS, 20))[hand_overs_before:]
            name = f"release to grant, {waiting:,} stuck {where}"
            p50 = percentile(taken, 50)
            yield cost(f"{name}, p50", p50, "ms")
            yield cost(f"{name}, p99", percentile(taken, 99), "ms", at_most(0.2))
            first = first or p50
        yield row(f"{name}, growth", p50 * 1e3, "ms", ratio_at_most(1.5), first * 1e3, "of the fewest")


def backfill(settings: Settings) -> Iterator[Row]:
    """`Broker.handle` of a release in a pool with backfill and 5,000 groups of waiters (100 policies x 50 shapes):
    one is blocked, all behind it are looked at, and none fits."""
    policies = settings.size(100, 4)
    groups = policies * SHAPES
    broker = instant_broker(
        [{"name": "p", "capacity": {"gpu": 200}, "queueing": "backfill"}],
        [
            {"pool": "p", "component": "busy", "priority": 5, "reserved": {"gpu": 100}},
            {"pool": "p", "component": "firm", "priority": 5, "reserved": {"gpu": 100}},
            *({"pool": "p", "component": f"c{i}", "priority": i % 5} for i in range(policies)),
        ],
    )
    broker.handle(submitted("firm", "firm", 100, preemptible=False), 0.0)
    broker.handle(submitted("b", "busy", 98, preemptible=False), 0.0)
    broker.handle(submitted("b0", "busy", 2, preemptible=False), 0.0)
    for number in range(groups):
        broker.handle(submitted(f"w{number}", f"c{number % policies}", 3 + number // policies), 0.0)
    assert len(broker.pools["p"].queue.groups) == groups
    taken = []
    for number in Patience(settings.size(EVENTS // 4, 10)):
        began = time.process_time()
        changes = broker.handle(ev.Released(f"b{number}"), 0.0)
        taken.append(time.process_time() - began)
        assert len(changes) == 1, "somebody fitted"
        broker.handle(submitted(f"b{number + 1}", "busy", 2, preemptible=False), 0.0)
    name = f"release, backfill with {groups:,} groups and none fits"
    yield cost(f"{name}, p50", percentile(taken, 50), "ms")
    yield cost(f"{name}, p99", percentile(taken, 99), "ms", at_most(1))


def memory(settings: Settings) -> Iterator[Row]:
    """Bytes by which a process grows (resident set) when 100,000 requests are submitted that all wait, divided by
    their number: the specs, loaded from plain data one by one, are in it. 100 policies, 50 shapes; a process of its
    own."""
    waiting = settings.size(100_000, 2_000)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_grow, args=(theirs, waiting))
    process.start()
    theirs.close()
    grown: int = ours.recv()
    process.join()
    yield row(f"memory per waiting request, {waiting:,} wait", grown / waiting, "bytes", at_most(1024))


def _grow(answer: Connection, waiting: int) -> None:
    policies = [{"pool": "p", "component": f"c{i}", "priority": i % 10} for i in range(100)]
    broker = instant_broker([{"name": "p", "capacity": {"gpu": 64}}], policies)
    broker.handle(submitted("runs", "c99", 64), 0.0)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for number in range(waiting):
        broker.handle(submitted(f"request-{number:06}", f"c{number % 90}", 1 + number // 90 % SHAPES), 0.0)
    gc.collect()
    answer.send(psutil.Process().memory_info().rss - before)
    answer.close()


BENCHMARKS = (
    Benchmark("engine.hand-over", hand_over),
    Benchmark("engine.backfill", backfill),
    Benchmark("engine.memory", memory),
)
