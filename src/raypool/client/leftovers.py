"""Whether a task has left anything that could still put work into its placement group, as its worker sees it.

The dispatcher wraps a function in `watched`, which tells beside the result whether the function was seen to leave
nothing: it started no Ray work, got hold of no placement group, and no thread or child process of anybody's is in
the worker. Only then may its group be handed over as it is (docs/decisions/017). In doubt the answer is no.

The rule that must not break: what is here travels by value, so it refers to nothing outside of `watched` but what it
imports itself: in the worker's environment there may be no raypool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def watched(function: Callable[..., Any]) -> Callable[..., tuple[Any, bool]]:
    """The function, returning (its result, whether it left nothing behind). What it raises, it raises."""

    def reached() -> int | None:
        """How often code in this process has reached for Ray's placement groups, started Ray work, or started a
        thread that `threading` does not know, so far; None if this Ray does so in a way that is not known here."""
        import _thread
        import functools

        from ray._private.worker import Worker
        from ray.actor import ActorClass
        from ray.remote_function import RemoteFunction
        from ray.util.placement_group import PlacementGroup

        current = getattr(Worker, "placement_group_id", None)  # Ray itself asks here, whatever the user calls
        if not (
            isinstance(current, property) and hasattr(RemoteFunction, "_remote") and hasattr(ActorClass, "_remote")
        ):
            return None
        times: list[int] | None = getattr(current.fget, "raypool_times", None)
        if times is None:
            times = [0]

            def counted(call: Any) -> Any:
                @functools.wraps(call)
                def counting(*args: Any, **kwargs: Any) -> Any:
                    times[0] += 1
                    return call(*args, **kwargs)

                return counting

            seams = ((RemoteFunction, "_remote"), (ActorClass, "_remote"), (PlacementGroup, "__init__"))
            for place, name in (*seams, (_thread, "start_new_thread")):
                setattr(place, name, counted(getattr(place, name)))
            reading = counted(current.fget)
            reading.raypool_times = times
            Worker.placement_group_id = property(reading)
        return times[0]

    def alone() -> bool:
        """Whether there is no thread in this process but the main one, Ray's own and raypool's listener, which runs
        nobody's code, and no child process."""
        import _thread
        import os
        import threading

        others = [one for one in threading.enumerate() if one is not threading.main_thread()]
        known = [type(one).__module__.startswith(("ray.", "raypool.client.listening")) for one in others]
        if not all(known) or _thread._count() != len(others):
            return False
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> tuple[Any, bool]:
        before = reached()
        result = function(*args, **kwargs)
        return result, before is not None and reached() == before and alone()

    return run
