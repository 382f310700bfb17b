"""The lease that the calling task or actor runs in: `raypool.current_lease()`.

lease = raypool.current_lease()
for step in range(steps):
    train(step)
    if lease and lease.preemption_notice:
        save_checkpoint()
        return
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group

from raypool.client.broker import find_broker
from raypool.client.lease import BundleOptions, group_handle
from raypool.client.watch import PreemptionNotice, Watch, follow
from raypool.view import RequestView

GROUP_VARIABLE = "RAYPOOL_PLACEMENT_GROUP"
"""In the environment of a command that `raypool run` runs: the id of its placement group."""


class CurrentLease(BundleOptions):
    """The lease seen from inside: what it is, and whether it is being taken away."""

    def __init__(self, watch: Watch, group: PlacementGroup) -> None:
        self._watch = watch
        self._group = group

    @property
    def view(self) -> RequestView:
        """The latest that the broker told of it."""
        return self._watch.view

    @property
    def placement_group(self) -> PlacementGroup:
        """Ray's own handle of the group."""
        return self._group

    @property
    def request_id(self) -> str:
        return self._watch.view.id

    @property
    def component(self) -> str:
        return self._watch.view.component

    @property
    def pool(self) -> str | None:
        return self._watch.view.pool

    @property
    def nodes(self) -> tuple[str, ...]:
        """The id of the node of each bundle, in bundle order."""
        return tuple(self._watch.view.nodes)

    @property
    def preemption_notice(self) -> PreemptionNotice | None:
        """None until the broker asks for the lease back. Reading it costs nothing: a thread listens."""
        return self._watch.notice

    def on_preemption(self, callback: Callable[[PreemptionNotice], Any]) -> None:
        """Calls back once, in a thread of the library's, when the notice comes (at once if it has)."""
        self._watch.on_preemption(callback)

    def require(self) -> None:
        """Raises Preempted, RequestCancelled or LeaseEnded if no work can be started in it any more."""
        self._watch.require()

    @property
    def ended(self) -> bool:
        """Whether the broker said that it has ended."""
        return self._watch.over

    def __repr__(self) -> str:
        return f"<inside raypool lease {self.request_id} of '{self.component}'>"


_known: dict[str, CurrentLease] = {}
_finding = threading.Lock()


def current_lease() -> CurrentLease | None:
    """The lease whose placement group this task, actor or command runs in; None outside of any.

    Raises BrokerUnavailable if the broker does not answer. The first call in a process asks the
    broker, later ones do not.
    """
    group_id = _group_id()
    if group_id is None:
        return None
    with _finding:
        found = _known.get(group_id)
        if found is None or found.ended:  # its group may be another's now
            line = find_broker()
            answer = line.call("request_of_group", group_id)
            if answer is None:
                return None
            _known.clear()  # a worker is in one group at a time; what it left is over for it
            watch = follow(Watch(line, RequestView.from_dict(answer), version=-1))
            found = _known[group_id] = CurrentLease(watch, group_handle(group_id))
    return found


def _group_id() -> str | None:
    """The placement group that this process works in: Ray's, or that of `raypool run`."""
    if not ray.is_initialized():
        return None
    group = get_current_placement_group()
    return group.id.hex() if group is not None else os.environ.get(GROUP_VARIABLE)
