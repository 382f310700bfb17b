"""What the world shall do, in the imperative, and what it shall tell people: what `handle` returns.

Data only: they print, compare and pickle. Carrying them out is the server's work; the simulator
reads the same list.
"""

from __future__ import annotations

from typing import NamedTuple

from raypool.core.reasons import Reason
from raypool.core.status import Status
from raypool.spec import RequestSpec


class CreatePlacementGroup(NamedTuple):
    """Make room on nodes for a grant, then answer PlacementReady or PlacementFailed.

    `attempt` tells the grants of one request apart: it may be granted again after it went back to
    its place.
    """

    spec: RequestSpec
    attempt: int
    pool: str | None


class RemovePlacementGroup(NamedTuple):
    """Remove the grant's group (once it is created, never before), then answer PlacementRemoved."""

    request: str
    attempt: int


class HandOverPlacementGroup(NamedTuple):
    """The group of the one grant is that of the other from now on. Ray has nothing to do, and no answer is
    expected; if the group turns out to be gone, PlacementLost says so of its new holder."""

    request: str
    attempt: int
    to: str
    to_attempt: int


class WarnHolder(NamedTuple):
    """Tell the holder that its group will be removed at `deadline` (seconds, the clock of `handle`)."""

    request: str
    deadline: float
    reason: Reason


class ChangeStatus(NamedTuple):
    """Tell everybody who waits for this request: its status is now `to`."""

    request: str
    old: Status | None
    to: Status
    pool: str | None
    reason: Reason | None


Instruction = CreatePlacementGroup | RemovePlacementGroup | HandOverPlacementGroup | WarnHolder | ChangeStatus
