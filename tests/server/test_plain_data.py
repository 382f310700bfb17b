"""What is read of a pickle in the broker's process, and what is said where Ray reads otherwise than expected."""

import io
import os
import pickle
import sys

import msgpack
import pytest
from ray._private import ray_constants, serialization
from ray._private.worker import global_worker
from ray.core.generated.common_pb2 import ErrorType
from ray.exceptions import ActorDiedError, TaskCancelledError

from raypool.errors import SpecError
from raypool.server.plain_data import MOST_BYTES, NotRead, _PlainUnpickler, narrow, take_plain_data_only

PYTHON = ray_constants.OBJECT_METADATA_TYPE_PYTHON


def reader():
    """What Ray reads with, narrowed for this test alone."""

    class Narrow(serialization.SerializationContext):
        def _deserialize_msgpack_data(self, data, metadata_fields, tensors=None):
            """As Ray's, which takes buffers of Ray's only. The pickle stands behind the plain part."""
            head = msgpack.Unpacker()
            head.feed(data[:9])
            return self._deserialize_pickle5_data(bytearray(data[9 + next(head) :]), tensors)

    narrow(Narrow)
    return Narrow(global_worker)


def read(value, metadata=PYTHON):
    """Sent as Ray would send it, and read."""
    context = reader()
    return context._deserialize_object(context.serialize(value).to_bytes(), metadata, None, None)


class Calls:
    """A pickle that calls something."""

    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


def large_when_written_out():
    value = [1]
    for _ in range(30):
        value = [value] * 10
    return (value,)


REFERENCE = serialization._object_ref_deserializer


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Calls(os._exit, 1), r"not posix\._exit"),
        ([{"a": (Calls(os._exit, 1),)}], r"not posix\._exit"),
        (Calls(sys.exit, 1), r"not sys\.exit"),
        (Calls(eval, "1"), r"not builtins\.eval"),
        (lambda: 1, r"not ray\.cloudpickle"),
        (ValueError("x"), r"not builtins\.ValueError"),
        (SpecError("x"), r"not raypool\.errors\.SpecError"),
        (pickle.PickleBuffer(bytearray(10)), "not arrays"),
        (({1, 2},), "not a value of type set"),
        (large_when_written_out(), "an argument has at most 100000 values"),
        (Calls(REFERENCE, b"x", "", b"", b"", None), "not a reference that is none"),
        (Calls(REFERENCE, b"x" * 28, "", b"", b"", None), "not a reference that is none"),
        (Calls(REFERENCE, b"x" * 28, "", b"\xff", b"", None), r"could not be read \(DecodeError\)"),
        (Calls(REFERENCE, *[None] * 5), "not a reference that is none"),
        (Calls(REFERENCE), r"could not be read \(TypeError\)"),
    ],
)
def test_what_is_not_plain_is_not_read(value, says):
    answer = read(value)
    assert isinstance(answer, NotRead)
    with pytest.raises(SpecError, match=f"the broker takes plain data only, as JSON has it: .*{says}"):
        raise answer


def test_what_is_plain_is_read_though_ray_pickles_it():
    assert read((1, [2.5, "a", None, {"b": True}], 2**70)) == [(1, [2.5, "a", None, {"b": True}], 2**70)]


def test_a_pickle_can_spoil_nothing_that_others_will_find():
    """Written by hand: it sets an attribute of what it finds."""
    for module, name in ((REFERENCE.__module__, REFERENCE.__name__), ("ray.util.placement_group", "PlacementGroup")):
        spoils = f"c{module}\n{name}\n(N}}X\x06\0\0\0spoiltK\x01stb."
        assert unpickled(spoils).spoilt == 1
        assert not hasattr(unpickled(f"c{module}\n{name}\n."), "spoilt")
        assert not hasattr(getattr(sys.modules[module], name), "spoilt")


def unpickled(written):
    return _PlainUnpickler(io.BytesIO(written.encode())).load()


def test_what_is_large_is_not_even_looked_at():
    answer = reader()._deserialize_object(bytes(MOST_BYTES + 1), PYTHON, None, None)
    assert isinstance(answer, NotRead) and f"at most {MOST_BYTES} bytes" in str(answer)


def test_exceptions_of_others_and_actors_are_not_read():
    def of(name):
        return b"%d" % ErrorType.Value(name)

    context = reader()
    for metadata, kind in (
        (of("TASK_EXECUTION_EXCEPTION"), NotRead),
        (of("TASK_CANCELLED"), TaskCancelledError),
        (of("ACTOR_DIED"), ActorDiedError),
        (ray_constants.OBJECT_METADATA_TYPE_ACTOR_HANDLE, NotRead),
    ):
        assert type(context._deserialize_object(b"not looked at", metadata, None, None)) is kind


def test_the_caller_gets_a_spec_error():
    error = pickle.loads(pickle.dumps(NotRead("not this")))
    assert type(error) is SpecError and str(error).endswith("as JSON has it: not this")


def test_the_broker_starts_with_a_warning_where_ray_reads_otherwise(monkeypatch, caplog):
    class Other(serialization.SerializationContext):
        def _deserialize_msgpack_data(self, data, metadata_fields, tensors=None):
            return None

    monkeypatch.setattr(serialization, "SerializationContext", Other)
    before = dict(vars(Other))
    take_plain_data_only()
    assert "reads arguments otherwise than expected" in caplog.text
    assert dict(vars(Other)) == before
