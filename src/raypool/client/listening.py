"""The thread that hears what the broker answers to calls that are kept open.

One daemon thread per process. Answers arrive through Ray's own callbacks and are handled here, in order.
All leases of the process depend on that thread, so it never sleeps and never runs a user's callback. A driver
may leave its cluster at any moment: the thread stands still while it does.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray.exceptions

from raypool.client.broker import BrokerLine, connection_stays, find_broker, session
from raypool.errors import BrokerUnavailable, RaypoolError

logger = logging.getLogger("raypool")

LOOK_AGAIN_SECONDS = 1.0
"""How long after a call that failed the next one is sent."""


class Listener(threading.Thread):
    """The thread. What is to be done later waits in `_later` until it is due."""

    def __init__(self) -> None:
        super().__init__(name="raypool-listener", daemon=True)
        self._due: queue.Queue[Callable[[], Any]] = queue.Queue()
        self._later: list[tuple[float, int, Callable[[], Any]]] = []
        self._count = itertools.count()

    def ask(self, line: BrokerLine, method: str, *args: Any, then: Callable[[Any], Any]) -> Any:
        """Calls the broker; the thread hands the answer (a future that is done) to `then`. Returns the
        reference of the call; None if it could not be made: then `then` hears why."""
        reference = None
        try:
            reference = line.send(method, *args)
            answer = reference.future()
        except ray.exceptions.RayError as error:  # this process has left the cluster
            answer = Future()
            answer.set_exception(error)
        answer.add_done_callback(lambda done: self._due.put(partial(then, _without_reference(done))))
        return reference

    def later(self, seconds: float, do: Callable[[], Any]) -> None:
        """Has the thread do it after so many seconds."""
        due = time.monotonic() + seconds
        self._due.put(lambda: heapq.heappush(self._later, (due, next(self._count), do)))

    def run(self) -> None:
        while True:
            pause = max(self._later[0][0] - time.monotonic(), 0.0) if self._later else None
            try:
                due = self._due.get(timeout=pause)
            except queue.Empty:
                due = heapq.heappop(self._later)[2]
            with connection_stays:
                due()
                del due  # it may have the last reference to what Ray counts


def _without_reference(done: Future[Any]) -> Future[Any]:
    """The same answer. Ray's own future has the reference of the call, which an exception that is raised from it
    would keep until the garbage collector comes, in any thread and at any moment."""
    answer: Future[Any] = Future()
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)
    return answer


def find_again(line: BrokerLine) -> bool:
    """After `raypool stop` and `raypool start` another actor is the broker: the old one is dead for ever.
    The line is corrected in place, so that all who use it reach the new one. False if there is none."""
    try:
        line.actor = find_broker().actor
    except BrokerUnavailable:
        return False
    return True


def tell(line: BrokerLine, method: str, *args: Any) -> None:
    """Has the broker hear it, however often its process dies meanwhile, and does not wait for that. What it
    answers does not matter: one that refuses has heard it, and one that is gone for good has ended everything.
    """
    here = session()

    def answered(answer: Any) -> None:
        error = answer.exception()
        if error is None or here != session():
            return
        if isinstance(error, ray.exceptions.RayTaskError) and not isinstance(error.cause, BrokerUnavailable):
            if not isinstance(error.cause, RaypoolError):
                logger.warning("the broker stumbled over %s: %s", method, error)
            return
        if isinstance(error, ray.exceptions.ActorDiedError) and not find_again(line):
            return
        listener().later(LOOK_AGAIN_SECONDS, ask)

    def ask() -> None:
        listener().ask(line, method, *args, then=answered)

    ask()


_listener: Listener | None = None
_starting = threading.Lock()


def listener() -> Listener:
    """The thread of this process."""
    global _listener
    with _starting:
        if _listener is None or not _listener.is_alive():
            _listener = Listener()
            _listener.start()
        return _listener
