"""Files of JSON lines in a folder: appended to, turned over when they are full, and read back.

A line is whole or it is not there: what a process wrote of a line when it died is cut off by the next one. What a
disk or somebody else made of a line is passed over. Everything here blocks, and is called in one thread. What the
lines mean is not known here.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger("raypool")

T = TypeVar("T")


class RecordFile:
    """One name, and its older files: name.1, name.2 ... up to `older` of them. head: the first line of each file;
    none without it."""

    def __init__(self, path: Path, most_bytes: int, older: int, head: Callable[[], str] | None = None) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self.older = older
        self._head = head
        self._size: int | None = None

    def append(self, lines: Sequence[str], head: bool = True) -> None:
        """All of them, or an OSError, and then perhaps some: the next call takes those away first. head: a file that
        begins with them needs its head."""
        if not lines:
            return
        size = self._whole_size()
        if size >= self.most_bytes:
            self._turn_over()
            size = 0
        first = [self._head()] if head and size == 0 and self._head is not None else []
        text = "".join(f"{line}\n" for line in (*first, *lines)).encode()
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(size)
            file.truncate()
            file.write(text)
        self._size = size + len(text)

    def _whole_size(self) -> int:
        """Of what is there to the end of its last whole line."""
        if self._size is not None and self.path.exists():
            return self._size
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return 0
        return data.rfind(b"\n") + 1

    def _turn_over(self) -> None:
        handler = RotatingFileHandler(self.path, backupCount=self.older, delay=True)
        handler.doRollover()
        handler.close()
        if self.path.exists():  # the handler has opened a new one
            os.truncate(self.path, 0)
        self._size = 0

    def files(self) -> list[Path]:
        """Those that are there, newest first."""
        paths = [self.path, *(self.path.with_name(f"{self.path.name}.{place}") for place in range(1, self.older + 1))]
        return [path for path in paths if path.exists()]

    def lines(self, path: Path) -> list[str]:
        """The whole lines of one of its files, oldest first."""
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:  # turned over meanwhile
            return []
        return text.split("\n")[:-1]

    def rows(self, path: Path, lines: Iterable[str], of: Callable[[Any], T]) -> Iterator[T]:
        """What `of` makes of the values in those lines of a file; those of which it makes nothing are passed over."""
        broken = 0
        for line in lines:
            try:
                row = of(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError):
                broken += 1
            else:
                yield row
        if broken:
            logger.warning("%d lines of %s cannot be read, and are passed over", broken, path)
