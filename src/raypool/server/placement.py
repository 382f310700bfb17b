"""Makes placement groups for grants and takes them away again, and tells the broker what became of it.

Three rules, each because of what Ray does (docs/ray-facts.md):
    - A group is created only when Ray's view of free resources can hold it: a group that has to wait
      in Ray's own queue is tried again only once a second, out of order.
    - A group is removed only after it is CREATED: Ray leaks the bundles of one that is not.
    - It is gone when no node's figures show it any more: then its resources are visible as free.

A group's name is that of its grant, so a broker that comes back finds what it had begun (`take_up`).
Nothing is decided here. One loop looks at the cluster while somebody looks for nodes or waits for a
removal, and sleeps otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from raypool.core import events as ev
from raypool.core.bundles import Bundle
from raypool.core.nodes import Misfit, Node, find_nodes
from raypool.server.cluster import GroupGone, RayCluster, Rooms, holds_group

logger = logging.getLogger("raypool")

T = TypeVar("T")

LOOK_SECONDS = 0.005
"""How often the cluster is looked at while somebody waits for it. Ray's nodes report every 100 ms by
default, every 10 ms as cluster.yaml sets it."""

LOOK_SECONDS_UNCHANGED = 0.02
"""The same, once nothing has come of it for a second."""

CREATE_LEAST_SECONDS = 2.0
"""Once Ray was asked to create a group it gets at least this long, also at the end of its time."""

NODES_SECONDS = 1.0
"""How often the list of nodes is read, and how soon a question is asked again that got no answer."""


async def answered(ask: Callable[[], Awaitable[T]], what: str) -> T:
    """Asks until there is an answer: Ray's GCS may be away for a while. GroupGone is an answer."""
    while True:
        try:
            return await ask()
        except GroupGone:
            raise
        except Exception:
            logger.exception("%s failed; trying again", what)
            await asyncio.sleep(NODES_SECONDS)


@dataclass
class Placement:
    """One grant on its way to nodes and back.

    claims: what its group takes per node and no report has shown yet. held: somebody has been told that
    it is his.
    """

    request: str
    attempt: int
    name: str
    bundles: Sequence[Bundle]
    strategy: str
    labels: Mapping[str, str]
    give_up_at: float
    group_id: str = ""
    nodes: tuple[str, ...] = ()
    claims: dict[str, dict[str, float]] = field(default_factory=dict)
    stage: str = "looking"  # looking, creating, created, removing, leaving; found: after a restart; lost
    unwanted: bool = False
    held: bool = False
    search: str = ""
    asked_at: float = 0.0
    shape: Hashable = field(init=False)

    def __post_init__(self) -> None:
        """shape: equal for placements that fit or do not fit alike."""
        bundles = tuple((tuple(sorted(one.items())), len(list(same))) for one, same in groupby(self.bundles))
        self.shape = (self.strategy, tuple(sorted(self.labels.items())), bundles)


class Placements:
    """All placements of one broker.

    feed: takes an event to the broker. clock: seconds, that of `Broker.handle`.
    """

    def __init__(self, cluster: RayCluster, feed: Callable[[ev.Event], None], clock: Callable[[], float]) -> None:
        self.cluster = cluster
        self.feed = feed
        self.clock = clock
        self.nodes: tuple[Node, ...] = ()
        self._placements: dict[tuple[str, int], Placement] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._nodes_read_at = float("-inf")

    @property
    def idle(self) -> bool:
        """Whether no group exists, is on its way, or is being removed."""
        return not self._placements and not self._tasks

    # --- what the broker asks for -------------------------------------------------------------

    def place(self, placement: Placement) -> None:
        self._placements[placement.request, placement.attempt] = placement
        self._wake.set()

    def take_up(self, placement: Placement) -> None:
        """A placement of the broker's life before: what has become of its group is looked for."""
        placement.stage = "found"
        self._placements[placement.request, placement.attempt] = placement
        self._spawn(self._find(placement))

    def remove(self, request: str, attempt: int) -> None:
        placement = self._placements.get((request, attempt))
        if placement is None or placement.stage == "looking":
            self._over(request, attempt)
        elif placement.stage in ("creating", "found"):
            placement.unwanted = True
        elif placement.stage == "created":
            self._begin_removal(placement)
        elif placement.stage == "lost":
            placement.stage = "leaving"
            self._wake.set()

    def _over(self, request: str, attempt: int) -> None:
        self._placements.pop((request, attempt), None)
        self.feed(ev.PlacementRemoved(request, attempt))

    async def _find(self, placement: Placement) -> None:
        """By its id, or by its name where no id was told yet: never by a list, which Ray never shortens."""
        if not placement.group_id:
            found = await answered(lambda: self.cluster.find_group(placement.name), f"looking for {placement.name}")
            placement.group_id = found or ""
        state = None
        if placement.group_id:
            state = await answered(
                lambda: self.cluster.group_state(placement.group_id), f"looking at {placement.name}"
            )
        if state not in (None, "REMOVED"):
            await self._go_on(placement)
        elif placement.held and not placement.unwanted:
            placement.stage = "lost"
            self.feed(ev.PlacementLost(placement.request, placement.attempt, "its placement group is gone"))
        elif placement.group_id:
            placement.stage = "leaving"
            self._wake.set()
        elif placement.unwanted:
            self._over(placement.request, placement.attempt)
        else:
            placement.stage = "looking"
            self._wake.set()

    async def _go_on(self, placement: Placement) -> None:
        """With a group that is there."""
        if not placement.held:
            placement.stage, placement.asked_at = "creating", self.clock()
            await self._await_created(placement)
            return
        placement.stage = "created"
        _claim(placement, placement.nodes)
        if placement.unwanted:
            self._begin_removal(placement)

    # --- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs for ever. An error of Ray's (its GCS may be away) is logged, and the loop goes on."""
        quiet_since = self.clock()
        while True:
            try:
                await self.read_nodes()
                self._give_up_on_ray()
                waited_for = bool(self._in("looking") or self._in("leaving"))
                if waited_for and self._settle(await self.cluster.free()):
                    quiet_since = self.clock()
            except Exception:
                logger.exception("looking at the cluster failed; trying again")
                await asyncio.sleep(NODES_SECONDS)
            await self._pause(quiet_since)

    async def _pause(self, quiet_since: float) -> None:
        if self._in("looking") or self._in("leaving"):
            quiet = self.clock() - quiet_since > 1
            await asyncio.sleep(LOOK_SECONDS_UNCHANGED if quiet else LOOK_SECONDS)
            return
        try:
            await asyncio.wait_for(self._wake.wait(), NODES_SECONDS)
        except asyncio.TimeoutError:
            return
        self._wake.clear()

    async def read_nodes(self) -> None:
        """Reads the list of nodes, at most once in NODES_SECONDS, and tells the broker if it changed."""
        now = self.clock()
        if now - self._nodes_read_at < NODES_SECONDS:
            return
        nodes = await self.cluster.nodes()
        self._nodes_read_at = now
        if nodes != self.nodes:
            self.nodes = nodes
            self.feed(ev.NodesChanged(nodes))

    def _in(self, *stages: str) -> list[Placement]:
        return [one for one in self._placements.values() if one.stage in stages]

    def _settle(self, free: Rooms) -> bool:
        """Does what the cluster's figures allow. True if anything came of it."""
        changed = False
        for placement in self._in("leaving"):
            if not any(holds_group(room, placement.group_id) for room in free.values()):
                self._over(placement.request, placement.attempt)
                changed = True
        for placement in self._in("creating", "created", "removing"):
            for node in list(placement.claims):
                if placement.group_id and holds_group(free.get(node, {}), placement.group_id):
                    del placement.claims[node]
        misfits: dict[Hashable, Misfit] = {}  # room only shrinks meanwhile, so what fitted nowhere still does
        for placement in self._in("looking"):
            changed |= self._look(placement, free, misfits)
        return changed

    def _look(self, placement: Placement, free: Rooms, misfits: dict[Hashable, Misfit]) -> bool:
        """Creates the group if there is room for it now; gives up when its time is over."""
        found = misfits.get(placement.shape)
        if found is None:
            nodes = find_nodes(placement.bundles, placement.strategy, self._rooms(free, placement.labels))
            if not isinstance(nodes, Misfit):
                placement.stage, placement.asked_at = "creating", self.clock()
                _claim(placement, nodes)
                self._spawn(self._create(placement))
                return True
            found = misfits[placement.shape] = nodes
        if self.clock() >= placement.give_up_at:
            del self._placements[placement.request, placement.attempt]
            self.feed(ev.PlacementFailed(placement.request, placement.attempt, found.as_search))
            return True
        if found.as_search != placement.search:
            placement.search = found.as_search
            self.feed(ev.PlacementWaits(placement.request, placement.attempt, found.as_search))
        return False

    def _give_up_on_ray(self) -> None:
        """A group that Ray does not create in time: somebody outside the broker took the room first. Its
        grant gives its charge back; the group is removed when Ray has created it after all."""
        for placement in self._in("creating"):
            until = max(placement.give_up_at, placement.asked_at + CREATE_LEAST_SECONDS)
            if not placement.unwanted and self.clock() >= until:
                placement.unwanted = True
                seconds = self.clock() - placement.asked_at
                why = f"Ray did not create its placement group in {seconds:.0f} s: others took the room"
                self.feed(ev.PlacementFailed(placement.request, placement.attempt, why, group_pending=True))

    def _rooms(self, free: Rooms, labels: Mapping[str, str]) -> Rooms:
        """What may be used on each node: what is free, less what our own groups will show as taken."""
        rooms = {node.id: dict(free.get(node.id, {})) for node in self.nodes if node.has_labels(labels)}
        for placement in self._in("creating", "created", "removing"):
            for node, taken in placement.claims.items():
                room = rooms.get(node)
                if room is not None:
                    for resource, amount in taken.items():
                        room[resource] = room.get(resource, 0.0) - amount
        return rooms

    # --- one group ----------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _create(self, placement: Placement) -> None:
        refusal = await self._make(placement)
        if refusal:
            self._failed(placement, refusal)
            return
        await self._await_created(placement)

    async def _await_created(self, placement: Placement) -> None:
        try:
            placement.nodes = await answered(
                lambda: self.cluster.created(placement.group_id), f"waiting for {placement.name}"
            )
        except GroupGone:
            self._failed(placement, "somebody removed its placement group before it was ready")
            return
        placement.stage = "created"
        _claim(placement, placement.nodes)
        if placement.unwanted:
            self._begin_removal(placement)
            return
        self.feed(ev.PlacementReady(placement.request, placement.attempt, placement.group_id, placement.nodes))

    async def _make(self, placement: Placement) -> str:
        """Has Ray make the group. Returns why there is none, or "".

        An error does not say that there is none: the answer may be lost on the way. Then Ray is asked.
        """
        try:
            placement.group_id = await self.cluster.create_group(
                placement.name, placement.bundles, placement.strategy, placement.labels
            )
        except Exception as error:  # noqa: BLE001 - Ray's reason, whatever it is, goes to the waiter
            made = await answered(lambda: self.cluster.find_group(placement.name), f"looking for {placement.name}")
            if made is None or any(other.group_id == made for other in self._placements.values()):
                return f"Ray refused the placement group: {error}"
            placement.group_id = made
        return ""

    def _failed(self, placement: Placement, why: str) -> None:
        logger.warning("placement of %s failed: %s", placement.request, why)
        del self._placements[placement.request, placement.attempt]
        self.feed(ev.PlacementFailed(placement.request, placement.attempt, why))

    def _begin_removal(self, placement: Placement) -> None:
        placement.stage = "removing"
        self._spawn(self._remove(placement))

    async def _remove(self, placement: Placement) -> None:
        """Asks until Ray has taken the order: a removal must not be lost because the GCS was away."""
        await answered(lambda: self.cluster.remove_group(placement.group_id), f"removing {placement.name}")
        placement.stage = "leaving"
        self._wake.set()


def _claim(placement: Placement, nodes: Sequence[str]) -> None:
    """Notes what the group takes on each node until the node's own report shows it."""
    placement.claims = {}
    for node, bundle in zip(nodes, placement.bundles, strict=True):
        taken = placement.claims.setdefault(node, {})
        for resource, amount in bundle.items():
            taken[resource] = taken.get(resource, 0.0) + amount
