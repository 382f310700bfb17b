"""Compares what the broker believes with what Ray shows: groups, nodes, and work that is none of ours.

Once in a while it looks at the cluster's figures, tells `Placements` what they say of its groups, and
keeps what others use. Figures are late and come node by node, so of the use of others only that counts
which two looks in a row have shown. The comparison itself is pure functions; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from raypool.core.bundles import Bundle, describe_amount
from raypool.core.nodes import Node
from raypool.server.cluster import RayCluster, Rooms, holds_group
from raypool.server.placement import Placement, Placements
from raypool.spec import GPU, MCPU, MEMORY_MB, PoolSpec

logger = logging.getLogger("raypool")

AUDIT_SECONDS = 1.0
"""How often it looks."""

QUIET_SECONDS = 5.0
"""How much longer it waits while no group is there and nobody asks."""

Used = dict[tuple[str, str], float]
"""(node, resource) -> amount > 0"""

_SLACK = 1e-4  # Ray counts in ten-thousandths


class Audit:
    """`run` for ever; `warnings` and `outside` say what was found."""

    def __init__(self, cluster: RayCluster, placements: Placements) -> None:
        self.cluster = cluster
        self.placements = placements
        self._seen: Used = {}
        self._stable: Used = {}
        self._wanted = asyncio.Event()

    def look_soon(self) -> None:
        """Within `AUDIT_SECONDS`: somebody asks, or there will be a group."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            if not self.placements.groups:
                await self._until_wanted()
            self._wanted.clear()
            try:
                await self.look()
            except Exception:
                logger.exception("comparing with the cluster failed; trying again")

    async def _until_wanted(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), QUIET_SECONDS)

    async def look(self) -> None:
        figures = await self.placements.trusted_figures()
        if figures is None:
            return
        seen = used_by_others(self.placements.nodes, figures.rooms, self.placements.groups)
        self._seen, self._stable = seen, seen_twice(self._seen, seen)
        self.placements.see_what_left(figures)
        await self.placements.look_after(figures.rooms)

    def outside(self, pools: Iterable[PoolSpec]) -> list[dict[str, Any]]:
        """What work outside of the broker uses of what pools count on, by node and resource."""
        return counted_on(self._stable, pools, self.placements.nodes)

    def warnings(self, pools: Sequence[PoolSpec]) -> list[str]:
        """A sentence for each thing that is not as the broker believes."""
        used = [
            f"work outside of the broker uses {describe_amount(one['resource'], one['amount'])} on node "
            f"{one['node']}, which {_named(one['pools'])} {'counts' if len(one['pools']) == 1 else 'count'} on"
            for one in self.outside(pools)
        ]
        return [
            *broken_promises(pools, self.placements.nodes),
            *used,
            *(placement.alarm for placement in self.placements.stuck),
        ]


# --- work that is none of ours ----------------------------------------------------------------


def used_by_others(nodes: Iterable[Node], free: Rooms, groups: Iterable[Placement]) -> Used:
    """What is neither free nor held by one of our groups, as far as a node's figures show that group."""
    groups = list(groups)
    used: Used = {}
    for node in nodes:
        room = free.get(node.id)
        if room is None:
            continue  # it has not reported yet
        ours = _held_by(groups, node.id, room)
        for resource, most in node.resources.items():
            others = most - room.get(resource, 0.0) - ours.get(resource, 0.0)
            if others > _SLACK:
                used[node.id, resource] = round(others, 4)
    return used


def _held_by(groups: Iterable[Placement], node: str, room: Mapping[str, float]) -> dict[str, float]:
    held: dict[str, float] = {}
    for group in groups:
        if holds_group(room, group.group_id):
            for at, bundle in zip(group.nodes, group.bundles, strict=False):
                if at == node:
                    _add(held, bundle)
    return held


def _add(held: dict[str, float], bundle: Bundle) -> None:
    for resource, amount in bundle.items():
        held[resource] = held.get(resource, 0.0) + amount


def seen_twice(before: Used, now: Used) -> Used:
    return {key: min(before[key], amount) for key, amount in now.items() if key in before}


def counted_on(used: Used, pools: Iterable[PoolSpec], nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Of what others use, the GPUs and custom resources that some pool promises and that lie on its nodes.

    (CPUs and memory are used by drivers and by Ray itself, everywhere and all the time.)
    """
    pools = list(pools)
    found = []
    for node in nodes:
        for (at, resource), amount in used.items():
            names = [
                pool.name
                for pool in pools
                if at == node.id and resource in _promised(pool).values() and node.has_labels(pool.node_labels)
            ]
            if names and resource not in ("CPU", "memory"):
                found.append({"node": at, "resource": resource, "amount": amount, "pools": names})
    return found


# --- what pools promise -----------------------------------------------------------------------


def _promised(pool: PoolSpec) -> dict[str, str]:
    """The keys of its capacity that stand for resources of Ray's, with those."""
    known = {GPU: "GPU", MCPU: "CPU", MEMORY_MB: "memory", **pool.ray_resources}
    return {key: known[key] for key in pool.capacity if key in known}


_PER_UNIT = {"CPU": 1000.0, "memory": 1e-6}
"""So many of a pool's units are one of Ray's; 1 for all others."""


@dataclass(frozen=True)
class BrokenPromise:
    """`what`: the pools, each with its key, that promise so much more than their nodes have. implied: one of several
    promises too much alone already."""

    what: tuple[tuple[str, str], ...]
    shortfall: int
    sentence: str
    implied: bool = False


def broken_promises(pools: Sequence[PoolSpec], nodes: Sequence[Node]) -> list[str]:
    """A sentence for each that no other implies."""
    return [promise.sentence for promise in _all_broken(pools, nodes) if not promise.implied]


def shortfalls(pools: Sequence[PoolSpec], nodes: Sequence[Node]) -> dict[tuple[str, str], int]:
    """By pool and key: by how much its nodes fall short of what it promises, alone or with others; the most."""
    found: dict[tuple[str, str], int] = {}
    for promise in _all_broken(pools, nodes):
        for pool_and_key in promise.what:
            found[pool_and_key] = max(found.get(pool_and_key, 0), promise.shortfall)
    return found


def _all_broken(pools: Sequence[PoolSpec], nodes: Sequence[Node]) -> list[BrokenPromise]:
    """Where pools promise more than their nodes have: each alone, and those together that have no other
    nodes than one of them, or than they all have."""
    if not nodes:
        return []
    found = []
    on = {pool.name: frozenset(node.id for node in nodes if node.has_labels(pool.node_labels)) for pool in pools}
    for pool in pools:
        for key, resource in _promised(pool).items():
            most, has = pool.capacity[key], _total(nodes, on[pool.name], resource)
            if most > has:
                whose = "the nodes with its labels have" if pool.node_labels else "the nodes have"
                sentence = f"pool '{pool.name}' promises {most} {key}, and {whose} {has}"
                found.append(BrokenPromise(((pool.name, key),), most - has, sentence))
    resources = sorted({resource for pool in pools for resource in _promised(pool).values()})
    for here in sorted({*on.values(), frozenset().union(*on.values())}, key=sorted):
        for resource in resources:
            shares = {
                (pool.name, key): pool.capacity[key]
                for pool in pools
                for key, name in _promised(pool).items()
                if name == resource and on[pool.name] <= here
            }
            has, most = _total(nodes, here, resource), sum(shares.values())
            names = list(dict.fromkeys(name for name, _ in shares))
            if len(names) > 1 and most > has:
                unit = {"CPU": MCPU, "GPU": GPU, "memory": MEMORY_MB}.get(resource, resource)
                sentence = f"{_named(names)} together promise {most} {unit}, and their nodes have {has}"
                implied = any(share > has for share in shares.values())
                found.append(BrokenPromise(tuple(shares), most - has, sentence, implied))
    return list(dict.fromkeys(found))


def _total(nodes: Iterable[Node], here: frozenset[str], resource: str) -> int:
    """In the units of pools, rounded down."""
    total = sum(node.resources.get(resource, 0.0) for node in nodes if node.id in here)
    return int(total * _PER_UNIT.get(resource, 1.0) + _SLACK)


def _named(names: Sequence[str]) -> str:
    """ "pool 'a'", "pools 'a' and 'b'"."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) == 1:
        return f"pool {quoted[0]}"
    return f"pools {', '.join(quoted[:-1])} and {quoted[-1]}"
