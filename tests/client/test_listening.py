"""The listener's thread lives beside a program that may leave its cluster at any moment."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import ray
import ray.exceptions

from raypool.client import listening
from raypool.client.broker import connection_stays

from .fake_line import FakeLine


@pytest.fixture(autouse=True)
def a_listener_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(listening, "_listener", None)
    yield


@pytest.mark.parametrize("what", ["ray.shutdown", "the listener"])
def test_ray_is_not_shut_down_while_the_listener_touches_it(what: str) -> None:
    done = threading.Event()

    def leave() -> None:
        ray.shutdown()
        done.set()

    with connection_stays:
        if what == "ray.shutdown":
            threading.Thread(target=leave, daemon=True).start()
        else:
            listening.listener().later(0.0, done.set)
        assert not done.wait(0.2)
    assert done.wait(5)


def test_what_was_heard_keeps_no_reference_of_a_call_that_failed() -> None:
    line, heard = FakeLine(), threading.Event()

    def then(answer: Future[Any]) -> None:
        with pytest.raises(ray.exceptions.RayActorError):
            answer.result()
        listening.listener().later(0.0, heard.set)

    gc.collect()
    gc.disable()
    try:
        listening.listener().ask(line, "watch", then=then)  # type: ignore[arg-type]
        rays_own = weakref.ref(line.polls[0].answered)
        line.polls.pop().answered.set_exception(ray.exceptions.RayActorError())
        assert heard.wait(5)
        assert rays_own() is None
    finally:
        gc.enable()
