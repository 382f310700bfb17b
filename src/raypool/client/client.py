"""Starting, finding and asking a broker: `start()`, `stop()`, `connect()`, `Client`.

    client = raypool.connect()
    client.pools()
    client.requests(status="pending")
    client.why(request_id)

The specs come in where they are needed: a query from a terminal does without them, and is there sooner.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import ray
from ray._private.services import canonicalize_bootstrap_address_or_die

from raypool.client.broker import NAME, NAMESPACE, BrokerLine, find_broker, job_id, job_metadata
from raypool.errors import Refused, SpecError
from raypool.view import (
    BrokerView,
    DryRunView,
    EventView,
    ExplanationView,
    FrontView,
    PageView,
    PolicyView,
    PoolView,
    PreviewView,
    ReportView,
    RequestView,
    SubmissionView,
    UsageView,
    VersionView,
)

if TYPE_CHECKING:
    from raypool.spec import BrokerConfig, RequestSpec

MAX_CONCURRENCY = 15_000
"""Calls that the broker may hold at once; most of them are parked long-polls."""

_WORKED_OUT_SECONDS = 60.0
"""So long who follows a request is told when it starts from what is known anyway."""

_ANSWER_SECONDS = 5.0
"""How long a cluster's address may take to accept a connection."""

Config: TypeAlias = "BrokerConfig | Mapping[str, Any] | str | Path | None"


def start(config: Config = None, *, address: str | None = None, journal: str | Path | None = None) -> Client:
    """Starts the broker, or finds the one that runs, and applies `config`. Safe to call again.

    config: a BrokerConfig, plain data with `pools` and `policies`, or the path of a YAML file.
    address: the Ray cluster; needed only when this process is not connected yet (None: what Ray
    itself would connect to, but never a new local cluster).
    journal: where a new broker keeps what it knows: "ray" (the default), Ray's key-value store, which
    lives as long as the GCS keeps its state; or the absolute path of a SQLite file on the head node.

    Raises SpecError for a config that is not valid, Refused for one that the broker cannot apply, or for
    another journal than that of the broker that runs.
    """
    loaded = _load(config)
    place = _journal_place(journal)
    join(address)
    line = BrokerLine(_broker_actor(place))
    there = line.call("hello")["journal"]
    if journal is not None and there != place:
        raise Refused(
            f"the broker that runs keeps its journal in '{there}', not in '{place}'; `raypool stop` ends it, "
            "with all that it knows"
        )
    client = Client(line)
    if config is not None:
        client.apply(loaded)
    return client


def _journal_place(journal: str | Path | None) -> str:
    """Raises SpecError."""
    place = "ray" if journal is None else str(journal)
    if place != "ray" and not Path(place).is_absolute():
        raise SpecError(f"journal: must be 'ray' or the absolute path of a file on the head node, got '{place}'")
    return place


def stop(*, address: str | None = None, discard_journal: bool = False) -> None:
    """Cancels every request, waits until all placement groups are gone, and ends the broker.

    discard_journal: also a broker that is degraded, with the journal that it cannot read; what still runs
    is then left alone. Raises BrokerUnavailable if none runs, BrokerDegraded.
    """
    join(address)
    line = find_broker()
    line.call("end_all", "the broker was stopped", discard_journal, timeout_seconds=120.0)
    ray.kill(line.actor, no_restart=True)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # Ray frees the name a moment after the kill
        try:
            ray.get_actor(NAME, namespace=NAMESPACE)
        except ValueError:
            return
        time.sleep(0.05)


def connect(address: str | None = None) -> Client:
    """A client of the cluster's broker, from any driver, task or actor. Raises BrokerUnavailable."""
    join(address)
    return Client(find_broker())


def _load(config: Config) -> BrokerConfig:
    from raypool.spec import BrokerConfig

    if config is None:
        return BrokerConfig()
    if isinstance(config, BrokerConfig):
        return config
    if isinstance(config, str | Path):
        return BrokerConfig.from_yaml(Path(config))
    loaded: BrokerConfig = BrokerConfig.load(dict(config))
    return loaded


def join(address: str | None = None, *, log_to_driver: bool = True) -> None:
    """Joins a running cluster, unless this process is connected. Never starts one: a broker on a
    cluster of one's own would only look as if it worked.

    log_to_driver: whether what remote workers print appears here, too. Raises BrokerUnavailable.
    """
    if ray.is_initialized():
        return
    from raypool.errors import BrokerUnavailable

    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    answers = False
    try:
        _expect_answer(where)
        answers = True
        ray.init(address=where, namespace=NAMESPACE, log_to_driver=log_to_driver, configure_logging=False)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if answers:
            raise BrokerUnavailable(
                f"what answers at '{where}' does not let this process join ({reason}); it must be a Ray cluster of "
                f"this version of Ray ({ray.__version__}), and if that asks for tokens, RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN_PATH must be set here as they are there"
            ) from None
        raise BrokerUnavailable(
            f"no Ray cluster at '{where}' ({reason}); start one with `ray start --head`, or give its address"
        ) from None


def _expect_answer(where: str) -> None:
    """Raises OSError if nobody listens there: Ray itself would try for ten minutes, and say so on stderr."""
    address = canonicalize_bootstrap_address_or_die("auto") if where == "auto" else where
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "//" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()


def _broker_actor(journal: str) -> Any:
    """The one place where the broker's class becomes an actor: detached, restarted for ever, on the
    head node, never inside a placement group."""
    from raypool.server.ray_actor import BrokerActor

    return (
        ray.remote(BrokerActor)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=MAX_CONCURRENCY,
            # Every cluster has a head, and without it nothing works: so it is pinned there, as Serve's
            # controller is. (Affinity to the node, when soft, gives way on a busy head.)
            resources={"node:__internal_head__": 0.001},
            scheduling_strategy="DEFAULT",  # not the caller's placement group
        )
        .remote(journal)
    )


class Client:
    """Asks and changes the broker. Every method may raise BrokerUnavailable; an unknown id is Refused.

    `request` and `why` take an id shortened to a beginning that no other id shares; what changes
    something takes whole ids.
    """

    def __init__(self, line: BrokerLine) -> None:
        self._line = line

    # --- questions ----------------------------------------------------------------------------

    def status(self) -> BrokerView:
        """The broker as a whole: pools, how many requests by status, warnings."""
        return BrokerView.from_dict(self._line.call("overview"))

    def pools(self) -> list[PoolView]:
        """All pools with their policies and figures, by name."""
        return self.status().pools

    def pool(self, name: str) -> PoolView:
        return PoolView.from_dict(self._line.call("pool", name))

    def front(self, pool: str, first: int = 20) -> FrontView:
        """A pool with the first so many (1 to 1,000) of those that wait in it and of those that run. It costs the
        broker little, however many wait, so it may be asked again and again."""
        return FrontView.from_dict(self._line.call("front", pool, first))

    def policies(self, pool: str | None = None, component: str | None = None) -> list[PolicyView]:
        """Policies of one pool or of all, of one component or of all."""
        pools = self.pools() if pool is None else [self.pool(pool)]
        policies = [policy for one in pools for policy in one.policies]
        return [one for one in policies if component is None or one.component == component]

    def requests(
        self,
        *,
        status: str | None = None,
        component: str | None = None,
        pool: str | None = None,
        ended: bool = True,
    ) -> list[RequestView]:
        """Requests in order of submission. `pool`: granted there or waiting there; `ended=False`
        leaves out those that are over."""
        rows = self._line.call("requests", status=status, component=component, pool=pool, ended=ended)
        return [RequestView.from_dict(row) for row in rows]

    def page(
        self,
        kind: str,
        *,
        pool: str | None = None,
        component: str | None = None,
        skip: int = 0,
        count: int = 50,
    ) -> PageView:
        """Some of many requests, for who looks on: it costs the broker far less than `requests` does.

        kind: "waiting": in the order of the line of `pool`, then those that stand aside there; of all pools: the
        first of each line, then the second of each, and so on. "running": what holds room, those who have to leave
        first. "ended": who ended last comes first. skip: so many are passed over; count: 1 to 500. When they will
        start is told as far as it is known already.
        """
        answer = self._line.call("page", kind, pool=pool, component=component, skip=skip, count=count)
        return PageView.from_dict(answer)

    def request(self, request_id: str) -> RequestView:
        return RequestView.from_dict(self._line.call("describe", request_id))

    def why(self, request_id: str) -> ExplanationView:
        """Why it waits, and what would start it now; why it was refused, or had to leave; for one that runs, who
        could take what it borrows. `str()` of it is a text."""
        return ExplanationView.from_dict(self._line.call("why", request_id))

    def events(
        self,
        *,
        since: float | None = None,
        component: str | None = None,
        pool: str | None = None,
        request: str | None = None,
        kind: str | None = None,
        limit: int = 1_000,
    ) -> list[EventView]:
        """What was decided, and who changed what, oldest first: the last `limit` (10,000 at most).

        since: seconds since the epoch. component, request: also where they are those for whom somebody was evicted.
        """
        rows = self._line.call("events", since, component, None, limit, pool, request, kind, timeout_seconds=60.0)
        return [EventView.from_dict(row) for row in rows]

    def follow_events(
        self,
        *,
        since: float | None = None,
        component: str | None = None,
        pool: str | None = None,
        request: str | None = None,
        kind: str | None = None,
    ) -> Iterator[EventView]:
        """The same as they come, without end; those since then first, if that is given."""
        about = {"component": component, "pool": pool, "request_id": request, "kind": kind}
        after = self._line.call("next_events", None, 0.0)["last"]
        if since is not None:
            for event in self.events(
                since=since, component=component, pool=pool, request=request, kind=kind, limit=10_000
            ):
                after = max(after, event.event)
                yield event
        while True:
            answer = self._line.call("next_events", after, 30.0, timeout_seconds=90.0, **about)
            after = answer["last"]
            yield from map(EventView.from_dict, answer["events"])

    def usage(
        self, since_seconds: float = 6 * 3600.0, step_seconds: float = 60.0, *, pool: str | None = None
    ) -> UsageView:
        """Who used how much of each pool in the last so many seconds, as means over steps. Exact: from the figures at
        every decision. Steps are whole minutes, whole hours where more than a day is asked for, and 2,000 at most.
        pool: of that one only, which costs the broker far less where there are many."""
        answer = self._line.call("usage", since_seconds, step_seconds, pool, timeout_seconds=60.0)
        return UsageView.from_dict(answer)

    def report(self, since_seconds: float = 7 * 86_400.0) -> ReportView:
        """What each component had reserved, used, borrowed, lent and lost to preemption, and how long it waited."""
        return ReportView.from_dict(self._line.call("report", since_seconds, timeout_seconds=60.0))

    def journal(self) -> str:
        """The broker's journal: a snapshot, and what happened since, a JSON value in each line."""
        text: str = self._line.call("journal", timeout_seconds=120.0)
        return text

    def config(self) -> BrokerConfig:
        """Pools and policies as they stand."""
        from raypool.spec import BrokerConfig

        loaded: BrokerConfig = BrokerConfig.load(self._line.call("config"))
        return loaded

    # --- requests -----------------------------------------------------------------------------

    def submit(self, spec: RequestSpec | Mapping[str, Any] | None = None, **fields: Any) -> RequestView:
        """Asks for a request without waiting for it. The same id with the same content asks once.

        Takes a RequestSpec, or its fields. The component may come from RAYPOOL_COMPONENT or from the
        job's metadata. Raises SpecError, and Refused for an id that stands for something else; a
        request that no pool can take comes back as `rejected`.
        """
        wanted = request_spec(spec, **fields)
        owner = None if wanted.lifetime == "detached" else job_id()
        return RequestView.from_dict(self._line.call("submit", wanted.dump(), owner))

    def submit_many(self, specs: Iterable[RequestSpec | Mapping[str, Any]]) -> list[SubmissionView]:
        """Asks for many requests without waiting for them, each as `submit` takes it; they stand in line in the order
        of the list. For thousands of them it is faster than `submit` by far.

        All are checked first: raises SpecError, with nothing submitted, which names the place in the list and the
        field. An id that stands for something else already is Refused: the broker takes 4,000 at once, and refuses
        them together; those before them stay submitted. Asking again with the same ids asks once.
        """
        from raypool.client.many import Many

        views: list[SubmissionView] = []
        for ids, call in Many(specs).calls(job_id()):
            views += _submission_views(ids, self._line.call("submit_many", *call))
        return views

    async def submit_many_async(self, specs: Iterable[RequestSpec | Mapping[str, Any]]) -> list[SubmissionView]:
        """The same for code that runs on an event loop."""
        from raypool.client.many import Many

        views: list[SubmissionView] = []
        for ids, call in Many(specs).calls(job_id()):
            views += _submission_views(ids, await self._line.acall("submit_many", *call))
        return views

    def dry_run(self, spec: RequestSpec | Mapping[str, Any] | None = None, **fields: Any) -> DryRunView:
        """What `submit` would come to now: nothing is asked for, and nothing is left of it. `str()` of it is a text.

        Takes and raises what `submit` does; a request that no pool can take is `rejected` here, too.
        """
        wanted = request_spec(spec, **fields)
        owner = None if wanted.lifetime == "detached" else job_id()
        return DryRunView.from_dict(self._line.call("dry_run", wanted.dump(), owner))

    def wait(self, request_id: str, timeout_seconds: float | None = None) -> RequestView:
        """Waits until the request runs or is over; returns it as it is then, or when time is up."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        seen = -1
        while True:
            left = 30.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
            answer = self._line.call("watch", request_id, seen, min(left, 30.0), timeout_seconds=60.0)
            view, seen = RequestView.from_dict(answer["request"]), answer["version"]
            if view.status != "pending" or (deadline is not None and time.monotonic() >= deadline):
                return view

    def changes(self, request_id: str, every_seconds: float = 5.0) -> Iterator[RequestView]:
        """How a request stands: now, at each change of its status, and last at its end.

        Besides every so many seconds (30 at most): its place in line and its reason change with others. When it may
        start is worked out anew about once a minute. The broker answers when something changes; it is not asked again
        and again. Raises Refused if it does not know it, or not any more.
        """
        view = self.request(request_id)
        yield view
        seen, worked_out_at = -1, time.monotonic()
        while not view.ended:
            waits = 0.0 if seen < 0 else min(every_seconds, 30.0)
            answer = self._line.call("watch", view.id, seen, waits, timeout_seconds=waits + 30.0)
            is_first, seen = seen < 0, answer["version"]
            now = RequestView.from_dict(answer["request"])
            if is_first and now.status == view.status:
                continue
            if now.status == "pending" and time.monotonic() - worked_out_at > _WORKED_OUT_SECONDS:
                now, worked_out_at = self.request(view.id), time.monotonic()
            view = now
            yield view

    def release(self, request_id: str) -> RequestView:
        """Gives it back; one that still waits is withdrawn. Raises Refused for one of another job: `cancel` ends
        any. A detached one is anybody's who knows its id."""
        return RequestView.from_dict(self._line.call("release", request_id, job_id()))

    def cancel(self, request_id: str, reason: str = "cancelled by an operator") -> RequestView:
        """Ends it, whatever it does. The reason reaches its owner."""
        return RequestView.from_dict(self._line.call("cancel", request_id, reason))

    def forget(self, request_id: str) -> None:
        """Drops an ended request from the broker's memory. Raises Refused if it has not ended."""
        self._line.call("forget", request_id)

    # --- pools and policies -------------------------------------------------------------------

    def apply(self, config: Config, *, by: str | None = None, note: str = "") -> list[str]:
        """Adds or replaces pools and policies, all or none. Returns warnings: what is allowed in them but rarely
        meant, and where pools promise more than their nodes have.

        by, note: who does it, and why, for `history`. by=None: RAYPOOL_USER, or the user's name. The same in
        the methods below. Raises SpecError, or Refused with every fault in `faults`.
        """
        warnings: list[str] = self._line.call("apply", _load(config).dump(), _who(by), note)
        return warnings

    def check(self, config: Config) -> list[str]:
        """What `apply` would return or raise now; changes nothing."""
        warnings: list[str] = self._line.call("check", _load(config).dump())
        return warnings

    def preview(self, config: Config) -> PreviewView:
        """What `apply` would do now: who would be rejected, evicted, started, become evictable, or change place.
        Changes nothing. Raises what `apply` would raise."""
        return PreviewView.from_dict(self._line.call("preview", _load(config).dump()))

    def history(self) -> list[VersionView]:
        """Every change of pools and policies that is kept (100 at most), by number."""
        return [VersionView.from_dict(row) for row in self._line.call("history")]

    def config_of(self, number: int) -> BrokerConfig:
        """Pools and policies as they were after the change of that number. Raises Refused if it is not kept."""
        from raypool.spec import BrokerConfig

        loaded: BrokerConfig = BrokerConfig.load(self._line.call("config_of", number))
        return loaded

    def preview_rollback(self, number: int) -> PreviewView:
        """What `rollback` would do now. Changes nothing. Raises what it would raise."""
        return PreviewView.from_dict(self._line.call("preview_rollback", number))

    def rollback(self, number: int, *, by: str | None = None, note: str = "") -> list[str]:
        """Makes pools and policies what they were after that change, all or none; it is a change with a number
        of its own. Returns warnings. Raises Refused with every fault, also what was not there then and is in
        use now."""
        warnings: list[str] = self._line.call("rollback", number, _who(by), note)
        return warnings

    def detach_policy(
        self, pool: str, component: str, component_type: str = "team", *, by: str | None = None, note: str = ""
    ) -> None:
        """Raises Refused while the component has requests queued or charged in that pool."""
        self._line.call("detach_policy", pool, component, component_type, _who(by), note)

    def delete_pool(self, name: str, *, by: str | None = None, note: str = "") -> None:
        """Its policies go with it. Raises Refused while anything is queued or charged in it."""
        self._line.call("delete_pool", name, _who(by), note)


def _submission_views(ids: list[str], rows: list[list[Any]]) -> list[SubmissionView]:
    return [SubmissionView(id, *row) for id, row in zip(ids, rows, strict=True)]


def _who(by: str | None) -> str:
    """Who changes pools, for people who read the history: nothing is allowed or forbidden by it."""
    if by is not None:
        return by
    name = os.environ.get("RAYPOOL_USER")
    if name is None:
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # a container's user without a name
            name = ""
    return name[:128] if name.isprintable() else ""


def request_spec(spec: RequestSpec | Mapping[str, Any] | None = None, **fields: Any) -> RequestSpec:
    """A RequestSpec of one, or of its fields, with the component found if it is not given."""
    from raypool.spec import RequestSpec

    if isinstance(spec, RequestSpec):
        if fields:
            raise SpecError("give either a RequestSpec or its fields, not both")
        return spec
    data = {**(spec or {}), **fields}
    if data.get("component") is None:
        data["component"], component_type = find_component()
        if component_type is not None:
            data.setdefault("component_type", component_type)
    data = {name: value for name, value in data.items() if value is not None}
    if isinstance(data.get("resources"), Mapping) or isinstance(data.get("bundles"), list):
        loaded: RequestSpec = RequestSpec.load(data)
        return loaded
    return RequestSpec(**data)


def find_component() -> tuple[str, str | None]:
    """Who asks, where the code does not say: RAYPOOL_COMPONENT, else the job's metadata.

    Returns (component, component type or None). Raises SpecError, saying all three ways.
    """
    from_env = os.environ.get("RAYPOOL_COMPONENT")
    if from_env:
        return from_env, os.environ.get("RAYPOOL_COMPONENT_TYPE")
    metadata = job_metadata()
    if metadata.get("raypool.component"):
        return metadata["raypool.component"], metadata.get("raypool.component_type")
    raise SpecError(
        "component: not given: pass component=..., or set RAYPOOL_COMPONENT, or submit the job with "
        """`ray job submit --metadata-json '{"raypool.component": "..."}'`"""
    )
