"""Many requests, as the broker takes them: what they ask for, each thing once, and who asks for what.

All are checked before anything is sent. Those that are written alike are checked once, so that a thousand like
requests cost little more than their ids.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from raypool.client.client import request_spec
from raypool.errors import SpecError
from raypool.spec import MOST_PROBLEMS, RequestSpec, is_name, new_request_ids

AT_ONCE = 4_000
"""So many requests go into one call: the broker answers nobody else while it takes them."""

CHARACTERS_AT_ONCE = 2_000_000
"""Or less, if what they ask for is so much JSON; the largest single one is half of it."""

Call = tuple[list[dict[str, Any]], list[str], list[int], str]
"""What `submit_many` of the broker takes: bodies, ids, the body of each id, the job."""


class Many:
    """The requests of one list."""

    def __init__(self, specs: Iterable[RequestSpec | Mapping[str, Any]]) -> None:
        """Raises SpecError, with every fault (20 at most) and its place in the list."""
        self.ids: list[str] = []
        self._body_of: list[int] = []
        self._bodies: list[dict[str, Any]] = []
        self._sizes: list[int] = []
        self._place_of: dict[bytes | str, int] = {}  # as it was written, or as it is sent -> the place of the body
        self._taken: dict[str, tuple[int, int]] = {}  # a given id -> place in the list, place of the body
        self._new_ids = new_request_ids()
        problems: list[str] = []
        for at, spec in enumerate(specs):
            try:
                self._take(at, spec)
            except SpecError as error:
                problems += [f"specs[{at}]: {problem}" for problem in error.problems]
                if len(problems) >= MOST_PROBLEMS:
                    break
        if problems:
            _refuse(problems)

    def _take(self, at: int, spec: RequestSpec | Mapping[str, Any]) -> None:
        request_id: str | None
        if type(spec) is dict or isinstance(spec, Mapping):  # that it is a dict is told several times as fast
            request_id = spec.get("id")
            if request_id is not None and not is_name(request_id):
                request_spec(spec)  # says what is wrong with it
            place = self._written(spec)
        elif isinstance(spec, RequestSpec):
            request_id, place = spec.id, self._place(spec)
        else:
            raise SpecError(f"must be a RequestSpec or a mapping of its fields, got {type(spec).__name__}")
        if request_id is None:
            request_id = next(self._new_ids)
        else:
            first, of_first = self._taken.setdefault(request_id, (at, place))
            if of_first != place:
                raise SpecError(f"id: '{request_id}' is that of specs[{first}], which asks for something else")
        self.ids.append(request_id)
        self._body_of.append(place)

    def _written(self, fields: Mapping[str, Any]) -> int:
        """The body of a request that is told by its fields. What is written the same way is the same: `marshal` tells
        apart all that JSON has, and takes nothing that could be two things."""
        if type(fields) is not dict or "id" in fields:
            fields = {name: value for name, value in fields.items() if name != "id"}
        try:
            key = marshal.dumps(fields, 2)
        except ValueError:  # specs inside
            return self._place(_spec_of(fields))
        place = self._place_of.get(key)
        if place is None:
            place = self._place_of[key] = self._place(_spec_of(fields))
        return place

    def _place(self, spec: RequestSpec) -> int:
        text = spec.model_dump_json(exclude_defaults=True, exclude={"id"})
        place = self._place_of.get(text)
        if place is None:
            place = self._place_of[text] = len(self._bodies)
            self._bodies.append(json.loads(text))
            self._sizes.append(len(text))
        return place

    def calls(self, job: str) -> Iterator[tuple[list[str], Call]]:
        """The ids of each call, and its arguments."""
        bodies: dict[int, int] = {}
        ids: list[str] = []
        body_of: list[int] = []
        size = 0
        for request_id, place in zip(self.ids, self._body_of, strict=True):
            if len(ids) == AT_ONCE or (size > CHARACTERS_AT_ONCE and place not in bodies):
                yield ids, ([self._bodies[one] for one in bodies], ids, body_of, job)
                bodies, ids, body_of, size = {}, [], [], 0
            if place not in bodies:
                bodies[place] = len(bodies)
                size += self._sizes[place]
            ids.append(request_id)
            body_of.append(bodies[place])
        if ids:
            yield ids, ([self._bodies[one] for one in bodies], ids, body_of, job)


def _spec_of(fields: Mapping[str, Any]) -> RequestSpec:
    return request_spec({name: value for name, value in fields.items() if value is not None})


def _refuse(problems: list[str]) -> NoReturn:
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], "and more"]
    raise SpecError("nothing was submitted: " + "; ".join(problems), tuple(problems))
