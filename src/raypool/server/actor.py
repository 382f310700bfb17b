"""The broker actor: turns calls into events, feeds them to the core, and has its instructions carried out.

Plain Python; `raypool.start()` makes a Ray actor of it. One event loop, and handling an event is one
synchronous call, so nothing here needs a lock. Callers send and get plain JSON-like data. Nothing is
decided here: an `if` about who gets what belongs into the core.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.config import warnings_of
from raypool.core.instructions import (
    ChangeStatus,
    CreatePlacementGroup,
    Instruction,
    RemovePlacementGroup,
    WarnHolder,
)
from raypool.core.request import Request
from raypool.errors import Refused, SpecError
from raypool.server.audit import Audit
from raypool.server.cluster import RayCluster
from raypool.server.placement import GROUP_PREFIX, Placement, Placements, answered
from raypool.server.views import view_broker, view_pool, view_request, view_requests
from raypool.spec import BrokerConfig, RequestSpec
from raypool.version import __version__

logger = logging.getLogger("raypool")

OWNERS_SECONDS = 0.25
"""How often dead jobs and actors are looked for."""

ACTORS_AT_ONCE = 20
"""How many actors are asked after each time."""

WATCH_MOST_SECONDS = 60.0
"""A long-poll is answered after this at the latest; its caller asks again."""

_CONFIG_KEY = "config"


class PoolBroker:
    """The broker's calls. `cluster` is Ray, or a fake with the same methods."""

    def __init__(self, cluster: RayCluster, clock: Callable[[], float] | None = None) -> None:
        self.broker = Broker()
        self.cluster = cluster
        self._now = clock or steady_clock()
        self._events: deque[ev.Event] = deque()
        self._feeding = False
        self._placements = Placements(cluster, self._feed, self._now)
        self._audit = Audit(cluster, self._placements)
        self._versions: dict[str, int] = {}
        self._watchers: dict[str, list[asyncio.Future[None]]] = {}
        self._owned: dict[str, str] = {}  # request id -> the job that it ends with
        self._actors: dict[str, str] = {}  # request id -> id of the actor that lives in it
        self._groups: dict[str, str] = {}  # placement group id -> request id
        self._started_at = self._now()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def begin(self) -> None:
        """Takes up what an earlier life of this actor left, and starts the loops.

        Requests do not survive a restart of the broker's process yet: their placement groups are
        removed, and their owners are told. Pools and policies do survive.
        """
        await self._placements.remove_orphans()
        saved = await answered(lambda: self.cluster.load(_CONFIG_KEY), "reading pools and policies")
        if saved is not None:
            self._feed(ev.ConfigRestored(BrokerConfig.load(json.loads(saved))))
        await answered(self._placements.read_nodes, "reading the nodes")
        self._spawn(self._placements.run())
        self._spawn(self._audit.run())
        self._spawn(self._watch_owners())

    # --- pools and policies -------------------------------------------------------------------

    async def hello(self) -> dict[str, Any]:
        """Who answers: for clients that look for a broker."""
        return {"version": __version__, "started_at": self._started_at}

    async def apply(self, config: dict[str, Any]) -> list[str]:
        """Adds or replaces pools and policies, all or none. Returns warnings. Raises SpecError, Refused."""
        self._refuse_if_stopping()
        self._feed_now(ev.ConfigApplied(BrokerConfig.load(config)))
        await self._save_config()
        return self._warnings()

    async def check(self, config: dict[str, Any]) -> list[str]:
        """What `apply` would return or raise, without applying anything: the dry run."""
        return warnings_of(*self.broker.after(BrokerConfig.load(config)))

    async def detach_policy(self, pool: str, component: str, component_type: str) -> None:
        self._feed_now(ev.PolicyDetached(pool, component, component_type))
        await self._save_config()

    async def delete_pool(self, pool: str) -> None:
        self._feed_now(ev.PoolDeleted(pool))
        await self._save_config()

    async def config(self) -> dict[str, Any]:
        return self.broker.config.dump()

    async def _save_config(self) -> None:
        await self.cluster.save(_CONFIG_KEY, json.dumps(self.broker.config.dump()).encode())

    def _warnings(self) -> list[str]:
        pools = self.broker.pools
        return warnings_of(
            {name: pool.spec for name, pool in pools.items()},
            {name: pool.policies for name, pool in pools.items()},
        )

    # --- requests -----------------------------------------------------------------------------

    async def submit(self, spec: dict[str, Any], job: str | None) -> dict[str, Any]:
        """Asks for a request. The same id with the same content is the same request.

        Raises SpecError, and Refused for an id that stands for something else.
        """
        self._refuse_if_stopping()
        wanted: RequestSpec = RequestSpec.load(spec)
        known = self.broker.requests.get(wanted.id)
        if known is None or known.spec != wanted:
            self._feed_now(ev.Submitted(wanted, job))
            if job is not None and wanted.lifetime != "detached":
                self._owned[wanted.id] = job
        return await self.describe(wanted.id)

    async def watch(self, request_id: str, seen: int, timeout_seconds: float) -> dict[str, Any]:
        """Long-poll: answers when the request's version is above `seen`, or when time is up.

        Returns {"version": int, "request": view}.
        """
        request = self._known(request_id)
        if self._versions.get(request.id, 0) <= seen:
            await self._changed(request.id, min(timeout_seconds, WATCH_MOST_SECONDS))
        return {
            "version": self._versions.get(request.id, 0),
            "request": view_request(self.broker, self._known(request.id)).as_dict(),
        }

    async def _changed(self, request_id: str, timeout_seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watchers = self._watchers.setdefault(request_id, [])
        watchers.append(future)
        try:
            await asyncio.wait_for(future, timeout_seconds)
        except asyncio.TimeoutError:
            pass
        finally:
            if future in watchers:
                watchers.remove(future)
            if not watchers and self._watchers.get(request_id) is watchers:
                del self._watchers[request_id]

    async def release(self, request_id: str) -> dict[str, Any]:
        request = self._known(request_id)
        self._feed_now(ev.Released(request.id))
        return await self.describe(request.id)

    async def cancel(self, request_id: str, reason: str) -> dict[str, Any]:
        request = self._known(request_id)
        self._feed_now(ev.Cancelled(request.id, reason))
        return await self.describe(request.id)

    async def forget(self, request_id: str) -> None:
        """Drops an ended request from memory. Raises Refused for one that has not ended."""
        request = self._known(request_id)
        self._feed_now(ev.Forgotten(request.id))
        self._wake(request.id)
        self._forget_what_is_forgotten()

    async def attach_actor(self, request_id: str, actor_id: str) -> None:
        """The request is given back when that actor is dead."""
        self._actors[self._known(request_id).id] = actor_id

    # --- questions ----------------------------------------------------------------------------

    async def describe(self, request_id: str) -> dict[str, Any]:
        """One request, by its id or a unique beginning of it. Raises Refused if there is none."""
        return view_request(self.broker, self._meant(request_id)).as_dict()

    async def requests(
        self,
        status: str | None = None,
        component: str | None = None,
        pool: str | None = None,
        ended: bool = True,
    ) -> list[dict[str, Any]]:
        """Requests in order of submission. `pool`: granted there, or waiting there."""
        chosen = [
            request
            for request in self.broker.requests.values()
            if (status is None or (request.status is not None and request.status.value == status))
            and (component is None or request.owner[0] == component)
            and (pool is None or pool in _pools_of(request))
            and (ended or not (request.status is not None and request.status.terminal))
        ]
        return [view.as_dict() for view in view_requests(self.broker, chosen)]

    async def pool(self, name: str) -> dict[str, Any]:
        found = self.broker.pools.get(name)
        if found is None:
            names = ", ".join(sorted(self.broker.pools)) or "none"
            raise Refused(f"there is no pool '{name}' (pools: {names})")
        return view_pool(found).as_dict()

    async def overview(self) -> dict[str, Any]:
        """The broker as a whole."""
        specs = [pool.spec for _, pool in sorted(self.broker.pools.items())]
        warnings = [*self._warnings(), *self._audit.warnings(specs)]
        return view_broker(self.broker, warnings, self._started_at, __version__, self._audit.outside(specs)).as_dict()

    async def request_of_group(self, group_id: str) -> dict[str, Any] | None:
        """The request that a placement group was made for; None if it is none of ours."""
        request = self.broker.requests.get(self._groups.get(group_id, ""))
        return None if request is None else view_request(self.broker, request).as_dict()

    async def end_all(self, reason: str) -> None:
        """Cancels everything, takes nothing new, and returns when every placement group is gone, but for those
        that Ray does not create or remove. For `raypool stop`."""
        self._stopping = True
        for request in list(self.broker.requests.values()):
            if request.status is not None and not request.status.terminal:
                self._feed_now(ev.Cancelled(request.id, reason))
        while not self._placements.idle or len(await self.cluster.keys(GROUP_PREFIX)) > len(self._placements.stuck):
            await asyncio.sleep(0.02)
        await self.cluster.erase(_CONFIG_KEY)

    def _known(self, request_id: str) -> Request:
        """The request of that whole id. What changes something takes no shortened ids: a call that is
        repeated could mean another request the second time."""
        if not isinstance(request_id, str):
            raise SpecError(f"a request id is a string, got {type(request_id).__name__}")
        request = self.broker.requests.get(request_id)
        if request is None:
            raise Refused(f"there is no request '{request_id}'; `raypool request list` shows those there are")
        return request

    def _meant(self, request_id: str) -> Request:
        """The request of that id, or of the only id that begins so."""
        if not isinstance(request_id, str) or request_id in self.broker.requests:
            return self._known(request_id)
        matches = [one for one in self.broker.requests if one.startswith(request_id)] if request_id else []
        if len(matches) == 1:
            return self.broker.requests[matches[0]]
        if matches:
            raise Refused(f"'{request_id}' is the beginning of {len(matches)} request ids; give more of it")
        return self._known(request_id)

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise Refused("the broker is being stopped and takes nothing new; `raypool start` starts another")

    # --- feeding the core ---------------------------------------------------------------------

    def _feed_now(self, event: ev.Event) -> None:
        """Feeds an event of a caller's: what the core refuses is raised to him."""
        instructions = self.broker.handle(event, self._now())
        self._feeding = True
        try:
            self._carry_out(instructions)
        finally:
            self._feeding = False
            self._drain()

    def _feed(self, event: ev.Event) -> None:
        """Feeds what the world reports. It may come while instructions are carried out: then it waits."""
        if isinstance(event, ev.PlacementReady):
            self._groups[event.group_id] = event.request
        self._events.append(event)
        if not self._feeding:
            self._drain()

    def _drain(self) -> None:
        self._feeding = True
        try:
            while self._events:
                self._carry_out(self.broker.handle(self._events.popleft(), self._now()))
        finally:
            self._feeding = False
        self._set_timer()

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, CreatePlacementGroup):
                self._place(instruction)
            elif isinstance(instruction, RemovePlacementGroup):
                self._placements.remove(instruction.request, instruction.attempt)
            elif isinstance(instruction, ChangeStatus):
                self._log(instruction)
                self._wake(instruction.request)
            elif isinstance(instruction, WarnHolder):
                self._wake(instruction.request)

    def _place(self, instruction: CreatePlacementGroup) -> None:
        spec = instruction.spec
        pool = self.broker.pools[instruction.pool] if instruction.pool is not None else None
        timeout = pool.spec.placement_timeout_seconds if pool is not None else 30.0
        self._placements.place(
            Placement(
                request=spec.id,
                attempt=instruction.attempt,
                name=f"raypool/{instruction.pool or '-'}/{spec.component}/{spec.id}",
                bundles=self.broker.bundles(spec, pool),
                strategy=spec.strategy,
                labels=pool.spec.node_labels if pool is not None else {},
                give_up_at=self._now() + timeout,
            )
        )

    def _log(self, change: ChangeStatus) -> None:
        where = f" in pool '{change.pool}'" if change.pool else ""
        why = f": {change.reason.sentence}" if change.reason is not None else ""
        logger.info("request %s is %s%s%s", change.request, change.to.value, where, why)

    def _wake(self, request_id: str) -> None:
        self._versions[request_id] = self._versions.get(request_id, 0) + 1
        for future in self._watchers.pop(request_id, ()):
            if not future.done():
                future.set_result(None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.broker.next_deadline
        if due is not None:
            delay = max(due - self._now(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._feed, ev.TimePassed())

    # --- owners -------------------------------------------------------------------------------

    async def _watch_owners(self) -> None:
        """Gives back what belongs to jobs that are over and to actors that are dead."""
        while True:
            await asyncio.sleep(OWNERS_SECONDS)
            try:
                await self._cancel_orphans()
                await self._release_dead_actors()
                self._forget_what_is_forgotten()
            except Exception:
                logger.exception("looking for dead owners failed; trying again")

    async def _cancel_orphans(self) -> None:
        self._owned = {id: job for id, job in self._owned.items() if not self._is_over(id)}
        if self._owned:
            dead = await self.cluster.dead_jobs()
            for request_id, job in list(self._owned.items()):
                if job in dead and not self._is_over(request_id):
                    self._feed(ev.Cancelled(request_id, "its job ended"))

    def _is_over(self, request_id: str) -> bool:
        request = self.broker.requests.get(request_id)
        return request is None or request.status is None or request.status.terminal

    async def _release_dead_actors(self) -> None:
        """Some of them each time, in turn: each costs Ray a question, and placements ask too."""
        for request_id in list(self._actors)[:ACTORS_AT_ONCE]:
            actor_id = self._actors.pop(request_id)
            if self._is_over(request_id):
                continue
            self._actors[request_id] = actor_id
            if await self.cluster.actor_is_dead(actor_id):
                self._feed(ev.Released(request_id))

    def _forget_what_is_forgotten(self) -> None:
        """Drops what is kept here of requests that the core has dropped."""
        known = self.broker.requests
        if len(self._versions) > len(known):
            self._versions = {id: version for id, version in self._versions.items() if id in known}
            self._groups = {group: id for group, id in self._groups.items() if id in known}

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, as they were when the clock was made, and steady since: deadlines must not
    move when somebody sets the machine's time."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


def _pools_of(request: Request) -> set[str]:
    """Where it was granted, or where it waits."""
    names = set(request.queued) | set(request.held_out)
    if request.allocation is not None and request.allocation.pool is not None:
        names.add(request.allocation.pool.name)
    return names
