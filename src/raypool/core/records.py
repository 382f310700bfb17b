"""Events, decisions and reasons as plain data, and back: what a journal is made of.

One line of a journal is one event with what was decided on it. Reading a line gives back an equal event;
decisions are only compared, never carried out from a journal. A field is written as what it is; the few
that are more than JSON has are named by their annotation in `_READ`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from raypool.core import events as ev
from raypool.core import reasons as why
from raypool.core.history import Version
from raypool.core.instructions import (
    ChangeStatus,
    CreatePlacementGroup,
    HandOverPlacementGroup,
    Instruction,
    RemovePlacementGroup,
    WarnHolder,
)
from raypool.core.nodes import Node
from raypool.spec import BrokerConfig, RequestSpec, Spec

Decision = list[Any]

_text = json.JSONEncoder(separators=(",", ":")).encode
quoted = json.encoder.encode_basestring_ascii
_SCALARS: dict[type, Callable[[Any], str]] = {
    str: quoted, int: repr, float: repr, bool: ("false", "true").__getitem__, type(None): lambda _: "null",
}  # fmt: skip

EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(ev.Event)}


def line_of(number: int, at: float, event: ev.Event, instructions: Iterable[Instruction]) -> str:
    """The event as a line of a journal. number: its place among all that were handled; at: the `now` of
    `Broker.handle`."""
    decided = ",".join(map(_flat_text, decisions_on(event, instructions)))
    told = _text(plain(event))
    return f'{{"n":{number},"at":{at!r},"event":"{type(event).__name__}","with":{told},"decided":[{decided}]}}'


def _flat_text(decision: Decision) -> str:
    return f"[{','.join(map(scalar_text, decision))}]"


def scalar_text(value: str | float | bool | None) -> str:
    """As JSON; several times faster than the encoder, which prepares itself anew for every call."""
    return _SCALARS[type(value)](value)


def body_text(spec: RequestSpec, own: Collection[str]) -> str:
    """All that the request asks for but its own fields, as it is in the text of every request for the same."""
    return _text({name: value for name, value in spec.dump().items() if name not in own})[1:]


def event_of(row: Mapping[str, Any]) -> ev.Event:
    """The event of a line. Raises KeyError, TypeError or SpecError for one that this version cannot read."""
    event: ev.Event = _dataclass_of(EVENTS[row["event"]], row["with"])
    return event


def decisions_on(event: ev.Event, instructions: Iterable[Instruction]) -> list[Decision]:
    """What was decided on the event. That those of many are pending at first goes without saying: they are thousands,
    and their ids stand in the event."""
    if type(event) is ev.ManySubmitted:
        instructions = [one for one in instructions if not (type(one) is ChangeStatus and one.old is None)]
    return [decision_of(one) for one in instructions]


def decision_of(instruction: Instruction) -> Decision:
    """An instruction, as short as it can be told apart. A reason is told by its rule: sentences may be
    improved."""
    match instruction:
        case CreatePlacementGroup():
            return ["create", instruction.spec.id, instruction.attempt, instruction.pool]
        case RemovePlacementGroup():
            return ["remove", instruction.request, instruction.attempt]
        case HandOverPlacementGroup():
            return ["hand-over", instruction.request, instruction.attempt, instruction.to, instruction.to_attempt]
        case WarnHolder():
            return ["warn", instruction.request, instruction.deadline]
        case ChangeStatus():
            reason = instruction.reason.rule if instruction.reason is not None else None
            return ["status", instruction.request, instruction.to.value, instruction.pool, reason]


# --- values -----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """JSON-like data of an event, a node, a reason, or what is in them."""
    if isinstance(value, Spec):
        return value.dump()
    if isinstance(value, why.Reason):
        return {"is": type(value).__name__, **_fields_of(value)}
    if is_dataclass(value):
        return _fields_of(value)
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return list(value) if _SCALARS.keys() >= set(map(type, value)) else [plain(one) for one in value]
    return value


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def reason_of(data: Mapping[str, Any] | None) -> why.Reason | None:
    """Back from `plain`."""
    return None if data is None else _reason(data)


def _reason(data: Mapping[str, Any]) -> why.Reason:
    reason: why.Reason = _dataclass_of(_REASONS[data["is"]], {key: one for key, one in data.items() if key != "is"})
    return reason


def version_of(data: Mapping[str, Any]) -> Version:
    """Back from `plain`."""
    version: Version = _dataclass_of(Version, data)
    return version


def nodes_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    return tuple(_dataclass_of(Node, row) for row in rows)


def _dataclass_of(kind: type, data: Mapping[str, Any]) -> Any:
    types = {field.name: field.type for field in fields(kind)}
    return kind(**{name: _READ[types[name]](one) if types[name] in _READ else one for name, one in data.items()})


def _all_kinds(kind: type[why.Reason]) -> dict[str, type[why.Reason]]:
    found = {kind.__name__: kind}
    for one in kind.__subclasses__():
        found |= _all_kinds(one)
    return found


_REASONS = _all_kinds(why.Reason)

_READ: dict[Any, Callable[[Any], Any]] = {
    "RequestSpec": RequestSpec.load,
    "BrokerConfig": BrokerConfig.load,
    "tuple[Node, ...]": nodes_of,
    "tuple[str, ...]": tuple,
    "tuple[int, ...]": tuple,
    "tuple[RequestSpec, ...]": lambda rows: tuple(map(RequestSpec.load, rows)),
    "tuple[Detached, ...]": lambda rows: tuple(tuple(row) for row in rows),
    "tuple[Reason, ...]": lambda rows: tuple(_reason(row) for row in rows),
}
"""By annotation: how a field that JSON does not have is read."""
