"""Waiting for a grant: what to ask next, what to tell people meanwhile, when to stop.

The two loops (one for plain code, one for event loops) only carry calls to the broker; what to ask and
what the answers mean is `Waiting`. While it waits, why is logged after 5 s, then at doubling intervals up to
15 minutes: the reason, the facts behind it, and what would start it, if the broker has time to look for that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raypool.client.broker import BrokerLine
from raypool.client.listening import tell
from raypool.errors import (
    DurationExceeded,
    GroupLost,
    NodeLost,
    Preempted,
    Refused,
    RequestCancelled,
    RequestError,
    RequestRejected,
    WaitTimeout,
)
from raypool.spec import RequestSpec, new_request_id
from raypool.view import ExplanationView, RequestView

logger = logging.getLogger("raypool")

FIRST_LOG_SECONDS = 5.0
LOG_MOST_SECONDS = 15 * 60.0
POLL_SECONDS = 30.0

LOST = {"node-lost": NodeLost, "group-lost": GroupLost}
"""By the rule of the reason: the request lost its placement group, and may be asked anew in its place."""

TOO_LONG = "max-duration"
"""The rule of one that ran longer than it asked for: it is not asked anew."""


Granted = tuple[RequestSpec, RequestView, int]
"""The spec that was granted (a request that lost its room before anybody could use it is asked anew), its
view and its version."""


class Waiting:
    """One request's way from its submission to its grant: `next_call` says what to ask the broker,
    `take` and `refused` hear the answer, until `granted` is set or one of them raises."""

    def __init__(
        self, spec: RequestSpec, job: str | None, wait_timeout_seconds: float | None, holder: str | None
    ) -> None:
        self.spec = spec
        self.job = job
        self.holder = holder
        self.wait_timeout_seconds = wait_timeout_seconds
        self.granted: Granted | None = None
        self._submitted = False
        self._seen = -1
        self._since = time.monotonic()
        self._step = FIRST_LOG_SECONDS
        self._log_at = self._since + FIRST_LOG_SECONDS
        self._deadline = None if wait_timeout_seconds is None else self._since + wait_timeout_seconds

    def next_call(self) -> tuple[str, tuple[Any, ...], float]:
        """The broker's method, its arguments, and how many seconds the answer may take."""
        now = time.monotonic()
        until = min(now + POLL_SECONDS, float("inf") if self._deadline is None else self._deadline)
        patience, explain = max(min(self._log_at, until) - now, 0.0), self._log_at <= until
        if self._submitted:
            return "watch", (self.spec.id, self._seen, patience, explain), patience + 30.0
        return "acquire", (self.spec.dump(), self.job, self.holder, patience, explain), patience + 30.0

    def take(self, answer: dict[str, Any]) -> None:
        """Raises RequestRejected, RequestCancelled or WaitTimeout."""
        self._submitted = True
        view, self._seen = RequestView.from_dict(answer["request"]), answer["version"]
        if view.running:
            self.granted = self.spec, view, self._seen
        elif view.status == "preempted":
            self.spec, self._submitted = retry_of(self.spec), False
        elif view.status == "cancelled" and view.rule in LOST and self.spec.on_node_loss != "fail":
            self.spec, self._submitted = in_place_of(self.spec), False
        elif view.ended:
            raise end_of(view)
        else:
            self._still_waiting(view, answer.get("why"))

    def refused(self, error: Refused) -> None:
        """A broker that came back without it is asked again: the same id asks for the same thing."""
        if not self._submitted:
            raise error
        self._submitted = False

    def _still_waiting(self, view: RequestView, why: dict[str, Any] | None) -> None:
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise WaitTimeout(f"not granted within {self.wait_timeout_seconds:g} s: {view.story}", self.spec.id)
        if now >= self._log_at:
            told = view.story if why is None else str(ExplanationView.from_dict(why))
            logger.warning("waiting for %.0f s: %s", now - self._since, told)
            self._step = min(self._step * 2, LOG_MOST_SECONDS)
            self._log_at = now + self._step


def acquire(
    line: BrokerLine,
    spec: RequestSpec,
    job: str | None,
    wait_timeout_seconds: float | None,
    holder: str | None = None,
) -> Granted:
    """Submits and waits until granted.

    holder: the name under which this process is present at the broker, if the request is to end with it.
    Raises RequestRejected, RequestCancelled, WaitTimeout. Whatever ends the wait withdraws the request.
    """
    waiting = Waiting(spec, job, wait_timeout_seconds, holder)
    with _withdrawn_if_it_fails(line, waiting):
        while waiting.granted is None:
            method, arguments, seconds = waiting.next_call()
            try:
                answer = line.call(method, *arguments, timeout_seconds=seconds)
            except Refused as error:
                waiting.refused(error)
            else:
                waiting.take(answer)
        return waiting.granted


async def acquire_async(
    line: BrokerLine,
    spec: RequestSpec,
    job: str | None,
    wait_timeout_seconds: float | None,
    holder: str | None = None,
) -> Granted:
    """`acquire` for code that runs on an event loop."""
    waiting = Waiting(spec, job, wait_timeout_seconds, holder)
    with _withdrawn_if_it_fails(line, waiting):
        while waiting.granted is None:
            method, arguments, seconds = waiting.next_call()
            try:
                answer = await line.acall(method, *arguments, timeout_seconds=seconds)
            except Refused as error:
                waiting.refused(error)
            else:
                waiting.take(answer)
        return waiting.granted


@contextmanager
def _withdrawn_if_it_fails(line: BrokerLine, waiting: Waiting) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not isinstance(error, RequestRejected | RequestCancelled | Refused):
            # Nobody waits for the answer: the owner has something else on its mind.
            tell(line, "cancel", waiting.spec.id, _why(error))
        raise


def _why(error: BaseException) -> str:
    if isinstance(error, WaitTimeout):
        return "its owner stopped waiting: wait_timeout_seconds is over"
    return f"its owner stopped waiting: {type(error).__name__}"


def retry_of(spec: RequestSpec) -> RequestSpec:
    """The same thing asked anew: a retry is a new request that names the first one."""
    return spec.model_copy(update={"id": new_request_id(), "retry_of": spec.retry_of or spec.id})


def in_place_of(spec: RequestSpec) -> RequestSpec:
    """The same thing asked anew after it lost its placement group. It names the very request that did: the
    broker gives it that one's place in line."""
    return spec.model_copy(update={"id": new_request_id(), "retry_of": spec.id})


def end_of(view: RequestView) -> RequestError:
    """The exception that tells how a request ended."""
    if view.status == "preempted":
        return preempted(view)
    if view.status == "rejected":
        return RequestRejected(f"request '{view.id}' was rejected: {view.reason}", view.id)
    if view.rule == TOO_LONG:
        return too_long(view)
    kind = LOST.get(view.rule or "", RequestCancelled)
    return kind(f"request '{view.id}' was {view.status}: {view.reason}", view.id)


def taken_away(view: RequestView) -> RequestError:
    """The exception for one that has been told to leave."""
    return too_long(view) if view.rule == TOO_LONG else preempted(view)


def too_long(view: RequestView) -> DurationExceeded:
    return DurationExceeded(f"request '{view.id}' of '{view.component}' {view.reason}", view.id)


def preempted(view: RequestView) -> Preempted:
    return Preempted(
        f"request '{view.id}' of '{view.component}' {view.reason}",
        view.id,
        view.pool or "",
        view.preemption_rule or "",
        view.preempted_by or "",
        view.preempted_by_component or "",
    )
