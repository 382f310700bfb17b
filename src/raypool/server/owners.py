"""Owners: ends the requests that nobody is left for.

Three signals, each enough: the job is over (Ray's job table); the process that asked is gone (its hold
token: a call of this broker that it keeps open, and whose reference Ray fails when the process dies); the
process was not heard of for `owner_timeout_seconds`. A request that was bound to an actor ends with that
actor instead of with the process. A detached one has no owner.

The rule that must not break: silence counts only while this broker listened. After it was away, or when
its loop stood still, everybody gets a full timeout. What has ended stays as it ended: the core sees to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.request import Request
from raypool.server.cluster import RayCluster

logger = logging.getLogger("raypool")

OWNERS_SECONDS = 0.25
"""How often dead jobs, dead actors and silent processes are looked for."""

HERE_MOST_SECONDS = 30.0
"""A sign of life is answered after this at the latest, however long the timeout is."""

KEPT_SECONDS = 3 * HERE_MOST_SECONDS
"""How long a process is remembered that has nothing here and says nothing: its calls may arrive in any order."""

STOOD_STILL_SECONDS = 2.0
"""A loop that comes back so late was stopped, and heard nobody meanwhile."""

ACTORS_AT_ONCE = 20
"""How many actors are asked after each time."""

JOB_ENDED = "its job ended"
PROCESS_GONE = "the process that asked for it is gone"


class Holder:
    """A process that waits for leases or holds some.

    heard_at: its latest sign of life, and timeout: what it was promised then; one that was lowered since
    holds from its next sign of life on. token: waits for the end of the process. gone: Ray said that it has
    ended. left: done when it has nothing here any more, and says so; ends its open calls.
    """

    def __init__(self, now: float, timeout: float) -> None:
        self.heard(now, timeout)
        self.token: asyncio.Task[None] | None = None
        self.gone = False
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests: dict[str, Request] = {}

    def heard(self, now: float, timeout: float) -> None:
        self.heard_at, self.timeout = now, timeout

    def leave(self) -> None:
        if not self.left.done():
            self.left.set_result(None)


class Owners:
    """The owners of one broker's requests.

    broker: the core, which is only read here. feed: takes an event to it. clock: that of `Broker.handle`.
    """

    def __init__(
        self,
        broker: Callable[[], Broker],
        cluster: RayCluster,
        feed: Callable[[ev.Event], None],
        clock: Callable[[], float],
    ) -> None:
        self.broker = broker
        self.cluster = cluster
        self.feed = feed
        self.clock = clock
        self.holders: dict[str, Holder] = {}
        self._owned: dict[str, Request] = {}  # by id: those that end with somebody
        self._of_jobs: dict[str, dict[str, Request]] = {}  # by job and id: those that end with it
        self._of_actors: dict[str, Request] = {}  # by id: those that end with an actor, in the order of asking
        self._some_hold = asyncio.Event()  # there are holders
        self._some_owned = asyncio.Event()  # there are requests that end with a job or an actor

    # --- who owns what ------------------------------------------------------------------------

    def begin(self) -> None:
        """Takes up the requests that the broker knows, in the place of any that it knew before: none of their
        owners was heard yet, and none can be blamed for it."""
        self._owned, self._of_jobs, self._of_actors = {}, {}, {}
        for holder in self.holders.values():
            holder.requests = {}
        for request in self.broker().requests.values():
            self.take_up(request)

    def take_up(self, request: Request) -> None:
        """From now on the request ends with its owners, as it names them."""
        if _is_over(request):
            return
        if request.actor is not None:
            self._owned[request.id] = self._of_actors[request.id] = request
            self._some_owned.set()
        if request.detached:
            return
        if request.job is not None:
            self._owned[request.id] = self._of_jobs.setdefault(request.job, {})[request.id] = request
            self._some_owned.set()
        if request.holder is not None:
            self._owned[request.id] = self._heard(request.holder).requests[request.id] = request

    def take_up_many(self, requests: Iterable[Request], job: str | None) -> None:
        """The same of thousands that end with that job, if with anybody."""
        if job is not None and (new := {one.id: one for one in requests if one.job == job and not _is_over(one)}):
            self._owned.update(new)
            self._of_jobs.setdefault(job, {}).update(new)
            self._some_owned.set()

    def forget(self, request_id: str) -> None:
        """That request has ended."""
        request = self._owned.pop(request_id, None)
        if request is None:
            return
        self._of_actors.pop(request_id, None)
        if request.job is not None:
            of_job = self._of_jobs.get(request.job, {})
            of_job.pop(request_id, None)
            if not of_job:
                self._of_jobs.pop(request.job, None)
        if request.holder in self.holders:
            self.holders[request.holder].requests.pop(request_id, None)

    def _heard(self, name: str) -> Holder:
        """The process of that name, which has just given a sign of life."""
        holder = self.holders.get(name)
        if holder is None:
            holder = self.holders[name] = Holder(self.clock(), self._timeout())
            self._some_hold.set()
        else:
            holder.heard(self.clock(), self._timeout())
        return holder

    # --- what processes say -------------------------------------------------------------------

    async def hold(self, name: str) -> None:
        """Stays open as long as the process that calls it: the reference of this call is its token."""
        await asyncio.wait({self._heard(name).left})

    async def here(self, name: str, token: list[Any]) -> bool:
        """A sign of life. Answers after a third of the timeout, so that whoever asks again at once is heard
        three times in it. `token`: the reference of a call of `hold`, in a list; empty if it is known.

        Returns whether a token of that process is known; otherwise it should give one.
        """
        holder = self._heard(name)
        if token:
            self._take(holder, token[0])
        await asyncio.wait({holder.left}, timeout=min(self._timeout() / 3, HERE_MOST_SECONDS))
        return holder.token is not None

    def bye(self, name: str) -> None:
        """The process has nothing here any more. Its name is not used again."""
        self._heard(name).leave()

    def _take(self, holder: Holder, token: Any) -> None:
        if holder.token is not None:
            holder.token.cancel()
        holder.gone = False  # a new token is a sign of life, whatever was said of the last one
        holder.token = asyncio.get_running_loop().create_task(self._outlive(holder, token))

    async def _outlive(self, holder: Holder, token: Any) -> None:
        """An answer other than the owner's death says nothing of him, and the token is of no more use."""
        try:
            holder.gone = await self.cluster.owner_died(token)
        except Exception:
            logger.exception("a hold token failed; its process is asked for another")
        holder.token = None
        if holder.gone:
            self._end_all_of(holder, PROCESS_GONE)

    # --- silence ------------------------------------------------------------------------------

    async def watch_holders(self) -> None:
        """Runs for ever: ends what belongs to processes that are gone or silent."""
        while True:
            await self._some_hold.wait()
            asleep = self.clock()
            await asyncio.sleep(OWNERS_SECONDS)
            if self.clock() - asleep > OWNERS_SECONDS + min(STOOD_STILL_SECONDS, self._timeout() / 3):
                logger.warning("the broker stood still for %.1f s; no owner is blamed for it", self.clock() - asleep)
                self._hear_everybody()
            try:
                self._look_at_holders()
            except Exception:
                logger.exception("looking for silent owners failed; trying again")

    def _hear_everybody(self) -> None:
        for holder in self.holders.values():
            holder.heard(self.clock(), self._timeout())

    def _look_at_holders(self) -> None:
        for name, holder in list(self.holders.items()):
            silence = self.clock() - holder.heard_at
            limit = max(holder.timeout, self._timeout())
            if holder.gone:  # what it asked for may arrive after the news of its death
                self._end_all_of(holder, PROCESS_GONE)
            elif silence > limit:
                self._end_all_of(holder, f"its owner was not heard of for {silence:.3g} s")
            if not holder.requests and silence > min(limit, KEPT_SECONDS):
                self._let_go(name, holder)

    def _let_go(self, name: str, holder: Holder) -> None:
        holder.leave()
        if holder.token is not None:
            holder.token.cancel()
        del self.holders[name]
        if not self.holders:
            self._some_hold.clear()

    def _end_all_of(self, holder: Holder, why: str) -> None:
        for request in list(holder.requests.values()):
            if request.actor is None and not _is_over(request):
                self.feed(ev.Cancelled(request.id, why))
            del holder.requests[request.id]

    def _timeout(self) -> float:
        return self.broker().owner_timeout_seconds

    # --- jobs and actors ----------------------------------------------------------------------

    async def watch_jobs(self) -> None:
        """Runs for ever: gives back what belongs to jobs that are over and to actors that are dead. The GCS
        may be away meanwhile; nothing is concluded from that."""
        while True:
            if not (self._of_jobs or self._of_actors):
                self._some_owned.clear()
            await self._some_owned.wait()
            await asyncio.sleep(OWNERS_SECONDS)
            try:
                await self._cancel_orphans()
                await self._release_dead_actors()
            except Exception:
                logger.exception("looking for dead owners failed; trying again")

    async def _cancel_orphans(self) -> None:
        if self._of_jobs:
            dead = await self.cluster.dead_jobs()
            for job in [job for job in self._of_jobs if job in dead]:
                for request in list(self._of_jobs[job].values()):
                    if not _is_over(request):
                        self.feed(ev.Cancelled(request.id, JOB_ENDED))

    async def _release_dead_actors(self) -> None:
        """Some of them each time, in turn: each costs Ray a question, and placements ask too."""
        for request in list(self._of_actors.values())[:ACTORS_AT_ONCE]:
            if self._of_actors.pop(request.id, None) is None or _is_over(request) or request.actor is None:
                continue
            self._of_actors[request.id] = request  # the last in turn
            if await self.cluster.actor_is_dead(request.actor) and not _is_over(request):
                self.feed(ev.Released(request.id, request.job))


def _is_over(request: Request) -> bool:
    """Whether it has ended; the core forgets only such."""
    return request.status is None or request.status.terminal
