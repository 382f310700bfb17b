"""The mapping file: which column of a trace is what a job needs.

submit: submit_time                              # a column: seconds, or an ISO 8601 time
duration: run_time                               # or `end`, with `start` if it began later than it was asked
component: {column: queue, map: {gold: serving}, default: batch}
gpus: {column: gpu_milli, scale: 0.001}          # rounded up to a whole number
workers: 1                                       # a constant
preemptible: {column: queue, map: {gold: false}, default: true}
leave_out: {state: [CANCELLED]}                  # rows that are no jobs
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, model_validator

from raypool.errors import SpecError
from raypool.spec import NOT_YAML, EachKeyOnce, Name, Spec


class Source(Spec):
    """Where a value comes from: a column, or a constant.

    map: what stands in the column -> the value; what is not in it is `default`, and an error without one.
    scale: a number in the column is multiplied by it.
    """

    column: str | None = None
    value: str | int | float | bool | None = None
    map: dict[str, str | int | float | bool] | None = None
    default: str | int | float | bool | None = None
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _one_of_both(self) -> Source:
        if (self.column is None) == (self.value is None):
            raise ValueError("give either column or value")
        if self.value is not None and (self.map is not None or self.default is not None):
            raise ValueError("map and default go with a column, this is a constant")
        return self


def _short(value: Any) -> Any:
    """`gpus: num_gpu` is short for {column: num_gpu}, `gpus: 1` for {value: 1}. Keys of a map are text, as the
    cells of a trace are."""
    if isinstance(value, str):
        return {"column": value}
    if isinstance(value, bool | int | float):
        return {"value": value}
    if isinstance(value, dict) and isinstance(value.get("map"), dict):
        return value | {"map": {str(key): one for key, one in value["map"].items()}}
    return value


def _texts(value: Any) -> Any:
    """`{num_gpu: [0]}` and `{num_gpu: 0}` are short for {num_gpu: ["0"]}."""
    if not isinstance(value, dict):
        return value
    lists = {name: cells if isinstance(cells, list) else [cells] for name, cells in value.items()}
    return {name: tuple(map(str, cells)) for name, cells in lists.items()}


From = Annotated[Source, BeforeValidator(_short)]


class Mapping(Spec):
    """What of a row is what of a job.

    submit: when it was asked. duration: how long it ran, seconds; or end: when it ended, which is counted from
    start, or from submit. component: whose it is. gpus, cpus, memory_mb: of each of its workers, the latter
    two only if a pool meters them. leave_out: column -> cells; rows with one of them are no jobs.
    delimiter: what stands between the cells of a CSV. since, until: jobs that were asked before or after are
    left out.
    """

    submit: From | None = None
    start: From | None = None
    duration: From | None = None
    end: From | None = None
    component: From | None = None
    gpus: From | None = None
    cpus: From | None = None
    memory_mb: From | None = None
    workers: From | None = None
    preemptible: From | None = None
    pool: Name | None = None
    leave_out: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_texts)] = Field(default_factory=dict)
    delimiter: Literal[",", ";", "|", "\t"] = ","
    since: float | None = None
    until: float | None = None

    @model_validator(mode="after")
    def _duration_or_end(self) -> Mapping:
        if self.duration is not None and (self.end is not None or self.start is not None):
            raise ValueError("give either duration, or end (with start, if it is not submit)")
        return self

    @property
    def sources(self) -> dict[str, Source]:
        """Of each field that comes from a row."""
        named = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: source for name, source in named.items() if isinstance(source, Source)}

    def over(self, other: Mapping) -> Mapping:
        """What this one says, and what it does not say, as `other` does."""
        mine = {name: getattr(self, name) for name in self.model_fields_set}
        theirs = {name: getattr(other, name) for name in other.model_fields_set}
        if {"duration", "end"} & mine.keys():
            theirs = {name: one for name, one in theirs.items() if name not in ("duration", "start", "end")}
        return Mapping(**theirs | mine)


def read_mapping(file: Path) -> Mapping:
    """Raises SpecError, naming the file, for what is no mapping; OSError if there is no such file."""
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=EachKeyOnce)
    except NOT_YAML as error:
        raise SpecError(f"{file}: not readable as YAML: {' '.join(str(error).split())}") from None
    try:
        mapping: Mapping = Mapping.load(data)
    except SpecError as error:
        raise SpecError(f"{file}: {error}", error.problems) from None
    return mapping
