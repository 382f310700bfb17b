"""What people see of a broker: frozen values, plain enough for JSON.

The command line, the client, tests and logs read these and never the core; server/views.py makes them
from it. Nothing of ours is imported here, so a query from a terminal does not wait for it. Times are seconds since
the epoch (of the clock that the broker is fed with); amounts are whole numbers by pool key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

V = TypeVar("V", bound="View")


@dataclass(frozen=True)
class View:
    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON and for the wire."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls: type[V], data: dict[str, Any]) -> V:
        """Back from `as_dict`. Fields that this version does not know are left out."""
        return cls(**{one.name: data[one.name] for one in fields(cls) if one.name in data})


@dataclass(frozen=True)
class SubmissionView(View):
    """What came of one of many submissions.

    number: its place among all that were submitted. status: pending, allocated, rejected; of a request that was
    there already, any. reason: the sentence of a rejection.
    """

    id: str
    number: int
    status: str
    reason: str | None = None


@dataclass(frozen=True)
class RequestView(View):
    """A request and how it stands.

    status: pending, allocated, preempting, released, preempted, cancelled, rejected.
    pool: where it was granted; None while it waits or was never granted.
    reason: one sentence: why it waits, was refused, had to leave. rule: the same as a word for
    programs. reasons: while pending, the sentence for each pool, most hopeful first.
    position: its place in the line of its most preferred pool, from 1.
    eta_p50_seconds, eta_p90_seconds: while it waits, if it was worked out: from now, it starts before that in half
    of the cases, in nine of ten. None: not known, or later than was looked ahead. eta_beyond_seconds: how far that
    was: the first of the two that is None is later than that; None: it is not known.
    placing: granted and charged; its placement group is not ready yet.
    borrowed: what of it lies above its policy's reserve and may be taken back.
    deadline: while preempting: when its placement group will be removed.
    bundles: what its placement group holds, in Ray's names, once it was granted.
    group_id, group_name, nodes: its placement group, what Ray calls it, and the node id of each bundle. A group that
    was handed over is named after the request that it was made for.
    job, holder, actor: with whose end it ends, unless it is detached: its Ray job, the process that asked,
    and the actor it belongs to, which then stands for that process.
    max_duration_seconds: how long it may run. runs_until: when that is over, while it is allocated.
    on_node_loss: what becomes of it when one of these dies. repair_until: one has died, and Ray has until
    then to repair the group.
    """

    id: str
    component: str
    component_type: str
    status: str
    pool: str | None
    reason: str | None
    rule: str | None
    demand: dict[str, int]
    preemptible: bool
    workers: int
    strategy: str
    submitted_at: float
    number: int
    reasons: dict[str, str] = field(default_factory=dict)
    position: int | None = None
    placing: bool = False
    pinned: str | None = None
    borrowed: dict[str, int] = field(default_factory=dict)
    granted_at: float | None = None
    ended_at: float | None = None
    deadline: float | None = None
    preempted_by: str | None = None
    preempted_by_component: str | None = None
    preemption_rule: str | None = None
    opportunistic: bool = False
    attempt: int = 0
    group_id: str | None = None
    group_name: str | None = None
    nodes: list[str] = field(default_factory=list)
    bundles: list[dict[str, float]] = field(default_factory=list)
    job: str | None = None
    holder: str | None = None
    actor: str | None = None
    lifetime: str | None = None
    retry_of: str | None = None
    description: str = ""
    on_node_loss: str = "requeue"
    repair_until: float | None = None
    max_duration_seconds: float | None = None
    runs_until: float | None = None
    eta_p50_seconds: float | None = None
    eta_p90_seconds: float | None = None
    eta_beyond_seconds: float | None = None

    @property
    def eta(self) -> str:
        """When it is expected to start, in words; "" if that is not known."""
        beyond = None if self.eta_beyond_seconds is None else about(self.eta_beyond_seconds)
        if self.eta_p50_seconds is None:
            return "" if beyond is None else f"not expected to start within the next {beyond}"
        if self.eta_p90_seconds is None:
            later = "or much later" if beyond is None else f"in 1 of 10 cases in more than {beyond}"
            return f"expected to start in about {about(self.eta_p50_seconds)}, {later}"
        if self.eta_p90_seconds < 1:
            return "expected to start any moment"
        first, last = about(self.eta_p50_seconds), about(self.eta_p90_seconds)
        if first == last:
            return f"expected to start within {last}"
        return f"expected to start in about {first}, in 9 of 10 cases within {last}"

    @property
    def ended(self) -> bool:
        return self.status in ("released", "preempted", "cancelled", "rejected")

    @property
    def running(self) -> bool:
        return self.status in ("allocated", "preempting")

    @property
    def story(self) -> str:
        """How it stands in a sentence, one for each further pool it waits in, and when it may start."""
        if self.status == "pending":
            first, *others = self.reasons.values() or [self.reason or "it is being decided"]
            return "\n".join([f"'{self.id}' waits: {first}", *others, *filter(None, [self.eta])])
        if self.running:
            borrowed = ", ".join(f"{amount} {key}" for key, amount in self.borrowed.items())
            what = f", of which {borrowed} borrowed" if borrowed else ""
            notice = f"; it {self.reason}" if self.status == "preempting" and self.reason else ""
            return f"'{self.id}' runs in pool '{self.pool}'{what}{notice}"
        return f"'{self.id}' is {self.status}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class WaitView(View):
    """Why a request waits in one pool: the first rule that holds it, and the figures that the rule was held
    against.

    position: its place in line, from 1; None where it stands aside. ahead: who stands before it, the first of
    `ahead_in_all`. figures: by key that it asks for and the pool counts: `asks`, `free`, `leaving`, `phantom`,
    `capacity`; `used`, `reserved`, `limit` of its component; `held` by whom, by component, the largest first, and
    `others`, what all those hold who are not named.
    waits_for: whose leaving it waits for, the first of `waits_for_in_all`: {"id", "component", "holds", "leaves_by"};
    leaves_by: when the grace of that one is over; None: any moment now.
    """

    pool: str
    rule: str
    sentence: str
    position: int | None = None
    ahead: list[str] = field(default_factory=list)
    ahead_in_all: int = 0
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    waits_for: list[dict[str, Any]] = field(default_factory=list)
    waits_for_in_all: int = 0

    def lines(self, at: float, told: str) -> list[str]:
        """As text. told: what was said before: it is not said twice."""
        where = "aside" if self.position is None else f"number {self.position} in line"
        if self.rule == "being-placed":
            where = "granted"
        found = [f"pool '{self.pool}', {where}" + ("" if told.endswith(self.sentence) else f": {self.sentence}")]
        for key, have in self.figures.items():
            held = [f"'{name}' {amount}" for name, amount in have["held"].items()]
            of = ", ".join([*held, f"others {have['others']}"] if have["others"] else held)
            others = "".join(f", {have[word]} {word}" for word in ("leaving", "phantom") if have[word])
            found.append(
                f"  {key}: asks for {have['asks']}, {have['free']} of {have['capacity']} free{others}; "
                f"held by {of or 'nobody'}; its own component uses {have['used']}, "
                f"reserved {have['reserved']}, limit {have['limit']}"
            )
        if self.ahead:
            more = self.ahead_in_all - len(self.ahead)
            names = ", ".join(f"'{name}'" for name in self.ahead)
            found.append(f"  ahead of it: {names}" + (f" and {more} more" if more else ""))
        for one in self.waits_for:
            holds = ", ".join(f"{amount} {key}" for key, amount in one["holds"].items())
            by = (
                "any moment"
                if one["leaves_by"] is None
                else f"in {max(one['leaves_by'] - at, 0):.0f} s at the latest"
            )
            found.append(f"  waits for '{one['id']}' of '{one['component']}' ({holds}), which leaves {by}")
        if self.waits_for_in_all > len(self.waits_for):
            found.append(f"  and for {self.waits_for_in_all - len(self.waits_for)} more to leave")
        return found


@dataclass(frozen=True)
class ExplanationView(View):
    """Why a request is as it is: `str()` of it is a text, its first line `sentence`.

    at: when it was asked. waits: while it waits: a WaitView for each pool, most hopeful first. expected: when it
    is expected to start, in words; "" if that is not known. would_start: the smallest single changes of which each
    would start it: {"rule", "sentence", "leaving"}; leaving: who would be evicted for it then. tried: of a rejected
    one: {"rule", "sentence"} for each pool. evicted: of an evicted one: `by`, `by_component`, `why` (the rule),
    `pool`, `missing`, `borrowed`, `leaves_by`, and what its component used `before` and `after`, with what is
    `reserved` for it. borrowed: of a running one, what may be taken back; takers: and by whom: {"component",
    "component_type", "why", "sentence"}.
    """

    id: str
    component: str
    status: str
    sentence: str
    at: float
    waits: list[WaitView] = field(default_factory=list)
    expected: str = ""
    would_start: list[dict[str, Any]] = field(default_factory=list)
    tried: list[dict[str, Any]] = field(default_factory=list)
    evicted: dict[str, Any] | None = None
    borrowed: dict[str, int] = field(default_factory=dict)
    takers: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "waits": [one.as_dict() for one in self.waits]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ExplanationView:
        return super().from_dict({**data, "waits": [WaitView.from_dict(one) for one in data.get("waits", ())]})

    def __str__(self) -> str:
        found = [self.sentence]
        for wait in self.waits:
            found += [f"  {line}" for line in wait.lines(self.at, self.sentence)]
        if self.expected:
            found.append(f"  {self.expected}")
        if len(self.tried) > 1:
            found += [f"  {one['sentence']}" for one in self.tried]
        if self.evicted:
            found += [
                f"  {key}: '{self.component}' used {before}, {self.evicted['after'][key]} without it, "
                f"{self.evicted['reserved'][key]} reserved"
                for key, before in self.evicted["before"].items()
            ]
        if self.takers:
            found += ["it may be taken by", *(f"  {one['sentence']}" for one in self.takers)]
        elif self.status == "allocated":
            found.append("  nobody could take it from there")
        if self.would_start:
            found += ["what would start it", *(f"  - {one['sentence']}" for one in self.would_start)]
        return "\n".join(found)


@dataclass(frozen=True)
class PageView(View):
    """Some of many requests. in_all: how many there are; first: how many of those come before these. places: of those
    that stand in a line, by id: [the pool, the place in its line, from 1]: the pool that was asked for, else the one
    that is most preferred."""

    requests: list[RequestView]
    in_all: int
    first: int = 0
    places: dict[str, list[Any]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "requests": [one.as_dict() for one in self.requests]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PageView:
        return super().from_dict({**data, "requests": [RequestView.from_dict(one) for one in data["requests"]]})


@dataclass(frozen=True)
class DryRunView(View):
    """What would come of a request if it were submitted now.

    request: it, as it would stand then. starts: whether it would be granted at once. pool: where, at once or when
    those have left who would be evicted for it. nodes: whether it would be
    placed on today's nodes: where, or what stands in the way; None: nobody knows, or it does not start.
    places: the same as yes, no or unknown. evicts: who would be asked to leave for it: {"id", "component",
    "sentence"}; it starts when they have left. known: it was asked for already, so asking again changes nothing:
    request is how it stands, starts whether it is granted.
    """

    request: RequestView
    starts: bool
    known: bool = False
    pool: str | None = None
    places: bool | None = None
    nodes: str | None = None
    evicts: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "request": self.request.as_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DryRunView:
        return super().from_dict({**data, "request": RequestView.from_dict(data["request"])})

    def __str__(self) -> str:
        request = self.request
        if self.known:
            return f"it was asked for already, and asking again changes nothing: {request.story}"
        if request.status == "rejected":
            found = [f"it would be rejected: {request.reason}"]
        elif self.starts:
            where = f"in pool '{self.pool}'" if self.pool else "charged to no pool"
            found = [f"it would start now, {where}"]
        elif self.evicts:
            found = [f"it would start in pool '{self.pool}' once those have left who would be evicted for it"]
        else:
            where = "aside" if request.position is None else f"as number {request.position} in line"
            found = [f"it would wait, {where}"]
            found += [f"  {why}" for why in request.reasons.values()]
        if request.eta:
            found.append(f"  {request.eta}")
        if self.nodes is not None:
            found.append(f"  {self.nodes}")
        found += [f"  '{one['id']}' of '{one['component']}' {one['sentence']}" for one in self.evicts]
        return "\n".join(found)


def about(seconds: float) -> str:
    """ "40 s", "12 min", "3 h", "2 d": one unit, since nobody knows more exactly."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= 100):
            return f"{round(seconds / size)} {unit}"
    return f"{math.ceil(seconds)} s"


@dataclass(frozen=True)
class PolicyView(View):
    """A policy and its account. used counts those leaving; limit is what holds now, for every key."""

    pool: str
    component: str
    component_type: str
    priority: int
    reserved: dict[str, int]
    limit: dict[str, int]
    used: dict[str, int]
    borrowed: dict[str, int]
    leaving: dict[str, int]
    queued: int
    active: int


@dataclass(frozen=True)
class PoolView(View):
    """A pool and its figures: used + phantom + free == capacity, for every key; leaving is a part of used.

    phantom: room that Ray does not give back, or may still take; no policy is charged for it.
    """

    name: str
    description: str
    queueing: str
    capacity: dict[str, int]
    used: dict[str, int]
    free: dict[str, int]
    leaving: dict[str, int]
    borrowed: dict[str, int]
    queued: int
    active: int
    grace_seconds: float
    placement_timeout_seconds: float
    infeasible: str
    node_labels: dict[str, str]
    ray_resources: dict[str, str]
    policies: list[PolicyView] = field(default_factory=list)
    phantom: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "policies": [policy.as_dict() for policy in self.policies]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PoolView:
        policies = [PolicyView.from_dict(one) for one in data.get("policies", ())]
        return super().from_dict({**data, "policies": policies})


@dataclass(frozen=True)
class FrontView(View):
    """Who waits and who runs in one pool now, the first of each: no more than was asked for.

    waiting: in the order of its line. aside: those that wait without a place in it; `aside_in_all`. running: whose
    placement group is charged there, those that must leave first, then the last granted first; one that is over is
    among them until its group is gone; `running_in_all`. How many wait in line is `pool.queued`.
    """

    pool: PoolView
    waiting: list[RequestView]
    running: list[RequestView]
    running_in_all: int
    aside: list[RequestView] = field(default_factory=list)
    aside_in_all: int = 0

    def as_dict(self) -> dict[str, Any]:
        rows = {name: [one.as_dict() for one in getattr(self, name)] for name in ("waiting", "running", "aside")}
        return {**vars(self), "pool": self.pool.as_dict(), **rows}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FrontView:
        rows = {name: [RequestView.from_dict(one) for one in data[name]] for name in ("waiting", "running", "aside")}
        return super().from_dict({**data, "pool": PoolView.from_dict(data["pool"]), **rows})


@dataclass(frozen=True)
class VersionView(View):
    """One change of pools and policies. at: when. what: in short. by, note: who made it and why, as far as he
    said. back_to: the number that it went back to, if it did."""

    number: int
    at: float
    what: str
    by: str = ""
    note: str = ""
    back_to: int | None = None


@dataclass(frozen=True)
class ConsequenceView(View):
    """What a change of pools and policies would do to one request, in a sentence.

    kind: rejected, evicted, goes-back (it is being placed and would wait again), evictable (more of it would be
    borrowed), starts, moves (in the pool's line). before, after: with evictable what is borrowed, by key; with
    moves the place in line, from 1, None for none.
    """

    kind: str
    request: str
    component: str
    sentence: str
    pool: str | None = None
    before: dict[str, int] | int | None = None
    after: dict[str, int] | int | None = None


@dataclass(frozen=True)
class PreviewView(View):
    """What a change would do now. number: what the config would be numbered (as now, if nothing changes).

    consequences: what hurts first, then in order of submission. more: how many further ones there are, by kind.
    promises: what pools would promise beyond their nodes and do not now. warnings: what else `apply` would return.
    """

    number: int
    consequences: list[ConsequenceView] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    promises: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "consequences": [one.as_dict() for one in self.consequences]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PreviewView:
        consequences = [ConsequenceView.from_dict(one) for one in data.get("consequences", ())]
        return super().from_dict({**data, "consequences": consequences})


@dataclass(frozen=True)
class BrokerView(View):
    """The broker as a whole: how many requests there are by status, and what it wants somebody to see.

    degraded: why it only answers questions; "" while it is well. journal: where it keeps what it knows.
    outside: what work outside of the broker uses of the nodes that pools count on, as a list of
    {"node": id, "resource": Ray's name, "amount": so much, "pools": their names}.
    """

    pools: list[PoolView]
    requests: dict[str, int]
    unmanaged: str
    owner_timeout_seconds: float = 60.0
    warnings: list[str] = field(default_factory=list)
    started_at: float = 0.0
    version: str = ""
    degraded: str = ""
    journal: str = ""
    outside: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "pools": [pool.as_dict() for pool in self.pools]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BrokerView:
        return super().from_dict({**data, "pools": [PoolView.from_dict(one) for one in data["pools"]]})


@dataclass(frozen=True)
class EventView(View):
    """A record: one decision, or one change that somebody made. docs/reference/events.md lists the kinds.

    event: the number of the event that it followed from; index: its place among the records of that event. request,
    number, component, component_type, pool: whom and what it is about, as far as it is about one. by: who took,
    asked, released or applied. rule, why: the reason, as a word and as a sentence. figures: {"before": {key: {...}},
    "after": the same} of that pool and component. facts: what else belongs to that kind.
    """

    event: int
    index: int | None
    at: float
    kind: str
    request: str | None = None
    number: int | None = None
    component: str | None = None
    component_type: str | None = None
    pool: str | None = None
    by: dict[str, Any] = field(default_factory=dict)
    rule: str | None = None
    why: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """In one line, without the time."""
        words = [self.kind]
        if self.request is not None:
            words.append(f"'{self.request}'")
        if self.component is not None:
            words.append(f"of '{self.component}'")
        if self.pool is not None:
            words.append(f"in '{self.pool}'")
        found = " ".join(words)
        who = [f"{name} {value}" for name, value in self.by.items() if name in ("name", "version", "job", "actor")]
        if self.kind in ("evicted", "returned", "handed-over"):
            taker = f"'{self.by['request']}'" if "request" in self.by else ""
            team = f" of '{self.by['component']}'" if "component" in self.by else ""
            found += f" {'from' if self.kind == 'handed-over' else 'for'} {taker}{team}" if taker else ""
        if self.rule is not None and self.rule != self.kind:
            found += f" ({self.rule})"
        found += f" by {', '.join(who)}" if who else ""
        changes = self._changes()
        return "; ".join(filter(None, [f"{found}: {self.why}" if self.why else found, self.by.get("note"), changes]))

    def _changes(self) -> str:
        """ "gpu: used 2 -> 4, free 6 -> 4"."""
        before, after = self.figures.get("before", {}), self.figures.get("after", {})
        told = []
        for key, row in after.items():
            was = before.get(key, {})
            changed = [f"{name} {was.get(name, 0)} -> {now}" for name, now in row.items() if was.get(name, 0) != now]
            told += [f"{key}: {', '.join(changed)}"] if changed else []
        return "; ".join(told)


@dataclass(frozen=True)
class UsageView(View):
    """Who used how much, as means over steps. times: when each step begins. pools: {pool: {key: {"capacity": [...],
    "components": {component: [...]}, "borrowed": {component: [...]}}}}, a figure for each step; None where nothing is
    known, since no broker ran then, or it is not kept any more."""

    times: list[float]
    step_seconds: int
    pools: dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class ReportRowView(View):
    """One component, pool and key. reserved, used, borrowed, lent, lost: amounts x hours (GPU-hours of key `gpu`).

    lent: of its idle reserve, what others used. lost: what its evicted allocations had held, from when they were
    ready until they had left. waits: how many began to run, and how long they had waited until then; waiting: how
    many wait now.
    """

    component: str
    component_type: str
    pool: str
    key: str
    reserved: float
    used: float
    borrowed: float
    lent: float
    lost: float
    waits: int
    wait_p50_seconds: float | None
    wait_p90_seconds: float | None
    wait_max_seconds: float | None
    waiting: int


@dataclass(frozen=True)
class ReportView(View):
    """since, until: the time that it is about."""

    since: float
    until: float
    rows: list[ReportRowView] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "rows": [one.as_dict() for one in self.rows]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ReportView:
        return super().from_dict({**data, "rows": [ReportRowView.from_dict(one) for one in data["rows"]]})
