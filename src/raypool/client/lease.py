"""A lease: a placement group that the broker granted, held for as long as a block runs.

    with raypool.lease(ResourceSettings(gpu_count=2), component="team-ml", workers=4) as lease:
        workers = [Worker.options(**lease.actor_options(i)).remote() for i in range(4)]

The life of a lease: asked -> waiting -> held -> (notice -> grace) -> ended. Work in a placement group
that Ray removes must not hang: Ray's own retries are switched off inside a lease, because Ray would
retry into a group that is no more, for ever; options made by a lease that has ended raise when they
are used; and what reaches Ray too late all the same is cancelled (`submissions.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import ray
import ray.exceptions
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raypool.client.broker import BrokerLine, find_broker, job_id
from raypool.client.client import request_spec
from raypool.client.listening import tell
from raypool.client.nodes import NODE_DEATH_SECONDS, any_is_silent
from raypool.client.presence import Stay, stay
from raypool.client.waiting import acquire, acquire_async
from raypool.client.watch import PreemptionNotice, Watch, follow
from raypool.errors import BrokerUnavailable, LeaseEnded, Preempted, RaypoolError, Refused, SpecError
from raypool.spec import SMALLEST_CPU, RequestSpec, ResourceSettings
from raypool.view import RequestView

logger = logging.getLogger("raypool")

ASK_AGAIN_SECONDS = 0.2
"""How often the broker is asked whether it has heard yet of a node that does not answer."""

__all__ = ["Lease", "PreemptionNotice", "lease"]


def lease(
    resources: ResourceSettings | Mapping[str, Any] | None = None,
    *,
    component: str | None = None,
    component_type: str | None = None,
    workers: int = 1,
    bundles: Sequence[ResourceSettings | Mapping[str, Any]] | None = None,
    preemptible: bool | None = None,
    strategy: str = "PACK",
    pool: str | None = None,
    wait_timeout_seconds: float | None = None,
    grace_seconds: float | None = None,
    lifetime: str | None = None,
    capture_child_tasks: bool = False,
    on_node_loss: str = "requeue",
    repair_seconds: float | None = None,
    max_duration_seconds: float | None = None,
    description: str = "",
) -> Lease:
    """A lease, not asked for yet: enter it (`with`, `async with`), or call `acquire()`.

    resources: what each of `workers` bundles holds; or `bundles`, a list of unlike ones.
    component: who asks; else RAYPOOL_COMPONENT, else the job's metadata.
    strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.
    pool: pins it to one pool. wait_timeout_seconds: None waits for ever.
    grace_seconds: shortens the pool's grace. lifetime: "detached" outlives the job, until released.
    capture_child_tasks: children of the work in the lease run in its placement group too.
    on_node_loss, repair_seconds: what becomes of it when a node under it dies; see RequestSpec.
    max_duration_seconds: how long it may run; then it has its grace, and is taken away.

    Raises SpecError for what is not valid. Entering raises RequestRejected, RequestCancelled,
    WaitTimeout, BrokerUnavailable. Leaving gives it back; a block that failed because the lease was
    preempted, ran too long, or a node under it died, raises Preempted, DurationExceeded or NodeLost from the
    original error.
    """
    fields: dict[str, Any] = {
        "component": component,
        "component_type": component_type,
        "pool": pool,
        "preemptible": preemptible,
        "strategy": strategy,
        "grace_seconds": grace_seconds,
        "lifetime": lifetime,
        "on_node_loss": on_node_loss,
        "repair_seconds": repair_seconds,
        "max_duration_seconds": max_duration_seconds,
        "description": description,
    }
    if bundles is not None:
        if resources is not None or workers != 1:
            raise SpecError("give either resources (with workers) or bundles, not both")
        fields["bundles"] = tuple(resource_settings(bundle) for bundle in bundles)
    else:
        fields |= {"resources": resource_settings(resources or {}), "workers": workers}
    spec = request_spec({name: value for name, value in fields.items() if value is not None})
    return Lease(spec, wait_timeout_seconds, capture_child_tasks)


def resource_settings(given: ResourceSettings | Mapping[str, Any]) -> ResourceSettings:
    """ResourceSettings, also from plain data. Raises SpecError."""
    if isinstance(given, ResourceSettings):
        return given
    loaded: ResourceSettings = ResourceSettings.load(dict(given))
    return loaded


class BundleOptions(ABC):
    """Options for work in the bundles of a lease: the same for who holds it and for who runs in it."""

    capture_child_tasks: bool | None = None

    @property
    @abstractmethod
    def view(self) -> RequestView: ...

    @property
    @abstractmethod
    def placement_group(self) -> PlacementGroup: ...

    @abstractmethod
    def require(self) -> None:
        """Raises Preempted, RequestCancelled or LeaseEnded if no work can be started in it any more."""

    def task_options(self, bundle: int = 0, **overrides: Any) -> dict[str, Any]:
        """Options for a Ray task in that bundle: `f.options(**lease.task_options(i)).remote()`.

        The task gets the whole bundle unless `overrides` (num_gpus, num_cpus, ...) say less. Raises
        SpecError for overrides that would let Ray retry, or place it elsewhere.
        """
        return {**self._options(bundle, overrides), "max_retries": 0}

    def actor_options(self, bundle: int = 0, **overrides: Any) -> dict[str, Any]:
        """Options for a Ray actor in that bundle: `A.options(**lease.actor_options(i)).remote()`.
        `overrides` as in `task_options`."""
        return {**self._options(bundle, overrides), "max_restarts": 0, "max_task_retries": 0}

    def _options(self, bundle: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
        self.require()
        whole = resource_options(bundle_of(self.view, bundle))
        return {**whole, **_allowed(overrides), "scheduling_strategy": LeaseSchedulingStrategy(self, bundle)}


_OFF = {"max_retries": 0, "retry_exceptions": False, "max_restarts": 0, "max_task_retries": 0}
"""Ray's retries, and the value that asks for what a lease does anyway."""


def _allowed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without those that say what a lease does anyway. Raises SpecError."""
    if "scheduling_strategy" in overrides:
        raise SpecError(
            "scheduling_strategy: cannot be given to the options of a lease: they place the work in its bundle; "
            "for work outside the lease use Ray's own .options()"
        )
    for name, off in _OFF.items():
        if overrides.get(name, off) not in (off, None):
            raise SpecError(
                f"{name}: cannot be given to the options of a lease, got {overrides[name]!r}: when the lease is "
                "taken away, Ray would retry into a placement group that is no more, and hang; start the work again "
                "in a new lease"
            )
    return {name: value for name, value in overrides.items() if name not in _OFF}


class Lease(BundleOptions):
    """A granted placement group and its end. Made by `raypool.lease()`.

    request_id, pool, nodes (a node id per bundle), placement_group: once it is held.
    """

    def __init__(
        self, spec: RequestSpec, wait_timeout_seconds: float | None = None, capture_child_tasks: bool = False
    ) -> None:
        self.spec = spec
        self.wait_timeout_seconds = wait_timeout_seconds
        self.capture_child_tasks = capture_child_tasks
        self._watch: Watch | None = None
        self._stay: Stay | None = None
        self._released = False
        self._told_last: RequestView | None = None
        self._handed_out = False  # somebody may have put work into its group
        self._sealed = False  # and nobody will any more

    # --- getting and giving back --------------------------------------------------------------

    def acquire(self) -> Lease:
        """Asks and waits until granted; while it waits, says why. See `lease` for what it raises."""
        line = self._begin()
        with self._present(line) as holder:
            return self._held(line, *acquire(line, self.spec, self._job(), self.wait_timeout_seconds, holder))

    async def acquire_async(self) -> Lease:
        """`acquire` for code on an event loop."""
        line = self._begin()
        with self._present(line) as holder:
            granted = await acquire_async(line, self.spec, self._job(), self.wait_timeout_seconds, holder)
            return self._held(line, *granted)

    def _begin(self) -> BrokerLine:
        if self._watch is not None:
            raise LeaseEnded("a lease is taken once; make a new one with raypool.lease()", self.spec.id)
        return find_broker()

    def _job(self) -> str | None:
        return None if self.spec.lifetime == "detached" else job_id()

    @contextlib.contextmanager
    def _present(self, line: BrokerLine) -> Iterator[str | None]:
        """From before it is asked for until it has ended, the broker hears of this process; a detached lease
        has no owner whom it would miss."""
        if self.spec.lifetime != "detached":
            self._stay = stay(line)
        try:
            yield self._stay.holder if self._stay is not None else None
        except BaseException:
            if self._stay is not None:
                self._stay.leave()
            raise

    def _held(self, line: BrokerLine, spec: RequestSpec, view: RequestView, version: int) -> Lease:
        self.spec = spec
        self._watch = follow(Watch(line, view, version, self._stay))
        return self

    def release(self) -> None:
        """Gives it back: Ray removes its placement group and ends what still runs there. Once is enough; one
        that raised BrokerUnavailable has not given it back, and may be tried again."""
        if not self._to_give_back():
            return
        try:
            with contextlib.suppress(Refused):  # a broker that does not know it has nothing to take back
                self._held_watch().line.call("release", *self._given_back_as())
            self._given_back()
        finally:
            self._held_watch().leaving = False

    async def release_async(self) -> None:
        """`release` for code on an event loop."""
        if not self._to_give_back():
            return
        try:
            with contextlib.suppress(Refused):
                await self._held_watch().line.acall("release", *self._given_back_as())
            self._given_back()
        finally:
            self._held_watch().leaving = False

    def give_back(self) -> None:
        """`release` that does not wait for the broker: it will hear of it, if not at once then as soon as it is
        there again."""
        if self._to_give_back():
            tell(self._held_watch().line, "release", *self._given_back_as())
            self._given_back()

    def _to_give_back(self) -> bool:
        if self._watch is None or self._released:
            return False
        if self._watch.over:
            self._released = True
            return False
        self._watch.leaving = True
        return True

    def _given_back_as(self) -> tuple[Any, ...]:
        """What `release` is called with: that it is clean, if nobody got anything to put work into its group with.
        From then on nobody gets it, also if the answer is lost."""
        if not self._sealed:
            self._sealed = True  # at first, so that who asks for something meanwhile is refused, or seen here
            self._sealed = not self._handed_out
        return (self.request_id, self._job(), *([True] if self._sealed else []))

    def left_nothing(self) -> None:
        """For who alone had its options, and saw all that he had started end without leaving anything: its group
        may be handed over. Call it before the lease is given back."""
        self._handed_out = False

    def _given_back(self) -> None:
        self._released = True
        self._held_watch().close()

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = None
        try:
            if self._may_explain(error):
                ended = self._why_it_failed()
        finally:
            try:
                self.release()
            except (RaypoolError, ray.exceptions.RayError) as trouble:
                self._not_given_back(trouble)
        if ended is not None:
            raise ended from error

    async def __aenter__(self) -> Lease:
        return await self.acquire_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = None
        try:
            if self._may_explain(error):
                ended = await self.why_it_failed()
        finally:
            try:
                await self.release_async()
            except (RaypoolError, ray.exceptions.RayError) as trouble:
                self._not_given_back(trouble)
        if ended is not None:
            raise ended from error

    def _may_explain(self, error: BaseException | None) -> bool:
        """Whether the end of the lease may be why the block failed: it failed in Ray, and the lease was not
        given back by the block itself."""
        return isinstance(error, ray.exceptions.RayError) and not isinstance(error, Preempted) and not self._released

    def _not_given_back(self, trouble: Exception) -> None:
        """The block is over, and the broker was away for too long: it hears of it when it is there again."""
        logger.warning("lease '%s' is given back when the broker hears of it: %s", self.request_id, trouble)
        self.give_back()

    def _ending(self) -> RaypoolError | None:
        try:
            return self._told(self._held_watch().line.call("describe", self.request_id))
        except Refused:
            return self._unknown()
        except BrokerUnavailable:
            return self.ending

    async def ending_now(self) -> RaypoolError | None:
        """How it has ended, by the broker's latest word (what was heard last, if it is away); None while it
        is held."""
        try:
            return self._told(await self._held_watch().line.acall("describe", self.request_id))
        except Refused:
            return self._unknown()
        except BrokerUnavailable:
            return self.ending

    def taken_away(self) -> bool:
        """Whether the broker says that it has ended; `ending` then tells how. For when Ray reports that
        something in it died: a node that does not answer is waited for until the broker knows."""
        return self._why_it_failed() is not None

    async def why_it_failed(self) -> RaypoolError | None:
        """How it has ended, after work in it failed; None if that was not because of the lease.

        The broker ends a lease before it removes the group, so its answer can be trusted at once. But of a
        dead node it hears from Ray, much later than who waits for the work: then its answer is waited for.
        """
        nodes, ended = self.nodes, await self.ending_now()
        if ended is None and await asyncio.to_thread(any_is_silent, nodes):
            give_up = time.monotonic() + NODE_DEATH_SECONDS
            while ended is None and not self.lost_some_of(nodes) and time.monotonic() < give_up:
                await asyncio.sleep(ASK_AGAIN_SECONDS)
                ended = await self.ending_now()
        return ended

    def _why_it_failed(self) -> RaypoolError | None:
        """`why_it_failed` for plain code."""
        nodes, ended = self.nodes, self._ending()
        if ended is None and any_is_silent(nodes):
            give_up = time.monotonic() + NODE_DEATH_SECONDS
            while ended is None and not self.lost_some_of(nodes) and time.monotonic() < give_up:
                time.sleep(ASK_AGAIN_SECONDS)
                ended = self._ending()
        return ended

    @property
    def under_repair(self) -> bool:
        """Whether the broker said, when it was last asked, that Ray may still repair the group."""
        return self._told_last is not None and self._told_last.repair_until is not None

    def lost_some_of(self, nodes: Sequence[str]) -> bool:
        """Whether the broker said, when it was last asked, that the group lost one of these or has moved."""
        return self._told_last is not None and (self.under_repair or self._told_last.nodes != list(nodes))

    def _told(self, answer: dict[str, Any]) -> RaypoolError | None:
        view, watch = RequestView.from_dict(answer), self._held_watch()
        self._told_last = view
        if not view.ended:
            return None
        watch.heard(view, watch.version)
        return watch.ending

    def _unknown(self) -> RaypoolError | None:
        self._held_watch().lost()
        return self._held_watch().ending

    # --- what is held -------------------------------------------------------------------------

    @property
    def request_id(self) -> str:
        return self.spec.id

    @property
    def view(self) -> RequestView:
        """The latest that the broker told of it. Raises LeaseEnded before it is held."""
        self._handed_out = True  # it names the placement group
        return self._held_watch().view

    def _held_watch(self) -> Watch:
        if self._watch is None:
            raise LeaseEnded("the lease is not held yet: enter it, or call acquire()", self.spec.id)
        return self._watch

    @property
    def pool(self) -> str | None:
        return self._held_watch().view.pool

    @property
    def nodes(self) -> tuple[str, ...]:
        """The id of the node of each bundle, in bundle order."""
        return tuple(self._held_watch().view.nodes)

    @property
    def placement_group(self) -> PlacementGroup:
        """Ray's own handle of the group. Raises LeaseEnded or Preempted once the lease has ended."""
        self._handed_out = True  # before it is asked whether it may be: see `_given_back_as`
        self.require()
        group_id = self.view.group_id
        assert group_id is not None
        return group_handle(group_id)

    @property
    def ended(self) -> bool:
        """Given back, taken away, or unknown to the broker."""
        return self._released or (self._watch is not None and self._watch.over)

    @property
    def ending(self) -> RaypoolError | None:
        """How it ended without our doing; None while it is held or after it was given back."""
        if self._watch is None or self._watch.closed or self._watch.leaving:
            return None
        return self._watch.ending

    def on_end(self, callback: Callable[[], Any]) -> None:
        """Calls back once, in a thread of the library's, when it has ended without our doing."""
        self._held_watch().on_end(callback)

    def require(self) -> None:
        """Raises Preempted, RequestCancelled or LeaseEnded if no work can be started in it any more: it has
        ended, or the notice's deadline has come."""
        if self._sealed:
            raise LeaseEnded(
                f"lease '{self.request_id}' was given back; work cannot be started in it", self.request_id
            )
        self._held_watch().require()

    def describe(self) -> dict[str, Any]:
        """The request as the broker sees it, and the placement group's table as Ray does."""
        table = placement_group_table(self.placement_group)
        return {"request": self.view.as_dict(), "placement_group": table}

    def belongs_to(self, actor: ActorHandle) -> None:
        """The broker takes the lease back when that actor is dead, and no longer when this process is gone."""
        self._held_watch().line.call("attach_actor", self.request_id, actor._actor_id.hex())

    async def belongs_to_async(self, actor: ActorHandle) -> None:
        """`belongs_to` for code on an event loop."""
        await self._held_watch().line.acall("attach_actor", self.request_id, actor._actor_id.hex())

    # --- preemption ---------------------------------------------------------------------------

    @property
    def preemption_notice(self) -> PreemptionNotice | None:
        """None until the broker asks for it back."""
        return self._watch.notice if self._watch is not None else None

    def on_preemption(self, callback: Callable[[PreemptionNotice], Any]) -> None:
        """Calls back once, in a thread of the library's, when the notice comes (at once if it has)."""
        self._held_watch().on_preemption(callback)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "held" if self._watch is not None else "not asked for"
        return f"<raypool lease {self.request_id} of '{self.spec.component}', {state}>"


class LeaseSchedulingStrategy(PlacementGroupSchedulingStrategy):  # type: ignore[misc]
    """A placement-group strategy that raises, at `.remote()`, once its lease has ended: Ray itself would
    let work in a removed group wait for ever."""

    def __init__(self, lease: BundleOptions, bundle: int) -> None:
        self._lease = lease
        super().__init__(lease.placement_group, bundle, lease.capture_child_tasks)

    @property
    def placement_group(self) -> PlacementGroup:
        self._lease.require()
        return self._group

    @placement_group.setter
    def placement_group(self, group: PlacementGroup) -> None:
        self._group = group

    def __reduce__(self) -> tuple[Any, ...]:
        """Elsewhere it is Ray's plain strategy: the lease lives in this process."""
        index, capture = self.placement_group_bundle_index, self.placement_group_capture_child_tasks
        return PlacementGroupSchedulingStrategy, (self._group, index, capture)


def group_handle(group_id: str) -> PlacementGroup:
    """Ray's handle of the placement group with that id (hex), from any job."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))


def bundle_of(view: RequestView, bundle: int) -> Mapping[str, float]:
    """Raises SpecError if there is no such bundle."""
    if isinstance(bundle, bool) or not isinstance(bundle, int) or not 0 <= bundle < len(view.bundles):
        raise SpecError(f"bundle: must be a whole number from 0 to {len(view.bundles) - 1}, got {bundle!r}")
    return view.bundles[bundle]


def resource_options(bundle: Mapping[str, float]) -> dict[str, Any]:
    """Ray options that take a whole bundle. A bundle that holds nothing but the smallest CPU takes none."""
    options: dict[str, Any] = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0)}
    if options["num_cpus"] <= SMALLEST_CPU:
        options["num_cpus"] = 0
    if "memory" in bundle:
        options["memory"] = bundle["memory"]
    others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU", "memory")}
    return {**options, "resources": others} if others else options
