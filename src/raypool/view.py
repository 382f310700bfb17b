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
class RequestView(View):
    """A request and how it stands.

    status: pending, allocated, preempting, released, preempted, cancelled, rejected.
    pool: where it was granted; None while it waits or was never granted.
    reason: one sentence: why it waits, was refused, had to leave. rule: the same as a word for
    programs. reasons: while pending, the sentence for each pool, most hopeful first.
    position: its place in the line of its most preferred pool, from 1.
    eta_p50_seconds, eta_p90_seconds: while it waits, if it was worked out: from now, it starts before that in half
    of the cases, in nine of ten. None: not known, or later than is looked ahead.
    placing: granted and charged; its placement group is not ready yet.
    borrowed: what of it lies above its policy's reserve and may be taken back.
    deadline: while preempting: when its placement group will be removed.
    bundles: what its placement group holds, in Ray's names, once it was granted.
    group_id, nodes: its placement group, and the node id of each bundle.
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

    @property
    def eta(self) -> str:
        """When it is expected to start, in words; "" if that is not known."""
        if self.eta_p50_seconds is None:
            return ""
        if self.eta_p90_seconds is None:
            return f"expected to start in about {about(self.eta_p50_seconds)}, or much later"
        first, last = about(self.eta_p50_seconds), about(self.eta_p90_seconds)
        return f"expected to start in about {first}, in 9 of 10 cases within {last}"

    @property
    def ended(self) -> bool:
        return self.status in ("released", "preempted", "cancelled", "rejected")

    @property
    def running(self) -> bool:
        return self.status in ("allocated", "preempting")


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
