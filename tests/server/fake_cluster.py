"""A cluster of virtual nodes with the methods of `RayCluster`, and the worlds that fail.

It does what Ray does: a group takes room on nodes when it is CREATED, waits in Ray's own queue if there
is none, and a removal before it is CREATED leaks its bundles, which is an error here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from raypool.core.nodes import Misfit, Node, find_nodes
from raypool.server.cluster import GroupGone


@dataclass
class FakeGroup:
    id: str
    name: str
    bundles: list[dict[str, float]]
    strategy: str
    labels: dict[str, str]
    state: str = "PENDING"
    nodes: tuple[str, ...] = ()
    changed: asyncio.Event = field(default_factory=asyncio.Event)


def actor_id(name):
    """An id as Ray's actors have it, that tells which one it is."""
    return name.encode().hex().rjust(32, "0")


def node(id, gpu=8, cpu=64, **labels):
    return Node(id, {"GPU": float(gpu), "CPU": float(cpu), "memory": 256e9}, labels)


class FakeCluster:
    """Answers at once; a group is CREATED as soon as there is room."""

    def __init__(self, *nodes: Node) -> None:
        self.live = list(nodes or [node("n1")])
        self.groups: dict[str, FakeGroup] = {}
        self.name = "a cluster"
        self.store: dict[str, bytes] = {}
        self.jobs_dead: set[str] = set()
        self.actors_dead: set[str] = set()
        self.tokens: dict[str, asyncio.Future[bool]] = {}
        self.told: dict[str, dict[tuple[str, ...], Any]] = {}  # by metric and its labels
        self.overcommitted: list[str] = []  # groups that had to wait in Ray's queue
        self.folder = None  # where logs go
        self._ids = count(1)

    # --- what RayCluster has ------------------------------------------------------------------

    async def nodes(self):
        await self._answer()
        return tuple(sorted(self.live, key=lambda one: one.id))

    async def free(self):
        await self._answer()
        return self.figures()

    async def create_group(self, name, bundles, strategy, labels):
        await self._answer()
        if any(group.name == name and group.state != "REMOVED" for group in self.groups.values()):
            raise ValueError(f"a placement group named {name} exists")
        group = FakeGroup(f"{next(self._ids):04x}", name, [dict(b) for b in bundles], strategy, dict(labels))
        self.groups[group.id] = group
        self._schedule()
        if group.state == "PENDING" and not self.holds_back(group):
            self.overcommitted.append(name)
        return group.id

    async def find_group(self, name):
        await self._answer()
        return next((one.id for one in self.groups.values() if one.name == name and one.state != "REMOVED"), None)

    async def created(self, group_id):
        await self._answer()
        group = self.groups[group_id]
        while group.state in ("PENDING", "RESCHEDULING"):
            group.changed.clear()
            await group.changed.wait()
        if group.state == "REMOVED":
            raise GroupGone(group_id)
        return group.nodes

    async def remove_group(self, group_id):
        await self._answer()
        group = self.groups[group_id]
        assert group.state in ("CREATED", "RESCHEDULING"), f"the bundles of {group.name} leak: it is {group.state}"
        self.vanish(group)

    async def look(self, group_id):
        await self._answer()
        group = self.groups.get(group_id)
        return (group.state, group.nodes) if group is not None else (None, ())

    async def dead_jobs(self):
        await self._answer()
        return frozenset(self.jobs_dead)

    async def actor_is_dead(self, actor_id):
        await self._answer()
        return actor_id in self.actors_dead

    async def owner_died(self, token):
        return await self.tokens.setdefault(token, asyncio.get_running_loop().create_future())

    async def log_folder(self):
        await self._answer()
        return self.folder

    async def in_thread(self, call):
        await self._answer()
        return call()

    async def identity(self):
        await self._answer()
        return self.name

    async def load(self, key):
        await self._answer()
        return self.store.get(key)

    async def load_all(self, prefix):
        await self._answer()
        return {key: self.store[key] for key in sorted(self.store) if key.startswith(prefix)}

    async def save(self, key, value, overwrite=True):
        await self._answer()
        if key in self.store and not overwrite:
            return False
        self.store[key] = value
        return True

    async def erase(self, prefix):
        await self._answer()
        self.store = {key: value for key, value in self.store.items() if not key.startswith(prefix)}

    def meter(self, metric):
        def record(value, labels):
            assert tuple(labels) == metric.labels, (metric.name, labels)
            told = self.told.setdefault(metric.name, {})
            key = tuple(labels.values())
            if metric.kind == "gauge":
                told[key] = value
            elif metric.kind == "counter":
                assert value > 0
                told[key] = told.get(key, 0) + value
            else:
                told.setdefault(key, []).append(value)

        return record

    silent_seconds = 0.0

    # --- what the test does and sees ----------------------------------------------------------

    async def _answer(self):
        """Every call passes here: a failing world is one that does something else."""
        await asyncio.sleep(0)

    def holds_back(self, group) -> bool:
        return False

    def _schedule(self):
        for group in self.groups.values():
            if group.state == "PENDING" and not self.holds_back(group):
                here = {one.id for one in self.live if one.has_labels(group.labels)}
                rooms = {id: room for id, room in self.truth().items() if id in here}
                found = find_nodes(group.bundles, group.strategy, rooms)
                if not isinstance(found, Misfit):
                    group.state, group.nodes = "CREATED", found
                    group.changed.set()
            elif group.state == "RESCHEDULING":
                self._repair(group)

    def _repair(self, group):
        """All that it lacks at once, or nothing."""
        here = {one.id for one in self.live if one.has_labels(group.labels)}
        if group.strategy == "STRICT_SPREAD":
            here -= set(group.nodes)
        rooms = {id: room for id, room in self.truth().items() if id in here}
        lacking = [index for index, id in enumerate(group.nodes) if not id]
        found = find_nodes([group.bundles[index] for index in lacking], group.strategy, rooms)
        if not isinstance(found, Misfit):
            moved = dict(zip(lacking, found, strict=True))
            group.state, group.nodes = "CREATED", tuple(moved.get(i, id) for i, id in enumerate(group.nodes))
            group.changed.set()

    def vanish(self, group):
        """It is removed, by whomever."""
        group.state = "REMOVED"
        group.changed.set()
        self._schedule()

    def lose(self, id):
        """The node dies. Its groups lose a part, and look for another node; the rest of them stays."""
        self.live = [one for one in self.live if one.id != id]
        for group in self.groups.values():
            if group.state in ("CREATED", "RESCHEDULING") and id in group.nodes:
                group.state, group.nodes = "RESCHEDULING", tuple("" if at == id else at for at in group.nodes)
        self._schedule()

    def gain(self, node):
        self.live.append(node)
        self._schedule()

    def shown(self, group) -> bool:
        """Whether the nodes still hold it."""
        return group.state in ("CREATED", "RESCHEDULING")

    def truth(self):
        """What is free on each node now, and which groups are there."""
        rooms = {one.id: dict(one.resources) for one in self.live}
        for group in self.groups.values():
            if self.shown(group):
                for id, bundle in zip(group.nodes, group.bundles, strict=True):
                    if id in rooms:
                        rooms[id][f"bundle_group_{group.id}"] = 1000.0
                        for resource, amount in bundle.items():
                            rooms[id][resource] = rooms[id].get(resource, 0.0) - amount
        return rooms

    def figures(self):
        """What the GCS says is free; late figures are those of the last report."""
        return self.truth()

    def named(self, part):
        """The latest group whose name ends so."""
        return [group for group in self.groups.values() if group.name.endswith(part)][-1]

    def there(self):
        """The names of the groups that exist."""
        return [group.name for group in self.groups.values() if group.state != "REMOVED"]


class HeldBackCluster(FakeCluster):
    """Groups are CREATED when the test says so."""

    def __init__(self, *nodes):
        super().__init__(*nodes)
        self.may_be_created: list[str] = []

    def holds_back(self, group):
        return group.name not in self.may_be_created

    def let(self, part):
        self.may_be_created.append(self.named(part).name)
        self._schedule()


class LeakingCluster(FakeCluster):
    """Removed groups are gone, and their room is not given back before the test says so."""

    leaks = True

    def shown(self, group):
        return super().shown(group) or (self.leaks and group.state == "REMOVED")

    def give_back(self):
        self.leaks = False
        self._schedule()


class LateFigures(FakeCluster):
    """Free resources change only when the nodes report, which they do when the test says so."""

    def __init__(self, *nodes):
        super().__init__(*nodes)
        self.report()

    def report(self):
        self.reported = self.truth()

    def figures(self):
        return {id: dict(room) for id, room in self.reported.items()}


class AwayCluster(FakeCluster):
    """Its GCS is away while `away`: every call raises."""

    away = False

    async def _answer(self):
        await super()._answer()
        if self.away:
            raise ConnectionError("the GCS is away")


class SilentCluster(FakeCluster):
    """Its GCS gives no answer while `silent`, and no error either."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(*nodes)
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.silent_since: float | None = None

    async def _answer(self):
        await super()._answer()
        await self.speaks.wait()

    def silence(self):
        self.speaks.clear()
        self.silent_since = asyncio.get_running_loop().time()

    def speak(self):
        self.silent_since = None
        self.speaks.set()

    @property
    def silent_seconds(self):
        return 0.0 if self.silent_since is None else asyncio.get_running_loop().time() - self.silent_since


class ForgetfulFigures(FakeCluster):
    """As Ray's after its GCS was started again: for a while every node seems wholly free, until it has reported."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(*nodes)
        self.unreported: set[str] = set()

    def figures(self):
        rooms = self.truth()
        for one in self.live:
            if one.id in self.unreported:
                rooms[one.id] = dict(one.resources)
        return rooms


class RefusingCluster(FakeCluster):
    """Ray refuses every placement group."""

    async def create_group(self, name, bundles, strategy, labels):
        await self._answer()
        raise ValueError("bundles may not be so")


class LostAnswers(FakeCluster):
    """The group is made, and the answer is lost on the way."""

    async def create_group(self, name, bundles, strategy, labels):
        await super().create_group(name, bundles, strategy, labels)
        raise ConnectionError("the connection broke")


class SlowCluster(FakeCluster):
    """Every answer takes a while."""

    def __init__(self, *nodes, seconds=0.3):
        super().__init__(*nodes)
        self.seconds = seconds

    async def _answer(self):
        await asyncio.sleep(self.seconds)
