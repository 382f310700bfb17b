"""The broker's class as Ray sees it.

Whoever looks the broker up has Ray import this module, also a command that only wants to list pools. So
it imports nothing: the broker itself (actor.py) comes in where the actor runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CALLS = (
    "hello", "apply", "check", "preview", "detach_policy", "delete_pool", "config",
    "history", "config_of", "preview_rollback", "rollback",
    "acquire", "submit", "submit_many", "dry_run", "watch", "release", "cancel", "forget", "attach_actor",
    "hold", "here", "bye",
    "describe", "why", "requests", "page", "pool", "front", "overview", "request_of_group", "end_all", "journal",
    "events", "next_events", "usage", "report",
)  # fmt: skip
"""The calls of `PoolBroker`, which say what they take and return."""


GC_THRESHOLD = (20_000, 20, 20)
"""Of Python's garbage collector in the broker's process. What it holds are requests by the ten thousand, which live
long and are no cycles: with Python's own (700, 10, 10) a third of the time goes into looking at them again."""


class BrokerActor:
    """Passes each of `CALLS` on to a `PoolBroker` on this cluster. journal: where it keeps what it knows,
    "ray" or the path of a SQLite file. Ray says the same again to every later life."""

    async def __init__(self, journal: str) -> None:  # type: ignore[misc]  # Ray runs it on the actor's event loop
        import gc

        from raypool.server.plain_data import take_plain_data_only

        gc.set_threshold(*GC_THRESHOLD)
        take_plain_data_only()

        from raypool.server.actor import PoolBroker
        from raypool.server.cluster import RayCluster
        from raypool.server.stores import store_at

        cluster = RayCluster()
        self.broker = PoolBroker(cluster, store_at(journal, cluster))
        await self.broker.begin()


def _passed_on(name: str) -> Callable[..., Any]:
    async def call(self: BrokerActor, /, *args: Any, **more: Any) -> Any:
        return await getattr(self.broker, name)(*args, **more)

    call.__name__ = name
    return call


for _name in CALLS:
    setattr(BrokerActor, _name, _passed_on(_name))
