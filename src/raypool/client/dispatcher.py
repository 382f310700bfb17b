"""The dispatcher: runs decorated tasks, each in a placement group of its own, and owns their retries.

One async actor per calling process, on the caller's node. `train.remote(x)` is a call of it: it takes
a lease, runs the user's function there, gives the lease back and returns the result. It exists because
the call must return an ObjectRef at once while the request still waits, and because somebody must see
both the result and the end of the lease: Ray would let work in a removed placement group hang.

Values given as arguments and results pass through this process, copied once each way; ObjectRefs are
passed on as they are.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions
from ray.core.generated.gcs_pb2 import ActorTableData

from raypool.client.broker import find_broker, session
from raypool.client.lease import ASK_AGAIN_SECONDS, Lease
from raypool.client.waiting import TOO_LONG, in_place_of, preempted, retry_of, taken_away
from raypool.errors import GroupLost, Preempted, RaypoolError
from raypool.spec import RequestSpec

logger = logging.getLogger("raypool")

FUNCTIONS_KEPT = 100
"""How many functions a dispatcher remembers. One that was forgotten is fetched again with its next call."""


@dataclass(frozen=True)
class Call:
    """How a decorated function is to be run. `ray_options` are those that Ray takes with each call. watched: it
    returns (its result, whether it left nothing behind): see leftovers.py."""

    spec: dict[str, Any]
    wait_timeout_seconds: float | None
    max_preemptions: int
    capture_child_tasks: bool
    ray_options: dict[str, Any]
    watched: bool = False


class Dispatcher:
    """Plain Python; `dispatcher_of_this_process` makes a Ray actor of it."""

    def __init__(self) -> None:
        self._functions: OrderedDict[str, Any] = OrderedDict()  # the latest used last

    async def run(self, function: list[Any], call: Call, packed: tuple[Any, Any]) -> Any:
        """Runs the function in a lease; queues it again when it is preempted or its node dies, up to
        max_preemptions times.

        `function` is a list with a reference to the remote function, `packed` is (args, kwargs): inside
        a container, ObjectRefs among them are not fetched here.
        """
        return await _apart(self._run(function, _Run(call), packed))

    async def stream(self, function: list[Any], call: Call, packed: tuple[Any, Any]) -> AsyncIterator[Any]:
        """The same for a generator. Once something was yielded, a preemption cannot be hidden any more."""
        items = self._stream(function, _Run(call), packed)
        try:
            while True:
                try:
                    item = await _apart(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            await _apart(items.aclose())

    async def _run(self, function: list[Any], run: _Run, packed: tuple[Any, Any]) -> Any:
        while True:
            lease = run.lease()
            try:
                async with lease:
                    result = await run.result(lease, await self._function(function), *packed)
                    lease.give_back()  # whoever waits for the result need not wait for that
                    return result
            except (Preempted, GroupLost) as error:
                run.again(lease, error)

    async def _stream(self, function: list[Any], run: _Run, packed: tuple[Any, Any]) -> AsyncGenerator[Any, None]:
        yielded = False
        while True:
            lease = run.lease()
            try:
                async with lease:
                    async for item in run.items(lease, await self._function(function), *packed):
                        yielded = True
                        yield item
                    return
            except (Preempted, GroupLost) as error:
                run.again(lease, error, may_run_again=not yielded)

    async def _function(self, holder: list[Any]) -> Any:
        key = holder[0].hex()
        function = self._functions.get(key)
        if function is None:
            function = await holder[0]
        self._functions[key] = function
        self._functions.move_to_end(key)
        while len(self._functions) > FUNCTIONS_KEPT:
            self._functions.popitem(last=False)
        return function


class _Run:
    """One call, through all its leases."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.spec: RequestSpec = RequestSpec.load(call.spec)
        self.times = 0

    def lease(self) -> Lease:
        return Lease(self.spec, self.call.wait_timeout_seconds, self.call.capture_child_tasks)

    def again(self, lease: Lease, error: Preempted | GroupLost, may_run_again: bool = True) -> None:
        """Goes on with a new request, or raises when it has happened too often or is not wanted.

        An error that names another request is not about this call: it is what the function raised, as
        when a call inside of it was preempted too often.
        """
        if error.request_id != lease.request_id and (error.request_id or isinstance(error, GroupLost)):
            raise error
        if lease.preemption_notice is not None and lease.preemption_notice.rule == TOO_LONG:
            raise taken_away(lease.view) from error  # it left early, and would only run as long again
        ours = _of_this_lease(lease, error) if isinstance(error, Preempted) else error
        if isinstance(error, GroupLost) and self.spec.on_node_loss == "fail":
            raise ours
        self._once_more(ours, error, may_run_again)
        logger.warning("%s; queued again (%d of %d)", ours, self.times, self.call.max_preemptions)
        self.spec = in_place_of(lease.spec) if isinstance(error, GroupLost) else retry_of(self.spec)

    def _once_more(self, ours: Exception, error: Exception, may_run_again: bool = True) -> None:
        self.times += 1
        if self.times > self.call.max_preemptions or not may_run_again:
            raise ours from error

    async def result(self, lease: Lease, function: Any, args: Any, kwargs: Any) -> Any:
        """What the function returns. If it left nothing behind, the lease is told so: what it ran was all there
        was (what an earlier run left on another node of a group that was repaired, nobody has seen)."""
        repaired_once = False
        while True:
            refs = self._start(lease, function, args, kwargs)
            several = isinstance(refs, list)
            work = asyncio.gather(*(_value(ref) for ref in refs)) if several else _value(refs)
            try:
                value = await self._guard(lease, refs if several else [refs], work)
            except _Repaired as repaired:
                repaired_once = True
                self._in_the_repaired(lease, repaired)
            else:
                if self.call.watched:
                    value, left_nothing = value
                    if left_nothing and not repaired_once:
                        lease.left_nothing()
                return tuple(value) if several else value

    async def items(self, lease: Lease, function: Any, args: Any, kwargs: Any) -> AsyncIterator[Any]:
        generator, yielded = self._start(lease, function, args, kwargs), False
        while True:
            try:
                item = await self._guard(lease, [generator], _next_value(generator))
            except StopAsyncIteration:
                return
            except _Repaired as repaired:
                self._in_the_repaired(lease, repaired, may_run_again=not yielded)
                generator = self._start(lease, function, args, kwargs)
            else:
                yielded = True
                yield item

    def _in_the_repaired(self, lease: Lease, repaired: _Repaired, may_run_again: bool = True) -> None:
        self._once_more(repaired.error, repaired.error, may_run_again)
        logger.warning(
            "a node of request '%s' died, and Ray has repaired its placement group; run again in it (%d of %d)",
            lease.request_id, self.times, self.call.max_preemptions,
        )  # fmt: skip

    def _start(self, lease: Lease, function: Any, args: Any, kwargs: Any) -> Any:
        return function.options(**self.call.ray_options, **lease.task_options(0)).remote(*args, **kwargs)

    async def _guard(self, lease: Lease, refs: list[Any], work: Any) -> Any:
        """Waits for the work or for the end of its lease, whichever comes first.

        When the lease ends first, what is stuck is cancelled: Ray would let it wait for ever. When the
        work fails first, the broker is asked: a removal shows as an error of Ray's, or as anything that
        the function makes of the death of its children or of its own SystemExit, or a dead node does (see
        `Lease.why_it_failed`). If the lease is well, the error is raised as Ray gave it: it has the lines
        of the function. Raises _Repaired if it is well again, on other nodes.
        """
        nodes = lease.nodes
        working = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._end_of(lease))
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                try:
                    return working.result()
                except ray.exceptions.RayError as error:
                    ended = await lease.why_it_failed()
                    while ended is None and lease.under_repair:
                        await asyncio.sleep(ASK_AGAIN_SECONDS)
                        ended = await lease.ending_now()
                    if ended is not None:
                        raise ended from error
                    if lease.lost_some_of(nodes):
                        raise _Repaired(error) from error
                    raise
            raise ending.result()
        finally:
            if not working.done():
                for ref in refs:
                    ray.cancel(ref, force=True)
            for future in (working, ending):
                future.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    async def _end_of(self, lease: Lease) -> RaypoolError:
        """The exception that tells how the lease ended, once it has ended without our doing."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        lease.on_end(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        ending = lease.ending
        assert ending is not None
        return ending


class _Repaired(Exception):
    """The work died with a node, and Ray has repaired the placement group since: it can run there again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _apart(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Runs it where Ray does not know on behalf of which task: `ray.cancel` also cancels what the task
    called, and that would be the very call that gives the lease back. Cancelling what waits for it
    cancels it too."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, work)


def _of_this_lease(lease: Lease, error: Preempted) -> Preempted:
    """With the broker's figures, if the function raised it itself, to leave early."""
    if error.by and error.request_id:
        return error
    if lease.preemption_notice is not None:
        return preempted(lease.view)
    # str() of what comes from a worker is its whole traceback, so the plain error is asked for its message.
    plain = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return Preempted(
        str(plain), lease.request_id, error.pool or lease.pool or "", error.rule, error.by, error.by_component
    )


async def _value(ref: Any) -> Any:
    return await ref


async def _next_value(generator: Any) -> Any:
    return await (await generator.__anext__())


_dispatcher: Any = None
_making = threading.Lock()


def dispatcher_of_this_process() -> Any:
    """The dispatcher actor of the calling process: made at the first call, ended with the process.

    When it died (its node, out of memory) another is made; the calls that it had are lost.
    """
    global _dispatcher
    with _making:
        if _dispatcher is None or _dispatcher[0] != session() or _is_dead(_dispatcher[1]):
            _dispatcher = (session(), _make())
        return _dispatcher[1]


def _make() -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    find_broker()  # says in one sentence what is missing, before an actor fails to start
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(Dispatcher)
        .options(
            num_cpus=0,
            max_concurrency=15_000,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        )
        .remote()
    )


def _is_dead(actor: Any) -> bool:
    """What this process has heard of it from Ray: costs no call, and comes some milliseconds late."""
    return bool(actor._get_local_state() == ActorTableData.DEAD)
