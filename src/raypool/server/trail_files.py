"""The files of the trail: records of what was decided, and who used how much, minute by minute and hour by hour.

    raypool_events.jsonl   records (record.py)
    raypool_minutes.jsonl  closed minutes of usage, a day of them
    raypool_usage.jsonl    closed hours, more than a month of them

One broker after the other writes into the same files: where a journal begins, and a life of its broker, a record says
so. All of it blocks, and is called in one thread. What goes into the files, and when, is not known here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from raypool.core.records import quoted
from raypool.server.record import Record, Turn, lines_of, matching, records_of, text_of
from raypool.server.record_files import RecordFile
from raypool.server.usage import HOUR, KEPT_MINUTES, Span

logger = logging.getLogger("raypool")

EVENTS_FILE, MINUTES_FILE, HOURS_FILE = "raypool_events.jsonl", "raypool_minutes.jsonl", "raypool_usage.jsonl"

EVENTS_BYTES, EVENTS_OLDER = 32_000_000, 7
MINUTES_BYTES, MINUTES_OLDER = 32_000_000, 1
HOURS_BYTES, HOURS_OLDER = 32_000_000, 7
"""A file is turned over when it is so large, and so many older ones are kept."""

Place = tuple[int, int]
"""Of a record: its event and its index."""

NOWHERE: Place = (-1, -1)

STARTED = '"kind":"started"'
"""Where a journal, or a life of the broker, begins in a file of records."""


class Kept:
    """Records, and as lines. Those of a turn are made when they are asked for."""

    __slots__ = ("_lines", "_records", "at", "number", "size", "turn")

    def __init__(self, number: int, at: float, size: int, turn: Turn | None, records: list[Record] | None) -> None:
        self.number = number
        self.at = at
        self.size = size
        self.turn = turn
        self._records = records
        self._lines: list[str] | None = None

    @property
    def records(self) -> list[Record]:
        if self._records is None:
            assert self.turn is not None
            self._records = records_of(self.turn)
        return self._records

    @property
    def lines(self) -> list[str]:
        if self._lines is None:
            self._lines = list(map(text_of, self.records)) if self.turn is None else lines_of(self.turn)
        return self._lines


def made(records: list[Record]) -> Kept:
    """Records that are there already."""
    return Kept(records[0]["event"], records[0]["at"], len(records), None, records)


class Files:
    """head: the first line of a file of records."""

    def __init__(self, folder: Path, head: Callable[[], str]) -> None:
        self.events = RecordFile(folder / EVENTS_FILE, EVENTS_BYTES, EVENTS_OLDER, head)
        self._minutes = RecordFile(folder / MINUTES_FILE, MINUTES_BYTES, MINUTES_OLDER)
        self._hours = RecordFile(folder / HOURS_FILE, HOURS_BYTES, HOURS_OLDER)

    def read_back(self, journal: str) -> tuple[Place, list[Span], int]:
        """The last record of that journal, the minutes that are kept, in order, and the start of the last hour; -1
        for what is not there."""
        minutes = _spans(self._minutes)[-KEPT_MINUTES:]
        return self._last_record(journal), minutes, max((one.start for one in _spans(self._hours)), default=-1)

    def _last_record(self, journal: str) -> Place:
        place = NOWHERE
        for path in self.events.files():
            lines = (line for line in reversed(self.events.lines(path)) if STARTED in line or place == NOWHERE)
            for begun, found in self.events.rows(path, lines, _place):
                if begun is None:
                    place = found if place == NOWHERE else place
                elif begun != journal:
                    return NOWHERE
                elif place != NOWHERE:
                    return place
        return NOWHERE

    def write(self, kept: Iterable[Kept], minutes: Iterable[Span], hours: Iterable[Span]) -> None:
        """Raises OSError."""
        lines = [line for one in kept for line in _lines_of(one)]
        self.events.append(lines, head=not (lines and STARTED in lines[0]))
        self._minutes.append([text_of(one.row()) for one in minutes])
        self._hours.append([text_of(one.row()) for one in hours])

    def older(
        self,
        journal: str,
        first: int,
        since: float | None,
        after: int | None,
        limit: int,
        about: Mapping[str, str | None],
    ) -> list[Record]:
        """Records before that event, in order. limit: so many of the last are enough, where `after` is None."""
        having = [quoted(name) for name in about.values() if name is not None]
        found: list[Record] = []
        for path in self.events.files():
            records, ours, begun = [], False, None
            lines = (
                line for line in self.events.lines(path) if STARTED in line or all(text in line for text in having)
            )
            for record in self.events.rows(path, lines, _whole):
                begun = record if begun is None else begun
                if record["kind"] == "started":
                    ours = record["facts"]["journal"] == journal
                    if "continues" in record["facts"]:
                        continue
                if (not ours or record["event"] < first) and (ours or after is None):
                    records.append(record)
            found = [*_chosen(records, since, after, about), *found]
            if begun is not None and (
                (after is not None and (not ours or begun["event"] <= after))
                or (since is not None and begun["at"] < since)
                or (after is None and len(found) >= limit)
            ):
                break
        return found

    def hours(self, since: float, until: float) -> list[Span]:
        return [one for one in _spans(self._hours) if one.start + HOUR > since and one.start < until]


def _lines_of(kept: Kept) -> list[str]:
    """None if they cannot be made: that is a bug of ours, and no reason to write nothing any more."""
    try:
        return kept.lines
    except Exception:
        logger.exception("a bug of raypool's: event %d is not in the records", kept.number)
        return []


def _chosen(
    records: Iterable[Record], since: float | None, after: int | None, about: Mapping[str, str | None]
) -> Iterator[Record]:
    for record in matching(records, **about):
        if (since is None or record["at"] >= since) and (after is None or record["event"] > after):
            yield record


def _spans(file: RecordFile) -> list[Span]:
    """Those of all its files, in order."""
    return [span for path in reversed(file.files()) for span in file.rows(path, file.lines(path), Span.of)]


def _place(row: Any) -> tuple[str | None, Place]:
    """The journal whose records begin there, if they do, and where in it that record stands."""
    return row["facts"]["journal"] if row["kind"] == "started" else None, (row["event"], row["index"])


_looked_at = itemgetter("event", "index", "at", "kind", "request", "component", "pool", "by", "facts")


def _whole(row: Any) -> Record:
    """A record with all that is looked at. Raises KeyError, TypeError."""
    _looked_at(row)
    return dict(row)
