"""The statuses of a request and the moves between them (semantics 8). A move not listed is a bug."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """terminal: never changes again. running: holds what it was granted, allocated or asked to leave and not yet
    gone. (Plain attributes: they are asked at every step of every decision.)"""

    PENDING = "pending"
    ALLOCATED = "allocated"
    PREEMPTING = "preempting"
    RELEASED = "released"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    terminal: bool
    running: bool
    moves: tuple[Status, ...]


PENDING, ALLOCATED, PREEMPTING, RELEASED, PREEMPTED, CANCELLED, REJECTED = Status
"""The same by their names alone: in Python 3.11 `Status.PENDING` takes ten times as long, and decisions ask often."""

_MOVES = {
    PENDING: (ALLOCATED, REJECTED, CANCELLED),
    ALLOCATED: (RELEASED, PREEMPTING, CANCELLED),
    PREEMPTING: (PREEMPTED, CANCELLED),  # cancelled: its own time was over, nobody took its room
}
for _status in Status:
    _status.moves = _MOVES.get(_status, ())
    _status.terminal = not _status.moves
    _status.running = _status in (ALLOCATED, PREEMPTING)
