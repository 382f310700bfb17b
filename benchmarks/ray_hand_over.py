"""How soon the next one has the room: after a release, and after an eviction, beside Ray's own pending groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

from benchmarks.harness import Bar, Benchmark, Row, Settings, at_most, percentile, ratio_at_most, row
from benchmarks.ray_cluster import (
    DEFAULT_MS,
    GPUS,
    NODES,
    TUNED_MS,
    name_of,
    new_broker,
    random_phase,
)

ROUNDS = 20

PENDING_ROUNDS = 60
"""What is pending in Ray waits for its tick, from nothing to a second: the median of few is that of chance."""


@lru_cache(maxsize=2)
def pending_seconds(report_ms: int, rounds: int) -> tuple[float, ...]:
    """Bare Ray: a placement group that is pending until another is removed, from the removal to `ready()`."""
    new_broker(report_ms)
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    held = [placement_group([{"GPU": GPUS}]) for _ in range(NODES)]
    ray.get([one.ready() for one in held])
    taken = []
    for _ in range(rounds + 1):
        following = placement_group([{"GPU": GPUS}])
        random_phase()
        began = time.perf_counter()
        remove_placement_group(held.pop(0))
        ray.get(following.ready())
        taken.append(time.perf_counter() - began)
        held.append(following)
    for one in held:
        remove_placement_group(one)
    return tuple(taken[1:])


def hand_over_seconds(client: Any, rounds: int, components: tuple[str, str]) -> list[float]:
    """From `release()` of a lease to the return of the next one's `acquire()`, which waits in a thread. Each holds
    all GPUs of a node, and all nodes are held."""
    held = [_lease(components[number % 2]).acquire() for number in range(NODES)]
    taken = []
    for number in range(NODES, NODES + rounds + 1):
        following = _lease(components[number % 2])
        ended: list[float] = []

        def wait(lease: Any = following, ended: list[float] = ended) -> None:
            lease.acquire()
            ended.append(time.perf_counter())

        waiter = threading.Thread(target=wait)
        waiter.start()
        _until_it_waits(client)
        random_phase()
        began = time.perf_counter()
        held.pop(0).release()
        waiter.join()
        taken.append(ended[0] - began)
        held.append(following)
    for one in held:
        one.release()
    return taken[1:]


def _lease(component: str) -> Any:
    import raypool

    return raypool.lease(raypool.ResourceSettings(gpu_count=GPUS), component=component)


def _until_it_waits(client: Any) -> None:
    deadline = time.monotonic() + 30
    while client.pool("gpus").queued != 1:
        assert time.monotonic() < deadline, "the next one does not wait"
        time.sleep(0.01)


def hand_over(settings: Settings, report_ms: int, bar: Bar) -> Iterator[Row]:
    """From the release of a lease of all GPUs of a node to the moment at which `acquire()` of the one that waited
    for it returns, its placement group being there; wall-clock time, at a random phase of Ray's tick. The two are
    of different components; then of the same one. Reference: a bare placement group that was pending in Ray until
    another was removed."""
    rounds = settings.size(ROUNDS, 3)
    reference = pending_seconds(report_ms, settings.size(PENDING_ROUNDS, 3))
    client = new_broker(report_ms)
    against = "pending in Ray"
    for whom, components, judged in (
        ("another component", ("red", "blue"), bar),
        ("the same component", ("red", "red"), ratio_at_most(1 / 50)),
    ):
        taken = hand_over_seconds(client, rounds, components)
        name = f"{name_of(report_ms)}: hand-over to {whom}"
        p50 = percentile(reference, 50) * 1e3
        yield row(f"{name}, p50", percentile(taken, 50) * 1e3, "ms", judged, p50, against)
        p99 = percentile(reference, 99) * 1e3
        yield row(f"{name}, p99", percentile(taken, 99) * 1e3, "ms", None, p99, against)


def eviction_seconds(client: Any, rounds: int) -> list[float]:
    """From the submission for which one has to leave to the moment at which its waiter is told that its group is
    there."""
    low = [client.submit(component="red", resources={"gpu_count": GPUS}).id for _ in range(NODES)]
    for one in low:
        assert client.wait(one, 30).status == "allocated"
    taken = []
    for _ in range(rounds + 1):
        random_phase()
        began = time.perf_counter()
        urgent = client.submit(component="urgent", resources={"gpu_count": GPUS}).id
        view = client.wait(urgent, 30)
        taken.append(time.perf_counter() - began)
        assert view.status == "allocated", view
        gone = [one for one in low if client.request(one).status == "preempted"]
        assert len(gone) == 1
        low.remove(gone[0])
        client.release(urgent)
        low.append(client.submit(component="red", resources={"gpu_count": GPUS}).id)
        assert client.wait(low[-1], 30).status == "allocated"
    for one in low:
        client.release(one)
    return taken[1:]


def eviction(settings: Settings, report_ms: int, bar: Bar) -> Iterator[Row]:
    """From the submission of a request of a higher priority, in a pool full of borrowers without a grace, until
    `wait()` for it returns with its placement group there: submission, decision, removal of the victim's group, the
    new group. Wall-clock time, at a random phase of Ray's tick. Reference: as for the hand-over."""
    rounds = settings.size(ROUNDS, 3)
    reference = pending_seconds(report_ms, settings.size(PENDING_ROUNDS, 3))
    taken = eviction_seconds(new_broker(report_ms), rounds)
    for percent, judged in ((50, bar), (99, None)):
        yield row(
            f"{name_of(report_ms)}: eviction without grace to usable, p{percent}",
            percentile(taken, percent) * 1e3,
            "ms",
            judged,
            percentile(reference, percent) * 1e3,
            "pending in Ray",
        )


DEFAULT = (
    Benchmark("ray-default.hand-over", partial(hand_over, report_ms=DEFAULT_MS, bar=ratio_at_most(1 / 4))),
    Benchmark("ray-default.eviction", partial(eviction, report_ms=DEFAULT_MS, bar=at_most(120))),
)
TUNED = (
    Benchmark("ray-tuned.hand-over", partial(hand_over, report_ms=TUNED_MS, bar=ratio_at_most(1 / 15))),
    Benchmark("ray-tuned.eviction", partial(eviction, report_ms=TUNED_MS, bar=at_most(40))),
)
