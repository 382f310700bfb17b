"""Whether bundles find room on nodes: on empty ones (could this ever run?) or on what is free now.

Knows resources by name and amount, nothing of Ray. The same function serves both questions, so the
explanation of a wait and the decision to place cannot disagree. For equal bundles the answer is
exact; for unlike bundles under PACK and SPREAD, "no" means that first-fit, largest first, found no
way, and `Misfit.certain` says whether that is a proof.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raypool.core.bundles import Bundle, describe_amount, describe_bundle

Rooms = Mapping[str, Mapping[str, float]]

_SLACK = 1e-6  # Ray's floats: 0.1 + 0.2 of a CPU must fit where 0.3 is free


@dataclass(frozen=True)
class Node:
    """A live node: its id, what it has in all, and its labels."""

    id: str
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        return all(self.labels.get(key) == value for key, value in wanted.items())


@dataclass(frozen=True)
class Misfit:
    """Why bundles find no room: bundle `index` (None: all of them together) lacks `resource`.

    `asked` and `largest` are amounts of that resource: what has to be on one node, and the most that
    one node has. `beside`: alone it would find a node. `certain` is False where a cleverer packing
    might still succeed.
    """

    index: int | None
    bundle: Bundle
    resource: str
    asked: float
    largest: float
    nodes: int
    certain: bool = True
    beside: bool = False

    @property
    def as_need(self) -> str:
        """ "needs 8 GPU on one node, the largest has 4"."""
        if not self.nodes:
            return f"needs {describe_bundle(self.bundle)}, no node has the pool's labels"
        if self.beside:
            return (
                f"bundle {self.index} ({describe_bundle(self.bundle)}) finds no node beside the others "
                f"on {self.nodes} {_plural('node', self.nodes)}"
            )
        if self._enough_of_each:
            return f"needs {describe_bundle(self.bundle)} on one node, no node has all of it"
        asked = describe_amount(self.resource, self.asked)
        largest = describe_amount(self.resource, self.largest)
        return f"needs {asked} on one node, the largest has {largest.split(' ', 1)[0]}"

    @property
    def as_search(self) -> str:
        """ "bundle 0 (8 GPU) found no node; the largest free block is 4 GPU"."""
        which = "the bundles together" if self.index is None else f"bundle {self.index}"
        if not self.nodes:
            return f"{which} ({describe_bundle(self.bundle)}) found no node with the pool's labels"
        found = f"{which} ({describe_bundle(self.bundle)}) found no node"
        if self._enough_of_each:
            return f"{found} {'beside the others' if self.beside else 'with all of it free'}"
        block = describe_amount(self.resource, max(self.largest, 0.0))
        beside = " beside the others" if self.beside else ""
        return f"{found}{beside}; the largest free block is {block}"

    @property
    def _enough_of_each(self) -> bool:
        """Of each resource some node has enough, but not one node of all; or the others want that node."""
        return self.asked <= self.largest + _SLACK


def find_nodes(bundles: Sequence[Bundle], strategy: str, rooms: Rooms) -> tuple[str, ...] | Misfit:
    """A node for each bundle, or what stands in the way.

    `rooms`: node id -> resource -> amount that may be used there. `strategy` is the placement
    group's: STRICT_PACK wants one node for all, STRICT_SPREAD a node for each. Ray may choose other
    nodes; what counts is that there is a way.
    """
    if strategy == "STRICT_PACK":
        whole: dict[str, float] = {}
        for bundle in bundles:
            for resource, amount in bundle.items():
                whole[resource] = whole.get(resource, 0.0) + amount
        node = _node_for_one(None if len(bundles) > 1 else 0, whole, rooms)
        return node if isinstance(node, Misfit) else (node,) * len(bundles)
    for index, bundle in enumerate(bundles):
        if index == 0 or bundle is not bundles[index - 1]:
            alone = _node_for_one(index, bundle, rooms)
            if isinstance(alone, Misfit):
                return alone
    if strategy == "STRICT_SPREAD":
        return _a_node_each(bundles, rooms)
    return _first_fit(bundles, rooms)


def _node_for_one(index: int | None, bundle: Bundle, rooms: Rooms) -> str | Misfit:
    for node, room in rooms.items():
        if _fits(bundle, room):
            return node
    return _misfit(index, bundle, rooms)


def _a_node_each(bundles: Sequence[Bundle], rooms: Rooms) -> tuple[str, ...] | Misfit:
    """A node for each bundle: exact, also for unlike ones."""
    if _all_equal(bundles):
        fitting = [node for node, room in rooms.items() if _fits(bundles[0], room)]
        if len(fitting) < len(bundles):
            return _misfit(len(fitting), bundles[0], rooms, beside=True)
        return tuple(fitting[: len(bundles)])
    node_of: dict[int, str] = {}
    holder: dict[str, int] = {}
    for index, bundle in enumerate(bundles):
        if not _give_a_node(index, bundles, rooms, node_of, holder):
            return _misfit(index, bundle, rooms, beside=True)
    return tuple(node_of[index] for index in range(len(bundles)))


def _give_a_node(
    index: int, bundles: Sequence[Bundle], rooms: Rooms, node_of: dict[int, str], holder: dict[str, int]
) -> bool:
    """One augmenting path, breadth first: the bundle takes a node, whose holder takes another, and so on.

    Each kind of bundle is looked at once: those that are alike can go to the same nodes.
    """
    wanted_by: dict[str, int] = {}
    movers = deque([index])
    asked: list[Bundle] = []
    while movers:
        mover = movers.popleft()
        if bundles[mover] in asked:
            continue
        asked.append(bundles[mover])
        for node, room in rooms.items():
            if node in wanted_by or not _fits(bundles[mover], room):
                continue
            wanted_by[node] = mover
            if node not in holder:
                _move_along(node, index, wanted_by, node_of, holder)
                return True
            movers.append(holder[node])
    return False


def _move_along(
    free: str, index: int, wanted_by: Mapping[str, int], node_of: dict[int, str], holder: dict[str, int]
) -> None:
    node = free
    while True:
        mover = wanted_by[node]
        left = node_of.get(mover, "")
        node_of[mover], holder[node] = node, mover
        if mover == index:
            return
        node = left


def _first_fit(bundles: Sequence[Bundle], rooms: Rooms) -> tuple[str, ...] | Misfit:
    chosen = [""] * len(bundles)
    free = {node: dict(room) for node, room in rooms.items()}
    largest_first = sorted(range(len(bundles)), key=lambda i: (_weight(bundles[i]), -i), reverse=True)
    for index in largest_first:
        bundle = bundles[index]
        for node, room in free.items():
            if _fits(bundle, room):
                for resource, amount in bundle.items():
                    room[resource] -= amount
                chosen[index] = node
                break
        else:
            return _misfit(index, bundle, free, certain=_all_equal(bundles), beside=True)
    return tuple(chosen)


def _misfit(index: int | None, bundle: Bundle, rooms: Rooms, certain: bool = True, beside: bool = False) -> Misfit:
    resource = _scarcest(bundle, rooms)
    largest = max((room.get(resource, 0.0) for room in rooms.values()), default=0.0)
    return Misfit(index, bundle, resource, bundle[resource], largest, len(rooms), certain, beside)


def _all_equal(bundles: Sequence[Bundle]) -> bool:
    return all(bundle == bundles[0] for bundle in bundles)


def _fits(bundle: Bundle, room: Mapping[str, float]) -> bool:
    return all(amount <= room.get(resource, 0.0) + _SLACK for resource, amount in bundle.items())


def _weight(bundle: Bundle) -> tuple[float, float, float]:
    return bundle.get("GPU", 0.0), bundle.get("CPU", 0.0), bundle.get("memory", 0.0)


def _scarcest(bundle: Bundle, rooms: Rooms) -> str:
    """The resource to name: the one of which the best node has the smallest part of what is asked."""

    def part(resource: str) -> float:
        best = max((room.get(resource, 0.0) for room in rooms.values()), default=0.0)
        return best / bundle[resource]

    return min(bundle, key=lambda resource: (part(resource), resource != "GPU", resource))


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun + "s"
