"""Learning what becomes of a held lease while the program does something else.

One daemon thread per process keeps a long-poll per watched lease. It hears of a preemption notice and
of the end, and tells the lease; user callbacks run in that thread, one after another.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray.exceptions

from raypool.client.broker import BrokerLine
from raypool.client.waiting import POLL_SECONDS
from raypool.view import RequestView

logger = logging.getLogger("raypool")


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
    """One request, followed until it ends. `view` is the latest that was heard.

    `gone` is set when the broker does not know the request any more.
    """

    def __init__(self, line: BrokerLine, view: RequestView, version: int) -> None:
        self.line = line
        self.view = view
        self.version = version
        self.gone = False
        self.closed = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[PreemptionNotice], Any]] = []
        self._at_end: list[Callable[[], Any]] = []

    @property
    def notice(self) -> PreemptionNotice | None:
        return PreemptionNotice.of(self.view)

    @property
    def over(self) -> bool:
        return self.view.ended or self.gone

    def on_preemption(self, callback: Callable[[PreemptionNotice], Any]) -> None:
        """Calls back once, in the watching thread, when the notice comes; at once if it has come."""
        with self._lock:
            notice = self.notice
            if notice is None:
                self._callbacks.append(callback)
        if notice is not None:
            callback(notice)

    def on_end(self, callback: Callable[[], Any]) -> None:
        """Calls back once, in the watching thread, when the request is over; at once if it is."""
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
        self._tell_end()

    def _tell_end(self) -> None:
        with self._lock:
            callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback()

    def heard(self, view: RequestView, version: int) -> None:
        with self._lock:
            self.view, self.version = view, version
            notice = self.notice
            callbacks = self._callbacks if notice is not None else []
            if callbacks:
                self._callbacks = []
        for callback in callbacks:
            try:
                callback(notice)  # type: ignore[arg-type]
            except Exception:
                logger.exception("an on_preemption callback of request %s failed", self.view.id)
        if self.over:
            self._tell_end()


class _Watcher(threading.Thread):
    """The thread. Answers arrive through Ray's own callbacks and are handled here, in order."""

    def __init__(self) -> None:
        super().__init__(name="raypool-watch", daemon=True)
        self._answers: queue.Queue[tuple[Watch, Any]] = queue.Queue()

    def follow(self, watch: Watch) -> None:
        ref = watch.line.send("watch", watch.view.id, watch.version, POLL_SECONDS)
        ref.future().add_done_callback(lambda future: self._answers.put((watch, future)))

    def run(self) -> None:
        while True:
            watch, future = self._answers.get()
            if watch.closed:
                continue
            try:
                answer = future.result()
            except ray.exceptions.RayTaskError:
                watch.lost()
                continue
            except ray.exceptions.RayError as error:
                logger.warning("lost sight of request %s (%s); looking again", watch.view.id, error)
                time.sleep(1.0)
                self.follow(watch)
                continue
            watch.heard(RequestView.from_dict(answer["request"]), answer["version"])
            if not watch.view.ended:
                self.follow(watch)


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
