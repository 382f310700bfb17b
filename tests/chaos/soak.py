"""Ten thousand turns of the broker, to see that neither its memory nor its store grows for ever.

    python -m tests.chaos.soak            # a part of make chaos
    TURNS=2000 python -m tests.chaos.soak

The real server code over the fake cluster of the server's tests, in virtual time. A turn: red takes the whole pool,
more than its reserve; blue asks for its own, red is preempted and asks anew; blue gives back, red gives back. Prints
the memory of the process and the size of the store ten times, and judges the last third: exit code 0 if both have
levelled off.
"""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass
from itertools import count

import psutil

from raypool.server.journal import SNAPSHOT_EVENTS
from tests.server import virtual_time
from tests.server.fake_cluster import FakeCluster
from tests.server.world import World, policy, pool

MOST_GROWTH = 0.03
"""What may be added over the last third: Python's memory is never quite at rest."""

LEAST_BYTES = 64 * 1024
"""Growth below this is noise, however small what grew."""

POOLS = [pool("p", 4)]
POLICIES = [policy("red", reserved={"gpu": 1}), policy("blue", priority=2, reserved={"gpu": 2})]


class ForgetfulCluster(FakeCluster):
    """Forgets groups that are gone, which the fake, as Ray itself, does not: it is the broker that is weighed."""

    def vanish(self, group):
        super().vanish(group)
        del self.groups[group.id]

    async def look(self, group_id):
        state, nodes = await super().look(group_id)
        return state or "REMOVED", nodes


@dataclass(frozen=True)
class Weight:
    turn: int
    memory: int
    store: int
    known: int

    def __str__(self) -> str:
        return f"{self.turn:>7} {self.memory / 2**20:>12.1f} {self.store:>12} {self.known:>10}"


def main(turns: int = 10_000) -> int:
    print(f"{'turns':>7} {'memory, MiB':>12} {'snapshot, B':>12} {'requests':>10}")
    weights = soak(turns)
    faults = judge(weights)
    for fault in faults:
        print(f"FAULT: {fault}")
    if not faults:
        print("both have levelled off")
    return 1 if faults else 0


def soak(turns: int) -> list[Weight]:
    """Weighed ten times."""
    weights: list[Weight] = []

    async def story() -> None:
        async with World(ForgetfulCluster(), pools=POOLS, policies=POLICIES) as world:
            for turn in range(1, turns + 1):
                await _turn(world)
                if turn % max(turns // 10, 1) == 0:
                    weights.append(_weigh(world, turn))
                    print(weights[-1], flush=True)

    virtual_time.run(story)
    return weights


_ids = count(1)


async def _turn(world: World) -> None:
    red, blue = f"red-{next(_ids)}", f"blue-{next(_ids)}"
    await world.run(red, "red", gpu=4)
    await world.run(blue, "blue", gpu=2)
    assert await world.status(red) == "preempted"
    again = f"{red}-again"
    await world.submit(again, "red", gpu=4, retry_of=red)
    await world.actor.release(blue)
    await world.until(again, "allocated")
    await world.actor.release(again)


def _weigh(world: World, turn: int) -> Weight:
    gc.collect()
    memory = psutil.Process().memory_info().rss
    return Weight(turn, memory, size_of_store(world.cluster), len(world.actor.broker.requests))


def size_of_store(cluster: FakeCluster) -> int:
    """Its snapshot. The lines that follow one come and go: there are never more than a generation has."""
    lines = sum(len(value.splitlines()) for key, value in cluster.store.items() if key.startswith("journal/"))
    assert lines <= SNAPSHOT_EVENTS, f"{lines} lines follow one snapshot"
    return sum(len(key) + len(value) for key, value in cluster.store.items() if key.startswith("snapshot/"))


def judge(weights: list[Weight]) -> list[str]:
    """What has grown over the last third by more than it may."""
    first, last = weights[-1 - len(weights) // 3], weights[-1]
    faults = []
    for what, before, after in (("memory", first.memory, last.memory), ("store", first.store, last.store)):
        if after - before > max(before * MOST_GROWTH, LEAST_BYTES):
            faults.append(
                f"the {what} grew from {before} to {after} bytes between turns {first.turn} and {last.turn}"
            )
    return faults


if __name__ == "__main__":
    sys.exit(main(int(os.environ.get("TURNS", "10000"))))
