"""The broker actor: turns calls into events, feeds them to the core, and has its instructions carried out.

Plain Python; `raypool.start()` makes a Ray actor of it. One event loop, and handling an event is one
synchronous call, so nothing here needs a lock. Callers send and get plain JSON-like data. Nothing is
decided here: an `if` about who gets what belongs into the core.

The rule that must not break: what was decided is done, and a call that changes something is answered, only
when its event is in the journal (journal.py). Questions are answered at once, from memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.config import warnings_of
from raypool.core.dry_run import DryRun, dry_run
from raypool.core.eta import Expected
from raypool.core.explain import explanation_of
from raypool.core.instructions import (
    ChangeStatus,
    CreatePlacementGroup,
    HandOverPlacementGroup,
    Instruction,
    RemovePlacementGroup,
    WarnHolder,
)
from raypool.core.nodes import Misfit, Node
from raypool.core.pool import Pool
from raypool.core.preview import Change, preview
from raypool.core.replay import Unreadable
from raypool.core.request import Allocation, Request
from raypool.core.snapshot import Snapshots
from raypool.core.status import Status
from raypool.core.what_if import Places, Suggestion, search
from raypool.errors import BrokerDegraded, BrokerFault, Refused
from raypool.server.audit import Audit, broken_promises, shortfalls
from raypool.server.batch import Batch, Bodies
from raypool.server.calls import checked
from raypool.server.cluster import RayCluster, Rooms
from raypool.server.etas import Etas
from raypool.server.explanation import view_dry_run, view_explanation, view_known, view_suggestion
from raypool.server.journal import Journal
from raypool.server.metrics import Metrics
from raypool.server.owners import Owners
from raypool.server.pages import page_of, view_page
from raypool.server.placement import Placement, Placements, answered
from raypool.server.spare import Spare
from raypool.server.stores import RAY, Saved, Store, StoreTaken, StoreUnusable, store_at
from raypool.server.trail import Trail
from raypool.server.usage import report_rows, step_of, timeline
from raypool.server.views import (
    UNKNOWN,
    Eta,
    config_warnings,
    specs_of,
    view_broker,
    view_front,
    view_history,
    view_pool,
    view_preview,
    view_request,
    view_requests,
)
from raypool.spec import BrokerConfig, PoolSpec, RequestSpec, shorten
from raypool.version import __version__

logger = logging.getLogger("raypool")

TIDY_SECONDS = 0.5
"""How soon what is kept in the server of requests that the core has dropped is dropped too."""

WATCH_MOST_SECONDS = 60.0
"""A long-poll is answered after this at the latest; its caller asks again."""

LOOK_AHEAD_AFTER_SECONDS = 1.0
"""After so long, or half of his patience, it is worked out for who waits for a grant when he may expect it."""

LATE_SECONDS = 0.001
"""Timers may come a rounding error too early, and what is not due yet would set the next one to the same moment."""

FIGURES_SECONDS = 2.0
"""So long a dry run waits for Ray to say what is free; then nobody knows where it would be placed."""

SILENT_SECONDS = 2.0
"""A GCS that has owed an answer for so long is reported as silent."""


@checked
class PoolBroker:
    """The broker's calls; what may be said in them is in calls.py. `cluster` is Ray, or a fake with the same
    methods; `store` keeps the journal.

    degraded: why it only answers questions; "" while it is well.
    """

    def __init__(
        self, cluster: RayCluster, store: Store | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.broker = Broker()
        self.cluster = cluster
        self.degraded = ""
        self._clock = clock or steady_clock()
        self._ahead = 0.0
        self._identity = ""
        self._snapshots = Snapshots()
        self._journal = Journal(
            store or store_at(RAY, cluster), self._carry_out, self._snapshot, self._living, self._degrade
        )
        self._placements = Placements(cluster, self._feed, self._now, self._somebody_waits)
        self._owners = Owners(lambda: self.broker, cluster, self._feed, self._now)
        self._audit = Audit(cluster, self._placements)
        self._spare = Spare(self._now)
        self._etas = Etas(lambda: self.broker, lambda: self._journal.number, self._now, self._spawn)
        self._metrics = Metrics(
            cluster, lambda: self.broker, self._journal, self._shortfalls, lambda: self.degraded, self._now
        )
        self._short: dict[tuple[str, str], int] = {}
        self._short_at: tuple[int, tuple[Node, ...]] = (0, ())
        self._trail = Trail(cluster, lambda: self.broker, self._now)
        self._versions: dict[str, int] = {}
        self._first_version = 0
        self._watchers: dict[str, dict[asyncio.Future[None], None]] = {}
        self._answers: dict[str, tuple[int, dict[str, Any]]] = {}  # by request, made in this turn: at which event
        self._groups: dict[str, str] = {}  # placement group id -> request id
        self._bodies = Bodies()
        self._untidy = asyncio.Event()  # something may be kept that the core has dropped
        self._started_at = self._now()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._over = False  # nothing is written down any more

    def _now(self) -> float:
        """The clock of the events: it never runs back, also when the machine's was set back while the broker
        was away."""
        return self._clock() + self._ahead

    async def begin(self) -> None:
        """Takes up the journal of its life before, and starts the loops. A journal that cannot be read leaves
        it degraded: it answers questions, changes nothing, and leaves the journal and the cluster as they are."""
        self._spawn(self._metrics.run())
        self._spawn(self._metrics.measure_lag())
        self._identity = await answered(self.cluster.identity, "asking which cluster this is")
        try:
            saved = await answered(self._journal.store.load, "reading the journal")
        except StoreUnusable as error:
            self._degrade(
                f"the journal ({self._journal.store.where}) cannot be opened: {error}. Make it a place that a file "
                "can be written to on the head node, or `raypool stop --discard-journal`, and start with another"
            )
            return
        if saved is None:
            self._trail.begin(0)
            await self._journal.begin()
        else:
            try:
                self._read(saved)
            except Unreadable as error:
                self._degrade(
                    f"the journal ({self._journal.store.where}) cannot be taken up: {error}. Save it with "
                    "`raypool journal export`; start with the version of raypool that wrote it, or give it up with "
                    "`raypool stop --discard-journal`"
                )
                return
        self._ahead = max(self.broker.now - self._clock(), 0.0)
        self._first_version = self._journal.number
        self._trail.started()
        self._spawn(self._journal.run())
        self._take_up(elsewhere=saved is not None and self._journal.cluster != self._identity)
        await answered(self._placements.read_nodes, "reading the nodes")
        self._spawn(self._placements.run())
        self._spawn(self._audit.run())
        self._owners.begin()
        self._spawn(self._owners.watch_jobs())
        self._spawn(self._owners.watch_holders())
        self._spawn(self._tidy())
        self._spawn(self._trail.run())
        self._spawn(self._trail.keep_time())

    # --- coming back --------------------------------------------------------------------------

    def _read(self, saved: Saved) -> None:
        """Raises Unreadable."""
        for broker, step in self._journal.take_up(saved):
            self.broker = broker
            if step is None:
                self._trail.begin(self._journal.number, self._journal.head.get("trail"))
            else:
                self._recorded(step.number, step.at, step.event, step.instructions)
                self._trail.durable(step.number)

    def _take_up(self, elsewhere: bool) -> None:
        """What the broker knows, compared with what is there. elsewhere: the journal is that of another
        cluster, which knows nothing of its jobs and placement groups."""
        self._placements.nodes = self.broker.nodes or ()
        for request in list(self.broker.requests.values()):
            if request.status is None:
                continue
            if elsewhere and not request.status.terminal and not request.detached and request.job is not None:
                self._feed(ev.Cancelled(request.id, "the cluster that it belonged to is gone"))
            if request.allocation is not None and request.allocation.in_the_world:
                self._placements.take_up(self._placement_of(request.allocation))
                if request.allocation.group_id:
                    self._groups[request.allocation.group_id] = request.id
        self._set_timer()

    def _snapshot(self, number: int) -> Iterator[str]:
        more = {"cluster": self._identity, "raypool": __version__, "trail": self._trail.left()}
        return self._snapshots.lines_of(self.broker, number, **more)

    def _living(self) -> int:
        """How many requests are not over."""
        return sum(not (request.status and request.status.terminal) for request in self.broker.requests.values())

    async def journal(self) -> str:
        """The journal as it is: a snapshot, and what came after it. A JSON value in each line."""
        return self._journal.text()

    # --- pools and policies -------------------------------------------------------------------

    async def hello(self) -> dict[str, Any]:
        """Who answers: for clients that look for a broker."""
        return {"version": __version__, "started_at": self._started_at, "journal": self._journal.store.where}

    async def apply(self, config: dict[str, Any], by: str = "", note: str = "") -> list[str]:
        """Adds or replaces pools and policies, all or none. Returns warnings: of pools and policies as they are then,
        and of pools that promise more than their nodes have. Raises SpecError, Refused.

        by, note: who does it, and why; kept with the change, as in the calls below.
        """
        self._refuse_if_stopping()
        await self._change(ev.ConfigApplied(BrokerConfig.load(config), by, note))
        return self._warnings()

    async def check(self, config: dict[str, Any]) -> list[str]:
        """What `apply` would return or raise, without applying anything: the dry run."""
        pools, policies = self.broker.after(BrokerConfig.load(config))
        return [*warnings_of(pools, policies), *self._broken(pools)]

    async def preview(self, config: dict[str, Any]) -> dict[str, Any]:
        """What `apply` would do now to who waits and who runs, or what it would raise."""
        return self._preview(ev.ConfigApplied(BrokerConfig.load(config)))

    async def preview_rollback(self, version: int) -> dict[str, Any]:
        """The same of `rollback`."""
        return self._preview(ev.RolledBack(version))

    def _preview(self, change: Change) -> dict[str, Any]:
        found = preview(self.broker, change, self._now())
        now, then = self._broken(specs_of(self.broker)), self._broken(specs_of(found.after))
        return view_preview(found, then, known=now).as_dict()

    def _warnings(self) -> list[str]:
        """What is allowed in pools and policies but rarely meant, and what pools promise beyond their nodes."""
        return [*config_warnings(self.broker), *self._broken(specs_of(self.broker))]

    def _broken(self, pools: Mapping[str, PoolSpec]) -> list[str]:
        return broken_promises([pool for _, pool in sorted(pools.items())], self._placements.nodes)

    def _shortfalls(self) -> dict[tuple[str, str], int]:
        """By pool and key. Worked out anew when pools or nodes have changed: that takes milliseconds."""
        version, nodes = self.broker.history.number, self._placements.nodes
        if version != self._short_at[0] or nodes is not self._short_at[1]:
            self._short_at = version, nodes
            self._short = shortfalls(list(specs_of(self.broker).values()), nodes)
        return self._short

    async def rollback(self, version: int, by: str = "", note: str = "") -> list[str]:
        """Makes pools and policies what they were after that change, all or none. Returns warnings. Raises
        Refused with every fault."""
        self._refuse_if_stopping()
        await self._change(ev.RolledBack(version, by, note))
        return self._warnings()

    async def history(self) -> list[dict[str, Any]]:
        """Every change of pools and policies that is kept, by number."""
        return [view.as_dict() for view in view_history(self.broker)]

    async def config_of(self, version: int) -> dict[str, Any]:
        """Pools and policies as they were after that change. Raises Refused if it is not kept."""
        return self.broker.history.config_at(version).dump()

    async def detach_policy(
        self, pool: str, component: str, component_type: str, by: str = "", note: str = ""
    ) -> None:
        await self._change(ev.PolicyDetached(pool, component, component_type, by, note))

    async def delete_pool(self, pool: str, by: str = "", note: str = "") -> None:
        await self._change(ev.PoolDeleted(pool, by, note))

    async def config(self) -> dict[str, Any]:
        return self.broker.config.dump()

    # --- requests -----------------------------------------------------------------------------

    async def submit(self, spec: dict[str, Any], job: str | None, holder: str | None = None) -> dict[str, Any]:
        """Asks for a request. The same id with the same content is the same request.

        holder: the process that waits for it, if it is to end with that process: it is expected to be
        `here`. Raises SpecError, and Refused for an id that stands for something else.
        """
        return self._view(await self._submit(spec, job, holder))

    async def acquire(
        self,
        spec: dict[str, Any],
        job: str | None,
        holder: str | None,
        timeout_seconds: float,
        explain: bool = False,
    ) -> dict[str, Any]:
        """`submit` and the `watch` after it in one call: answers when it can be used, when it has ended, or when time
        is up. Raises what they raise."""
        id = await self._submit(spec, job, holder)
        seen = self._version(id)
        until = self._now() + min(timeout_seconds, WATCH_MOST_SECONDS)
        with self._looked_ahead_for(id if explain else None, until - self._now()):
            while self._known(id).status is Status.PENDING and self._now() < until:
                await self._changed(id, until - self._now())
        if self._version(id) <= seen:
            await self._durable()  # what it has become just now may not be written yet
        return await self._told(id, self._version(id), explain)

    async def _submit(self, spec: dict[str, Any], job: str | None, holder: str | None) -> str:
        """Returns its id once it is durable."""
        self._refuse_if_stopping()
        wanted: RequestSpec = RequestSpec.load(spec)
        known = self.broker.requests.get(wanted.id)
        if known is not None and known.spec.dump() == wanted.dump():
            await self._durable()
        else:
            self._refuse_if_degraded()
            self._handle(ev.Submitted(wanted, job, holder))
            self._owners.take_up(self.broker.requests[wanted.id])
            await self._durable()
        return wanted.id

    async def submit_many(
        self, bodies: list[dict[str, Any]], ids: list[str], body_of: list[int], job: str | None
    ) -> list[tuple[int, str, str | None]]:
        """Asks for requests, in order: for each its id, and the place of what it asks for in `bodies`. All of them,
        or none: what is wrong is raised before the first is asked for, SpecError, and Refused for an id that stands
        for something else. The same id with the same content is the same request.

        Returns number, status, and the sentence of a rejection for each.
        """
        self._refuse_if_stopping()
        batch = Batch(bodies, ids, body_of, job, self.broker.requests, self._bodies)
        self._refuse_if_degraded()
        event = batch.event
        if event.ids:
            self._handle(event)
            self._owners.take_up_many((self.broker.requests[id] for id in event.ids), job)
        rows = [_submission_row(self.broker.requests[id]) for id in ids]
        await self._durable()
        return rows

    async def dry_run(self, spec: dict[str, Any], job: str | None) -> dict[str, Any]:
        """What `submit` would come to now, or what it would raise. Changes nothing, and is not in the journal."""
        self._refuse_if_stopping()
        wanted: RequestSpec = RequestSpec.load(spec)
        free = await self._placements.figures_within(FIGURES_SECONDS)
        known = self.broker.requests.get(wanted.id)
        if known is not None and known.spec.dump() == wanted.dump():
            starts = await self._starts([wanted.id], at_once=True)
            return view_known(self.broker, self._known(wanted.id), starts.get(wanted.id, UNKNOWN)).as_dict()
        self._refuse_if_degraded()
        answer = dry_run(self.broker, wanted, self._now(), job)
        nodes, eta = self._nodes_for(answer, free), UNKNOWN
        if answer.request.waiting:
            expected = await self._etas.if_it_were(answer.broker, wanted.id)
            eta = UNKNOWN if expected is None else expected.seconds_from(self._now())
        return view_dry_run(answer, nodes, eta).as_dict()

    def _nodes_for(self, answer: DryRun, free: Rooms | None) -> tuple[str, ...] | Misfit | None:
        """Where it would be placed, when those have left who would be evicted for it; None if it would not be,
        or nobody knows what is free."""
        if free is None or not (answer.granted or answer.evicted):
            return None
        leaving = [(one.id, one.grants) for one, _ in answer.evicted]
        return self._find_nodes(answer.request.spec, self.broker.pools.get(answer.pool or ""), free, leaving)

    def _places(self, free: Rooms | None) -> Places | None:
        """Whether what was granted on a copy would find nodes; None if nobody knows what is free."""
        if free is None:
            return None

        def places(request: Request, removed: list[tuple[str, int]]) -> bool:
            assert request.allocation is not None
            return not isinstance(self._find_nodes(request.spec, request.allocation.pool, free, removed), Misfit)

        return places

    def _find_nodes(
        self, spec: RequestSpec, pool: Pool | None, free: Rooms, removed: list[tuple[str, int]]
    ) -> tuple[str, ...] | Misfit:
        """Where it would go with what is free, and with what those grants give back."""
        labels = pool.spec.node_labels if pool is not None else {}
        return self._placements.nodes_for(self.broker.bundles(spec, pool), spec.strategy, labels, free, removed)

    async def watch(
        self, request_id: str, seen: int, timeout_seconds: float, explain: bool = False
    ) -> dict[str, Any]:
        """Long-poll: answers when the request's version is above `seen`, or when time is up.

        Returns {"version": int, "request": view}; with `explain`, when it still waits as it did, "why" too: the facts
        of an ExplanationView, and what would start it as far as there is time to look for it. When it is expected to
        start is told as far as it is known: nobody who waits is held up by looking ahead.
        """
        request = self._known(request_id)
        if self._version(request.id) <= seen:
            patience = min(timeout_seconds, WATCH_MOST_SECONDS)
            with self._looked_ahead_for(request_id if explain else None, patience):
                await self._changed(request.id, patience)
        return await self._told(request_id, seen, explain)

    @contextmanager
    def _looked_ahead_for(self, request_id: str | None, patience: float) -> Iterator[None]:
        """While it is watched: who will be told why he waits is told when he is expected to start. Most have their
        grant before that is worth a look."""
        if request_id is None:
            yield
            return
        loop = asyncio.get_running_loop()
        seconds = min(LOOK_AHEAD_AFTER_SECONDS, patience / 2)
        timer = loop.call_later(seconds, self._etas.look_beside, [request_id])
        try:
            yield
        finally:
            timer.cancel()

    async def _told(self, request_id: str, seen: int, explain: bool) -> dict[str, Any]:
        """What `watch` returns."""
        would_start = None
        if explain and self._version(request_id) <= seen and self._known(request_id).status is Status.PENDING:
            would_start = await self._hints(request_id)
        request, version = self._known(request_id), self._version(request_id)
        answer = self._answer_of(request, version)
        if would_start is not None and version <= seen and request.status is Status.PENDING:
            facts = view_explanation(self.broker, request, self._now(), self._eta_known(request_id))
            answer = {**answer, "why": {**facts.as_dict(), "would_start": would_start}}
        return answer

    def _answer_of(self, request: Request, version: int) -> dict[str, Any]:
        """What all hear who watch it and are woken together: made once in a turn of the loop, never to be changed."""
        made, answer = self._answers.get(request.id, (-1, {}))
        if made == self._journal.number:
            return answer
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._answers.clear)
        view = view_request(self.broker, request, None, self._eta_known(request.id))
        answer = {"version": version, "request": view.as_dict()}
        self._answers[request.id] = self._journal.number, answer
        return answer

    def _eta_known(self, request_id: str) -> Eta:
        return self._from_now(self._etas.known([request_id])).get(request_id, UNKNOWN)

    async def _hints(self, request_id: str) -> list[dict[str, Any]]:
        """What would start it, as far as there is time for such things. A search that fails is a bug of ours, and no
        reason to keep anybody from his grant."""
        try:
            found = await self._spare.spend(lambda: self._search(request_id))
        except Refused:
            raise
        except Exception:
            logger.exception("a bug of raypool's: what would start %s could not be worked out", request_id)
            return []
        return [view_suggestion(one) for one in found]

    async def _search(self, request_id: str) -> Iterator[Suggestion | None]:
        """For what would start it, on the nodes as they are now."""
        free = await self._placements.figures_within(FIGURES_SECONDS)
        return search(self.broker, self._meant(request_id), self._now(), self._places(free))

    def _version(self, request_id: str) -> int:
        """The number of the event that last changed it: it only grows, also from one life to the next."""
        return self._versions.get(request_id, self._first_version)

    async def _changed(self, request_id: str, timeout_seconds: float) -> None:
        """Until it has changed, or time is up. (`asyncio.wait_for` costs several times as much; thousands wait.)"""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        watchers = self._watchers.setdefault(request_id, {})
        watchers[future] = None
        timer = loop.call_later(timeout_seconds, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            watchers.pop(future, None)
            if not watchers and self._watchers.get(request_id) is watchers:
                del self._watchers[request_id]

    async def release(self, request_id: str, job: str | None = None, clean: bool = False) -> dict[str, Any]:
        """clean: the library that held it knows that nothing of its work is left in its placement group, and that
        nobody has a handle of it. Raises Refused for a request of another job than the caller's."""
        request = self._known(request_id)
        await self._change(ev.Released(request.id, job, clean and self._is_whole(request)))
        return self._view(request.id)

    def _is_whole(self, request: Request) -> bool:
        """Whether its placement group is as its pool would make it now."""
        allocation = request.current
        if allocation is None or allocation.pool is None:
            return False
        bundles, labels = self.broker.bundles(request.spec, allocation.pool), allocation.pool.spec.node_labels
        return self._placements.is_whole(request.id, allocation.attempt, bundles, labels)

    async def cancel(self, request_id: str, reason: str) -> dict[str, Any]:
        request = self._known(request_id)
        await self._change(ev.Cancelled(request.id, reason))
        return self._view(request.id)

    def _view(self, request_id: str) -> dict[str, Any]:
        return view_request(self.broker, self._known(request_id)).as_dict()

    async def _starts(self, ids: list[str], at_once: bool = False) -> dict[str, Eta]:
        """In how many seconds those of them that wait will start, as far as it is known."""
        return self._from_now(await self._etas.of(ids, at_once))

    def _starts_as_known(self, ids: list[str]) -> dict[str, Eta]:
        """The same without waiting for it; what is not known is looked for meanwhile."""
        if ids:
            self._etas.look_beside(ids)
        return self._from_now(self._etas.known(ids))

    def _from_now(self, starts: Mapping[str, Expected]) -> dict[str, Eta]:
        return {id: one.seconds_from(self._now()) for id, one in starts.items()}

    async def forget(self, request_id: str) -> None:
        """Drops an ended request from memory. Raises Refused for one that has not ended."""
        request = self._known(request_id)
        await self._change(ev.Forgotten(request.id))
        self._wake(request.id, self._journal.number)
        self._forget_what_is_forgotten()

    async def attach_actor(self, request_id: str, actor_id: str) -> None:
        """The request is given back when that actor is dead, not when the process that asked is gone."""
        request = self._known(request_id)
        await self._change(ev.BoundToActor(request.id, actor_id))
        self._owners.take_up(request)

    # --- the processes that hold --------------------------------------------------------------

    async def hold(self, holder: str) -> None:
        """Stays open until that process says `bye`: the reference of this call is its hold token."""
        await self._owners.hold(holder)

    async def here(self, holder: str, token: list[Any]) -> bool:
        """Long-poll: a sign of life of that process. See `Owners.here`."""
        return await self._owners.here(holder, token)

    async def bye(self, holder: str) -> None:
        """That process holds nothing and waits for nothing any more."""
        self._owners.bye(holder)

    # --- questions ----------------------------------------------------------------------------

    async def describe(self, request_id: str) -> dict[str, Any]:
        """One request, by its id or a unique beginning of it. Raises Refused if there is none."""
        whole = self._meant(request_id).id
        starts = await self._starts([whole], at_once=True)
        return view_request(self.broker, self._known(whole), None, starts.get(whole, UNKNOWN)).as_dict()

    async def why(self, request_id: str) -> dict[str, Any]:
        """Why it is as it is, with what would start it. Looking for that takes a moment, in small pieces: other
        calls are answered meanwhile."""
        starts = await self._starts([self._meant(request_id).id], at_once=True)
        pieces = await self._search(request_id)
        request = self._meant(request_id)
        explained = view_explanation(self.broker, request, self._now(), starts.get(request.id, UNKNOWN))
        found = []
        for suggestion in pieces:
            if suggestion is not None:
                found.append(view_suggestion(suggestion))
            await asyncio.sleep(0)
        return {**explained.as_dict(), "would_start": found}

    async def requests(
        self,
        status: str | None = None,
        component: str | None = None,
        pool: str | None = None,
        ended: bool = True,
    ) -> list[dict[str, Any]]:
        """Requests in order of submission. `pool`: granted there, or waiting there."""
        starts = await self._starts([request.id for request in self._chosen(status, component, pool, ended)])
        chosen = self._chosen(status, component, pool, ended)
        return [view.as_dict() for view in view_requests(self.broker, chosen, starts)]

    def _chosen(self, status: str | None, component: str | None, pool: str | None, ended: bool) -> list[Request]:
        return [
            request
            for request in self.broker.requests.values()
            if (status is None or (request.status is not None and request.status.value == status))
            and (component is None or request.owner[0] == component)
            and (pool is None or pool in _pools_of(request))
            and (ended or not (request.status is not None and request.status.terminal))
        ]

    async def page(
        self, which: str, pool: str | None = None, component: str | None = None, skip: int = 0, count: int = 50
    ) -> dict[str, Any]:
        """Some of who waits, runs or has ended: see server/pages.py. When they will start is told as it is known:
        nobody waits for a look ahead."""
        chosen, in_all = page_of(self.broker, which, pool, component, skip, count)
        starts = self._starts_as_known([request.id for request in chosen if request.waiting])
        return view_page(self.broker, chosen, in_all, skip, starts, pool).as_dict()

    async def pool(self, name: str) -> dict[str, Any]:
        return view_pool(self._pool(name)).as_dict()

    def _pool(self, name: str) -> Pool:
        found = self.broker.pools.get(name)
        if found is None:
            names = ", ".join(sorted(self.broker.pools)) or "none"
            raise Refused(f"there is no pool '{name}' (pools: {names})")
        return found

    async def front(self, name: str, first: int) -> dict[str, Any]:
        """A pool, and the first so many of those that wait and run in it: what a screen shows that asks again and
        again. When they are expected to start is told as far as it is known."""
        pool = self._pool(name)
        starts = self._starts_as_known([request.id for request in explanation_of(pool).first(first)])
        return view_front(pool, self.broker, first, starts).as_dict()

    async def overview(self) -> dict[str, Any]:
        """The broker as a whole."""
        specs = [pool.spec for _, pool in sorted(self.broker.pools.items())]
        self._audit.look_soon()
        view = view_broker(
            self.broker,
            [*config_warnings(self.broker), *self._audit.warnings(specs), *self._troubles()],
            self._started_at,
            __version__,
            f"read-only, degraded: {self.degraded}" if self.degraded else "",
            self._journal.store.where,
            self._audit.outside(specs),
        )
        return view.as_dict()

    def _troubles(self) -> list[str]:
        """What keeps the broker from doing its work now."""
        troubles = []
        silent = self.cluster.silent_seconds
        if silent > SILENT_SECONDS:
            troubles.append(f"Ray's GCS has not answered for {silent:.0f} s: nothing is placed or removed meanwhile")
        if self._journal.trouble:
            troubles.append(
                f"the journal ({self._journal.store.where}) cannot be written just now, {self._journal.trouble}: "
                "no change is acknowledged or carried out meanwhile"
            )
        if self._trail.trouble:
            troubles.append(f"records of events cannot be written just now: {self._trail.trouble}")
        return troubles

    async def events(
        self,
        since: float | None = None,
        component: str | None = None,
        after: int | None = None,
        limit: int = 1_000,
        pool: str | None = None,
        request_id: str | None = None,
        kind: str | None = None,
    ) -> list[dict[str, Any]]:
        """Records of what was decided, newest last: the last `limit`, or, with `after`, the first after that event.
        See record.py."""
        about = {"component": component, "pool": pool, "request": request_id, "kind": kind}
        return await self._trail.events(since, after, limit, **about)

    async def next_events(
        self,
        after: int | None,
        timeout_seconds: float,
        component: str | None = None,
        limit: int = 1_000,
        pool: str | None = None,
        request_id: str | None = None,
        kind: str | None = None,
    ) -> dict[str, Any]:
        """Long-poll: what comes after that event, as soon as there is any, or nothing when time is up. Returns
        {"events": records, "last": what to ask after the next time}. after=None: where that is now, at once."""
        about = {"component": component, "pool": pool, "request": request_id, "kind": kind}
        return await self._trail.next_events(after, limit, min(timeout_seconds, WATCH_MOST_SECONDS), **about)

    async def usage(self, since_seconds: float, step_seconds: float, pool: str | None = None) -> dict[str, Any]:
        """Who used how much, of one pool or of all, as means over steps, until now: see `usage.timeline`. A step is a
        whole number of minutes, or of hours where minutes are not kept any more, and there are 2,000 at most: it may
        be longer than was asked for."""
        now = self._now()
        since = max(now - since_seconds, 0.0)
        spans, hours = await self._trail.spans(since)
        return timeline(spans, since, now, step_of(step_seconds, since_seconds, hours), pool)

    async def report(self, since_seconds: float) -> dict[str, Any]:
        """What each component used, waited for and lost, until now: {"since", "until", "rows"}; see
        `usage.report_rows`. It begins with a whole minute, or hour: `since` says when."""
        now = self._now()
        spans, _ = await self._trail.spans(max(now - since_seconds, 0.0))
        since = float(spans[0].start) if spans else now
        return {"since": since, "until": now, "rows": report_rows(spans, self._trail.waiting())}

    async def request_of_group(self, group_id: str) -> dict[str, Any] | None:
        """The request that a placement group was made for; None if it is none of ours."""
        request = self.broker.requests.get(self._groups.get(group_id, ""))
        return None if request is None else view_request(self.broker, request).as_dict()

    async def end_all(self, reason: str, discard_journal: bool = False) -> None:
        """Cancels everything, takes nothing new, and returns when every placement group is gone, but for those
        that Ray does not create or remove. For `raypool stop`. discard_journal: also when degraded; placement
        groups are then left as they are."""
        if self.degraded and not discard_journal:
            self._refuse_if_degraded()
        self._stopping = True
        if not self.degraded:
            for request in list(self.broker.requests.values()):
                if request.status is not None and not request.status.terminal:
                    self._feed(ev.Cancelled(request.id, reason))
            await self._durable()
            while not self._placements.idle:
                await asyncio.sleep(0.02)
        self._over = True
        await self._trail.flush()
        try:
            await self._journal.erase()
        except StoreUnusable as error:
            logger.warning("there is no journal to erase: %s", error)

    def _known(self, request_id: str) -> Request:
        """The request of that whole id. What changes something takes no shortened ids: a call that is
        repeated could mean another request the second time."""
        request = self.broker.requests.get(request_id)
        if request is None:
            self._refuse_if_degraded()  # it may have known it: nobody shall take his request for lost
            raise Refused(f"there is no request '{request_id}'; `raypool request list` shows those there are")
        return request

    def _meant(self, request_id: str) -> Request:
        """The request of that id, or of the only id that begins so; or who has the placement group of that id or
        name now."""
        if request_id in self.broker.requests:
            return self._known(request_id)
        holder = self.broker.requests.get(self._groups.get(request_id, "")) or self._holder_of(request_id)
        if holder is not None:
            return holder
        matches = [one for one in self.broker.requests if one.startswith(request_id)] if request_id else []
        if len(matches) == 1:
            return self.broker.requests[matches[0]]
        if matches:
            raise Refused(f"'{request_id}' is the beginning of {len(matches)} request ids; give more of it")
        return self._known(request_id)

    def _holder_of(self, group_name: str) -> Request | None:
        """Whose placement group has that name in Ray."""
        maker = group_name.rpartition("/")[2]
        allocation = self.broker.handed_over.get(maker)
        if allocation is None and maker in self.broker.requests:
            allocation = self.broker.requests[maker].allocation
        return allocation.request if allocation is not None and allocation.group_name == group_name else None

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise Refused("the broker is being stopped and takes nothing new; `raypool start` starts another")

    # --- feeding the core ---------------------------------------------------------------------

    async def _change(self, event: ev.Event) -> None:
        """Feeds an event of a caller's, and returns when it is durable. What the core refuses is raised."""
        self._refuse_if_degraded()
        if self._over:
            raise Refused("the broker has ended, with all that it knew; `raypool start` starts another")
        self._handle(event)
        await self._durable()

    async def _durable(self) -> None:
        """Until all that was handled is in the journal, and carried out."""
        try:
            await self._journal.flushed()
        except StoreTaken:
            self._refuse_if_degraded()

    def _feed(self, event: ev.Event) -> None:
        """Feeds what the world reports."""
        if self.degraded or self._over:
            return
        if isinstance(event, ev.PlacementWaits):  # nothing is decided on it, and it comes often: it is not kept
            self.broker.handle(event, self.broker.now)
            return
        try:
            self._handle(event)
        except BrokerFault as error:
            self._degrade(f"{error}; the cluster reported it, so it cannot be left out")

    def _handle(self, event: ev.Event) -> None:
        """Has it handled and written down. Raises Refused, BrokerFault. An event that the core stumbles over leaves
        no trace: what it has spoilt is made again from the journal."""
        now = self._now()
        try:
            decided = self.broker.handle(event, now)
            self._journal.add(now, event, decided)
        except Refused:
            raise
        except Exception as error:
            logger.exception("the broker stumbles over %s", shorten(event, 1000))
            self.broker = self._journal.again()
            self._trail.listen()
            self._owners.begin()
            raise BrokerFault(
                f"a bug of raypool's: {type(event).__name__} could not be handled "
                f"({shorten(error, 300)}); nothing was changed"
            ) from error
        self._metrics.saw(now, event, decided)
        self._recorded(self._journal.number, now, event, decided)
        if isinstance(event, ev.PlacementReady):
            self._groups[event.group_id] = event.request
        if any(isinstance(one, CreatePlacementGroup) for one in decided):
            self._placements.look_ahead()
        self._set_timer()
        self._placements.look_for_who_waits()

    def _recorded(self, number: int, at: float, event: ev.Event, decided: list[Instruction]) -> None:
        """What goes wrong there is a bug of ours, and no reason to decide otherwise, or not at all."""
        try:
            self._trail.handled(number, at, event, decided)
        except Exception:
            logger.exception("a bug of raypool's: event %d was not recorded", number)

    def _somebody_waits(self) -> bool:
        return any(pool.queue.groups for pool in self.broker.pools.values())

    def _degrade(self, why: str) -> None:
        """From now on questions are answered, and nothing is changed any more."""
        if not self.degraded:
            logger.error("read-only, degraded: %s", why)
            self.degraded = why

    def _refuse_if_degraded(self) -> None:
        if self.degraded:
            raise BrokerDegraded(f"the broker is read-only, degraded: {self.degraded}")

    def _carry_out(self, number: int, instructions: list[Instruction]) -> None:
        self._trail.durable(number)
        for instruction in instructions:
            try:
                self._do(number, instruction)
            except Exception as error:
                logger.exception("the broker stumbles over %r", instruction)
                self._degrade(
                    f"a bug of raypool's: {type(instruction).__name__} was decided and could not be carried out "
                    f"({type(error).__name__}: {error}); what was decided is in the journal, and is tried again "
                    "when the broker's process is started again"
                )

    def _do(self, number: int, instruction: Instruction) -> None:
        if isinstance(instruction, ChangeStatus):
            self._log(instruction)
            self._wake(instruction.request, number)
            if instruction.to.terminal:
                self._owners.forget(instruction.request)
        elif isinstance(instruction, CreatePlacementGroup):
            self._place(instruction)
        elif isinstance(instruction, RemovePlacementGroup):
            self._placements.remove(instruction.request, instruction.attempt)
        elif isinstance(instruction, HandOverPlacementGroup):
            self._hand_over(instruction)
        elif isinstance(instruction, WarnHolder):
            self._wake(instruction.request, number)

    def _place(self, instruction: CreatePlacementGroup) -> None:
        allocation = self.broker.requests[instruction.spec.id].allocation
        assert allocation is not None and allocation.attempt == instruction.attempt, instruction
        self._audit.look_soon()
        self._placements.place(self._placement_of(allocation))

    def _hand_over(self, instruction: HandOverPlacementGroup) -> None:
        allocation = self.broker.requests[instruction.to].allocation
        assert allocation is not None and allocation.attempt == instruction.to_attempt, instruction
        self._groups[allocation.group_id] = instruction.to
        self._placements.hand_over(instruction.request, instruction.attempt, self._placement_of(allocation))
        logger.info("request %s has the placement group of %s, as it is", instruction.to, instruction.request)

    def _placement_of(self, allocation: Allocation) -> Placement:
        request, pool = allocation.request, allocation.pool
        spec = request.ask.spec
        timeout = pool.spec.placement_timeout_seconds if pool is not None else 30.0
        name = allocation.group_name
        return Placement(
            request=request.id,
            attempt=allocation.attempt,
            name=name,
            bundles=self.broker.bundles(spec, pool),
            strategy=spec.strategy,
            labels=pool.spec.node_labels if pool is not None else {},
            give_up_at=self._now() + timeout,
            group_id=allocation.group_id,
            nodes=allocation.nodes,
            held=allocation.placed,
            unwanted=allocation.unwanted,
            stuck=allocation.phantom,
            alarm=f"Ray still owes the room of placement group '{name}': it counts as phantom" * allocation.phantom,
        )

    def _log(self, change: ChangeStatus) -> None:
        # That somebody asks is told only where everything is: thousands may ask in one call.
        level = logging.DEBUG if change.to is Status.PENDING else logging.INFO
        if not logger.isEnabledFor(level):
            return
        where = f" in pool '{change.pool}'" if change.pool else ""
        why = f": {change.reason.sentence}" if change.reason is not None else ""
        logger.log(level, "request %s is %s%s%s", change.request, change.to.value, where, why)

    def _wake(self, request_id: str, number: int) -> None:
        self._versions[request_id] = number
        self._untidy.set()
        for future in self._watchers.pop(request_id, ()):
            _wake(future)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.broker.next_deadline
        if due is not None:
            delay = max(due - self._now(), LATE_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(delay, self._feed, ev.TimePassed())

    # --- tidying ------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        while True:
            await self._untidy.wait()
            await asyncio.sleep(TIDY_SECONDS)
            self._untidy.clear()
            self._forget_what_is_forgotten()

    def _forget_what_is_forgotten(self) -> None:
        """Drops what is kept here of requests that the core has dropped."""
        known = self.broker.requests
        if len(self._versions) > len(known):
            self._versions = {id: version for id, version in self._versions.items() if id in known}
            self._groups = {group: id for group, id in self._groups.items() if id in known}

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, as they were when the clock was made, and steady since: deadlines must not
    move when somebody sets the machine's time."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


def _submission_row(request: Request) -> tuple[int, str, str | None]:
    """Number, status, and the sentence of a rejection."""
    status, reason = request.status, request.reason
    assert status is not None
    return request.number, status.value, reason.sentence if reason and status is Status.REJECTED else None


def _pools_of(request: Request) -> set[str]:
    """Where it was granted, or where it waits."""
    names = set(request.queued) | set(request.held_out)
    if request.allocation is not None and request.allocation.pool is not None:
        names.add(request.allocation.pool.name)
    return names
