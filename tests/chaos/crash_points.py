"""A broker that dies wherever one says: at any question to the cluster or the store, before or after its effect.

A story is a list of steps. It is played on a fake cluster in virtual time, once undisturbed, which also counts
the points at which the process could die, and then once for each of them: the process is gone at that point,
another begins on the same cluster and journal, and whoever was not answered asks again. Both must end alike.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from raypool.core.snapshot import Snapshots
from raypool.errors import Refused

from ..server.fake_cluster import FakeCluster, node
from ..server.virtual_time import for_ever, run
from ..server.world import Process, World

EFFECTS = {"save", "erase", "create_group", "remove_group", "in_thread"}
"""What changes the world: the process can die before, and after without having heard the answer."""

READINGS = {"created", "free", "find_group", "look", "load_all"}
"""What only asks: it is the same whether the process dies before or after, and once for each answer."""

Step = tuple[Any, ...]


class Mortal(Process):
    """Dies at the points that `deaths` names; all lives of one world count on."""

    def __init__(self, cluster: FakeCluster, world: CrashingWorld) -> None:
        super().__init__(cluster)
        self.world = world
        self.died = asyncio.Event()
        self.heard: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        ask = super().__getattr__(name)
        if name not in EFFECTS | READINGS:
            return ask

        async def counted(*args: Any, **more: Any) -> Any:
            if name in EFFECTS:
                await self._point(f"before {name}")
            answer = await ask(*args, **more)
            if name in EFFECTS or self.heard.get(name) != answer:
                self.heard[name] = answer
                await self._point(f"after {name}")
            return answer

        return counted

    async def _point(self, where: str) -> None:
        if self.dead:
            await for_ever()
        self.world.points += 1
        if self.world.points in self.world.deaths:
            self.world.died_at.append(where)
            self.dead = True
            self.died.set()
            await for_ever()


class CrashingWorld(World):
    def __init__(
        self,
        cluster: FakeCluster,
        deaths: Collection[int],
        watch: Callable[[CrashingWorld], None] = lambda world: None,
    ) -> None:
        self.deaths = deaths
        self.watch = watch
        self.points = 0
        self.died_at: list[str] = []
        super().__init__(cluster)

    def _new_actor(self) -> Any:
        from raypool.server.actor import PoolBroker

        self.process = Mortal(self.cluster, self)
        return PoolBroker(self.process, clock=asyncio.get_running_loop().time)

    async def begin(self) -> None:
        self.watch(self)
        while not await self._alive(self.actor.begin()):
            self._next_life()
            self.watch(self)

    def _next_life(self) -> None:
        self.crash()
        self.actor = self._new_actor()

    async def call(self, method: str, *args: Any) -> Any:
        """As a client calls: until it is answered."""
        while True:
            answer: list[Any] = []

            async def ask(into: list[Any] = answer) -> None:
                into.append(await getattr(self.actor, method)(*args))

            if await self._alive(ask()):
                return answer[0]
            self._next_life()
            await self.begin()

    async def pass_time(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 1e-6:
            if not await self._alive(asyncio.sleep(left)):
                self._next_life()
                await self.begin()
        self.actor.broker.check()

    async def _alive(self, work: Any) -> bool:
        """Whether the work was done before the process died."""
        task, died = asyncio.ensure_future(work), asyncio.ensure_future(self.process.died.wait())
        try:
            await asyncio.wait({task, died}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            task.cancel()
            died.cancel()


def play(
    story: list[Step],
    deaths: Collection[int] = (),
    settle: float = 1.5,
    folder: Path | None = None,
    watch: Callable[[CrashingWorld], None] = lambda world: None,
) -> CrashingWorld:
    """Plays it to its end. settle: seconds after each step, in which all that follows from it comes to rest. folder:
    where records of events go. watch: is told the world as each life begins."""
    world: CrashingWorld | None = None

    async def told() -> None:
        nonlocal world
        cluster = FakeCluster(node("n1", 4), node("n2", 4), node("n3", 4))
        cluster.folder = folder
        world = CrashingWorld(cluster, deaths, watch)
        await world.begin()
        jobs = dict(asked_in(story))
        for kind, *rest in story:
            if kind == "pass":
                await world.pass_time(*rest)
            elif kind == "nodes":
                cluster.live = [node(f"n{index}", 4) for index in rest]
            elif kind == "job ends":
                cluster.jobs_dead.add(rest[0])
            else:
                try:
                    await world.call(kind, *(rest if kind != "release" else (rest[0], jobs[rest[0]], *rest[1:])))
                except Refused as refusal:
                    assert kind == "forget" or "there is no request" in str(refusal), refusal
            await world.pass_time(settle)
        await world.pass_time(30)
        _whole(world)

    run(told)
    assert world is not None
    return world


def asked_in(story: list[Step]) -> Iterator[tuple[str, str | None]]:
    """The ids that are asked for, each with its job."""
    for kind, *rest in story:
        if kind == "submit":
            yield rest[0]["id"], rest[1]
        elif kind == "submit_many":
            yield from ((id, rest[3]) for id in rest[1])


def _whole(world: CrashingWorld) -> None:
    """Nothing is half done, and the journal tells the same."""
    broker, cluster = world.actor.broker, world.cluster
    broker.check()
    held = {
        request.allocation.group_id: request.allocation.made_for or request.id
        for request in broker.requests.values()
        if request.allocation is not None and not request.allocation.gone
    }
    there = {group.id: group.name.rpartition("/")[2] for group in cluster.groups.values() if group.state != "REMOVED"}
    assert held == there, (held, there)
    journal = world.actor._journal
    number = journal.number
    assert list(Snapshots().lines_of(journal.again(), number)) == list(Snapshots().lines_of(broker, number))


def handed_over(world: CrashingWorld) -> list[tuple[str, str]]:
    """The groups that went from one request to another, as the journal has it."""
    rows = [json.loads(line) for line in world.actor._journal.text().splitlines()]
    return [(one[1], one[3]) for row in rows for one in row.get("decided", ()) if one[0] == "hand-over"]


def ending(world: CrashingWorld) -> dict[str, Any]:
    """All that people can see at the end, but the moments at which it happened."""
    broker = world.actor.broker
    return {
        "requests": {
            request.id: (
                request.number,
                request.status and request.status.value,
                request.pool,
                request.preempted_by,
                request.reason.rule if request.reason else None,
            )
            for request in broker.requests.values()
        },
        "figures": {
            name: (pool.ledger.free, {one: account.used for one, account in pool.ledger.accounts.items()})
            for name, pool in broker.pools.items()
        },
        "config": broker.config.dump(),
        "history": [(version.number, version.what) for version in broker.history.versions],
    }


def story_of_hand_overs() -> list[Step]:
    """Groups that go from hand to hand, and some that do not: another shape is next, somebody is evicted, a node is
    lost, nobody waits."""
    pools = [
        {"name": "p", "capacity": {"gpu": 8}, "grace_seconds": 5.0},
        {"name": "q", "capacity": {"gpu": 4}, "queueing": "backfill"},
    ]
    policies = [
        {"pool": "p", "component": "red", "priority": 1},
        {"pool": "p", "component": "blue", "priority": 5, "reserved": {"gpu": 4}},
        {"pool": "q", "component": "red", "priority": 3},
    ]

    def ask(id: str, gpu: int = 4, component: str = "red", **more: Any) -> Step:
        return "submit", {"id": id, "component": component, "resources": {"gpu_count": gpu}, **more}, None

    def clean(*ids: str) -> list[Step]:
        return [("release", id, True) for id in ids]

    return [
        ("apply", {"pools": pools, "policies": policies}),
        *(ask(f"a{index}") for index in range(8)),  # two in p, one in q, five wait
        *clean("a0", "a1", "a2"),
        ask("b0", 4, "blue"),  # takes back what it has reserved, after a grace
        *clean("a3"),
        ("pass", 7.0),
        ask("wide", 2, workers=2),
        *clean("a4", "a5", "a6"),
        ("forget", "a0"),
        ("forget", "a4"),
        ("cancel", "a7", "enough"),
        *clean("b0", "wide"),
        ask("c0", on_node_loss="fail"),
        ask("c1"),
        ask("c2"),
        ask("c3"),
        *clean("c0"),
        ("nodes", 1, 3),
        *clean("c1", "c2"),
        ("nodes", 1, 2, 3),
        *clean("c3"),
    ]


def story_of_many() -> list[Step]:
    """Many at once: some run, some wait, no pool takes some, and the same call comes again."""
    bodies = [
        {"component": "red", "resources": {"gpu_count": 2}},
        {"component": "blue", "resources": {"gpu_count": 4}},
        {"component": "nobody"},
    ]
    config = {
        "pools": [{"name": "p", "capacity": {"gpu": 8}, "grace_seconds": 5.0}],
        "policies": [
            {"pool": "p", "component": "red", "priority": 1},
            {"pool": "p", "component": "blue", "priority": 5, "reserved": {"gpu": 4}},
        ],
    }
    first = ("submit_many", bodies[:1], [f"a{i}" for i in range(8)], [0] * 8, "01")
    mixed = ("submit_many", bodies, [f"b{i}" for i in range(6)], [0, 1, 2] * 2, None)
    return [
        ("apply", config),
        first,
        mixed,  # b1 takes back what it has reserved
        first,
        ("pass", 7.0),
        *(("release", f"a{i}", False) for i in range(3)),
        mixed,
        ("submit_many", bodies[:1], ["a7", "c0", "c1"], [0, 0, 0], "01"),
        *(("release", id, i % 2 == 0) for i, id in enumerate(["b1", "b4", "a3", "a4", "a5", "b0"])),
        ("cancel", "a6", "enough"),
        ("job ends", "01"),
        *(("forget", id) for id in ("a0", "b2")),
    ]


KINDS = {"submit": 50, "release": 35, "cancel": 6, "pass": 5, "forget": 4, "apply": 3, "nodes": 2, "job ends": 2}


def random_story(seed: int, steps: int = 80) -> list[Step]:
    """Three teams, a strict pool and one that backfills, grace or none, gangs, ends of all kinds."""
    chance = random.Random(seed)
    pools = [
        {"name": "p", "capacity": {"gpu": 8}, "grace_seconds": chance.choice((0.0, 5.0))},
        {"name": "q", "capacity": {"gpu": 4}, "queueing": "backfill"},
    ]
    policies = [
        {"pool": "p", "component": "red", "priority": 1, "reserved": {"gpu": 2}},
        {"pool": "p", "component": "blue", "priority": 5, "reserved": {"gpu": 4}},
        {"pool": "q", "component": "red", "priority": 3},
        {"pool": "q", "component": "green", "priority": 1, "limit": {"gpu": 3}},
    ]
    story: list[Step] = [("apply", {"pools": pools, "policies": policies})]
    asked: list[str] = []
    for index in range(steps):
        kind = chance.choices(
            ("submit", "release", "cancel", "apply", "pass", "nodes", "job ends", "forget"),
            (50, 35, 6, 3, 5, 2, 2, 4),
        )[0]
        if kind == "submit" or not asked:
            asked.append(f"r{index}")
            workers = chance.choice((1, 1, 2, 3))
            spec = {
                "id": asked[-1],
                "component": chance.choice(("red", "red", "blue", "green")),
                "resources": {"gpu_count": chance.choice((1, 1, 2, 4)), "preemptible": chance.random() < 0.8},
                "workers": workers,
            }
            story.append(("submit", spec, chance.choice(("01", "02", None, None, None))))
        elif kind == "release":
            story.append(("release", chance.choice(asked[-8:]), index % 2 == 0))
        elif kind == "cancel":
            story.append(("cancel", chance.choice(asked[-8:]), "enough"))
        elif kind == "forget":
            story.append(("forget", chance.choice(asked)))
        elif kind == "apply":
            story.append(("apply", {"pools": [{**pools[0], "capacity": {"gpu": chance.choice((6, 8, 12))}}]}))
        elif kind == "pass":
            story.append(("pass", chance.choice((1.0, 7.0, 60.0))))
        elif kind == "nodes":
            story.append(("nodes", 1, 2, 3, *([4] if chance.random() < 0.5 else [])))
        else:
            story.append(("job ends", chance.choice(("01", "02"))))
    return story
