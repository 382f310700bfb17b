"""What a lease and a decorated task cost where there is room, beside bare placement groups and tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.harness import (
    Benchmark,
    Row,
    Settings,
    at_most,
    percentile,
    ratio_at_least,
    ratio_at_most,
    row,
)
from benchmarks.ray_cluster import DEFAULT_MS, TUNED_MS, name_of, new_broker, seconds_until

ROUNDS = 100
CLIENTS = 8
RATE_SECONDS = 8.0


async def uncontended(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds until a bare group is ready, and until a lease is held; in turn, so that both see the same machine."""
    from ray.util.placement_group import placement_group, remove_placement_group

    import raypool

    bare, leased = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        group = placement_group([{"GPU": 1}])
        await group.ready()
        bare.append(time.perf_counter() - began)
        remove_placement_group(group)
        lease = raypool.lease(raypool.ResourceSettings(gpu_count=1), component="red")
        began = time.perf_counter()
        await lease.acquire_async()
        leased.append(time.perf_counter() - began)
        await lease.release_async()
        await asyncio.sleep(0.15)  # what was removed is free again, so that nobody waits for room
    return bare, leased


def lease(settings: Settings, report_ms: int) -> Iterator[Row]:
    """`await lease.acquire_async()` of 1 GPU where there is room: the call to the broker, the decision, the journal's
    write, the placement group, the answer. Wall-clock time. Reference: `placement_group()` and `await ready()`."""
    new_broker(report_ms)
    rounds = settings.size(ROUNDS, 5)
    asyncio.run(uncontended(5))
    bare, leased = asyncio.run(uncontended(rounds))
    for percent, bar in ((50, ratio_at_most(2.5)), (99, None)):
        yield row(
            f"{name_of(report_ms)}: lease where there is room, p{percent}",
            percentile(leased, percent) * 1e3,
            "ms",
            bar,
            percentile(bare, percent) * 1e3,
            "bare group",
        )


def nothing() -> None:
    """A task that is nothing but a task."""


def one_by_one(task: Any, rounds: int) -> list[float]:
    import ray

    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        ray.get(task.remote())
        taken.append(time.perf_counter() - began)
    return taken


class Relay:
    """What runs a decorated task, without a pool: an async actor that waits for the task and passes its result on."""

    async def run(self, function: list[Any], group: Any) -> None:
        """In that group, or in one that it makes and removes."""
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        made = None if group is not None else placement_group([{"CPU": 1}])
        if made is not None:
            await made.ready()
        strategy = PlacementGroupSchedulingStrategy(group or made)
        task = await function[0]
        await task.options(num_cpus=1, max_retries=0, scheduling_strategy=strategy).remote()
        if made is not None:
            remove_placement_group(made)


def through_an_actor(group: Any, rounds: int) -> list[float]:
    import ray

    relay, function = ray.remote(Relay).options(num_cpus=0).remote(), ray.put(ray.remote(nothing))
    taken = []
    for _ in range(5 + rounds):
        began = time.perf_counter()
        ray.get(relay.run.remote([function], group))
        taken.append(time.perf_counter() - began)
    ray.kill(relay)
    return taken[5:]


def tasks(settings: Settings, report_ms: int) -> Iterator[Row]:
    """A decorated task of 1 CPU that does nothing, from `.remote()` to its result. One by one where there is room:
    each has a new placement group. In line: 50 are asked for at once in a pool with room for one, so that each waits
    for the one before; the time of all, for each. Wall-clock time. Reference: the same task in a placement group that
    is there, one by one. Through an actor: what Ray takes when an actor runs the task, as one must where the call
    returns before there is a group: in a group that it makes and removes, and in one that is there."""
    new_broker(report_ms)
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    import raypool

    rounds = settings.size(ROUNDS, 5)
    group = placement_group([{"CPU": 1}])
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group)
    bare_task = ray.remote(nothing).options(num_cpus=1, max_retries=0, scheduling_strategy=strategy)
    one_by_one(bare_task, 10)
    bare = one_by_one(bare_task, rounds)
    relayed = through_an_actor(group, rounds)
    remove_placement_group(group)
    relayed_new = through_an_actor(None, rounds)
    time.sleep(1.5)  # Ray is done with the last of them
    decorated = raypool.remote(component="tasks", resources=raypool.ResourceSettings(cpu_count=1))(nothing)
    in_line = decorated.options(component="line")
    one_by_one(decorated, 5)
    new = one_by_one(decorated, rounds)
    name, p50, against = name_of(report_ms), percentile(bare, 50) * 1e3, "in a ready group"
    bar = at_most(12) if report_ms == TUNED_MS else None
    yield row(f"{name}: decorated task, new group, p50", percentile(new, 50) * 1e3, "ms", bar, p50, against)
    p99 = percentile(bare, 99) * 1e3
    yield row(f"{name}: decorated task, new group, p99", percentile(new, 99) * 1e3, "ms", None, p99, against)
    for kind, relays in (("new", relayed_new), ("ready", relayed)):
        for percent in (50, 99):
            label = f"{name}: bare task through an actor, {kind} group, p{percent}"
            yield row(label, percentile(relays, percent) * 1e3, "ms", None, percentile(bare, percent) * 1e3, against)
    line = settings.size(50, 5)
    ray.get([in_line.remote() for _ in range(5)])
    began = time.perf_counter()
    ray.get([in_line.remote() for _ in range(line)])
    each = (time.perf_counter() - began) / line * 1e3
    yield row(f"{name}: decorated task, in line, each", each, "ms", ratio_at_most(3), p50, against)


def bare_rate(seconds: float) -> float:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        group = placement_group([{"GPU": 1}])
        ray.get(group.ready())
        remove_placement_group(group)
        done += 1
    return done / (time.perf_counter() - began)


def lease_rate(seconds: float) -> float:
    import raypool

    done = [0] * CLIENTS
    until = time.perf_counter() + seconds

    def ask(number: int) -> None:
        while time.perf_counter() < until:
            raypool.lease(raypool.ResourceSettings(gpu_count=1), component="red").acquire().release()
            done[number] += 1

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    began = time.perf_counter()
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return sum(done) / (time.perf_counter() - began)


def rate(settings: Settings, report_ms: int) -> Iterator[Row]:
    """Leases of 1 GPU, taken and given back by 8 threads of one process as fast as they can, on 24 GPUs. Wall-clock
    time. Reference: `placement_group()`, `ready()` and `remove_placement_group()`, one after the other in one
    thread."""
    client = new_broker(report_ms)
    seconds = RATE_SECONDS if not settings.small else 1.0
    bare_rate(seconds / 4)
    bare = bare_rate(seconds)
    time.sleep(1.5)  # Ray is done with the last of them
    lease_rate(seconds / 4)
    ours = lease_rate(seconds)
    seconds_until(lambda: client.pool("gpus").active == 0)
    bar = ratio_at_least(3 if report_ms == DEFAULT_MS else 0.6)
    name = f"{name_of(report_ms)}: grants of 1 bundle, {CLIENTS} clients"
    yield row(name, ours, "grants/s", bar, bare, "bare groups in sequence")


DEFAULT = (
    Benchmark("ray-default.lease", partial(lease, report_ms=DEFAULT_MS)),
    Benchmark("ray-default.tasks", partial(tasks, report_ms=DEFAULT_MS)),
    Benchmark("ray-default.rate", partial(rate, report_ms=DEFAULT_MS)),
)
TUNED = (
    Benchmark("ray-tuned.lease", partial(lease, report_ms=TUNED_MS)),
    Benchmark("ray-tuned.tasks", partial(tasks, report_ms=TUNED_MS)),
    Benchmark("ray-tuned.rate", partial(rate, report_ms=TUNED_MS)),
)
