"""What a request costs the core from its submission to its release, where everything fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.harness import (
    Benchmark,
    Row,
    Settings,
    at_least,
    cost,
    median_round,
    processor_seconds,
    rate,
    ratio_at_most,
    row,
)
from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.spec import BrokerConfig, RequestSpec

TURNS = 5_000


def instant_broker(pools: list[dict[str, Any]], policies: list[dict[str, Any]]) -> Broker:
    """What is granted is placed, and what ends is gone, in the same instant."""
    broker = Broker(World(confirms_placement=False, confirms_removal=False))
    broker.handle(ev.ConfigApplied(BrokerConfig.load({"pools": pools, "policies": policies})), 0.0)
    return broker


def even(pools: int, policies: int, capacity: Mapping[str, int]) -> Broker:
    """`policies` components c0, c1, ..., dealt out over `pools` pools."""
    return instant_broker(
        [{"name": f"p{i}", "capacity": dict(capacity)} for i in range(pools)],
        [{"pool": f"p{i % pools}", "component": f"c{i}", "priority": i % 10} for i in range(policies)],
    )


def asked(number: int, policies: int, resources: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": f"r{number}", "component": f"c{number % policies}", "resources": resources}


def all_turns(broker: Broker, submitted: list[ev.Event], released: list[ev.Event]) -> None:
    for event in submitted:
        broker.handle(event, 0.0)
    for event in released:
        broker.handle(event, 0.0)


def turn_seconds(
    settings: Settings, pools: int, policies: int, capacity: Mapping[str, int], turns: int, resources: dict[str, Any]
) -> float:
    """Per turn; the events are there before."""
    submitted: list[ev.Event] = [ev.Submitted(RequestSpec.load(asked(i, policies, resources))) for i in range(turns)]
    released: list[ev.Event] = [ev.Released(f"r{i}") for i in range(turns)]

    def one_round() -> float:
        broker = even(pools, policies, capacity)
        seconds = processor_seconds(partial(all_turns, broker, submitted, released))
        assert all(request.granted_at is not None for request in broker.requests.values())
        return seconds / turns

    return median_round(settings, one_round)


def turns(settings: Settings) -> Iterator[Row]:
    """Submission with its grant, and release, of requests for 1 GPU which all fit: two calls of `Broker.handle`
    each. All are submitted, then all are released. The events are made before; placing and removing are instant."""
    for name, pools, policies, count in (
        ("1 policy x 5,000", 1, 1, TURNS),
        ("30 policies x 500", 1, 30, 30 * 500),
        ("1,000 policies x 50 in 50 pools", 50, 1_000, 1_000 * 50),
    ):
        policies, count = settings.size(policies, min(policies, 50)), settings.size(count, 100)
        seconds = turn_seconds(settings, pools, policies, {"gpu": count}, count, {"gpu_count": 1})
        yield rate(f"submit, grant, release: {name}", 1 / seconds, "turns/s", at_least(100_000))


def parsed_turns(settings: Settings) -> Iterator[Row]:
    """The same for one policy and three metered keys, from the request as plain data: its validation and the making
    of both events are in the figure."""
    count = settings.size(TURNS, 50)
    resources = {"gpu_count": 1, "cpu_count": 2.5, "memory": "16GiB"}
    capacity = {"gpu": count, "mcpu": 2_500 * count, "memory_mb": 17_180 * count}
    requests = [asked(i, 1, resources) for i in range(count)]

    def work(broker: Broker) -> None:
        for request in requests:
            broker.handle(ev.Submitted(RequestSpec.load(request)), 0.0)
        for request in requests:
            broker.handle(ev.Released(request["id"]), 0.0)

    def one_round() -> float:
        broker = even(1, 1, capacity)
        seconds = processor_seconds(partial(work, broker))
        assert all(request.granted_at is not None for request in broker.requests.values())
        return seconds / count

    seconds = median_round(settings, one_round)
    yield rate("parse, submit, grant, release: 3 keys", 1 / seconds, "turns/s", at_least(50_000))


def many_keys(settings: Settings) -> Iterator[Row]:
    """A turn as in `engine.turns` with 100 policies and 10 metered keys, which every request asks for, beside one
    with 1 policy and 2 keys."""
    count = settings.size(TURNS, 100)
    seconds = []
    for policies, keys in ((1, 2), (100, 10)):
        names = [f"key-{i}" for i in range(keys)]
        resources = {"pool_resources": dict.fromkeys(names, 1)}
        seconds.append(turn_seconds(settings, 1, policies, dict.fromkeys(names, count), count, resources))
    few, many = seconds
    yield cost("a turn: 1 policy, 2 keys", few, "us")
    against = "1 policy, 2 keys"
    yield row("a turn: 100 policies, 10 keys", many * 1e6, "us", ratio_at_most(3), few * 1e6, against)


BENCHMARKS = (
    Benchmark("engine.turns", turns),
    Benchmark("engine.parsed", parsed_turns),
    Benchmark("engine.keys", many_keys),
)
