"""A request, and the allocation that it becomes when it is granted.

A request is asked once; its number is its place among all that were submitted. An allocation is the
charge of one grant: it outlives the request's end until its placement group is confirmed gone, and a
request that had to go back to its place before its group was ready leaves one behind. Both are
changed only by the broker and its cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from raypool.core.asks import Ask
from raypool.core.reasons import PlacementBackOff, Reason
from raypool.core.status import PENDING, PREEMPTING, Status
from raypool.spec import RequestSpec

if TYPE_CHECKING:
    from raypool.core.ledger import Account
    from raypool.core.pool import Pool

NONE: Mapping[str, Any] = MappingProxyType({})
"""What most requests have of most things by pool."""

Need = tuple[tuple[int, int], ...]
"""A demand in one pool: (index of a metered key, amount > 0), ascending by index."""


class Allocation:
    """One grant. Invariant: `account is None` exactly when nothing is charged for it.

    serial: order of grant over all pools. opportunistic: backfilled past a blocked one.
    placed: its placement group is ready. leaving: asked to go, or ended and not yet confirmed gone.
    gone: confirmed gone, nothing is charged any more. phantom: charged to nobody, and not free: Ray has
    not given its room back in time, or may still make its group. search: what its placement still looks
    for. repair_until: a node of its group died, and Ray has until then to repair it. kept_until: its request
    ended with a node, and its charge stays for who takes it up, until then; confirmed: it is gone already.
    made_for: the id of the request whose grant its group was made for, and named after, if it was handed over.
    """

    __slots__ = (
        "account", "attempt", "confirmed", "gone", "group_id", "kept_until", "leaving", "made_for", "need", "nodes",
        "opportunistic", "phantom", "placed", "pool", "preemptible", "repair_until", "request", "search", "serial",
    )  # fmt: skip

    def __init__(self, request: Request, pool: Pool | None, serial: int, opportunistic: bool) -> None:
        self.request = request
        self.pool = pool
        self.attempt = request.grants
        self.serial = serial
        self.opportunistic = opportunistic
        self.preemptible = request.preemptible
        self.need: Need = ()
        self.account: Account | None = None
        self.placed = False
        self.leaving = False
        self.gone = False
        self.phantom = False
        self.repair_until: float | None = None
        self.kept_until: float | None = None
        self.confirmed = False
        self.search = ""
        self.group_id = ""
        self.made_for = ""
        self.nodes: tuple[str, ...] = ()

    @property
    def group_name(self) -> str:
        """What Ray calls its group."""
        pool = self.pool.name if self.pool is not None else "-"
        return f"raypool/{pool}/{self.request.owner[0]}/{self.made_for or self.request.id}"

    @property
    def in_the_world(self) -> bool:
        """Whether its placement group may exist, or shall be made."""
        return not self.gone

    @property
    def unwanted(self) -> bool:
        """Whether its group shall go now: given up, or left. (One with a grace is leaving, and not yet that.)"""
        return self.phantom or (self.leaving and self.request.status is not PREEMPTING)

    def __repr__(self) -> str:
        where = self.pool.name if self.pool else "no pool"
        how = " phantom" if self.phantom else " leaving" if self.leaving else ""
        return f"<allocation {self.request.id}#{self.attempt} in {where}{how}>"

    @property
    def in_the_way(self) -> bool:
        """Its group may still be there though its request has let go of it: nothing may take its name."""
        return self.leaving or self.phantom


class Request:
    """What somebody asked for, and its story so far.

    ask: what it asks for, shared with all that ask for the same; retry_of: the request that it takes up again.
    mark: the pool in which room is being made for it (semantics 5, step 2).
    queued: the pools in whose queue it stands. held_out: the pools where it is eligible but stands
    aside for now, each with the reason; it holds up nobody there. These, and back_offs, are never changed in place:
    most requests share theirs.
    job, holder, actor: with whose end it ends (server/owners.py): the Ray job, the process that asked, and
    the actor that it was bound to, which then stands for that process. The core only keeps them.
    accepted: it was not rejected when it was submitted; nodes that leave later only make it wait.
    allocation: its present grant, or its last. taken_up: it ended with a lost node, and another request
    has its number and its place in line.
    """

    __slots__ = (
        "accepted", "actor", "allocation", "ask", "back_offs", "deadline", "ended_at", "granted_at", "grants",
        "held_out", "holder", "id", "job", "mark", "number", "placement_failures", "preempted_by", "queued",
        "reason", "retry_of", "status", "submitted_at", "taken_up",
    )  # fmt: skip

    def __init__(
        self,
        ask: Ask,
        id: str,
        retry_of: str | None,
        number: int,
        now: float,
        job: str | None = None,
        holder: str | None = None,
    ) -> None:
        self.ask = ask
        self.id = id
        self.retry_of = retry_of
        self.number = number
        self.job = job
        self.holder = holder
        self.actor: str | None = None
        self.status: Status | None = None
        self.reason: Reason | None = None
        self.queued: Mapping[str, Pool] = NONE
        self.held_out: Mapping[str, Reason] = NONE
        self.mark: Pool | None = None
        self.allocation: Allocation | None = None
        self.accepted = False
        self.taken_up = False
        self.grants = 0
        self.placement_failures = 0
        self.back_offs: Mapping[str, PlacementBackOff] = NONE
        self.preempted_by: str | None = None
        self.submitted_at = now
        self.granted_at: float | None = None
        self.ended_at: float | None = None
        self.deadline: float | None = None

    @property
    def spec(self) -> RequestSpec:
        """As it was submitted. Made when it is asked for; `ask.spec` has all but its name at no cost."""
        return self.ask.spec_of(self.id, self.retry_of)

    @property
    def owner(self) -> tuple[str, str]:
        return self.ask.owner

    @property
    def demand(self) -> Mapping[str, int]:
        return self.ask.demand

    @property
    def preemptible(self) -> bool:
        return self.ask.preemptible

    @property
    def detached(self) -> bool:
        """It outlives its job and the process that asked, until somebody releases it."""
        return self.ask.spec.lifetime == "detached"

    @property
    def waiting(self) -> bool:
        """Pending, and not already being placed."""
        return self.status is PENDING and self.current is None

    @property
    def current(self) -> Allocation | None:
        """The grant that it holds now: charged and not given up."""
        allocation = self.allocation
        if allocation is None or allocation.gone or allocation.phantom:
            return None
        if allocation.leaving and self.status is PENDING:
            return None
        return allocation if self.status is PENDING or (self.status and self.status.running) else None

    @property
    def may_run_until(self) -> float | None:
        """When its `max_duration_seconds` are over; None if it has none, or does not run yet."""
        most = self.ask.spec.max_duration_seconds
        return None if most is None or self.granted_at is None else self.granted_at + most

    @property
    def pool(self) -> str | None:
        """The pool that granted it; None while it waits, is being placed, or was never granted."""
        if self.status is PENDING or self.allocation is None or self.granted_at is None:
            return None
        return self.allocation.pool.name if self.allocation.pool else None

    def __repr__(self) -> str:
        status = self.status.value if self.status else "new"
        return f"<request {self.id} number {self.number} of {self.owner} {status} demand {self.demand}>"
