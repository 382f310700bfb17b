"""The scenario format: what a file may say, read with the line of every fault.

name: higher priority wins
grace_seconds: 30            # default 0: victims leave in the same instant
removal_seconds: 2           # default 0: from a request's end until its capacity is back
pools: [...]                 # as in pools.yaml
policies: [...]
timeline:                    # in order; `at` in seconds, default: the time of the entry before
  - at: 0
    submit: {id: s, component: prod, resources: {gpu_count: 6}}
    expect: {s: allocated}
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, model_validator

from raypool.errors import SpecError
from raypool.spec import (
    NOT_YAML,
    Amount,
    Bundles,
    ComponentType,
    EachKeyOnce,
    Name,
    PolicySpec,
    PoolSpec,
    RequestSpec,
    ResourceSettings,
    Seconds,
    Spec,
    Strategy,
    as_tuple,
)

STATUSES = ("pending", "allocated", "preempting", "released", "preempted", "cancelled", "rejected")


def _checked_time(value: Any) -> Any:
    """Numbers only; a time finer than a millisecond is an error."""
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**10
    if is_time and Decimal(repr(value)) * 1000 % 1:
        raise ValueError("must be exact to the millisecond")
    return value


Time = Annotated[Seconds, BeforeValidator(_checked_time)]


class Submit(Spec):
    """A request, and after how many seconds from its grant it releases itself (`duration`). With
    `max_duration_seconds` it is made to leave when it runs longer than that."""

    id: Name
    component: Name
    component_type: ComponentType = "team"
    pool: Name | None = None
    workers: Annotated[int, Field(ge=1, le=10_000)] = 1
    duration: Time | None = None
    resources: ResourceSettings | None = None
    bundles: Bundles | None = None
    preemptible: bool | None = None
    strategy: Strategy = "PACK"
    grace_seconds: Seconds | None = None
    max_duration_seconds: Time | None = None

    @model_validator(mode="after")
    def _is_a_request(self) -> Submit:
        self.request()
        return self

    def request(self) -> RequestSpec:
        fields = {name: getattr(self, name) for name in self.model_fields_set if name != "duration"}
        return RequestSpec(**fields)


class Apply(Spec):
    pools: Annotated[tuple[PoolSpec, ...], BeforeValidator(as_tuple)] = ()
    policies: Annotated[tuple[PolicySpec, ...], BeforeValidator(as_tuple)] = ()


class Detach(Spec):
    pool: Name
    component: Name
    component_type: ComponentType = "team"


class Expectation(Spec):
    """What a request must look like. Only the named fields are compared."""

    status: Annotated[str, BeforeValidator(lambda value: _checked_status(value))] | None = None
    pool: Name | None = None
    borrowed: dict[Name, Amount] | None = None
    preempted_by: Name | None = None
    demand: dict[Name, Amount] | None = None
    rule: str | None = None


def _checked_status(value: Any) -> Any:
    if value not in STATUSES:
        raise ValueError(f"must be one of {', '.join(STATUSES)}")
    return value


def _short_or_long(value: Any) -> Any:
    """`s: allocated` is short for `s: {status: allocated}`."""
    return {"status": value} if isinstance(value, str) else value


ACTIONS = ("submit", "release", "cancel", "apply", "detach_policy", "delete_pool")


class Entry(Spec):
    """One line of the timeline: at most one action, then what is expected."""

    at: Time | None = None
    submit: Submit | None = None
    release: Name | None = None
    cancel: Name | None = None
    apply: Apply | None = None
    detach_policy: Detach | None = None
    delete_pool: Name | None = None
    refused: bool = False
    expect: dict[Name, Annotated[Expectation, BeforeValidator(_short_or_long)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_action(self) -> Entry:
        actions = self.actions
        if len(actions) > 1:
            raise ValueError(f"an entry holds at most one action, this one has {' and '.join(actions)}")
        if self.refused and not actions:
            raise ValueError("an entry without an action cannot be refused")
        return self

    @property
    def actions(self) -> list[str]:
        return [name for name in ACTIONS if getattr(self, name) is not None]


class Scenario(Spec):
    name: str = Field(min_length=1, max_length=1000)
    description: str = ""
    grace_seconds: Time = 0.0
    removal_seconds: Time = 0.0
    pools: Annotated[tuple[PoolSpec, ...], BeforeValidator(as_tuple)] = ()
    policies: Annotated[tuple[PolicySpec, ...], BeforeValidator(as_tuple)] = ()
    timeline: Annotated[tuple[Entry, ...], BeforeValidator(as_tuple)] = ()

    @model_validator(mode="after")
    def _time_goes_forward(self) -> Scenario:
        before = 0.0
        for index, entry in enumerate(self.timeline):
            if entry.at is not None and entry.at < before:
                raise ValueError(f"timeline[{index}].at: {entry.at:g} is before {before:g}, the entry before it")
            before = before if entry.at is None else entry.at
        return self


# --- files ------------------------------------------------------------------------------------


def read_scenarios(file: Path) -> Iterator[Scenario]:
    """The scenarios of a file, one per YAML document.

    Raises SpecError, naming file, line and field, for what is not a scenario; OSError for a file that
    cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        documents = [node for node in yaml.compose_all(text, Loader=EachKeyOnce) if node is not None]
        values = [value for value in yaml.load_all(text, Loader=EachKeyOnce) if value is not None]
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SpecError(f"{file}{line}: not readable as YAML: {getattr(error, 'problem', error)}") from None
    if not values:
        raise SpecError(f"{file}: holds no scenario")
    for node, value in zip(documents, values, strict=True):
        try:
            yield Scenario.load(value)
        except SpecError as error:
            first = error.problems[0]
            raise SpecError(f"{file}:{_line_of(node, first)}: {'; '.join(error.problems)}", error.problems) from None


def _line_of(node: yaml.Node, problem: str) -> int:
    """The line of the field that a fault names ("timeline[2].submit.id: ..."), as deep as it is there."""
    path = problem.split(":", 1)[0]
    for step in path.replace("[", ".[").split("."):
        if step.startswith("[") and isinstance(node, yaml.SequenceNode):
            index = int(step[1:-1])
            if index >= len(node.value):
                break
            node = node.value[index]
        elif isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == step]
            if not found:
                break
            key, node = found[0]
            if step == path.rsplit(".", 1)[-1]:
                return int(key.start_mark.line) + 1
    return int(node.start_mark.line) + 1
