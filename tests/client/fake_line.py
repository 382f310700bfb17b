"""A broker's line without a broker: answers are what a test puts there; long-polls stay open until it speaks."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import ray.exceptions

from raypool.client.watch import Watch
from raypool.errors import Refused
from raypool.view import RequestView


def view(request_id: str = "r1", status: str = "allocated", **more: Any) -> RequestView:
    facts: dict[str, Any] = {
        "id": request_id, "component": "red", "component_type": "team", "status": status, "pool": "gpus",
        "reason": None, "rule": None, "demand": {"gpu": 1}, "preemptible": True, "workers": 1, "strategy": "PACK",
        "submitted_at": 0.0, "number": 1, "group_id": "ab" * 18, "nodes": ["n1"], "bundles": [{"GPU": 1.0}],
    }  # fmt: skip
    return RequestView(**(facts | more))


def preempting(deadline: float, request_id: str = "r1") -> RequestView:
    return view(
        request_id, "preempting", deadline=deadline, preempted_by="r9", preempted_by_component="blue",
        preemption_rule="preempt", reason="has to make room",
    )  # fmt: skip


def task_error(cause: Exception) -> ray.exceptions.RayTaskError:
    return ray.exceptions.RayTaskError("f", "traceback", cause).as_instanceof_cause()


class FakeRef:
    def __init__(self) -> None:
        self.answered: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.answered


class FakeLine:
    """`trouble[method]` is raised by its next calls, as many as there are. Calls are written down. What is
    sent is a long-poll of `polls`; other calls that stay open are in `sent`, by method."""

    def __init__(self) -> None:
        self.actor: Any = "the first"
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}
        self.trouble: dict[str, list[Exception]] = {}
        self.polls: list[FakeRef] = []
        self.sent: dict[str, list[tuple[tuple[Any, ...], FakeRef]]] = {}
        self._polled = threading.Condition()

    def call(self, method: str, *args: Any, **more: Any) -> Any:
        self.calls.append((method, *args))
        if self.trouble.get(method):
            raise self.trouble[method].pop(0)
        answer = self.answers.get(method)
        return answer.pop(0) if isinstance(answer, list) else answer

    async def acall(self, method: str, *args: Any, **more: Any) -> Any:
        return self.call(method, *args, **more)

    def send(self, method: str, *args: Any, **more: Any) -> FakeRef:
        with self._polled:
            ref = FakeRef()
            if method == "watch":
                self.polls.append(ref)
            else:
                self.sent.setdefault(method, []).append((args, ref))
            self._polled.notify_all()
            return ref

    def open_call(self, method: str, number: int) -> tuple[tuple[Any, ...], Future[Any]]:
        """The arguments and the answer-to-be of what was sent to that method, by number (from 1), once it is
        there."""
        with self._polled:
            was_sent = self._polled.wait_for(lambda: len(self.sent.get(method, ())) >= number, 5)
            assert was_sent, f"call {number} of {method} was not sent"
            args, ref = self.sent[method][number - 1]
            return args, ref.answered

    def poll(self, number: int) -> Future[Any]:
        """The long-poll of that number (from 1), once it is there."""
        with self._polled:
            assert self._polled.wait_for(lambda: len(self.polls) >= number, 5), f"long-poll {number} was not sent"
            return self.polls[number - 1].answered

    def tell(self, number: int, told: RequestView, version: int = 1) -> None:
        self.poll(number).set_result({"request": told.as_dict(), "version": version})

    def refuse(self, number: int) -> None:
        self.poll(number).set_exception(task_error(Refused("there is no such request")))


def watched(line: FakeLine, request_id: str = "r1") -> Watch:
    return Watch(line, view(request_id), 0)  # type: ignore[arg-type]
