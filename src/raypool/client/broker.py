"""The line to the broker actor: finds it, calls it, and turns Ray's errors into ours.

Calls can be repeated: the client makes the request ids, so asking twice is asking once. While the
broker's process restarts, a call waits for it (`RECONNECT_SECONDS`) instead of failing.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import ray
import ray.exceptions
from ray._private.worker import _connect_or_shutdown_lock

from raypool.errors import BrokerUnavailable, RaypoolError, SpecError

NAMESPACE = "raypool"
NAME = "broker"

RECONNECT_SECONDS = 30.0
"""How long a call waits for a broker that is away before it raises BrokerUnavailable."""

_PAUSE_SECONDS = 0.2

_AWAY = (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError)

connection_stays: AbstractContextManager[Any] = _connect_or_shutdown_lock
"""Ray's own lock, which `ray.init` and `ray.shutdown` hold while they run. A thread of ours holds it whenever it
touches Ray, be it only to drop a reference: Ray ends a process, with exit code 1 and without an exception, when a
thread calls it while another shuts it down. It is taken before any lock of ours."""


class BrokerLine:
    """One process's connection to the broker of the cluster that it is connected to."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def call(self, method: str, *args: Any, timeout_seconds: float = 30.0, **more: Any) -> Any:
        """Calls and waits. Raises the broker's own errors, or BrokerUnavailable."""
        give_up = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return ray.get(self.send(method, *args, **more), timeout=timeout_seconds)
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
            except _AWAY as error:
                if time.monotonic() > give_up:
                    raise _unavailable(error) from None
                time.sleep(_PAUSE_SECONDS)

    async def acall(self, method: str, *args: Any, timeout_seconds: float = 30.0, **more: Any) -> Any:
        """The same for code that runs on an event loop."""
        give_up = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return await _within(timeout_seconds, _result(self.send(method, *args, **more)))
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
            except (*_AWAY, asyncio.TimeoutError) as error:
                if time.monotonic() > give_up:
                    raise _unavailable(error) from None
                await asyncio.sleep(_PAUSE_SECONDS)

    def send(self, method: str, *args: Any, **more: Any) -> Any:
        """Calls and returns the reference at once. Raises SpecError for what Ray cannot send."""
        call = getattr(self.actor, method)
        try:
            return call.remote(*args, **more)
        except (TypeError, RecursionError, pickle.PicklingError) as error:
            why = " ".join(str(error)[:1000].split())[:200]  # Ray repeats all of the argument
            raise SpecError(
                f"{method}: the broker takes plain data only, as JSON has it: not what Ray cannot send ({why})"
            ) from None


async def _within(seconds: float, work: Any) -> Any:
    """asyncio.wait_for, which before Python 3.12 loses a cancellation that comes together with the result."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def _result(ref: Any) -> Any:
    return await ref


def _cause(error: ray.exceptions.RayTaskError) -> BaseException:
    """Our own error if the broker raised one; else Ray's, with the broker's traceback: that is a bug."""
    return error.cause if isinstance(error.cause, RaypoolError) else error


def _unavailable(error: BaseException) -> BrokerUnavailable:
    return BrokerUnavailable(f"the broker does not answer: {' '.join(str(error).split())}")


def find_broker() -> BrokerLine:
    """The broker of the cluster that this process is connected to. Raises BrokerUnavailable."""
    if not ray.is_initialized():
        raise BrokerUnavailable("not connected to a Ray cluster: call ray.init(), or raypool.connect()")
    try:
        return BrokerLine(ray.get_actor(NAME, namespace=NAMESPACE))
    except ValueError:
        raise BrokerUnavailable(
            f"no broker runs on the Ray cluster at {_address()}: start one with `raypool start` or raypool.start()"
        ) from None


def _address() -> str:
    return str(ray.get_runtime_context().gcs_address)


def job_id() -> str:
    """The Ray job that this process belongs to (hex)."""
    return str(ray.get_runtime_context().get_job_id())


def session() -> tuple[str, str] | None:
    """The cluster and the job that this process is connected to; None if it is not. A driver may leave a
    cluster and join another."""
    if not ray.is_initialized():
        return None
    return _address(), job_id()


def job_metadata() -> Mapping[str, str]:
    """What `ray job submit --metadata-json` said; it reaches drivers, tasks and actors of the job. Empty
    in a process that is not connected."""
    if not ray.is_initialized():
        return {}
    from ray._private.worker import global_worker

    metadata: Mapping[str, str] = global_worker.core_worker.get_job_config().metadata
    return metadata
