"""What a broker bears: thousands of waiting clients, thousands of requests at once, and nothing at all."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil

from benchmarks.harness import Benchmark, Row, Settings, at_least, at_most, percentile, row, spin_seconds
from benchmarks.ray_cluster import GPUS, NODES, TUNED_MS, broker_pid, name_of, new_broker

CLIENTS = 5_000
MANY = 20_000
SHAPES = 50
ALL = NODES * GPUS


def hold_all(client: Any) -> list[str]:
    """The ids of requests that hold every GPU."""
    ids = [client.submit(component="urgent", resources={"gpu_count": GPUS}).id for _ in range(NODES)]
    for one in ids:
        assert client.wait(one, 30).status == "allocated"
    return ids


async def parked(client: Any, ids: list[str]) -> list[Any]:
    """A long-poll for each id, which its caller waits for; returned when the broker has them all."""
    actor = client._line.actor
    seen = {id: (await actor.watch.remote(id, -1, 0.0))["version"] for id in set(ids)}

    async def poll(request_id: str) -> float:
        answer = await actor.watch.remote(request_id, seen[request_id], 60.0)
        while answer["request"]["status"] == "pending":
            answer = await actor.watch.remote(request_id, answer["version"], 60.0)
        return time.perf_counter()

    polls = [asyncio.ensure_future(poll(one)) for one in ids]
    await asyncio.sleep(0)
    await actor.hello.remote()  # one caller's calls begin in the order in which it made them
    return polls


def crowd(settings: Settings, report_ms: int) -> Iterator[Row]:
    """5,000 requests that wait, each with a client that long-polls (tasks of one event loop in one process): how long
    `client.status()` takes meanwhile, from its call to its view. Then 5,000 long-polls for 24 requests of 1 GPU:
    from the release of what holds all GPUs until the last of them is answered. The reference is what a bare actor of
    Ray's takes to answer as many parked calls with the same. Wall-clock time."""
    client = new_broker(report_ms)
    clients = settings.size(CLIENTS, 50)
    hold_all(client)
    waiting = [{"component": "red", "resources": {"gpu_count": 1}} for _ in range(clients)]
    ids = [view.id for view in client.submit_many(waiting)]

    async def status_seconds() -> list[float]:
        polls = await parked(client, ids)
        taken = []
        for _ in range(settings.size(300, 10)):
            began = time.perf_counter()
            view = await asyncio.get_running_loop().run_in_executor(None, client.status)
            taken.append(time.perf_counter() - began)
            assert view.requests["pending"] == clients
            await asyncio.sleep(0.02)
        for one in polls:
            one.cancel()
        return taken

    taken = asyncio.run(status_seconds())
    name = name_of(report_ms)
    yield row(f"{name}: status with {clients:,} waiting clients, p50", percentile(taken, 50) * 1e3, "ms")
    yield row(f"{name}: status with {clients:,} waiting clients, p99", percentile(taken, 99) * 1e3, "ms", at_most(20))

    client = new_broker(report_ms)
    holders = hold_all(client)
    few = [view.id for view in client.submit_many(waiting[:ALL])]

    async def wake_seconds() -> tuple[float, Any]:
        polls = await parked(client, [few[number % len(few)] for number in range(clients)])
        await asyncio.sleep(1.0)
        began = time.perf_counter()
        for one in holders:
            await asyncio.get_running_loop().run_in_executor(None, client.release, one)
        ends: list[float] = await asyncio.gather(*polls)
        return max(ends) - began, await client._line.actor.watch.remote(few[0], -1, 0.0)

    woken, answer = asyncio.run(wake_seconds())
    bare = asyncio.run(bare_wake_seconds(clients, answer))
    what = f"{name}: {clients:,} clients woken after a release, the last"
    yield row(what, woken, "s", at_most(1), bare, "as many answers of a bare actor")


async def bare_wake_seconds(clients: int, answer: Any) -> float:
    """From the moment at which a bare actor has an answer for so many parked calls until the last has it."""
    import ray

    from raypool.client.client import MAX_CONCURRENCY

    class Bare:
        async def __init__(self) -> None:  # type: ignore[misc]  # Ray runs it on the actor's event loop
            self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def wait(self, request_id: str, seen: int, timeout_seconds: float) -> Any:
            return await asyncio.shield(self.answered)

        async def answer(self, answer: Any) -> None:
            self.answered.set_result(answer)

        async def hello(self) -> None:
            pass

    actor = ray.remote(num_cpus=0, max_concurrency=MAX_CONCURRENCY)(Bare).remote()

    async def poll() -> float:
        await actor.wait.remote("0123456789abcdef", 1, 60.0)
        return time.perf_counter()

    polls = [asyncio.ensure_future(poll()) for _ in range(clients)]
    await asyncio.sleep(0)
    await actor.hello.remote()
    await asyncio.sleep(1.0)
    began = time.perf_counter()
    await actor.answer.remote(answer)
    return float(max(await asyncio.gather(*polls)) - began)


def submit_many(settings: Settings, report_ms: int) -> Iterator[Row]:
    """`client.submit_many` of 20,000 requests of 600 kinds, told as plain data, into a full pool: checked, decided,
    written to the journal, and answered. Wall-clock time of the call; beside it the processor time of the broker's
    process for each."""
    rates, costs = [], []
    many = settings.size(MANY, 500)
    for _ in range(1 + min(settings.rounds, 3)):
        client = new_broker(report_ms)
        hold_all(client)
        specs = [{"component": "red", "resources": {"gpu_count": 1 + i % ALL}} for i in range(many)]
        for number, spec in enumerate(specs):
            spec["description"] = f"shape {number % SHAPES}"
        process = psutil.Process(broker_pid(client))
        spent, began = sum(process.cpu_times()[:2]), time.perf_counter()
        views = client.submit_many(specs)
        rates.append(many / (time.perf_counter() - began))
        costs.append((sum(process.cpu_times()[:2]) - spent) / many)
        assert len(views) == many and all(view.status == "pending" for view in views)
    name = f"{name_of(report_ms)}: submit_many of {many:,}"
    rate = statistics.median(rates[1:])
    yield row(name, rate, "requests/s", at_least(30_000), 1 / spin_seconds(), "spins/s")
    cost = statistics.median(costs[1:]) * 1e6
    yield row(f"{name}, broker's processor", cost, "us each", None, spin_seconds() * 1e6, "spin")


def empty_actor() -> tuple[Any, int]:
    """One of Ray's with an event loop and nothing to do, as large as the broker's, and its process."""
    import ray

    from raypool.client.client import MAX_CONCURRENCY

    class Empty:
        async def pid(self) -> int:
            return os.getpid()

    actor = ray.remote(num_cpus=0, max_concurrency=MAX_CONCURRENCY)(Empty).remote()
    return actor, ray.get(actor.pid.remote())


def idle(settings: Settings, report_ms: int) -> Iterator[Row]:
    """A broker with pools, and nobody who asks: the processor time of its process, and by how much it grows (resident
    set), over `--idle-seconds`, after 5 s. The reference is an actor of Ray's that has an event loop and nothing to
    do, over the same time."""
    client = new_broker(report_ms)
    _empty, empty_pid = empty_actor()  # it lives as long as its handle
    processes = [psutil.Process(broker_pid(client)), psutil.Process(empty_pid)]
    time.sleep(5.0 if not settings.small else 0.5)
    process = processes[0]
    spent, size, began = [sum(one.cpu_times()[:2]) for one in processes], process.memory_info().rss, time.monotonic()
    time.sleep(settings.idle_seconds)
    seconds = time.monotonic() - began
    used, of_empty = (
        100 * (sum(one.cpu_times()[:2]) - before) / seconds for one, before in zip(processes, spent, strict=True)
    )
    name = f"{name_of(report_ms)}: idle broker for {settings.idle_seconds:g} s"
    yield row(f"{name}: processor", used, "% of a core", at_most(1), of_empty, "an empty actor of Ray's")
    yield row(f"{name}: growth", (process.memory_info().rss - size) / 2**20, "MiB", at_most(1))


TUNED = (
    Benchmark("ray-tuned.crowd", partial(crowd, report_ms=TUNED_MS)),
    Benchmark("ray-tuned.submit-many", partial(submit_many, report_ms=TUNED_MS)),
    Benchmark("ray-tuned.idle", partial(idle, report_ms=TUNED_MS)),
)
