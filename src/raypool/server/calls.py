"""What the broker's calls take: every argument is checked here, before the call begins.

A word means the same in every call, so its type and its bounds stand once, in `WORDS`; a call's signature
says which words it takes, and what may be None or left out. The rule that must not break: what leaves a call
is its answer or a RaypoolError, whatever was sent. This file does not know what the calls do.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import wraps
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, Field, ValidatorFunctionWrapHandler, WrapValidator, create_model

from raypool.core.status import Status
from raypool.errors import BrokerFault, RaypoolError, SpecError
from raypool.server.record import KINDS
from raypool.spec import ComponentType, Name, Seconds, Spec, are_names, shorten

logger = logging.getLogger("raypool")

SPEC_CHARACTERS = 1_000_000
"""So much JSON one request may be: a gang of 10,000 unlike bundles is half of it. A line of the journal has one
request, or one call's, which are bounded, too: so this bounds the lines."""

CONFIG_CHARACTERS = 4_000_000
"""So much JSON one change of pools and policies may be: 20,000 policies."""

MANY = 10_000
"""So many requests one call may submit. The client sends fewer: nobody else is answered meanwhile."""

MOST_OF_A_PAGE = 500
"""So many requests one page may have."""

GROUP_NAME_CHARACTERS = 512
"""Of a placement group, which holds the names of a pool, a component and a request; a question may name one."""

RECORDS = 10_000
"""So many records of events one call may ask for."""

USAGE_SECONDS = 400 * 86_400
"""So far back a question for usage may reach; what is kept is less."""

REASON_CHARACTERS = NOTE_CHARACTERS = 1_000


_text = json.JSONEncoder(separators=(",", ":")).encode


def _json_of_at_most(characters: int) -> AfterValidator:
    def check(value: Any) -> Any:
        try:
            size = len(_text(value))
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                "must be plain data, as JSON has it: mappings, lists, strings, numbers, true, false and null"
            ) from None
        if size > characters:
            raise ValueError(f"must be at most {characters} characters of JSON, got {size}")
        return value

    return AfterValidator(check)


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be printable")
    return value


def _id_of_ray(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{32}", value):
        raise ValueError("must be an id of Ray's")
    return value


def _if_not_all_names(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """They are thousands: together they are checked in a tenth of the time. check: one by one, for the sentence."""
    return value if type(value) is list and len(value) <= MANY and are_names(value) else check(value)


Word = Annotated[str, Field(max_length=128), AfterValidator(_printable)]
Owner = Annotated[Word, Field(min_length=1)]

WORDS: Mapping[str, Any] = {
    "config": Annotated[dict[str, Any], _json_of_at_most(CONFIG_CHARACTERS)],
    "by": Word,
    "note": Annotated[str, Field(max_length=NOTE_CHARACTERS)],
    "version": Annotated[int, Field(ge=0, le=2**53)],
    "spec": Annotated[dict[str, Any], _json_of_at_most(SPEC_CHARACTERS)],
    "bodies": Annotated[
        list[Annotated[dict[str, Any], _json_of_at_most(SPEC_CHARACTERS)]], Field(min_length=1, max_length=MANY)
    ],
    "ids": Annotated[list[Name], Field(min_length=1, max_length=MANY), WrapValidator(_if_not_all_names)],
    "body_of": Annotated[list[int], Field(max_length=MANY)],
    "request_id": Annotated[str, Field(max_length=GROUP_NAME_CHARACTERS), AfterValidator(_printable)],
    "group_id": Word,
    "actor_id": Annotated[str, Field(max_length=128), AfterValidator(_id_of_ray)],
    "job": Owner,
    "holder": Owner,
    "token": Annotated[list[Any], Field(max_length=1)],
    "name": Word,
    "pool": Word,
    "component": Word,
    "component_type": ComponentType,
    "first": Annotated[int, Field(ge=1, le=1000)],
    "status": Literal[tuple(status.value for status in Status)],
    "reason": Annotated[str, Field(max_length=REASON_CHARACTERS)],
    "which": Literal["waiting", "running", "ended"],
    "skip": Annotated[int, Field(ge=0, le=2**53)],
    "count": Annotated[int, Field(ge=1, le=MOST_OF_A_PAGE)],
    "seen": Annotated[int, Field(ge=-1, le=2**53)],
    "timeout_seconds": Seconds,
    "since": Annotated[float, Field(ge=0, le=2**40)],
    "after": Annotated[int, Field(ge=-1, le=2**53)],
    "limit": Annotated[int, Field(ge=1, le=RECORDS)],
    "kind": Literal[tuple(KINDS)],
    "since_seconds": Annotated[float, Field(gt=0, le=USAGE_SECONDS)],
    "step_seconds": Annotated[float, Field(gt=0, le=USAGE_SECONDS)],
    "explain": bool,
    "ended": bool,
    "clean": bool,
    "discard_journal": bool,
}
"""Whatever a caller may say, by the name of the parameter."""

Kind = TypeVar("Kind", bound=type)


def checked(kind: Kind) -> Kind:
    """The class with all its calls checked: its public coroutine functions, but for `begin`."""
    for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
        if not name.startswith("_") and name != "begin":
            setattr(kind, name, _checked_call(method))
    return kind


def _checked_call(method: Callable[..., Any]) -> Callable[..., Any]:
    takes = _what_it_takes(method)
    words = tuple(takes.model_fields)

    @wraps(method)
    async def call(self: Any, /, *args: Any, **more: Any) -> Any:
        try:
            return await method(self, **takes.load(_by_word(method.__name__, words, args, more)).__dict__)
        except RaypoolError:
            raise
        except Exception as error:
            logger.exception("the broker stumbles over a call of %s", method.__name__)
            raise BrokerFault(
                f"a bug of raypool's: {method.__name__} could not be answered ({shorten(error, 300)}); "
                "the broker's log has the traceback"
            ) from None

    return call


def _what_it_takes(method: Callable[..., Any]) -> type[Spec]:
    """The call's parameters as a spec, whose faults are sentences. Raises KeyError for one not in `WORDS`."""
    types, takes = get_type_hints(method), {}
    for word, parameter in list(inspect.signature(method).parameters.items())[1:]:
        takes[word] = (
            WORDS[word] | None if NoneType in get_args(types[word]) else WORDS[word],
            ... if parameter.default is parameter.empty else parameter.default,
        )
    model: type[Spec] = create_model(method.__name__, __base__=Spec, **takes)  # type: ignore[call-overload]
    return model


def _by_word(call: str, words: tuple[str, ...], args: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
    """Arguments by position and by name, all by name. Raises SpecError."""
    if len(args) > len(words):
        takes = f"takes {', '.join(words)}" if words else "takes no arguments"
        raise SpecError(f"{call}: {takes}, got {len(args)} arguments")
    given = dict(zip(words, args, strict=False))
    for word in more:
        if word in given:
            raise SpecError(f"{call}: {word} is given twice")
        if word not in words:
            raise SpecError(f"{call}: {shorten(word)} is no argument of it (it takes {', '.join(words) or 'none'})")
    return given | more
