"""The statuses of a request and the moves between them (semantics 8). A move not listed is a bug."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    PENDING = "pending"
    ALLOCATED = "allocated"
    PREEMPTING = "preempting"
    RELEASED = "released"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    @property
    def terminal(self) -> bool:
        """Never changes again."""
        return self not in _MOVES

    @property
    def running(self) -> bool:
        """Holds what it was granted: allocated, or asked to leave and not yet gone."""
        return self is Status.ALLOCATED or self is Status.PREEMPTING

    def may_become(self, to: Status) -> bool:
        return to in _MOVES.get(self, ())


_MOVES = {
    Status.PENDING: (Status.ALLOCATED, Status.REJECTED, Status.CANCELLED),
    Status.ALLOCATED: (Status.RELEASED, Status.PREEMPTING, Status.CANCELLED),
    Status.PREEMPTING: (Status.PREEMPTED, Status.CANCELLED),  # cancelled: its own time was over, nobody took its room
}
