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
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from raypool.errors import SpecError
from raypool.simulation import swf
from raypool.simulation.job import Job
from raypool.simulation.mapping import Mapping
from raypool.simulation.stories import RunsBackwards, Stories
from raypool.simulation.table import BadLine, NeverRan, Table
from raypool.spec import shorten

T = TypeVar("T")

TOLD = 10
"""So many bad lines are told one by one; all are counted."""


@dataclass
class Counts:
    """What was met while reading. told: a sentence for each of the first bad lines. still_running: jobs of a
    journal whose end it does not have; they count as long as they have run. parts: lines that are one of several
    runs of a job, which another line sums up."""

    jobs: int = 0
    bad: int = 0
    told: list[str] = field(default_factory=list)
    never_ran: int = 0
    left_out: int = 0
    parts: int = 0
    still_running: int = 0


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
        table: Table | None = None
        for number, row in _Rows(lines, mapping.delimiter):
            if table is None:
                if isinstance(row, csv.Error):
                    raise SpecError(f"{self.file}:{number}: the names of the columns are not readable as CSV ({row})")
                table = Table(self.file, [name.strip() for name in row], mapping)
            elif isinstance(row, csv.Error):
                self._bad(number, f"not readable as CSV ({row})")
            else:
                yield str(number), self._job(number, table.job, row)
        if table is None:
            raise SpecError(f"{self.file}: is empty; the first line of a CSV names its columns")

    def _swf(self, lines: _Lines) -> Iterator[tuple[str, Job | None]]:
        mapping = self.mapping.over(swf.DEFAULT) if self.mapping is not None else swf.DEFAULT
        table = Table(self.file, swf.COLUMNS, mapping)
        for number, line in enumerate(lines, 1):
            if not swf.is_comment(line):
                yield str(number), self._job(number, lambda one: table.job(swf.row_of(one)), line)

    def _job(self, number: int, read: Callable[[T], Job | None], line: T) -> Job | None:
        """The job that `read` finds on a line; None, and counted, where there is none."""
        try:
            job = read(line)
        except BadLine as fault:
            self._bad(number, fault)
            return None
        except NeverRan:
            self.counts.never_ran += 1
            return None
        except swf.PartOfAJob:
            self.counts.parts += 1
            return None
        self.counts.left_out += job is None
        return job

    # --- journals -----------------------------------------------------------------------------

    def _journal(self, lines: _Lines) -> Iterator[tuple[str, Job | None]]:
        stories = Stories()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                stories.read(json.loads(line), str(number))
            except RunsBackwards as fault:
                raise SpecError(f"{self.file}:{number}: {fault}") from None
            except SpecError as error:
                self._bad(number, error)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                wrong = f"{type(error).__name__}: {shorten(str(error))}"
                self._bad(number, f"is not a line of an exported journal ({wrong})")
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


class _Rows:
    """The rows of a CSV that are not blank, each with the number of the line on which it begins; an error in place of
    one that cannot be read. A quote that nothing closes costs its own line: those behind it are read again."""

    def __init__(self, lines: Iterable[str], delimiter: str) -> None:
        self._unread = iter(lines)
        self._again: deque[str] = deque()
        self._taken: list[str] = []
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[tuple[int, list[str] | csv.Error]]:
        rows, number = self._reader(), 1
        while True:
            self._taken.clear()
            found: list[str] | csv.Error | None
            try:
                found = next(rows, None)
            except csv.Error as error:
                found = error
                self._again.extendleft(reversed(self._taken[1:]))
                del self._taken[1:]
                rows = self._reader()
            if found is None:
                return
            if found:
                yield number, found
            number += len(self._taken)

    def _reader(self) -> Iterator[list[str]]:
        lines = iter(self._line, None)
        return csv.reader(lines, strict=True, skipinitialspace=True, delimiter=self._delimiter)

    def _line(self) -> str | None:
        """The next line; it belongs to the row that is being read."""
        line = self._again.popleft() if self._again else next(self._unread, None)
        if line is not None:
            self._taken.append(line)
        return line
