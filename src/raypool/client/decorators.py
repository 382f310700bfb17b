"""`@raypool.remote`: Ray tasks and actors that wait for their turn in a pool.

    @raypool.remote(component="team-ml", resources=ResourceSettings(gpu_count=2))
    def train(config): ...

    ref = train.remote(config)        # an ObjectRef: queued, granted, run in its group, given back

It goes on a function or a class, or on top of `@ray.remote`, whose options it keeps. Options that
would fight with the pool (num_gpus, scheduling_strategy, ...) are errors that say what to use instead.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import ray
from ray.actor import ActorClass, ActorHandle
from ray.remote_function import RemoteFunction

from raypool.client.client import request_spec
from raypool.client.dispatcher import Call, dispatcher_of_this_process
from raypool.client.lease import Lease, resource_settings
from raypool.client.leftovers import watched
from raypool.errors import SpecError
from raypool.spec import RequestSpec, ResourceSettings

_USE_INSTEAD = {
    "num_gpus": "resources=ResourceSettings(gpu_count=...)",
    "num_cpus": "resources=ResourceSettings(cpu_count=...)",
    "memory": "resources=ResourceSettings(memory=...)",
    "object_store_memory": "resources=ResourceSettings(memory=...)",
    "accelerator_type": "a pool whose node_labels choose such nodes",
    "label_selector": "a pool whose node_labels choose such nodes",
    "fallback_strategy": "several pools for the component: it takes the first that has room",
    "scheduling_strategy": "the pool, which places it; strategy=... and workers=... shape its placement group",
    "placement_group": "raypool.lease(), which gives you the placement group",
    "placement_group_bundle_index": "raypool.lease() and lease.task_options(bundle)",
    "placement_group_capture_child_tasks": "capture_child_tasks=True",
    "max_retries": "max_preemptions=..., for being evicted; catch what your own code raises",
    "retry_exceptions": "max_preemptions=..., for being evicted; catch what your own code raises",
    "max_restarts": "a new actor: one that lost its place must ask the pool again",
    "max_task_retries": "a new actor: one that lost its place must ask the pool again",
    "get_if_exists": "ray.get_actor(name): an actor of a pool is always a new one",
    "concurrency_group": "Ray's own options on the methods",
    "_generator_backpressure_num_objects": "raypool.lease() and lease.task_options(), with Ray's own generator",
}
"""Ray's options that cannot work together with a pool, and what to write instead."""

_HARMLESS = {
    "max_retries": 0,
    "max_restarts": 0,
    "max_task_retries": 0,
    "num_cpus": None,
    "num_gpus": None,
    "_generator_backpressure_num_objects": None,
}
"""Values of such options that ask for what a lease does anyway."""

_FIXED_WHEN_MADE = ("max_calls", "num_returns", "_num_objects_per_yield")
"""Options that belong to the function that is sent to the dispatcher; the others go with each call."""


@dataclass(frozen=True)
class PoolOptions:
    """What `@raypool.remote` and `.options()` take besides Ray's own options.

    component, component_type: who asks; else RAYPOOL_COMPONENT, else the job's metadata.
    resources: what one worker holds. workers, strategy: for a group with more bundles than one; the
    task or actor itself runs in bundle 0, its children in all, with capture_child_tasks=True.
    pool: pins it to one pool. wait_timeout_seconds: None waits for ever.
    max_preemptions: how often a task that was preempted, or whose node died, is queued again, before it
    raises Preempted or NodeLost. grace_seconds: shortens the pool's grace.
    on_node_loss, repair_seconds: what becomes of it when a node under it dies; see RequestSpec.
    max_duration_seconds: how long each run may take; a task that ran longer raises DurationExceeded, and is not
    queued again.
    """

    component: str | None = None
    component_type: str | None = None
    resources: ResourceSettings | None = None
    workers: int = 1
    strategy: str = "PACK"
    pool: str | None = None
    wait_timeout_seconds: float | None = None
    max_preemptions: int = 3
    grace_seconds: float | None = None
    capture_child_tasks: bool = False
    on_node_loss: str = "requeue"
    repair_seconds: float | None = None
    max_duration_seconds: float | None = None
    description: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.max_preemptions, bool) or not isinstance(self.max_preemptions, int):
            raise SpecError(f"max_preemptions: must be a whole number, got {self.max_preemptions!r}")
        if self.max_preemptions < 0:
            raise SpecError(f"max_preemptions: must be >= 0, got {self.max_preemptions}")
        timeout = self.wait_timeout_seconds
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise SpecError(f"wait_timeout_seconds: must be a number >= 0 or None, got {timeout!r}")
        self.request(component=self.component or "checked when it is called")

    def request(self, **more: Any) -> RequestSpec:
        """A new request for one call."""
        shared = ("component", "component_type", "resources", "workers", "strategy", "pool", "grace_seconds")
        ends = ("on_node_loss", "repair_seconds", "max_duration_seconds")
        asked = {name: getattr(self, name) for name in (*shared, *ends, "description")} | more
        return request_spec({name: value for name, value in asked.items() if value is not None})


_POOL_OPTIONS = {one.name for one in fields(PoolOptions)}


def remote(*target: Any, **options: Any) -> Any:
    """Makes a function or a class run in pools. Use it as `@raypool.remote(...)` or `@raypool.remote`.

    Takes the fields of `PoolOptions`, and Ray's own options that can work with a pool (runtime_env,
    num_returns, max_calls, name, max_concurrency, lifetime, ...). Raises SpecError for others.

    A decorated function has `.remote(...)`, which returns an ObjectRef at once, and `.options(...)`.
    A decorated class has `.remote(...)`, which waits for the grant and returns Ray's ActorHandle,
    `.remote_async(...)` and `.options(...)`.
    """
    if target and (len(target) > 1 or options or not callable(target[0])):
        raise SpecError(
            "use @raypool.remote, or @raypool.remote(component=..., resources=...), on a function or class"
        )
    if target:
        return _pooled(target[0], {})
    return lambda function_or_class: _pooled(function_or_class, options)


def _pooled(target: Any, options: dict[str, Any]) -> PooledFunction | PooledActorClass:
    if isinstance(target, RemoteFunction):
        return PooledFunction(target._function, *_split(options, dict(target._default_options)))
    if isinstance(target, ActorClass):
        plain = target.__ray_metadata__.modified_class
        return PooledActorClass(plain, *_split(options, dict(target._default_options)))
    if inspect.isclass(target):
        return PooledActorClass(target, *_split(options, {}))
    if inspect.isfunction(target):
        return PooledFunction(target, *_split(options, {}))
    raise SpecError(
        f"@raypool.remote goes on a function, a class, or what @ray.remote made of one; got {type(target).__name__}"
        " (what .options() returns cannot be decorated: give the options to @raypool.remote)"
    )


def _split(
    options: Mapping[str, Any], ray_options: dict[str, Any], pool_options: PoolOptions | None = None
) -> tuple[PoolOptions, dict[str, Any]]:
    """The pool's options, and Ray's. Raises SpecError for those that cannot work together."""
    ours = {name: value for name, value in options.items() if name in _POOL_OPTIONS}
    if isinstance(ours.get("resources"), Mapping):
        ours["resources"] = resource_settings(ours["resources"])
    theirs = {**ray_options, **{name: value for name, value in options.items() if name not in _POOL_OPTIONS}}
    for name, instead in _USE_INSTEAD.items():
        if name in theirs and theirs[name] != _HARMLESS.get(name, ...):
            raise SpecError(f"{name}: cannot be used together with a pool, got {theirs[name]!r}; use {instead}")
        theirs.pop(name, None)
    if "resources" in theirs:
        raise SpecError(
            "resources: Ray's custom resources cannot be used with a pool; use ResourceSettings(pool_resources=...) "
            "and the pool's ray_resources"
        )
    if theirs.get("num_returns") == "dynamic":
        raise SpecError("num_returns: 'dynamic' cannot be used with a pool; use 'streaming'")
    return replace(pool_options or PoolOptions(), **ours), theirs


class PooledFunction:
    """A function that runs in pools: `.remote()` returns an ObjectRef (or a generator of them)."""

    def __init__(
        self,
        function: Callable[..., Any],
        pool_options: PoolOptions,
        ray_options: dict[str, Any],
        sent: SentFunction | None = None,
    ) -> None:
        self._function = function
        self._pool_options = pool_options
        self._ray_options = ray_options
        self._sent = sent or SentFunction(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._when_made, self._when_called = self._checked_by_ray()

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Asks for the function to be run; returns at once. `ray.get` of the result raises what the
        function raises, Preempted, DurationExceeded, RequestRejected, RequestCancelled or WaitTimeout."""
        inspect.signature(self._function).bind(*args, **kwargs)
        options = self._pool_options
        call = Call(
            spec=options.request().dump(),
            wait_timeout_seconds=options.wait_timeout_seconds,
            max_preemptions=options.max_preemptions,
            capture_child_tasks=options.capture_child_tasks,
            ray_options=self._when_called,
            watched=self._watched,
        )
        dispatcher = dispatcher_of_this_process()
        arguments = ([self._sent.reference(dispatcher, self._when_made, self._watched)], call, (args, kwargs))
        if self._streams:
            return dispatcher.stream.options(num_returns="streaming").remote(*arguments)
        returns = self._ray_options.get("num_returns")
        return dispatcher.run.options(num_returns=1 if returns is None else returns).remote(*arguments)

    def options(self, **options: Any) -> PooledFunction:
        """The same function with other options; takes what `raypool.remote` takes."""
        return PooledFunction(self._function, *_split(options, self._ray_options, self._pool_options), self._sent)

    @property
    def _streams(self) -> bool:
        returns = self._ray_options.get("num_returns")
        return returns == "streaming" or (returns is None and self._generates)

    @property
    def _generates(self) -> bool:
        return inspect.isgeneratorfunction(self._function) or inspect.isasyncgenfunction(self._function)

    @property
    def _watched(self) -> bool:
        """Whether it is looked whether it leaves nothing behind. Its children may be there longer than it."""
        one_result = not self._generates and self._when_made.get("num_returns") in (None, 1)
        return one_result and not self._pool_options.capture_child_tasks

    def _checked_by_ray(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ray's options, checked by Ray now, where they were written: those of the function that is sent,
        and those that go with each call.

        num_gpus is among the options of the check because it decides max_calls: Ray ends the worker of
        a GPU task after the call, which frees the memory of its GPUs.
        """
        gpus = (self._pool_options.resources or ResourceSettings()).demand().get("gpu", 0)
        checked = ray.remote(**{**self._ray_options, "num_gpus": gpus, "max_retries": 0})(self._function)
        options = {name: value for name, value in checked._default_options.items() if name in self._ray_options}
        when_called = {name: value for name, value in options.items() if name not in _FIXED_WHEN_MADE}
        when_made = {name: options[name] for name in _FIXED_WHEN_MADE if name in options}
        if "max_calls" in checked._default_options:
            when_made["max_calls"] = checked._default_options["max_calls"]
        if when_made.get("num_returns") == 0:
            when_made["num_returns"] = 1  # the dispatcher must see when it ends
        return when_made, when_called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"'{self.__name__}' runs in a pool: call {self.__name__}.remote(), not {self.__name__}()")

    def __reduce__(self) -> tuple[Any, ...]:
        return PooledFunction, (self._function, self._pool_options, self._ray_options)


class SentFunction:
    """A function in the object store: put there once per dispatcher and set of options that it is made
    with, not once per call. What `.options()` returns shares it: a loop of `f.options(...).remote()` sends
    nothing anew."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._dispatcher: Any = None
        self._references: dict[frozenset[tuple[str, Any]], Any] = {}
        self._lock = threading.Lock()

    def reference(self, dispatcher: Any, options: Mapping[str, Any], is_watched: bool) -> Any:
        key = frozenset({**options, "watched": is_watched}.items())
        with self._lock:
            if self._dispatcher is not dispatcher:
                self._dispatcher, self._references = dispatcher, {}
            if key not in self._references:
                function = watched(self._function) if is_watched else self._function
                self._references[key] = ray.put(ray.remote(**options, max_retries=0)(function))
            return self._references[key]


class PooledActorClass:
    """A class whose actors run in pools: `.remote()` waits for the grant."""

    def __init__(self, plain: type, pool_options: PoolOptions, ray_options: dict[str, Any]) -> None:
        self._plain = plain
        self._pool_options = pool_options
        self._ray_options = ray_options
        self._made: Any = None
        self.__name__ = plain.__name__
        self.__doc__ = plain.__doc__
        self.__wrapped__ = plain
        self._actor_class()  # Ray checks its own options now, where they were written

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Waits for the grant, saying so while it waits, and returns Ray's own ActorHandle.

        The lease ends with the actor: when it exits, is killed, or its last handle is gone. When the
        lease is preempted, the actor dies: calls raise ray.exceptions.ActorDiedError.
        Raises RequestRejected, RequestCancelled, WaitTimeout, BrokerUnavailable.
        """
        lease = self._lease().acquire()
        try:
            handle = self._create(lease, args, kwargs)
            lease.belongs_to(handle)
        except BaseException:
            lease.release()
            raise
        return handle

    async def remote_async(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """`remote` for code on an event loop."""
        lease = await self._lease().acquire_async()
        try:
            handle = self._create(lease, args, kwargs)
            await lease.belongs_to_async(handle)
        except BaseException:
            await lease.release_async()
            raise
        return handle

    def options(self, **options: Any) -> PooledActorClass:
        """The same class with other options; takes what `raypool.remote` takes."""
        return PooledActorClass(self._plain, *_split(options, self._ray_options, self._pool_options))

    def _lease(self) -> Lease:
        options = self._pool_options
        lifetime = {"lifetime": "detached"} if self._ray_options.get("lifetime") == "detached" else {}
        return Lease(options.request(**lifetime), options.wait_timeout_seconds, options.capture_child_tasks)

    def _create(self, lease: Lease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorHandle:
        return self._actor_class().options(**lease.actor_options(0)).remote(*args, **kwargs)

    def _actor_class(self) -> Any:
        if self._made is None:
            self._made = ray.remote(**{**self._ray_options, "max_restarts": 0})(self._plain)
        return self._made

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        raise TypeError(
            f"'{self.__name__}' runs in pools and cannot be inherited from: keep the class plain, inherit from that, "
            "and decorate the subclass"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"actors of '{self.__name__}' run in a pool: call {self.__name__}.remote()")

    def __reduce__(self) -> tuple[Any, ...]:
        return PooledActorClass, (self._plain, self._pool_options, self._ray_options)
