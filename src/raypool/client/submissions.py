"""What this process has submitted into its leases, so that none of it waits for ever when a lease has ended.

Ray lets work wait for ever that reaches a placement group after its removal, whatever its retries are. So who
submits remembers: a task's results and an actor, by their ids, which keep nothing alive. Some time after the
end of the lease, when Ray has said of the rest what it has to say, what is still not finished is cancelled;
`ray.get` of it then raises.

It is seen where Ray itself submits, in the `_remote` of its functions and actor classes. That is a private
seam: a Ray that has another one is told of once, and leaves work as it was. Only what this process submits is
seen; what a worker inside the lease submits ends with that worker.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import ray
import ray.exceptions
from ray import ActorID, ObjectRef, ObjectRefGenerator, TaskID
from ray._private.worker import global_worker
from ray.actor import ActorClass, ActorHandle
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.remote_function import RemoteFunction
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raypool.client.broker import connection_stays, session
from raypool.client.listening import listener

logger = logging.getLogger("raypool")

RAY_TELLS_SECONDS = 1.0
"""How long after the end of a lease Ray may take to tell by itself: its own errors say more than a cancellation."""

LOOK_AGAIN_MOST_SECONDS = 60.0
"""What was cancelled is looked at again, at doubling intervals: a node that is lost answers late."""

KEPT_AT_LEAST = 1024
"""So many ids are kept before those that have finished are looked for; then twice as many as are left."""


class Submissions:
    """What this process submitted into one placement group. Holds ids only: no result lives longer for it, and
    they are at most twice as many as are not finished."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._results: set[bytes] = set()
        self._actors: dict[bytes, bool] = {}  # and whether it is detached
        self._room = KEPT_AT_LEAST
        self._over = False
        self._looking = False
        self._session = session()
        self._lock = threading.Lock()

    def add(self, made: Any, options: Mapping[str, Any]) -> None:
        """`made` is what `.remote()` returned; what returns nothing is waited for by nobody."""
        with self._lock:
            if not isinstance(made, ActorHandle):
                self._results.update(ref.binary() for ref in _references(made))
            elif not options.get("get_if_exists"):  # with it, Ray asks once more when it makes one
                self._actors[made._actor_id.binary()] = options.get("lifetime") == "detached"
            if len(self._results) + len(self._actors) > self._room:
                self._keep_unfinished()
                self._room = max(KEPT_AT_LEAST, 2 * (len(self._results) + len(self._actors)))
        if self._over:
            self._look_in(RAY_TELLS_SECONDS)

    def lease_ended(self) -> None:
        """What is not finished some time from now is cancelled. Once is enough."""
        if not self._over:
            self._over = True
            self._look_in(RAY_TELLS_SECONDS)

    def _look_in(self, seconds: float) -> None:
        """In a thread of its own: to cancel much takes longer than the listener may be kept."""
        with self._lock:
            if self._looking or not (self._results or self._actors):
                return
            self._looking = True
        thread = threading.Thread(target=self._look, args=(seconds,), name="raypool-cancelling", daemon=True)
        listener().later(seconds, thread.start)

    def _look(self, waited_seconds: float) -> None:
        with connection_stays, self._lock:
            self._looking = False
            if self._session != session():  # it has left the cluster, and nothing of it is there any more
                self._results, self._actors = set(), {}
                return
            self._keep_unfinished()
            results, actors = list(self._results), list(self._actors)
        if not results and not actors:
            return
        logger.warning(
            "request '%s' has ended, and Ray would let %d results and %d actors in it wait for ever: cancelled",
            self.request_id,
            len(results),
            len(actors),
        )
        ends = [partial(_cancel, result) for result in results] + [partial(_kill, actor) for actor in actors]
        for end in ends:
            with connection_stays:  # for each anew: they may be many
                if self._session != session():
                    return
                end()
        self._look_in(min(2 * waited_seconds, LOOK_AGAIN_MOST_SECONDS))

    def _keep_unfinished(self) -> None:
        self._results = _unfinished(self._results)
        self._actors = {actor: detached for actor, detached in self._actors.items() if not _is_over(actor, detached)}


_of_group: WeakValueDictionary[str, Submissions] = WeakValueDictionary()
_making = threading.Lock()


def submissions_into(group_id: str, request_id: str) -> Submissions:
    """Those into the placement group (hex) of that request. They are found as long as somebody holds them."""
    with _making:
        _watch_ray()
        found = _of_group.get(group_id)
        if found is None or found.request_id != request_id:  # a group may be handed over to another request
            found = _of_group[group_id] = Submissions(request_id)
        return found


# --- where Ray submits --------------------------------------------------------------------------


@functools.cache
def _watch_ray() -> None:
    """Once in a process."""
    for kind in (RemoteFunction, ActorClass):
        if takes_options(kind):
            kind._remote = _seen(kind._remote)
        else:
            logger.warning(
                "Ray %s submits in a way that is not known here: work that reaches Ray after its lease has ended "
                "will wait for ever; use ray.get with a timeout, and lease.require()",
                ray.__version__,
            )


def takes_options(kind: Any) -> bool:
    """Whether `.remote()` of that class of Ray's still goes through a method that takes the options by name."""
    submit = getattr(kind, "_remote", None)
    if not inspect.isfunction(submit):
        return False
    parameters = inspect.signature(submit).parameters.values()
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _seen(submit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(submit)
    def _remote(self: Any, *args: Any, **options: Any) -> Any:
        strategy = options.get("scheduling_strategy")
        if not isinstance(strategy, PlacementGroupSchedulingStrategy):
            return submit(self, *args, **options)
        group = strategy.placement_group  # raises what Ray would be told, when the lease has ended
        submissions = None if group is None else _of_group.get(group.id.hex())
        made = submit(self, *args, **options)
        if submissions is not None:
            submissions.add(made, options)
        return made

    return _remote


def _references(made: Any) -> list[ObjectRef]:
    if isinstance(made, ObjectRef):
        return [made]
    if isinstance(made, ObjectRefGenerator):
        return [made._generator_ref]
    return made if isinstance(made, list) else []


# --- what has become of it ----------------------------------------------------------------------


def _unfinished(results: Iterable[bytes]) -> set[bytes]:
    """Those that somebody may still wait for: their task has not ended, and a reference to them is left."""
    held = [ref for ref in map(ObjectRef, results) if _is_held(ref)]
    if not held:
        return set()
    _, waiting = ray.wait(held, num_returns=len(held), timeout=0, fetch_local=False)
    return {ref.binary() for ref in waiting}


def _is_held(ref: ObjectRef) -> bool:
    """Whether there was a reference before this one was made from its id: Ray forgets who owns an object, with
    the last."""
    try:
        global_worker.core_worker.get_owner_address(ref)
    except ValueError:
        return False
    return True


def _is_over(actor: bytes, detached: bool) -> bool:
    """Dead, or nobody can call it any more. A detached one can be called by its name."""
    actor_id = ActorID(actor)
    if global_worker.core_worker.get_local_actor_state(actor_id) == ActorTableData.DEAD:
        return True
    handle = ObjectRef(TaskID.for_actor_creation_task(actor_id).binary() + _FIRST_RETURN)
    return not detached and not _is_held(handle)


_FIRST_RETURN = (1).to_bytes(4, "little")
"""The end of an object's id says which return of its task it is. Handles of an actor count as its creation's."""


def _cancel(result: bytes) -> None:
    """Not by force: what does run has its `finally`."""
    try:
        ray.cancel(ObjectRef(result))
    except TypeError:  # Ray's word for: the last reference was dropped meanwhile
        logger.debug("nobody waits for %s any more", result.hex())


def _kill(actor: bytes) -> None:
    """By its id: the handle may be gone while its calls wait."""
    try:
        global_worker.core_worker.kill_actor(ActorID(actor), True)
    except ray.exceptions.ActorHandleNotFoundError:
        logger.debug("nobody can call actor %s any more", actor.hex())
