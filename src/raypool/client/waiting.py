"""Waiting for a grant: what to ask next, what to tell people meanwhile, when to stop.

The two loops (one for plain code, one for event loops) only send long-polls and sleep; what they
have in common is `Waiting`. While it waits, position and reason are logged after 5 s, then at doubling
intervals up to 15 minutes.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from raypool.client.broker import BrokerLine
from raypool.client.client import explain
from raypool.errors import Preempted, Refused, RequestCancelled, RequestError, RequestRejected, WaitTimeout
from raypool.spec import RequestSpec, new_request_id
from raypool.view import RequestView

logger = logging.getLogger("raypool")

FIRST_LOG_SECONDS = 5.0
LOG_MOST_SECONDS = 15 * 60.0
POLL_SECONDS = 30.0


class Waiting:
    """One request's way from its submission to its grant."""

    def __init__(self, spec: RequestSpec, wait_timeout_seconds: float | None) -> None:
        self.spec = spec
        self.wait_timeout_seconds = wait_timeout_seconds
        self.seen = -1
        self._since = time.monotonic()
        self._step = FIRST_LOG_SECONDS
        self._log_at = self._since + FIRST_LOG_SECONDS
        self._deadline = None if wait_timeout_seconds is None else self._since + wait_timeout_seconds

    def patience(self) -> float:
        """Seconds that the next long-poll may take."""
        now = time.monotonic()
        until = min(self._log_at, now + POLL_SECONDS, self._deadline or float("inf"))
        return max(until - now, 0.0)

    def take(self, answer: dict[str, Any]) -> RequestView | None:
        """The granted request, or None to go on waiting. Raises what ends the wait otherwise."""
        view = RequestView.from_dict(answer["request"])
        self.seen = answer["version"]
        if view.running:
            return view
        if view.ended:
            raise end_of(view)
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise WaitTimeout(f"not granted within {self.wait_timeout_seconds:g} s: {explain(view)}", self.spec.id)
        if now >= self._log_at:
            logger.warning("waiting for %.0f s: %s", now - self._since, explain(view))
            self._step = min(self._step * 2, LOG_MOST_SECONDS)
            self._log_at = now + self._step
        return None


def acquire(
    line: BrokerLine, spec: RequestSpec, job: str | None, wait_timeout_seconds: float | None
) -> tuple[RequestSpec, RequestView, int]:
    """Submits and waits until granted. Returns the spec that was granted (a request that lost its room
    before anybody could use it is asked anew), its view and its version.

    Raises RequestRejected, RequestCancelled, WaitTimeout. Whatever ends the wait withdraws the request.
    """
    waiting = Waiting(spec, wait_timeout_seconds)
    try:
        line.call("submit", waiting.spec.dump(), job)
        while True:
            try:
                patience = waiting.patience()
                answer = line.call("watch", waiting.spec.id, waiting.seen, patience, timeout_seconds=patience + 30)
                view = waiting.take(answer)
            except Preempted:
                waiting.spec, waiting.seen = retry_of(waiting.spec), -1
                line.call("submit", waiting.spec.dump(), job)
                continue
            except Refused:  # the broker came back without it: the same id asks for the same thing
                waiting.seen = -1
                line.call("submit", waiting.spec.dump(), job)
                continue
            if view is not None:
                return waiting.spec, view, waiting.seen
    except BaseException as error:
        if not isinstance(error, RequestRejected | RequestCancelled):
            withdraw(line, waiting.spec.id, _why(error))
        raise


async def acquire_async(
    line: BrokerLine, spec: RequestSpec, job: str | None, wait_timeout_seconds: float | None
) -> tuple[RequestSpec, RequestView, int]:
    """`acquire` for code that runs on an event loop."""
    waiting = Waiting(spec, wait_timeout_seconds)
    try:
        await line.acall("submit", waiting.spec.dump(), job)
        while True:
            try:
                patience = waiting.patience()
                answer = await line.acall(
                    "watch", waiting.spec.id, waiting.seen, patience, timeout_seconds=patience + 30
                )
                view = waiting.take(answer)
            except Preempted:
                waiting.spec, waiting.seen = retry_of(waiting.spec), -1
                await line.acall("submit", waiting.spec.dump(), job)
                continue
            except Refused:
                waiting.seen = -1
                await line.acall("submit", waiting.spec.dump(), job)
                continue
            if view is not None:
                return waiting.spec, view, waiting.seen
    except BaseException as error:
        if not isinstance(error, RequestRejected | RequestCancelled):
            withdraw(line, waiting.spec.id, _why(error))
        raise


def withdraw(line: BrokerLine, request_id: str, reason: str) -> None:
    """Sends the cancellation and does not wait: the owner has something else on its mind. The broker
    itself notices when a job is over."""
    line.send("cancel", request_id, reason)


def _why(error: BaseException) -> str:
    if isinstance(error, WaitTimeout):
        return "its owner stopped waiting: wait_timeout_seconds is over"
    return f"its owner stopped waiting: {type(error).__name__}"


def retry_of(spec: RequestSpec) -> RequestSpec:
    """The same thing asked anew: a retry is a new request that names the first one."""
    return spec.model_copy(update={"id": new_request_id(), "retry_of": spec.retry_of or spec.id})


def end_of(view: RequestView) -> RequestError:
    """The exception that tells how a request ended."""
    if view.status == "preempted":
        return preempted(view)
    if view.status == "rejected":
        return RequestRejected(f"request '{view.id}' was rejected: {view.reason}", view.id)
    return RequestCancelled(f"request '{view.id}' was {view.status}: {view.reason}", view.id)


def preempted(view: RequestView) -> Preempted:
    return Preempted(
        f"request '{view.id}' of '{view.component}' {view.reason}",
        view.id,
        view.pool or "",
        view.preemption_rule or "",
        view.preempted_by or "",
        view.preempted_by_component or "",
    )
