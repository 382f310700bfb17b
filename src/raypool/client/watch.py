"""Learning what becomes of a held lease while the program does something else.

One daemon thread per process keeps a long-poll per watched lease. It hears of a preemption notice and
of the end, and tells the lease. All leases of the process depend on that thread, so it never sleeps and
never runs a callback: those get a thread of their own each time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray.exceptions

from raypool.client.broker import BrokerLine, find_broker
from raypool.client.waiting import POLL_SECONDS, end_of, preempted
from raypool.errors import BrokerUnavailable, LeaseEnded, RaypoolError, Refused, RequestCancelled
from raypool.view import RequestView

logger = logging.getLogger("raypool")

LOOK_AGAIN_SECONDS = 1.0
"""How long after a long-poll that failed the next one is sent."""

LAST_MOMENT_SECONDS = 0.2
"""What is submitted so shortly before the deadline would reach Ray when the group is gone, and hang."""


@dataclass(frozen=True)
class PreemptionNotice:
    """The lease will be taken away at `deadline` (seconds since the epoch).

    by, by_component: the request that takes the room and whose it is. rule: "preempt", "reclaim" or
    "backfilled". reason: the sentence with the figures.
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
        if view.status not in ("preempting", "preempted") or view.preempted_by is None:
            return None
        return cls(
            deadline=view.deadline if view.deadline is not None else time.time(),
            by=view.preempted_by,
            by_component=view.preempted_by_component or "",
            rule=view.preemption_rule or "",
            reason=view.reason or "",
        )


class Watch:
    """One request, followed until it ends or the watch is closed. `view` is the latest that was heard.

    `gone` is set when the broker does not know the request any more. `leaving` is set while its owner
    gives it back: its release is then no news to him. `closed`: he has given it back, or does not care.
    """

    def __init__(self, line: BrokerLine, view: RequestView, version: int) -> None:
        self.line = line
        self.view = view
        self.version = version
        self.gone = False
        self.leaving = False
        self.closed = False
        self.out_of_sight = False
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
            raise preempted(self.view)

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

    def lost(self) -> None:
        """The broker answers, and does not know the request any more."""
        with self._lock:
            self.gone = True
            at_end, self._at_end = self._at_end, []
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


class _Watcher(threading.Thread):
    """The thread. Answers arrive through Ray's own callbacks and are handled here, in order; what failed
    waits in `_later` until it is due."""

    def __init__(self) -> None:
        super().__init__(name="raypool-watch", daemon=True)
        self._answers: queue.Queue[tuple[Watch, Any]] = queue.Queue()
        self._later: list[tuple[float, int, Watch]] = []
        self._count = itertools.count()

    def follow(self, watch: Watch) -> None:
        try:
            ref = watch.line.send("watch", watch.view.id, watch.version, POLL_SECONDS)
            answer = ref.future()
        except ray.exceptions.RayError as error:  # this process has left the cluster
            answer = Future()
            answer.set_exception(error)
        answer.add_done_callback(lambda done: self._answers.put((watch, done)))

    def run(self) -> None:
        while True:
            pause = max(self._later[0][0] - time.monotonic(), 0.0) if self._later else None
            try:
                self._handle(*self._answers.get(timeout=pause))
            except queue.Empty:
                _, _, watch = heapq.heappop(self._later)
                if not watch.closed:
                    self.follow(watch)

    def _handle(self, watch: Watch, answer: Any) -> None:
        if watch.closed:
            return
        try:
            told = answer.result()
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Refused):
                watch.lost()
            else:  # a fault of the broker's: the lease may be well
                self._look_again(watch, error)
        except ray.exceptions.ActorDiedError as error:
            _find_again(watch)
            self._look_again(watch, error)
        except ray.exceptions.RayError as error:
            self._look_again(watch, error)
        else:
            watch.out_of_sight = False
            watch.heard(RequestView.from_dict(told["request"]), told["version"])
            if not watch.view.ended:
                self.follow(watch)

    def _look_again(self, watch: Watch, error: BaseException) -> None:
        if not watch.out_of_sight:
            logger.warning("lost sight of request %s (%s); looking again", watch.view.id, error)
        watch.out_of_sight = True
        heapq.heappush(self._later, (time.monotonic() + LOOK_AGAIN_SECONDS, next(self._count), watch))


def _find_again(watch: Watch) -> None:
    """After `raypool stop` and `raypool start` another actor is the broker: the old one is dead for ever.
    The line is corrected in place, so that the lease's own calls reach the new one, too."""
    try:
        watch.line.actor = find_broker().actor
    except BrokerUnavailable:
        return
    watch.version = -1  # its versions are its own


_watcher: _Watcher | None = None
_starting = threading.Lock()


def follow(watch: Watch) -> Watch:
    """Follows the request until it ends or the watch is closed."""
    global _watcher
    with _starting:
        if _watcher is None or not _watcher.is_alive():
            _watcher = _Watcher()
            _watcher.start()
    _watcher.follow(watch)
    return watch
