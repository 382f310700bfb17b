"""What would come of a request: the event of its submission, handled by a copy.

It is the code that decides in earnest, so the answer is that which the submission would get at this moment;
tests/core/test_dry_run.py compares both at every state of histories. Nothing is left of it but the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.copy import copy_of
from raypool.core.instructions import ChangeStatus, Instruction
from raypool.core.reasons import Evicted
from raypool.core.request import Request
from raypool.spec import RequestSpec


@dataclass(frozen=True)
class DryRun:
    """broker: the copy as the submission leaves it, to read reasons and positions from. decided: what would
    have been carried out."""

    broker: Broker
    request: Request
    decided: list[Instruction]

    @property
    def granted(self) -> bool:
        """Whether it would be charged and placed at once."""
        return self.request.current is not None

    @property
    def evicted(self) -> list[tuple[Request, Evicted]]:
        """Who would be asked to leave for it, with the reason, in the order in which they are asked."""
        found: dict[str, Evicted] = {}
        for one in self.decided:
            if isinstance(one, ChangeStatus) and isinstance(one.reason, Evicted) and one.reason.by == self.request.id:
                found.setdefault(one.request, one.reason)
        return [(self.broker.requests[id], reason) for id, reason in found.items()]

    @property
    def pool(self) -> str | None:
        """Where it would start, at once or when those have left who would be evicted for it; None if it would
        not, or in no pool."""
        allocation = self.request.current
        if allocation is not None:
            return allocation.pool.name if allocation.pool is not None else None
        return self.evicted[0][1].pool if self.evicted else None


def dry_run(
    broker: Broker, spec: RequestSpec, now: float, job: str | None = None, holder: str | None = None
) -> DryRun:
    """The same arguments as a submission. Raises Refused where that would."""
    broker.refuse_if_taken(spec.id)
    twin = copy_of(broker)
    decided = twin.handle(ev.Submitted(spec, job, holder), now)
    return DryRun(twin, twin.requests[spec.id], decided)
