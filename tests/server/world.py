"""A broker actor over a fake cluster, in virtual time: what a client would call, and how it stands."""

from __future__ import annotations

import asyncio
import inspect

from raypool.server.actor import PoolBroker

from .fake_cluster import FakeCluster
from .virtual_time import for_ever


def pool(name="p", gpu=8, **fields):
    return {"name": name, "capacity": {"gpu": gpu}, **fields}


def policy(component="red", pool="p", priority=1, **fields):
    return {"pool": pool, "component": component, "priority": priority, **fields}


class Process:
    """The cluster as one process asks it: once that is dead, nothing comes of what it asks."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.dead = False

    def __getattr__(self, name):
        there = getattr(self.cluster, name)
        if not inspect.iscoroutinefunction(there):
            return there

        async def ask(*args, **more):
            if self.dead:
                await for_ever()
            answer = await there(*args, **more)
            if self.dead:
                await for_ever()
            return answer

        return ask


class World:
    """`async with World(cluster) as world:` begins a broker and looks for broken laws at the end."""

    def __init__(self, cluster=None, pools=None, policies=None):
        self.cluster = cluster or FakeCluster()
        self.actor = self._new_actor()
        self.config = {"pools": pools or [pool()], "policies": policies or [policy()]}

    def _new_actor(self):
        self.process = Process(self.cluster)
        return PoolBroker(self.process, clock=asyncio.get_running_loop().time)

    async def __aenter__(self):
        await self.actor.begin()
        await self.actor.apply(self.config)
        await self.pass_seconds(0.1)
        return self

    async def __aexit__(self, *error):
        self.actor.broker.check()

    async def pass_seconds(self, seconds):
        await asyncio.sleep(seconds)
        self.actor.broker.check()

    async def submit(self, id, component="red", gpu=1, job=None, holder=None, **fields):
        spec = {"id": id, "component": component, "resources": {"gpu_count": gpu}, **fields}
        return await self.actor.submit(spec, job, holder)

    async def run(self, id, component="red", gpu=1, **fields):
        """Submitted, and waited for until it is allocated."""
        await self.submit(id, component, gpu, **fields)
        await self.until(id, "allocated")

    async def until(self, id, status):
        async def stands():
            seen = -1
            while True:
                answer = await self.actor.watch(id, seen, 30.0)
                if answer["request"]["status"] == status:
                    return
                seen = answer["version"]

        await asyncio.wait_for(stands(), 100.0)

    async def view(self, id):
        return await self.actor.describe(id)

    async def status(self, id):
        return (await self.view(id))["status"]

    def free(self, pool="p"):
        return self.actor.broker.pools[pool].ledger.free[0]

    def phantom(self, pool="p"):
        return self.actor.broker.pools[pool].ledger.phantom[0]

    async def warnings(self):
        return (await self.actor.overview())["warnings"]

    def crash(self):
        """The process is gone; the cluster is not."""
        self.process.dead = True
        for task in [*self.actor._tasks, *self.actor._placements._tasks]:
            task.cancel()
        if self.actor._timer is not None:
            self.actor._timer.cancel()

    async def begin_again(self):
        """The process is gone, and Ray starts another."""
        self.crash()
        self.actor = self._new_actor()
        await self.actor.begin()
