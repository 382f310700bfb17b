"""The only file that asks Ray anything on the broker's behalf: nodes, placement groups, jobs, the store, metrics.

Ray's own calls block, and hang while the GCS is down, so they run in executor threads and the broker's
loop stays free: one thread for the store, which everything waits for, some that make placement groups,
one for files, and one for the rest. Placement groups are looked up by id, never listed: Ray never forgets a
removed one, and a list of thousands takes seconds. The fake in tests/server has the same methods.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import ray
import ray.exceptions
from ray._private import state
from ray._private.worker import global_worker
from ray.experimental import internal_kv
from ray.util.metrics import Counter, Gauge, Histogram
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from raypool.core.bundles import Bundle
from raypool.core.nodes import Node
from raypool.monitoring.metrics import Metric

logger = logging.getLogger("raypool")

T = TypeVar("T")
Rooms = dict[str, dict[str, float]]
Look = tuple[str | None, tuple[str, ...]]
Meter = Callable[[float, Mapping[str, str]], None]
"""Sets a gauge, adds to a counter (more than 0), or observes a value."""

KV_NAMESPACE = b"raypool"

MAKERS = 8
"""So many placement groups are made at a time."""

MADE_SOON_SECONDS = 1
"""So long the thread that had a group made stays with it, until it is CREATED; then it is waited for without one.
Ray takes whole seconds."""

REPAIR_LOOK_SECONDS = 0.1
"""How soon a group that was ready and lacks a node is looked at again."""


class GroupGone(Exception):
    """The placement group was removed before it was created, by somebody else."""


class RayCluster:
    """Ray, as far as the broker needs it. Every method is async and never blocks the loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raypool-gcs")
        self._store_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raypool-store")
        self._makers = ThreadPoolExecutor(max_workers=MAKERS, thread_name_prefix="raypool-groups")
        self._files_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raypool-files")
        self._made: dict[str, asyncio.Task[Look]] = {}  # by group id: how each was seen first
        self._asked: dict[object, float] = {}

    async def _ask(self, call: Callable[[], T], thread: ThreadPoolExecutor | None = None) -> T:
        question = object()
        self._asked[question] = time.monotonic()
        try:
            return await asyncio.get_running_loop().run_in_executor(thread or self._thread, call)
        finally:
            del self._asked[question]

    @property
    def silent_seconds(self) -> float:
        """For how long the GCS has owed an answer; 0 if it owes none."""
        return time.monotonic() - min(self._asked.values()) if self._asked else 0.0

    async def identity(self) -> str:
        """Tells this cluster from every other: another one knows none of our jobs and placement groups."""
        return str(global_worker.gcs_client.cluster_id.hex())

    # --- nodes --------------------------------------------------------------------------------

    async def nodes(self) -> tuple[Node, ...]:
        """Live nodes, by id, with what they have in all (placement groups apart)."""
        rows = [row for row in await self._ask(ray.nodes) if row["Alive"]]
        if not rows:  # the broker itself runs on one: a GCS that knows none has just come back
            raise ConnectionError("Ray lists no live node")
        return tuple(
            Node(
                row["NodeID"],
                {name: amount for name, amount in row["Resources"].items() if "_group_" not in name},
                dict(row.get("Labels") or {}),
            )
            for row in sorted(rows, key=lambda row: row["NodeID"])
        )

    async def free(self) -> Rooms:
        """What the GCS sees as free on each node. A placement group that it knows to be there shows as
        `bundle_group_<id>`: see `holds_group`."""
        rooms: Rooms = await self._ask(state.available_resources_per_node)
        return rooms

    # --- placement groups ---------------------------------------------------------------------

    async def create_group(
        self, name: str, bundles: Sequence[Bundle], strategy: str, labels: Mapping[str, str]
    ) -> str:
        """Asks for a detached placement group; returns its id. Raises what Ray raises.

        The thread goes on to wait for it and to look at it: `created` has the answer without asking anew.
        """
        loop = asyncio.get_running_loop()
        id_told: asyncio.Future[str] = loop.create_future()

        def make() -> Look:
            selector = [dict(labels)] * len(bundles) if labels else None
            group = placement_group(
                [dict(bundle) for bundle in bundles],
                strategy=strategy,
                name=name,
                lifetime="detached",
                bundle_label_selector=selector,
            )
            loop.call_soon_threadsafe(_tell, id_told, str(group.id.hex()))
            return _look(group) if group.wait(MADE_SOON_SECONDS) else (None, ())

        making = loop.create_task(self._ask(make, self._makers))
        first: set[asyncio.Future[Any]] = {id_told, making}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not id_told.done():
            making.result()
        group_id = id_told.result()
        self._made[group_id] = making
        return group_id

    async def find_group(self, name: str) -> str | None:
        """The id of the group of that name that is not removed; None if there is none."""

        def find() -> str | None:
            try:
                return str(ray.util.get_placement_group(name).id.hex())
            except ValueError:
                return None

        return await self._ask(find)

    async def created(self, group_id: str) -> tuple[str, ...]:
        """Waits until the group is CREATED; returns the node of each bundle. Raises GroupGone."""
        state, nodes = await self._first_look(group_id)
        while not (state == "CREATED" and all(nodes)):
            try:
                await handle(group_id).ready()
            except ray.exceptions.TaskPlacementGroupRemoved:
                raise GroupGone(group_id) from None
            state, nodes = await self.look(group_id)
            if state in (None, "REMOVED"):
                raise GroupGone(group_id)
            if not all(nodes):  # a node of it has died since: ready() waits for the repair
                await asyncio.sleep(REPAIR_LOOK_SECONDS)
        return nodes

    async def _first_look(self, group_id: str) -> Look:
        """As it was when its making was over; None and nothing if that is not known."""
        making = self._made.pop(group_id, None)
        if making is None:
            return None, ()
        try:
            return await making
        except Exception as error:  # noqa: BLE001 - whatever Ray has: the group was made, and is asked after
            logger.info("placement group %s was made, and then: %s", group_id, error)
            return None, ()

    async def look(self, group_id: str) -> Look:
        """The group's state (PENDING, PREPARED, CREATED, RESCHEDULING or REMOVED; None if Ray has never heard of
        it), and the node of each bundle: "" while it has none."""
        return await self._ask(lambda: _look(handle(group_id)))

    async def remove_group(self, group_id: str) -> None:
        """Asks Ray to remove it. Only for a group that was CREATED: Ray leaks the bundles of others. It may
        have lost nodes since."""
        await self._ask(lambda: remove_placement_group(handle(group_id)))

    # --- owners -------------------------------------------------------------------------------

    async def dead_jobs(self) -> frozenset[str]:
        """The ids of the jobs that are over."""
        rows = await self._ask(state.jobs)
        return frozenset(row["JobID"] for row in rows if row["IsDead"])

    async def actor_is_dead(self, actor_id: str) -> bool:
        row = await self._ask(lambda: state.actors(actor_id))
        return bool(row) and row.get("State") == "DEAD"

    async def owner_died(self, token: ray.ObjectRef[None]) -> bool:
        """Waits until the reference has an answer, or its owner (the process that made the call) is dead.

        Ray says OwnerDiedError of that alone: not of one that is stopped or slow. Every other error is one
        of the call: it failed with an earlier life of this actor, or was cancelled.
        """
        try:
            await token
        except ray.exceptions.OwnerDiedError:
            return True
        except ray.exceptions.RayError:
            return False
        return False

    # --- metrics ------------------------------------------------------------------------------

    def meter(self, metric: Metric) -> Meter:
        """Where its values go. Ray keeps them in this process, and exports them from a thread of its own."""
        name, meaning, labels = metric.name, metric.meaning, metric.labels
        if metric.kind == "histogram":
            return Histogram(name, meaning, boundaries=list(metric.bounds), tag_keys=labels).observe  # type: ignore[no-any-return]
        if metric.kind == "counter":
            return Counter(name, meaning, tag_keys=labels).inc  # type: ignore[no-any-return]
        return Gauge(name, meaning, tag_keys=labels).set  # type: ignore[no-any-return]

    # --- files --------------------------------------------------------------------------------

    async def log_folder(self) -> Path | None:
        """Ray's log folder on this node, that of the session."""
        return Path(global_worker.node.get_logs_dir_path())

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Does what reads or writes files, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._files_thread, call)

    # --- the key-value store ------------------------------------------------------------------

    async def _ask_store(self, call: Callable[[], T]) -> T:
        return await self._ask(call, self._store_thread)

    async def load(self, key: str) -> bytes | None:
        return await self._ask_store(lambda: internal_kv._internal_kv_get(key.encode(), namespace=KV_NAMESPACE))

    async def load_all(self, prefix: str) -> dict[str, bytes]:
        """Every key that begins so, in order, with its value."""

        def load() -> dict[str, bytes]:
            keys = internal_kv._internal_kv_list(prefix.encode(), namespace=KV_NAMESPACE)
            found = global_worker.gcs_client.internal_kv_multi_get(keys, KV_NAMESPACE) if keys else {}
            return {key.decode(): found[key] for key in sorted(found)}

        return await self._ask_store(load)

    async def save(self, key: str, value: bytes, overwrite: bool = True) -> bool:
        """False if the key was there, and was left as it is because `overwrite` says so."""

        def save() -> bool:
            there = internal_kv._internal_kv_put(key.encode(), value, overwrite, namespace=KV_NAMESPACE)
            return overwrite or not there

        return await self._ask_store(save)

    async def erase(self, prefix: str) -> None:
        """Every key that begins so."""
        await self._ask_store(
            lambda: internal_kv._internal_kv_del(prefix.encode(), del_by_prefix=True, namespace=KV_NAMESPACE)
        )


def _look(group: PlacementGroup) -> Look:
    table = placement_group_table(group)
    nodes = table.get("bundles_to_node_id", {})
    return table.get("state"), tuple(nodes[index] for index in sorted(nodes))


def _tell(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def handle(group_id: str) -> PlacementGroup:
    """The placement group of that id (hex), from any job."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))


def holds_group(room: Mapping[str, float], group_id: str) -> bool:
    """Whether a node's figures include the group: before, its share is not yet taken off what is free;
    after a removal, not yet given back. The two change together in one report of the node."""
    return f"bundle_group_{group_id}" in room
