"""Rows of a table, made into jobs as a mapping says.

Knows a row as its cells, by the names in the header; where rows come from is traces.py's business. What is wrong
with a row is said with the field, and with the column if it is called otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from raypool.errors import SpecError
from raypool.simulation.job import Job, request_of
from raypool.simulation.mapping import Mapping, Source
from raypool.spec import MAX_AMOUNT, shorten


class BadLine(Exception):
    """A line that is not a job: the field, and what is wrong with it."""


class NeverRan(Exception):
    """A job that never ran: nobody knows for how long it would have."""


class Table:
    """A header and a mapping, made into one function from a row to a job."""

    def __init__(self, file: Path, header: Sequence[str], mapping: Mapping) -> None:
        self.mapping = mapping
        self.width = len(header)
        missing = [name for name in ("submit", "component") if getattr(mapping, name) is None]
        if mapping.duration is None and mapping.end is None:
            missing.append("duration (or end)")
        if missing:
            raise SpecError(f"the mapping does not say what is {' and what is '.join(missing)}")
        named = [(name, source.column) for name, source in mapping.sources.items() if source.column is not None]
        for name, column in [*named, *(("leave_out", column) for column in mapping.leave_out)]:
            if column not in header:
                raise SpecError(f"{file}: {name}: there is no column '{column}' (there are: {', '.join(header)})")
            if header.count(column) > 1:
                raise SpecError(f"{file}: {name}: there are {header.count(column)} columns '{column}'")
        at = {name: index for index, name in enumerate(header)}
        self._left_out = [(at[column], frozenset(cells)) for column, cells in mapping.leave_out.items()]
        self._cells = {name: _reader(name, source, at) for name, source in mapping.sources.items()}

    def job(self, row: Sequence[str]) -> Job | None:
        """None for a row that the mapping leaves out. Raises BadLine, NeverRan."""
        if len(row) != self.width and (len(row) < self.width or any(row[self.width :])):
            raise BadLine(f"has {len(row)} cells, the header has {self.width}")
        if any(row[at] in cells for at, cells in self._left_out):
            return None
        submitted_at = self._time("submit", row)
        if submitted_at is None:
            raise BadLine("submit: is empty")
        since, until = self.mapping.since, self.mapping.until
        if (since is not None and submitted_at < since) or (until is not None and submitted_at > until):
            return None
        duration = self._duration(row, submitted_at)
        request = request_of(
            str(self._value("component", row, "")),
            self._whole("gpus", row, 0),
            self._number("cpus", row),
            self._whole("memory_mb", row, 0),
            self._whole("workers", row, 1),
            self._preemptible(row),
            self.mapping.pool,
        )
        if isinstance(request, str):
            field, _, wrong = request.partition(":")
            raise BadLine(f"{self._named(_IN_A_MAPPING.get(field, field))}:{wrong}")
        return Job(submitted_at, duration, request)

    def _duration(self, row: Sequence[str], submitted_at: float) -> float:
        if self.mapping.duration is not None:
            duration = self._number("duration", row)
            if duration is None:
                raise NeverRan
        else:
            end = self._time("end", row)
            start = self._time("start", row) if self.mapping.start is not None else submitted_at
            if end is None or start is None:
                raise NeverRan
            duration = end - start
            if duration < 0:
                raise BadLine(f"end: {end:.10g} is before {start:.10g}, when it started")
        if duration < 0:
            raise BadLine(f"duration: {duration:g} s is negative")
        return duration

    def _value(self, name: str, row: Sequence[str], default: Any) -> Any:
        read = self._cells.get(name)
        return default if read is None else read(row)

    def _number(self, name: str, row: Sequence[str]) -> float | None:
        """None for what is empty or not mapped."""
        value = self._value(name, row, "")
        if value == "":
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number) or isinstance(value, bool) or "_" in str(value):  # 1_000 is one for Python only
            raise BadLine(f"{self._named(name)}: {shorten(value)} is not a number")
        if abs(number) > MAX_AMOUNT:
            raise BadLine(f"{self._named(name)}: {shorten(value)} is beyond {MAX_AMOUNT}")
        source = getattr(self.mapping, name)
        return number * source.scale if source.scale != 1.0 else number

    def _time(self, name: str, row: Sequence[str]) -> float | None:
        value = self._value(name, row, "")
        if isinstance(value, str) and ("-" in value[1:] or ":" in value) and "e-" not in value.lower():
            try:
                moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
            except ValueError:
                raise BadLine(f"{self._named(name)}: {shorten(value)} is neither seconds nor an ISO time") from None
            return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
        return self._number(name, row)

    def _whole(self, name: str, row: Sequence[str], default: int) -> int:
        number = self._number(name, row)
        if number is None:
            return default
        if number < 0:
            raise BadLine(f"{self._named(name)}: {number:g} is negative")
        if number % 1 and getattr(self.mapping, name).scale == 1.0:
            raise BadLine(f"{self._named(name)}: {number:g} is not a whole number")
        return math.ceil(round(number, 6))

    def _preemptible(self, row: Sequence[str]) -> bool:
        value = self._value("preemptible", row, True)
        found = _TRUTH.get(str(value).strip().lower())
        if found is None:
            raise BadLine(f"{self._named('preemptible')}: {shorten(value)} is neither true nor false")
        return found

    def _named(self, name: str) -> str:
        """ "gpus (column 'num_gpu')"."""
        source = self.mapping.sources.get(name)
        return name if source is None or source.column in (None, name) else f"{name} (column '{source.column}')"


_IN_A_MAPPING = {"gpu_count": "gpus", "cpu_count": "cpus", "memory": "memory_mb"}
"""What the fields of a request are called there."""

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _reader(name: str, source: Source, at: dict[str, int]) -> Callable[[Sequence[str]], Any]:
    """What stands in a row for that field."""
    if source.column is None:
        return lambda row: source.value
    index, values, default = at[source.column], source.map, source.default
    if values is None:
        if default is None:
            return lambda row: row[index]
        return lambda row: row[index] or default

    def mapped(row: Sequence[str]) -> Any:
        value = values.get(row[index], default)
        if value is None:
            raise BadLine(f"{name} (column '{source.column}'): the mapping has no value for {shorten(row[index])}")
        return value

    return mapped
