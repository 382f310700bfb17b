"""What Ray may build in the broker's process of what others send: plain data, and references.

Ray reads the arguments of a call before any code of ours runs, and what is not plain data it unpickles: a
pickle may call anything that can be imported, `os._exit` for one. So in the broker's process that reading is
narrowed. The rule that must not break: nothing of a client's, neither class nor function nor exception, is
looked up or called here.

The seam is private to Ray. Where it is not as expected, the broker starts all the same, and warns.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, TaskCancelledError

from raypool.errors import SpecError

logger = logging.getLogger("raypool")

MOST_BYTES = 8_000_000
"""A larger argument is not even read."""

MOST_VALUES = 100_000
"""In a pickle one list may stand in a thousand places, and there a thousand times: it is small only until
somebody walks through it."""

PLAIN = frozenset((bool, int, float, str, bytes, type(None)))

CALLED_BY = {
    "deserialize_objects": "_deserialize_object",
    "_deserialize_object": "_deserialize_msgpack_data",
    "_deserialize_msgpack_data": "_deserialize_pickle5_data",
}
"""How Ray 2.60 reads one object: the methods that are replaced are of use only where they are called."""


class NotRead(SpecError, RayError):  # type: ignore[misc]  # mypy does not look into Ray
    """Stands where an argument would be. Ray raises what is a RayError to the caller, and does not begin the
    call; the caller gets a SpecError."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the broker takes plain data only, as JSON has it: {why}")

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, tuple[str, ...]]]:
        return SpecError, (str(self), self.problems)


def take_plain_data_only() -> None:
    """From now on, in this process. Warns if this version of Ray reads otherwise than expected."""
    try:
        from ray._private.serialization import SerializationContext

        narrow(SerializationContext)
    except Exception:
        logger.warning(
            "this version of Ray (%s) reads arguments otherwise than expected: a hostile client could run code in "
            "the broker's process",
            ray.__version__,
            exc_info=True,
        )


def narrow(context: Any) -> None:
    """Makes that class of Ray's, SerializationContext, read plain data only. Raises ImportError,
    AttributeError or AssertionError if the class is not as expected."""
    from ray._private.serialization import unpack_pickle5_buffers

    read: Callable[..., Any] = context._deserialize_object
    for caller, called in CALLED_BY.items():
        assert called in getattr(context, caller).__code__.co_names, f"{caller} does not call {called}"

    def deserialize_object(self: Any, data: Any, metadata: Any, object_ref: Any, *more: Any) -> Any:
        try:
            stands_for = _not_to_be_read(data, metadata)
            return read(self, data, metadata, object_ref, *more) if stands_for is None else stands_for
        except NotRead as error:
            return error
        except Exception as error:
            logger.info("an argument could not be read", exc_info=True)
            return NotRead(f"this could not be read ({type(error).__name__})")

    def deserialize_pickle(self: Any, data: Any, *more: Any) -> Any:
        in_band, buffers = unpack_pickle5_buffers(data)
        if len(buffers) > 0:
            raise NotRead("not arrays")
        value = _PlainUnpickler(io.BytesIO(in_band)).load()
        _expect_plain(value)
        return value

    context._deserialize_object = deserialize_object
    context._deserialize_pickle5_data = deserialize_pickle


def _not_to_be_read(data: Any, metadata: Any) -> RayError | None:
    """What stands for a value that must not be read at all, told by its metadata; None for every other."""
    from ray._private import ray_constants
    from ray.core.generated.common_pb2 import ErrorType

    if data is not None and len(data) > MOST_BYTES:
        return NotRead(f"an argument has at most {MOST_BYTES} bytes, this one {len(data)}")
    kind = bytes(metadata or b"").split(b",")[0]
    if kind == ray_constants.OBJECT_METADATA_TYPE_ACTOR_HANDLE:
        return NotRead("not actors")  # Ray would load the actor's class
    # These carry the exception of somebody's, pickled.
    if kind == b"%d" % ErrorType.Value("TASK_EXECUTION_EXCEPTION"):
        return NotRead("not the result of a task that failed")
    if kind == b"%d" % ErrorType.Value("TASK_CANCELLED"):
        return TaskCancelledError()
    if kind == b"%d" % ErrorType.Value("ACTOR_DIED"):
        return ActorDiedError()
    return None


class _PlainUnpickler(pickle.Unpickler):
    """Builds what pickle builds by itself, references, and in place of a placement group nothing.

    A pickle may set attributes of what it finds, so it finds what was made for it alone.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("ray._private.serialization", "_object_ref_deserializer"):
            return lambda *parts: _reference(*parts)
        if (module, name) == ("ray.util.placement_group", "PlacementGroup"):
            return type(name, (_Ignored,), {})
        if (module, name) == ("ray._raylet", "PlacementGroupID"):
            return lambda *parts: None
        raise NotRead(f"not {_shown(module)}.{_shown(name)}")


class _Ignored:
    """What `await group.ready()` returns here, which nobody looks at."""


def _shown(name: str) -> str:
    return name[:60] if name.isprintable() else repr(name[:60])


def _reference(binary: Any, call_site: Any, owner_address: Any, object_status: Any, transport: Any) -> Any:
    """A reference, of parts that Ray would not survive if they were anything else."""
    from ray._private.serialization import _object_ref_deserializer
    from ray.core.generated.common_pb2 import Address

    whole = (
        [type(part) for part in (binary, call_site, owner_address, object_status)] == [bytes, str, bytes, bytes]
        and transport is None
        and len(binary) == ray.ObjectRef.size()
        and len(Address.FromString(owner_address).worker_id) == ray.WorkerID.size()
    )
    if not whole:
        raise NotRead("not a reference that is none")
    return _object_ref_deserializer(binary, call_site, owner_address, object_status, transport)


def _expect_plain(value: Any) -> None:
    """Raises NotRead for what is not plain, or would be large when written out."""
    left, looked_at = [value], 0
    while left:
        one = left.pop()
        looked_at += 1
        if looked_at > MOST_VALUES:
            raise NotRead(f"an argument has at most {MOST_VALUES} values")
        if type(one) is dict:
            left.extend(one.keys())
            left.extend(one.values())
        elif type(one) in (list, tuple):
            if PLAIN.issuperset(map(type, one)):
                looked_at += len(one)
            else:
                left.extend(one)
        elif type(one) not in PLAIN and type(one) is not ray.ObjectRef and not isinstance(one, _Ignored):
            raise NotRead(f"not a value of type {_shown(type(one).__name__)}")
