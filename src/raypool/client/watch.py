"""Learning what becomes of a held lease while the program does something else.

The listener's thread keeps a long-poll per watched lease. It hears of a preemption notice and of the end,
and tells the lease. Callbacks get a thread of their own each time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray.exceptions

from raypool.client.broker import BrokerLine
from raypool.client.listening import LOOK_AGAIN_SECONDS, find_again, listener
from raypool.client.presence import Stay
from raypool.client.submissions import submissions_into
from raypool.client.waiting import POLL_SECONDS, TOO_LONG, end_of, taken_away
from raypool.errors import LeaseEnded, RaypoolError, Refused, RequestCancelled
from raypool.view import RequestView

logger = logging.getLogger("raypool")

FOLLOW_AFTER_SECONDS = 0.05
"""How long after its grant a lease is followed. A notice that comes before is heard then."""

LAST_MOMENT_SECONDS = 0.2
"""What is submitted so shortly before the deadline would reach Ray when the group is gone, and hang."""


@dataclass(frozen=True)
class PreemptionNotice:
    """The lease will be taken away at `deadline` (seconds since the epoch).

    by, by_component: the request that takes the room and whose it is. rule: "preempt", "reclaim" or
    "backfilled"; or "max-duration", by nobody. reason: the sentence with the figures.
    """

    deadline: float
    by: str
    by_component: str
    rule: str
    reason: str

    @property
    def seconds_left(self) -> float:
        """Never negative."""
        return max(self.deadline - time.time(), 0.0)

    @classmethod
    def of(cls, view: RequestView) -> PreemptionNotice | None:
        evicted = view.status in ("preempting", "preempted") and view.preempted_by is not None
        if not evicted and view.rule != TOO_LONG:
            return None
        return cls(
            deadline=view.deadline if view.deadline is not None else time.time(),
            by=view.preempted_by or "",
            by_component=view.preempted_by_component or "",
            rule=view.preemption_rule or view.rule or "",
            reason=view.reason or "",
        )


class Watch:
    """One request, followed until it ends or the watch is closed. `view` is the latest that was heard.

    `gone` is set when the broker does not know the request any more. `leaving` is set while its owner
    gives it back: its release is then no news to him. `closed`: he has given it back, or does not care.
    stay: of its owner's process, which is needed until then.
    """

    def __init__(self, line: BrokerLine, view: RequestView, version: int, stay: Stay | None = None) -> None:
        self.line = line
        self.view = view
        self.version = version
        self.gone = False
        self.leaving = False
        self.closed = False
        self.out_of_sight = False
        self._stay = stay
        self._submissions = submissions_into(view.group_id, view.id) if view.group_id is not None else None
        self._lock = threading.Lock()
        self._at_notice: list[Callable[[PreemptionNotice], Any]] = []
        self._at_end: list[Callable[[], Any]] = []

    @property
    def notice(self) -> PreemptionNotice | None:
        return PreemptionNotice.of(self.view)

    @property
    def over(self) -> bool:
        return self.view.ended or self.gone

    @property
    def ending(self) -> RaypoolError | None:
        """The exception that tells how it ended; None while it is held."""
        if self.view.ended:
            return end_of(self.view)
        if self.gone:
            sentence = f"request '{self.view.id}' was lost: the broker restarted and does not know it"
            return RequestCancelled(sentence, self.view.id)
        return None

    def require(self) -> None:
        """Raises Preempted, RequestCancelled or LeaseEnded if no work can be started in it any more: it has
        ended, or its deadline has come (with `LAST_MOMENT_SECONDS` to spare)."""
        notice = self.notice
        if self.closed or self.view.status == "released":
            raise LeaseEnded(f"lease '{self.view.id}' has ended; work cannot be started in it any more", self.view.id)
        if self.ending is not None:
            raise self.ending
        if notice is not None and notice.seconds_left <= LAST_MOMENT_SECONDS:
            raise taken_away(self.view)

    def on_preemption(self, callback: Callable[[PreemptionNotice], Any]) -> None:
        """Calls back once, in a thread of its own, when the notice comes; at once if it has come."""
        with self._lock:
            notice = self.notice
            if notice is None:
                self._at_notice.append(callback)
        if notice is not None:
            callback(notice)

    def on_end(self, callback: Callable[[], Any]) -> None:
        """Calls back once, in a thread of its own, when the request is over; at once if it is."""
        with self._lock:
            over = self.over
            if not over:
                self._at_end.append(callback)
        if over:
            callback()

    def close(self) -> None:
        """What becomes of the request from now on does not matter here."""
        self.closed = True
        self._work_is_over()

    def _work_is_over(self) -> None:
        """Nothing needs this process as its owner any more, and nothing in it may wait for ever."""
        if self._stay is not None:
            self._stay.leave()
        if self._submissions is not None:
            self._submissions.lease_ended()

    def lost(self) -> None:
        """The broker answers, and does not know the request any more."""
        with self._lock:
            self.gone = True
            at_end, self._at_end = self._at_end, []
        self._work_is_over()
        self._call_back(at_end)

    def heard(self, view: RequestView, version: int) -> None:
        with self._lock:
            self.view, self.version = view, version
            notice = self.notice
            at_notice: list[Callable[[PreemptionNotice], Any]] = []
            at_end: list[Callable[[], Any]] = []
            if notice is not None:
                at_notice, self._at_notice = self._at_notice, []
            if self.over and not (self.leaving and view.status == "released"):
                at_end, self._at_end = self._at_end, []
        if self.over:
            self._work_is_over()
        self._call_back(at_notice, notice)
        self._call_back(at_end)

    def _call_back(self, callbacks: Sequence[Callable[..., Any]], *args: Any) -> None:
        if callbacks:
            threading.Thread(
                target=_call_all, args=(self.view.id, callbacks, args), name="raypool-callbacks", daemon=True
            ).start()


def _call_all(request_id: str, callbacks: Sequence[Callable[..., Any]], args: tuple[Any, ...]) -> None:
    for callback in callbacks:
        try:
            callback(*args)
        except Exception:
            logger.exception("a callback of request %s failed", request_id)


def follow(watch: Watch) -> Watch:
    """Follows the request until it ends or the watch is closed. What is given back at once is not worth a call."""
    listener().later(FOLLOW_AFTER_SECONDS, partial(_ask, watch))
    return watch


def _ask(watch: Watch) -> None:
    if not watch.closed:
        then = partial(_answered, watch)
        listener().ask(watch.line, "watch", watch.view.id, watch.version, POLL_SECONDS, then=then)


def _answered(watch: Watch, answer: Any) -> None:
    if watch.closed:
        return
    try:
        told = answer.result()
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Refused):
            watch.lost()
        else:  # a fault of the broker's: the lease may be well
            _look_again(watch, error)
    except ray.exceptions.ActorDiedError as error:
        if find_again(watch.line):
            watch.version = -1  # the versions of another broker are its own
        _look_again(watch, error)
    except ray.exceptions.RayError as error:
        _look_again(watch, error)
    else:
        watch.out_of_sight = False
        watch.heard(RequestView.from_dict(told["request"]), told["version"])
        if not watch.view.ended:
            _ask(watch)


def _look_again(watch: Watch, error: BaseException) -> None:
    if not watch.out_of_sight:
        logger.warning("lost sight of request %s (%s); looking again", watch.view.id, error)
    watch.out_of_sight = True
    listener().later(LOOK_AGAIN_SECONDS, partial(_ask, watch))
