"""Makes placement groups for grants and takes them away again, and tells the broker what became of it.

Three rules, each because of what Ray does (docs/explanation/ray-facts.md):
    - A group is created only when Ray's view of free resources can hold it: a group that has to wait
      in Ray's own queue is tried again only once a second, out of order.
    - A group is removed only after it was CREATED: Ray leaks the bundles of one that never was.
    - It is gone when no node's figures show it any more: then its resources are visible as free. If they
      show it for too long, the broker is told that it is stuck, and goes on without that room.

A group's name is that of the grant that it was made for, so a broker that comes back finds what it had begun
(`take_up`). One that is handed over keeps its name and is found by its id.
Nothing is decided here. One loop looks at the cluster while somebody looks for nodes or waits for what is
leaving, now and then while something leaves that nobody waits for, and sleeps otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from raypool.core import events as ev
from raypool.core.bundles import Bundle, describe_bundle
from raypool.core.nodes import Misfit, Node, find_nodes
from raypool.server.cluster import GroupGone, RayCluster, Rooms, holds_group
from raypool.server.stores import StoreUnusable

logger = logging.getLogger("raypool")

T = TypeVar("T")

LOOK_SECONDS = 0.005
"""How often the cluster is looked at while somebody waits for it. Ray's nodes report every 100 ms by
default, every 10 ms as cluster.yaml sets it."""

FRESH_SECONDS = 0.02
"""So old what the nodes have free may be when somebody is placed by it: no more than a report is old anyway."""

LOOK_SECONDS_UNCHANGED = 0.02
"""The same, once nothing has come of it for a second."""

LOOK_SECONDS_UNHURRIED = 0.05
"""The same while nobody waits for the room that becomes free."""

CREATE_LEAST_SECONDS = 2.0
"""Once Ray was asked to create a group it gets at least this long, also at the end of its time."""

PHANTOM_SECONDS = 30.0
"""How long Ray may take to give the room of a removed group back before it counts as a phantom."""

NODES_SECONDS = 1.0
"""How often the list of nodes is read, and how soon a question is asked again that got no answer."""


async def answered(ask: Callable[[], Awaitable[T]], what: str) -> T:
    """Asks until there is an answer: Ray's GCS may be away for a while. GroupGone and StoreUnusable are answers."""
    while True:
        try:
            return await ask()
        except (GroupGone, StoreUnusable):
            raise
        except Exception:
            logger.exception("%s failed; trying again", what)
            await asyncio.sleep(NODES_SECONDS)


class Figures(NamedTuple):
    """What Ray sees as free on each node, and when it was asked: it may have seen later things or not."""

    rooms: Rooms
    asked_at: float


@dataclass
class Placement:
    """One grant on its way to nodes and back.

    claims: what its group takes per node and no report has shown yet. shown: a report has shown all of it.
    held: somebody has been told that it is his. broken: the broker was told that a node of it is dead.
    left_at: when Ray took the order to remove it. stuck: it was given up: not created in time, or not seen
    gone in time. alarm: a sentence about that. made_here: this process had it made, with these very bundles.
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
    stage: str = "looking"  # looking, creating, created, removing, leaving; found: after a restart
    unwanted: bool = False
    held: bool = False
    shown: bool = False
    search: str = ""
    asked_at: float = 0.0
    left_at: float = 0.0
    broken: bool = False
    stuck: bool = False
    alarm: str = ""
    made_here: bool = False
    shape: Hashable = field(init=False)

    def __post_init__(self) -> None:
        """shape: equal for placements that fit or do not fit alike."""
        bundles = tuple((tuple(sorted(one.items())), len(list(same))) for one, same in groupby(self.bundles))
        self.shape = (self.strategy, tuple(sorted(self.labels.items())), bundles)


class Placements:
    """All placements of one broker.

    feed: takes an event to the broker. clock: seconds, that of `Broker.handle`. somebody_waits: whether there is
    any request that stands in line.
    """

    def __init__(
        self,
        cluster: RayCluster,
        feed: Callable[[ev.Event], None],
        clock: Callable[[], float],
        somebody_waits: Callable[[], bool],
    ) -> None:
        self.cluster = cluster
        self.feed = feed
        self.clock = clock
        self.somebody_waits = somebody_waits
        self.phantom_seconds = PHANTOM_SECONDS
        self.nodes: tuple[Node, ...] = ()
        self._placements: dict[tuple[str, int], Placement] = {}
        self._wake = asyncio.Event()
        self._latest: asyncio.Task[Figures] | None = None
        self._latest_asked_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._nodes_read_at = float("-inf")
        self._looked_at = float("-inf")
        self._sleeps = False  # although something is leaving

    @property
    def idle(self) -> bool:
        """Whether no group exists, is on its way, or is being removed. Nobody waits for those
        that are stuck."""
        still_asked = sum(one.stage == "creating" for one in self.stuck)  # each has a task that waits for Ray
        return len(self.stuck) == len(self._placements) and len(self._tasks) <= still_asked

    @property
    def stuck(self) -> list[Placement]:
        return [one for one in self._placements.values() if one.stuck]

    @property
    def groups(self) -> list[Placement]:
        """Those that Ray was asked for, and that are not known to be gone."""
        return [one for one in self._placements.values() if one.stage != "looking"]

    # --- what the broker asks for -------------------------------------------------------------

    def look_ahead(self) -> None:
        """Somebody will have to be placed as soon as that is in the journal: the figures are asked for now."""
        if not self._fresh:
            self._ask_figures()

    def place(self, placement: Placement) -> None:
        self._placements[placement.request, placement.attempt] = placement
        figures = self._at_hand()
        if figures is not None:
            self._settle(figures)
        if placement.stage == "looking":
            self._wake.set()

    def look_for_who_waits(self) -> None:
        """Somebody may have joined a line: what is leaving may be waited for from now on."""
        if self._sleeps and self.somebody_waits():
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

    def is_whole(self, request: str, attempt: int, bundles: Sequence[Bundle], labels: Mapping[str, str]) -> bool:
        """Whether the grant's group is there, on nodes that live, with these bundles on nodes of these labels: what
        would be made now. Of a group that an earlier life had made nobody knows by which pool's words it was."""
        placement = self._placements.get((request, attempt))
        return (
            placement is not None
            and placement.stage == "created"
            and placement.made_here
            and not (placement.unwanted or placement.broken)
            and tuple(placement.bundles) == tuple(bundles)
            and placement.labels == labels
        )

    def hand_over(self, request: str, attempt: int, to: Placement) -> None:
        """The grant's group is that of another from now on. What is known of it stays known; if it has gone
        meanwhile, its new holder hears of that."""
        placement = self._placements.pop((request, attempt), None)
        if placement is None or placement.stage != "created":
            self.take_up(to)
            return
        placement.request, placement.attempt, placement.held = to.request, to.attempt, True
        self._placements[to.request, to.attempt] = placement

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
            state, _ = await answered(lambda: self.cluster.look(placement.group_id), f"looking at {placement.name}")
        if state not in (None, "REMOVED"):
            await self._go_on(placement)
        elif placement.held and not placement.unwanted:
            self._lost(placement)
        elif placement.group_id:
            placement.stage, placement.left_at = "leaving", self.clock()
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
                await self._give_up_on_ray()
                if self._look_in() <= 0:
                    self._looked_at = self.clock()
                    if self._settle(await self.trusted_figures()):
                        quiet_since = self.clock()
            except Exception:
                logger.exception("looking at the cluster failed; trying again")
                await asyncio.sleep(NODES_SECONDS)
            await self._pause(quiet_since)

    async def _pause(self, quiet_since: float) -> None:
        if self._hurried:
            quiet = self.clock() - quiet_since > 1
            await asyncio.sleep(LOOK_SECONDS_UNCHANGED if quiet else LOOK_SECONDS)
            return
        self._sleeps = bool(self._leaving)
        try:
            await asyncio.wait_for(self._wake.wait(), max(self._look_in(), LOOK_SECONDS))
        except asyncio.TimeoutError:
            return
        finally:
            self._sleeps = False
        self._wake.clear()

    def _look_in(self) -> float:
        """In how many seconds it is time to look at the cluster again; NODES_SECONDS if nothing calls for it."""
        if self._hurried:
            return 0.0
        leaving = self._leaving
        if not leaving:
            return NODES_SECONDS
        return max(self._looked_at, min(leaving)) + LOOK_SECONDS_UNHURRIED - self.clock()

    async def read_nodes(self) -> None:
        """Reads the list of nodes, at most once in NODES_SECONDS, and tells the broker if it changed."""
        now = self.clock()
        if now - self._nodes_read_at < NODES_SECONDS:
            return
        nodes = await self.cluster.nodes()
        self._nodes_read_at = now
        live = {node.id for node in nodes}
        broken = [one for one in self._in("created") if not one.broken and not live.issuperset(one.nodes)]
        for placement in broken:
            placement.broken = True
        if nodes != self.nodes or broken:  # a group may become ready just when its node is struck off the list
            self.nodes = nodes
            self.feed(ev.NodesChanged(nodes))

    def _in(self, *stages: str) -> list[Placement]:
        return [one for one in self._placements.values() if one.stage in stages]

    @property
    def _leaving(self) -> list[float]:
        """Since when removals are waited for that may be seen any moment."""
        return [one.left_at for one in self._in("leaving") if not one.stuck]

    @property
    def _hurried(self) -> bool:
        """Whether somebody looks for nodes, or stands in line while something leaves."""
        if any(one.stage == "looking" for one in self._placements.values()):
            return True
        return bool(self._leaving) and self.somebody_waits()

    def _ask_figures(self) -> asyncio.Task[Figures]:
        """Answers come in the order of the questions: what one has shown, none that is used after it takes back."""

        async def ask(asked_at: float) -> Figures:
            return Figures(await self.cluster.free(), asked_at)

        self._latest_asked_at = self.clock()
        self._latest = asyncio.get_running_loop().create_task(ask(self._latest_asked_at))
        self._latest.add_done_callback(_heard)
        return self._latest

    @property
    def _fresh(self) -> bool:
        """Whether the latest question for figures is as good as one that would be asked now."""
        return 0 <= self.clock() - self._latest_asked_at < FRESH_SECONDS

    def _at_hand(self) -> Figures | None:
        """The answer to it, if it is there and can be true."""
        latest = self._latest
        if latest is None or not self._fresh or not latest.done() or latest.exception() is not None:
            return None
        figures = latest.result()
        return None if self._doubtful(figures.rooms) else figures

    async def _figures(self) -> Figures:
        """Newer than all that were used before."""
        latest = self._latest
        under_way = latest is not None and self._fresh and not latest.done()
        return await (latest if latest is not None and under_way else self._ask_figures())

    async def trusted_figures(self) -> Figures | None:
        """What is free on each node; None if the figures cannot be true: for a second or two after the GCS was
        started again they show every node wholly free. A node that has shown one of our groups, and does not
        although the group is there, gives them away."""
        figures = await self._figures()
        if self._doubtful(figures.rooms):
            await self.look_after(figures.rooms)  # somebody may have removed it
        return None if self._doubtful(figures.rooms) else figures

    async def figures_within(self, seconds: float) -> Rooms | None:
        """The same for who only wants to know: nothing is looked into for it; None, too, if Ray does not answer in
        time."""
        try:
            free = (await asyncio.wait_for(asyncio.shield(self._ask_figures()), seconds)).rooms
        except Exception as error:  # noqa: BLE001 - whatever Ray's GCS has, it is not known then
            logger.info("what is free is not known: %s", error)
            return None
        self._drop_shown_claims(free)
        return None if self._doubtful(free) else free

    def nodes_for(
        self,
        bundles: Sequence[Bundle],
        strategy: str,
        labels: Mapping[str, str],
        free: Rooms,
        leaving: Sequence[tuple[str, int]],
    ) -> tuple[str, ...] | Misfit:
        """Where bundles would go now, and when those grants (request, attempt) had left. Changes nothing."""
        rooms = self._rooms(free, labels)
        for grant in leaving:
            placement = self._placements.get(grant)
            if placement is None or not placement.nodes:
                continue
            for node, given_back in _by_node(placement, placement.nodes).items():
                room = rooms.get(node, {})
                for resource, amount in given_back.items():
                    room[resource] = room.get(resource, 0.0) + amount
        return find_nodes(bundles, strategy, rooms)

    def _doubtful(self, free: Rooms) -> bool:
        return any(
            placement.shown and not placement.broken and node in free
            and not holds_group(free[node], placement.group_id)
            for placement in self._in("created")
            for node in placement.nodes
        )  # fmt: skip

    def _settle(self, figures: Figures | None) -> bool:
        """Does what the cluster's figures allow. True if anything came of it."""
        if figures is None:
            return False
        changed = self.see_what_left(figures)
        misfits: dict[Hashable, Misfit] = {}  # room only shrinks meanwhile, so what fitted nowhere still does
        for placement in self._in("looking"):
            changed |= self._look(placement, figures.rooms, misfits)
        return changed

    def _drop_shown_claims(self, free: Rooms) -> None:
        for placement in self._in("creating", "created", "removing"):
            for node in list(placement.claims):
                if placement.group_id and holds_group(free.get(node, {}), placement.group_id):
                    del placement.claims[node]
            placement.shown = bool(placement.group_id) and not placement.claims

    def see_what_left(self, figures: Figures) -> bool:
        """Ends what the figures do not show any more, and gives up waiting for what they show too long."""
        self._drop_shown_claims(figures.rooms)
        changed = False
        for placement in self._in("leaving"):
            seconds = self.clock() - placement.left_at
            if placement.left_at > figures.asked_at:
                continue  # they may not know yet that it was there
            if not any(holds_group(room, placement.group_id) for room in figures.rooms.values()):
                self._over(placement.request, placement.attempt)
                changed = True
            elif seconds >= self.phantom_seconds and not placement.stuck:
                self._give_up(
                    placement,
                    f"Ray has not given back the room of placement group '{placement.name}' ({_where(placement)}) "
                    f"in {seconds:.0f} s since its removal: it counts as phantom until it is seen free",
                )
                self.feed(ev.PlacementStuck(placement.request, placement.attempt))
                changed = True
        return changed

    def _give_up(self, placement: Placement, alarm: str) -> None:
        placement.stuck, placement.alarm = True, alarm
        logger.warning(alarm)

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

    async def _give_up_on_ray(self) -> None:
        """A group that Ray does not create in time: somebody outside the broker took the room first, or Ray's
        own scheduling hangs. It is removed when Ray has created it after all; its room is a phantom until
        then."""
        if not self._late_ones():
            return
        figures = await self.trusted_figures()
        if figures is None:
            return
        self._drop_shown_claims(figures.rooms)
        for placement in self._late_ones():
            rooms = self._rooms(figures.rooms, placement.labels, besides=placement)
            no_room = isinstance(find_nodes(placement.bundles, placement.strategy, rooms), Misfit)
            because = "others took the room" if no_room else "though the room for it is visible"
            seconds = self.clock() - placement.asked_at
            self._give_up(
                placement,
                f"Ray has not created placement group '{placement.name}' in {seconds:.0f} s, {because}: "
                "that counts as phantom until the group is created, and removed, or gone",
            )
            placement.unwanted = True
            why = f"Ray did not create its placement group in {seconds:.0f} s: {because}"
            self.feed(ev.PlacementFailed(placement.request, placement.attempt, why, group_pending=True))

    def _late_ones(self) -> list[Placement]:
        return [
            one
            for one in self._in("creating")
            if not one.stuck and self.clock() >= max(one.give_up_at, one.asked_at + CREATE_LEAST_SECONDS)
        ]

    def _rooms(self, free: Rooms, labels: Mapping[str, str], besides: Placement | None = None) -> Rooms:
        """What may be used on each node: what is free, less what our own groups (`besides` that one) will
        show as taken."""
        rooms = {node.id: dict(free.get(node.id, {})) for node in self.nodes if node.has_labels(labels)}
        for placement in self._in("creating", "created", "removing"):
            for node, taken in placement.claims.items():
                room = rooms.get(node)
                if room is not None and placement is not besides:
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
            if placement.stage == "creating":
                self._failed(placement, "somebody removed its placement group before it was ready")
            return
        if placement.stage != "creating":
            return  # `look_after` has seen to it
        placement.stage, placement.stuck, placement.alarm = "created", False, ""
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
            placement.made_here = True
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
        placement.stage, placement.left_at = "leaving", self.clock()
        self._wake.set()

    # --- what is looked at from time to time: see audit.py ------------------------------------

    async def look_after(self, free: Rooms) -> None:
        """Finds out what became of groups that no node shows, and of those that lost a node.

        One that lost a node between its creation and Ray's answer is removed, if nobody wants it any more:
        Ray leaks nothing of what was CREATED once.
        """
        for placement in self._in("creating"):
            if placement.unwanted and placement.group_id:
                state, _ = await self.cluster.look(placement.group_id)
                if state == "RESCHEDULING" and placement.stage == "creating":
                    placement.stuck, placement.alarm = False, ""
                    self._begin_removal(placement)
        for placement in self._in("created"):
            if any(holds_group(room, placement.group_id) for room in free.values()) and not placement.broken:
                continue
            state, nodes = await self.cluster.look(placement.group_id)
            if placement.stage != "created":
                continue  # it was given back meanwhile
            if state in (None, "REMOVED"):
                self._lost(placement)
            elif placement.broken and state == "CREATED" and {node.id for node in self.nodes}.issuperset(nodes):
                placement.broken, placement.nodes = False, nodes
                _claim(placement, nodes)
                self.feed(ev.PlacementReady(placement.request, placement.attempt, placement.group_id, nodes))

    def _lost(self, placement: Placement) -> None:
        why = "somebody outside of the broker removed it"
        logger.warning("placement group '%s' is gone: %s", placement.name, why)
        del self._placements[placement.request, placement.attempt]
        self.feed(ev.PlacementLost(placement.request, placement.attempt, why))


def _heard(answer: asyncio.Task[Figures]) -> None:
    """Nobody may need it any more: then an error of Ray's is no news either."""
    if not answer.cancelled():
        answer.exception()


def _claim(placement: Placement, nodes: Sequence[str]) -> None:
    """Notes what the group takes on each node until the node's own report shows it."""
    placement.claims = _by_node(placement, nodes)


def _by_node(placement: Placement, nodes: Sequence[str]) -> dict[str, dict[str, float]]:
    held: dict[str, dict[str, float]] = {}
    for node, bundle in zip(nodes, placement.bundles, strict=True):
        taken = held.setdefault(node, {})
        for resource, amount in bundle.items():
            taken[resource] = taken.get(resource, 0.0) + amount
    return held


def _where(placement: Placement) -> str:
    """What it holds and where: "4 GPU on node n1, 4 GPU on node n2"."""
    held = _by_node(placement, placement.nodes)
    return ", ".join(f"{describe_bundle(taken)} on node {node}" for node, taken in held.items())
