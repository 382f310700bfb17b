"""What happened, in the past tense: the only things that `Broker.handle` takes.

Frozen values. They carry what the world knows and the core does not (ids, node names), never a
decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raypool.core.nodes import Node
from raypool.spec import BrokerConfig, RequestSpec


@dataclass(frozen=True, slots=True)
class Submitted:
    """Somebody asked. `job` is the Ray job it belongs to (hex id), if it belongs to one; `holder` the process
    that waits for it and will hold it, if it is to end with that process."""

    spec: RequestSpec
    job: str | None = None
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class ManySubmitted:
    """Somebody asked for many things in one call: each is decided as if it came by itself, in the order of `ids`, but
    all or none.

    bodies: what is asked for, each thing once; the ids in them are nobody's. body_of: for each id the place of what
    it asks for. job: as above, but for those that outlive it.
    """

    bodies: tuple[RequestSpec, ...]
    ids: tuple[str, ...]
    body_of: tuple[int, ...]
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The owner gave the request back (or withdrew it while it waited). `job` is the job that says so.

    clean: nothing of its work is left in its placement group, nobody who is done with it can put more there, and
    the group is as its pool would make it now: it may be handed over.
    """

    request: str
    job: str | None = None
    clean: bool = False


@dataclass(frozen=True, slots=True)
class BoundToActor:
    """From now on the request lives as long as that actor (hex id), not as long as the process that asked."""

    request: str
    actor: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An owner or operator cancelled it, or its owner is gone; `reason` is a sentence for people."""

    request: str
    reason: str = "cancelled by its owner"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """An ended request may be dropped from memory; its id is free again."""

    request: str


@dataclass(frozen=True, slots=True)
class ConfigApplied:
    """Pools and policies were added or replaced, all or none (semantics 9). `by`: who did it, `note`: why, as
    far as that was told; so with the three that follow."""

    config: BrokerConfig
    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class PolicyDetached:
    pool: str
    component: str
    component_type: str = "team"
    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class PoolDeleted:
    pool: str
    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Pools and policies shall be what they were after the change of that number, all or none."""

    number: int
    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class PlacementWaits:
    """The grant has no nodes yet; `why` says which bundle looks for one. It keeps its charge."""

    request: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class PlacementReady:
    """Ray has created the placement group of that grant; `nodes` has a node id per bundle. It comes again,
    with other nodes, when Ray has repaired a group that lost a node."""

    request: str
    attempt: int
    group_id: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementFailed:
    """The grant found no nodes in time; `why` says which bundle.

    group_pending: Ray was asked for the group and may still create it; PlacementRemoved will follow.
    """

    request: str
    attempt: int
    why: str
    group_pending: bool = False


@dataclass(frozen=True, slots=True)
class PlacementRemoved:
    """Ray has confirmed that the placement group is gone and its resources are visible as free."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PlacementStuck:
    """The placement group was removed, and Ray has not given its room back since. PlacementRemoved will
    follow when it is seen free."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PlacementLost:
    """The placement group of a grant that was ready is gone, and not by our doing; `why` is a sentence."""

    request: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """The cluster's live nodes are now these. Also fed when a group turns out to lie on none of them."""

    nodes: tuple[Node, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline that `Broker.next_deadline` named has come."""


Event = (
    Submitted
    | ManySubmitted
    | Released
    | BoundToActor
    | Cancelled
    | Forgotten
    | ConfigApplied
    | PolicyDetached
    | PoolDeleted
    | RolledBack
    | PlacementWaits
    | PlacementReady
    | PlacementFailed
    | PlacementRemoved
    | PlacementStuck
    | PlacementLost
    | NodesChanged
    | TimePassed
)
