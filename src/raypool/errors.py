"""What can go wrong, as one tree of exceptions.

    RaypoolError
    ├── SpecError           what was written is not a valid spec (also a ValueError)
    ├── Refused             a call that the rules do not allow now: pool in use, id taken, ...
    ├── RequestRejected     no pool can ever run this request as things are configured
    ├── RequestCancelled    the request was cancelled: by its owner, an operator, or its job's end
    │   ├── DurationExceeded  it ran longer than its max_duration_seconds
    │   └── GroupLost       its placement group is gone, and not by the broker's doing
    │       └── NodeLost    a node under it died
    ├── WaitTimeout         not granted within wait_timeout_seconds (also a TimeoutError)
    ├── Preempted           the work had to leave for somebody else; says for whom and by which rule
    ├── LeaseEnded          the lease was already given back when it was used
    ├── BrokerFault         the broker stumbled over the call: a bug of ours; nothing was changed
    └── BrokerUnavailable   no broker answers on this cluster
        └── BrokerDegraded  it answers questions only: its journal cannot be read or written

Every message is one sentence or a few: what was asked, what was found, what to try. Nothing here
imports anything of ours, so every layer may raise these. They pickle, since they cross processes.
"""

from __future__ import annotations


class RaypoolError(Exception):
    """Anything that this package raises on purpose."""


class SpecError(RaypoolError, ValueError):
    """What was written is not valid. The message names the field, what was given, what is allowed.

    `problems` holds one sentence per fault; the message joins them. Nothing was changed.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems or (message,)

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.problems)


class Refused(RaypoolError):
    """The rules do not allow this call now: the pool is in use, the id is taken, there is no such request, or it is
    another job's. Nothing was changed.

    `faults` holds one sentence per reason, for a change of pools and policies that has several.
    """

    def __init__(self, message: str, faults: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults or (message,)

    def __reduce__(self) -> tuple[type[Refused], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.faults)


class RequestError(RaypoolError):
    """Something happened to one request; `request_id` says to which."""

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, str]]:
        return type(self), (str(self), self.request_id)


class RequestRejected(RequestError):
    """No pool can ever run the request as pools and policies stand. The message has each pool's reason. Ask for less,
    or for a policy."""


class RequestCancelled(RequestError):
    """The request was cancelled: by an operator, with the end of its owner, or by a broker that lost it. The message
    says by whom and why."""


class DurationExceeded(RequestCancelled):
    """The request ran longer than its `max_duration_seconds`; nobody else took its room by right. Asking again
    would only run as long again, so nothing is queued again for it: go on from a checkpoint, or ask for longer."""


class GroupLost(RequestCancelled):
    """The request's placement group is gone, and not by the broker's doing: somebody removed it, or it went while the
    broker was away, or see NodeLost.

    What is asked anew with `retry_of=error.request_id` has its place in line; decorated tasks do so by themselves.
    """


class NodeLost(GroupLost):
    """A node under the request's placement group died; the group was removed whole. The message has the node."""


class WaitTimeout(RequestError, TimeoutError):
    """The request was not granted in the time its owner was ready to wait (`wait_timeout_seconds`), and has been
    withdrawn. The message has the reason for the wait."""


class LeaseEnded(RequestError):
    """The lease was given back, or taken away, before this use of it."""


class Preempted(RequestError):
    """The work had to leave its pool for somebody else.

    `pool` is where it ran, `rule` is "preempt", "reclaim" or "backfilled", `by` is the id of the
    request that took the room, `by_component` whose it is. Go on from the checkpoint, later.
    """

    def __init__(
        self,
        message: str,
        request_id: str = "",
        pool: str = "",
        rule: str = "",
        by: str = "",
        by_component: str = "",
    ) -> None:
        super().__init__(message, request_id)
        self.pool = pool
        self.rule = rule
        self.by = by
        self.by_component = by_component

    def __reduce__(self) -> tuple[type[Preempted], tuple[str, ...]]:  # type: ignore[override]
        return type(self), (str(self), self.request_id, self.pool, self.rule, self.by, self.by_component)


class BrokerUnavailable(RaypoolError):
    """No broker answers. The message says where it was looked for and how to start one."""


class BrokerDegraded(BrokerUnavailable):
    """The broker answers questions only: its journal cannot be read or written, so what it would change could not be
    kept. The message says why and what to do."""


class BrokerFault(RaypoolError):
    """The broker could not handle the call though nothing is wrong with it: a bug of raypool's, to be reported with
    the traceback from the broker's log. Nothing was changed."""
