"""Workload traces: what was asked, when, and how long it ran, read job by job.

A trace is a CSV with a mapping file, a file in the Standard Workload Format (.swf), or an exported journal
(.jsonl), each also gzipped. CSV and SWF are streamed. A line that cannot be read is named with its field; it
ends the reading, or is counted (`skip_bad`). Two things are no faults: a job that never ran, since nobody
knows how long it would have, and a row that the mapping leaves out; both are counted. Jobs come in the order
in which they were asked: times that run backwards are an error always.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from raypool.core.records import event_of
from raypool.errors import SpecError
from raypool.simulation.mapping import PROCESSORS, Mapping, Source
from raypool.spec import MAX_AMOUNT, RequestSpec, ResourceSettings, shorten

TOLD = 10
"""So many bad lines are told one by one; all are counted."""

SWF_COLUMNS = (
    "job", "submit", "wait", "run_time", "allocated_processors", "cpu_time", "memory_kb", "requested_processors",
    "requested_time", "requested_memory_kb", "status", "user", "group", "executable", "queue", "partition",
    "preceding", "think_time",
)  # fmt: skip
"""The fields of the Standard Workload Format, in order. One more can be named in a mapping: `processors`, the
allocated ones, or the requested ones where the trace has no others."""

_PREFIXED = ("user", "group", "executable", "queue", "partition")
"""Numbers that name something: "group-7" is a better component than "7"."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a trace. submitted_at: seconds, on the trace's own clock. duration_seconds: how long it ran.
    spec: what was asked; its id tells nothing, since jobs that are alike share it."""

    submitted_at: float
    duration_seconds: float
    spec: RequestSpec


@dataclass
class Counts:
    """What was met while reading. told: a sentence for each of the first bad lines. still_running: jobs of a
    journal whose end it does not have; they count as long as they have run."""

    jobs: int = 0
    bad: int = 0
    told: list[str] = field(default_factory=list)
    never_ran: int = 0
    left_out: int = 0
    still_running: int = 0


class _BadLine(Exception):
    """This line is no job: field, and what is wrong with it."""


class _RunsBackwards(Exception):
    """A time is before the one before it."""


class _NeverRan(Exception):
    """Nobody knows how long it would have run."""


class Trace:
    """A trace file. Iterating reads it from its beginning; `counts` says what was met the last time.

    skip_bad: lines that cannot be read are counted. progress(bytes) hears how much of the file has been read.
    Raises SpecError for a file, a mapping, or, without skip_bad, a line that is none; OSError if there is no
    such file.
    """

    def __init__(self, file: Path, mapping: Mapping | None = None, skip_bad: bool = False) -> None:
        self.file = file
        self.mapping = mapping
        self.skip_bad = skip_bad
        self.counts = Counts()
        self.progress: Callable[[int], None] = lambda read: None
        self.size = file.stat().st_size
        self._reader = self._reader_for()

    def _reader_for(self) -> Callable[[_Lines], Iterator[tuple[str, Job | None]]]:
        kind = Path(self.file.name.removesuffix(".gz")).suffix.lower()
        if kind == ".csv":
            if self.mapping is None:
                raise SpecError(
                    f"{self.file}: a CSV needs a mapping file, which says what its columns are (--mapping)"
                )
            return self._csv
        if kind == ".swf":
            return self._swf
        if kind == ".jsonl":
            if self.mapping is not None:
                raise SpecError(
                    f"{self.file}: an exported journal has all that is needed; a mapping is for .csv and .swf"
                )
            return self._journal
        raise SpecError(
            f"{self.file}: a trace ends with .csv, .swf or .jsonl (an exported journal), each also with .gz"
        )

    def __iter__(self) -> Iterator[Job]:
        self.counts = Counts()
        before: tuple[str, float] | None = None
        with self.file.open("rb") as raw:
            lines = _Lines(self.file, raw, self.progress)
            for where, job in self._reader(lines):
                if job is None:
                    continue
                if before is not None and job.submitted_at < before[1]:
                    raise SpecError(
                        f"{self.file}:{where}: submit: {job.submitted_at:.10g} is before {before[1]:.10g} of line "
                        f"{before[0]}: times must not run backwards; sort the trace by them"
                    )
                before = where, job.submitted_at
                self.counts.jobs += 1
                yield job
        self.progress(self.size)

    def _bad(self, where: object, fault: object) -> None:
        """Counts the line, or ends the reading."""
        sentence = f"{self.file}:{where}: {fault}"
        if not self.skip_bad:
            raise SpecError(f"{sentence}. --skip-bad leaves such lines out and counts them")
        self.counts.bad += 1
        if len(self.counts.told) < TOLD:
            self.counts.told.append(sentence)

    # --- tables -------------------------------------------------------------------------------

    def _csv(self, lines: _Lines) -> Iterator[tuple[str, Job | None]]:
        mapping = self.mapping or Mapping()
        rows = csv.reader(lines, strict=True, skipinitialspace=True, delimiter=mapping.delimiter)
        header: list[str] | None = None
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                self._bad(rows.line_num, f"not readable as CSV ({error})")
                continue
            if row is None:
                break
            if header is None:
                header = [name.strip() for name in row]
                table = _Table(self.file, header, mapping)
            elif row:
                yield str(rows.line_num), self._job(rows.line_num, row, table)
        if header is None:
            raise SpecError(f"{self.file}: is empty; the first line of a CSV names its columns")

    def _swf(self, lines: _Lines) -> Iterator[tuple[str, Job | None]]:
        mapping = self.mapping.over(PROCESSORS) if self.mapping is not None else PROCESSORS
        header = [*SWF_COLUMNS, "processors"]
        table = _Table(self.file, header, mapping)
        for number, line in enumerate(lines, 1):
            row = line.split()
            if not row or row[0].startswith(";"):
                continue
            if len(row) != len(SWF_COLUMNS):
                self._bad(number, f"has {len(row)} fields, the Standard Workload Format has {len(SWF_COLUMNS)}")
                continue
            row = ["" if cell == "-1" else cell for cell in row]
            row.append(row[4] or row[7])
            if not row[-1] or row[-1] == "0":
                row[3] = ""  # it never got a processor, so it never ran
            for name in _PREFIXED:
                at = SWF_COLUMNS.index(name)
                row[at] = f"{name}-{row[at] or 'unknown'}"
            yield str(number), self._job(number, row, table)

    def _job(self, number: int, row: Sequence[str], table: _Table) -> Job | None:
        try:
            if table.leaves_out(row):
                self.counts.left_out += 1
                return None
            job = table.job(row)
        except _BadLine as fault:
            self._bad(number, fault)
            return None
        except _NeverRan:
            self.counts.never_ran += 1
            return None
        since, until = table.mapping.since, table.mapping.until
        if (since is not None and job.submitted_at < since) or (until is not None and job.submitted_at > until):
            self.counts.left_out += 1
            return None
        return job

    # --- journals -----------------------------------------------------------------------------

    def _journal(self, lines: _Lines) -> Iterator[tuple[str, Job | None]]:
        """Read whole, since the end of a job stands behind its beginning."""
        stories = _Stories()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                stories.read(json.loads(line), str(number))
            except _RunsBackwards as fault:
                raise SpecError(f"{self.file}:{number}: {fault}") from None
            except SpecError as error:
                self._bad(number, error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._bad(
                    number, f"is no line of an exported journal ({type(error).__name__}: {shorten(str(error))})"
                )
        for story in stories.whole():
            duration = story.ran_until(stories.now)
            if duration is None:
                self.counts.never_ran += 1
                continue
            self.counts.still_running += story.ended_at is None
            yield story.line, Job(story.submitted_at, duration, story.spec)


class _Lines:
    """The lines of a file, unpacked if need be. Tells how much of the file has been read now and then."""

    EVERY = 2000

    def __init__(self, file: Path, raw: IO[bytes], progress: Callable[[int], None]) -> None:
        self.file, self.raw, self.progress = file, raw, progress

    def __iter__(self) -> Iterator[str]:
        unpacked: Any = gzip.GzipFile(fileobj=self.raw) if self.file.name.endswith(".gz") else self.raw
        text = io.TextIOWrapper(unpacked, encoding="utf-8-sig", errors="replace", newline="")
        read = 0
        try:
            for line in text:
                read += 1
                if read % self.EVERY == 0:
                    self.progress(self.raw.tell())
                yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SpecError(f"{self.file}:{read + 1}: the rest is not readable as gzip ({error})") from None


# --- a row ------------------------------------------------------------------------------------


class _Table:
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
        at = {name: index for index, name in enumerate(header)}
        self._left_out = [(at[column], frozenset(cells)) for column, cells in mapping.leave_out.items()]
        self._cells = {name: _reader(name, source, at) for name, source in mapping.sources.items()}

    def leaves_out(self, row: Sequence[str]) -> bool:
        if len(row) < self.width:
            raise _BadLine(f"has {len(row)} cells, the header has {self.width}")
        return any(row[at] in cells for at, cells in self._left_out)

    def job(self, row: Sequence[str]) -> Job:
        submitted_at = self._time("submit", row)
        if submitted_at is None:
            raise _BadLine("submit: is empty")
        duration = self._duration(row, submitted_at)
        template = _template(
            str(self._value("component", row, "")),
            self._whole("gpus", row, 0),
            self._number("cpus", row),
            self._whole("memory_mb", row, 0),
            self._whole("workers", row, 1),
            self._preemptible(row),
            self.mapping.pool,
        )
        if isinstance(template, str):
            raise _BadLine(template)
        return Job(submitted_at, duration, template)

    def _duration(self, row: Sequence[str], submitted_at: float) -> float:
        if self.mapping.duration is not None:
            duration = self._number("duration", row)
            if duration is None:
                raise _NeverRan
        else:
            end = self._time("end", row)
            start = self._time("start", row) if self.mapping.start is not None else submitted_at
            if end is None or start is None:
                raise _NeverRan
            duration = end - start
            if duration < 0:
                raise _BadLine(f"end: {end:.10g} is before {start:.10g}, when it started")
        if duration < 0:
            raise _BadLine(f"duration: {duration:g} s is less than nothing")
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
        if math.isnan(number) or isinstance(value, bool):
            raise _BadLine(f"{self._named(name)}: {shorten(value)} is not a number")
        if abs(number) > MAX_AMOUNT:
            raise _BadLine(f"{self._named(name)}: {shorten(value)} is beyond {MAX_AMOUNT}")
        source = getattr(self.mapping, name)
        return number * source.scale if source.scale != 1.0 else number

    def _time(self, name: str, row: Sequence[str]) -> float | None:
        value = self._value(name, row, "")
        if isinstance(value, str) and ("-" in value[1:] or ":" in value) and "e-" not in value.lower():
            try:
                moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
            except ValueError:
                raise _BadLine(f"{self._named(name)}: {shorten(value)} is neither seconds nor an ISO time") from None
            return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
        return self._number(name, row)

    def _whole(self, name: str, row: Sequence[str], default: int) -> int:
        number = self._number(name, row)
        if number is None:
            return default
        if number < 0:
            raise _BadLine(f"{self._named(name)}: {number:g} is less than nothing")
        if number % 1 and getattr(self.mapping, name).scale == 1.0:
            raise _BadLine(f"{self._named(name)}: {number:g} is not a whole number")
        return math.ceil(round(number, 6))

    def _preemptible(self, row: Sequence[str]) -> bool:
        value = self._value("preemptible", row, True)
        found = _TRUTH.get(str(value).strip().lower())
        if found is None:
            raise _BadLine(f"{self._named('preemptible')}: {shorten(value)} is neither true nor false")
        return found

    def _named(self, name: str) -> str:
        """ "gpus (column 'num_gpu')"."""
        column = getattr(self.mapping, name).column
        return name if column in (None, name) else f"{name} (column '{column}')"


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
            raise _BadLine(f"{name} (column '{source.column}'): the mapping has no value for {shorten(row[index])}")
        return value

    return mapped


@lru_cache(maxsize=10_000)
def _template(
    component: str, gpus: int, cpus: float | None, memory_mb: int, workers: int, preemptible: bool, pool: str | None
) -> RequestSpec | str:
    """The request of all jobs that are alike, or what is wrong with them: checked once."""
    try:
        resources = ResourceSettings(
            gpu_count=gpus or None,
            cpu_count=cpus or None,
            memory=f"{memory_mb}MB" if memory_mb else None,
            preemptible=preemptible,
        )
        return RequestSpec(id="job", component=component, resources=resources, workers=workers, pool=pool)
    except SpecError as error:
        return "; ".join(error.problems)


# --- a journal --------------------------------------------------------------------------------


@dataclass
class _Story:
    """A request of a journal, from its submission to its end, with those that took it up again."""

    spec: RequestSpec
    line: str
    submitted_at: float
    granted_at: float | None = None
    ended_at: float | None = None

    def ran_until(self, now: float) -> float | None:
        """How long its last run was, until now if it has not ended; None if it never ran."""
        if self.granted_at is None:
            return None
        return max((now if self.ended_at is None else self.ended_at) - self.granted_at, 0.0)


class _Stories:
    """All requests of a journal."""

    ENDS = frozenset({"released", "cancelled", "preempted"})

    def __init__(self) -> None:
        self.now = -math.inf
        self.stories: list[_Story] = []
        self._of: dict[str, _Story] = {}

    def read(self, row: dict[str, Any], line: str) -> None:
        if "n" in row and "event" in row:
            self._event(row, line)
        elif "request" in row:
            one = row["request"]
            story = self._begin(RequestSpec.load(one["spec"]), line, one["submitted_at"])
            story.granted_at, story.ended_at = one["granted_at"], one["ended_at"]
        elif not {"pool", "schema", "version"} & set(row):
            raise KeyError("n, request, pool, version or schema")
        elif "at" in row:
            self.now = row["at"]

    def _event(self, row: dict[str, Any], line: str) -> None:
        at = float(row["at"])
        if at < self.now:
            raise _RunsBackwards(f"at: {at} is before {self.now}: times must not run backwards")
        self.now = at
        if row["event"] == "Submitted":
            spec = event_of(row).spec  # type: ignore[union-attr]
            self._begin(spec, line, at)
        for decision in row["decided"]:
            if decision[0] == "status" and decision[1] in self._of:
                story = self._of[decision[1]]
                if decision[2] == "allocated" and story.granted_at is None:
                    story.granted_at = at
                elif decision[2] in self.ENDS:
                    story.ended_at = at

    def _begin(self, spec: RequestSpec, line: str, at: float) -> _Story:
        """A story of its own; who takes up a request again goes on with its story, and runs from the beginning."""
        former = self._of.get(spec.retry_of) if spec.retry_of is not None else None
        if former is not None:
            former.granted_at = former.ended_at = None
            self._of[spec.id] = former
            return former
        story = self._of[spec.id] = _Story(spec, line, at)
        self.stories.append(story)
        return story

    def whole(self) -> list[_Story]:
        """In order of submission."""
        return sorted(self.stories, key=lambda story: story.submitted_at)
