"""Why a request waits, was refused, or had to leave: typed, with figures, and one sentence each.

A reason is a frozen value that is cheap to make; its sentence is made when somebody reads it. The
same sentence reaches the command line, exceptions and logs. `rule` is a word for programs; it does
not change when the sentence is improved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that is its own sentence."""

    rule: ClassVar[str] = "note"

    @property
    def sentence(self) -> str:
        raise NotImplementedError(type(self).__name__)

    def __str__(self) -> str:
        return self.sentence


# --- why it waits -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoRoom(Reason):
    """The first in line for whom there is no room, and the room for whom is not being made. ahead: how many stand
    before it, and wait for something else; kept: what of the free and the leaving is for those of them who only
    wait for others to leave."""

    rule: ClassVar[str] = "no-room"
    pool: str
    key: str
    asked: int
    free: int
    leaving: int
    phantom: int = 0
    ahead: int = 0
    kept: int = 0

    @property
    def sentence(self) -> str:
        place = f"number {self.ahead + 1} in line" if self.ahead else "first in line"
        leaving = f" and {self.leaving} leaving" if self.leaving else ""
        kept = f", {self.kept} of that kept for those ahead" if self.kept else ""
        phantom = f"; {self.phantom} phantom: Ray has not given them back" if self.phantom else ""
        free = f"{self.free} free{leaving}{kept}{phantom}"
        return f"{place} in pool '{self.pool}': asks for {self.asked} {self.key}, {free}"


@dataclass(frozen=True, slots=True)
class RoomBeingMade(Reason):
    """First in line, and what is missing is about to leave."""

    rule: ClassVar[str] = "room-being-made"
    pool: str
    key: str
    asked: int
    leavers: tuple[str, ...]

    @property
    def sentence(self) -> str:
        who = names_of([f"'{name}'" for name in self.leavers])
        return f"room for {self.asked} {self.key} is being made in pool '{self.pool}': waits for {who} to leave"


@dataclass(frozen=True, slots=True)
class RoomElsewhere(Reason):
    """Room is being made for it in another pool."""

    rule: ClassVar[str] = "room-elsewhere"
    pool: str
    other: str

    @property
    def sentence(self) -> str:
        return f"room is being made for it in pool '{self.other}', not in '{self.pool}'"


@dataclass(frozen=True, slots=True)
class Behind(Reason):
    """Somebody ahead waits for room."""

    rule: ClassVar[str] = "behind"
    pool: str
    head: str
    ahead: int

    @property
    def sentence(self) -> str:
        return f"number {self.ahead + 1} in line in pool '{self.pool}', behind '{self.head}', which has no room yet"


@dataclass(frozen=True, slots=True)
class OverLimit(Reason):
    """Its component uses too much already. kept: what is set aside for earlier requests of its, until others have
    left."""

    rule: ClassVar[str] = "limit"
    pool: str
    component: str
    key: str
    asked: int
    used: int
    limit: int
    kept: int = 0

    @property
    def sentence(self) -> str:
        return (
            f"over the limit of '{self.component}' in pool '{self.pool}': "
            f"asks for {self.asked} {self.key}, uses {self.used} of {self.limit}{_kept(self.kept)}"
        )


@dataclass(frozen=True, slots=True)
class HeldBack(Reason):
    """An earlier request of its own component waits for the limit."""

    rule: ClassVar[str] = "held-back"
    pool: str
    component: str
    earlier: str

    @property
    def sentence(self) -> str:
        return (
            f"held back in pool '{self.pool}': '{self.earlier}' of the same component '{self.component}' "
            f"came first and waits for the limit"
        )


@dataclass(frozen=True, slots=True)
class ReserveInUse(Reason):
    """Non-preemptible work waits for its own reserve. kept: as of OverLimit."""

    rule: ClassVar[str] = "reserve-in-use"
    pool: str
    component: str
    key: str
    asked: int
    used: int
    reserved: int
    kept: int = 0

    @property
    def sentence(self) -> str:
        return (
            f"not preemptible, so it waits for the reserve of '{self.component}' in pool '{self.pool}': "
            f"asks for {self.asked} {self.key}, other non-preemptible work uses {self.used} of {self.reserved}"
            f"{_kept(self.kept)}"
        )


@dataclass(frozen=True, slots=True)
class BeingPlaced(Reason):
    """Granted; its placement group is not ready yet. `search` says what it looks for, if it looks."""

    rule: ClassVar[str] = "being-placed"
    pool: str
    search: str = ""

    @property
    def sentence(self) -> str:
        where = f" in pool '{self.pool}'" if self.pool else ""  # a component without a policy has no pool
        looking = f": {self.search}" if self.search else ""
        return f"being placed{where}{looking}"


@dataclass(frozen=True, slots=True)
class PlacementBackOff(Reason):
    """It was granted and found no nodes; others pass until its next try."""

    rule: ClassVar[str] = "placement"
    pool: str
    why: str
    tries: int
    until: float

    @property
    def sentence(self) -> str:
        times = "once" if self.tries == 1 else f"{self.tries} times"
        return f"granted {times} in pool '{self.pool}' but not placed: {self.why}; others pass until it tries again"


@dataclass(frozen=True, slots=True)
class EarlierGroupLeaving(Reason):
    """It went back to its place; the group of its earlier grant is still being removed."""

    rule: ClassVar[str] = "earlier-group"
    pool: str

    @property
    def sentence(self) -> str:
        return f"back in line: the placement group of its earlier grant in pool '{self.pool}' must be gone first"


@dataclass(frozen=True, slots=True)
class Infeasible(Reason):
    """No present node could ever hold it."""

    rule: ClassVar[str] = "infeasible"
    pool: str
    need: str

    @property
    def sentence(self) -> str:
        return f"infeasible on today's nodes: {self.need} (pool '{self.pool}')"


# --- why no pool takes it ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ineligible(Reason):
    """One pool's reason: `asked` of `key` is above `allowed` by its `bound`."""

    rule: ClassVar[str] = "ineligible"
    pool: str
    component: str
    key: str
    asked: int
    allowed: int
    bound: str  # "capacity", "limit" or "reserved"

    @property
    def sentence(self) -> str:
        if self.bound == "capacity":
            if not self.allowed:
                return f"pool '{self.pool}' has no {self.key}, it asks for {self.asked}"
            return f"asks for {self.asked} {self.key}, pool '{self.pool}' has {self.allowed}"
        if self.bound == "limit":
            return (
                f"asks for {self.asked} {self.key}, the limit of '{self.component}' in pool '{self.pool}' "
                f"is {self.allowed}"
            )
        return (
            f"asks for {self.asked} {self.key} non-preemptible, '{self.component}' has {self.allowed} reserved "
            f"in pool '{self.pool}'"
        )


@dataclass(frozen=True, slots=True)
class NoPolicyInPool(Reason):
    """It is pinned to a pool that does not know its component."""

    rule: ClassVar[str] = "no-policy-in-pool"
    pool: str
    component: str
    component_type: str
    known: bool  # whether there is such a pool

    @property
    def sentence(self) -> str:
        if not self.known:
            return f"pinned to pool '{self.pool}', which does not exist"
        return f"pinned to pool '{self.pool}', where no policy attaches {self.component_type} '{self.component}'"


@dataclass(frozen=True, slots=True)
class NoPolicy(Reason):
    """Nobody has given its component a pool."""

    rule: ClassVar[str] = "no-policy"
    component: str
    component_type: str

    @property
    def sentence(self) -> str:
        return f"no policy attaches {self.component_type} '{self.component}' to any pool"


@dataclass(frozen=True, slots=True)
class NoPoolTakesIt(Reason):
    """Each pool that was tried, with its reason."""

    rule: ClassVar[str] = "rejected"
    tried: tuple[Reason, ...]

    @property
    def sentence(self) -> str:
        return "; ".join(reason.sentence for reason in self.tried)


# --- why it left ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evicted(Reason):
    """Asked to leave for somebody else, under a rule of semantics 6. before, after: what its component used of
    each key that it held, with it and without it; reserved: what is the component's of these."""

    pool: str
    by: str
    by_component: str
    by_priority: int
    component: str
    priority: int
    why: str  # "preempt", "reclaim" or "backfilled"
    borrowed: Mapping[str, int]
    missing: Mapping[str, int]
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)

    rule: ClassVar[str] = "evicted"

    @property
    def sentence(self) -> str:
        because = {
            "preempt": f"priority {self.by_priority} goes before {self.priority}",
            "reclaim": f"'{self.by_component}' takes back what is reserved for it",
            "backfilled": "it ran ahead of its turn, which has come for that one",
        }[self.why]
        return (
            f"has to make room in pool '{self.pool}' for '{self.by}' of '{self.by_component}', which lacks "
            f"{amounts(self.missing)}: {because}; it borrowed {amounts(self.borrowed)}"
        )


@dataclass(frozen=True, slots=True)
class NodeLost(Reason):
    """A node under its placement group died. `waited`: so many seconds were given to Ray to repair it."""

    rule: ClassVar[str] = "node-lost"
    node: str
    waited: float | None = None

    @property
    def sentence(self) -> str:
        if self.waited is None:
            return f"node {self.node} lost: its placement group is removed whole"
        return (
            f"node {self.node} lost: Ray did not repair its placement group in {self.waited:g} s, it is removed whole"
        )


@dataclass(frozen=True, slots=True)
class GroupLost(Reason):
    """Its placement group is gone, and not by the broker's doing."""

    rule: ClassVar[str] = "group-lost"
    why: str

    @property
    def sentence(self) -> str:
        return f"its placement group is gone: {self.why}"


@dataclass(frozen=True, slots=True)
class RanTooLong(Reason):
    """It asked for so many seconds at most, and they are over."""

    rule: ClassVar[str] = "max-duration"
    seconds: float

    @property
    def sentence(self) -> str:
        return f"ran longer than its {span(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Told(Reason):
    """Somebody outside said why."""

    rule: ClassVar[str] = "told"
    text: str

    @property
    def sentence(self) -> str:
        return self.text


def _kept(amount: int) -> str:
    return f", and {amount} more kept for its earlier requests" if amount else ""


def amounts(figures: Mapping[str, int]) -> str:
    """ "2 gpu, 500 mcpu"."""
    return ", ".join(f"{amount} {key}" for key, amount in figures.items() if amount) or "nothing"


def span(seconds: float) -> str:
    """ "2 h", "1 h 30 min", "1.5 s": all of it, since somebody chose the figure."""
    minutes, left = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{left:g} s" if left else ""]
    return " ".join(part for part in parts if part) or "0 s"


def names_of(names: list[str], most: int = 5) -> str:
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else "nobody"
