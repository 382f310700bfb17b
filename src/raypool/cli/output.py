"""How things are printed: tables for people, JSON and YAML for programs, and the progress of what takes long.

Tables go to the width of the terminal, and to 100 columns where there is none. Knows no noun: what
the columns of a request are stands in request.py.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import click

WIDTH = 100
"""Columns of a table that is written to a file or a pipe."""

_KEPT_WHOLE = 24
"""A first column (a name or an id) up to this width is never broken, so that it can be copied."""

F = TypeVar("F", bound=Callable[..., Any])


class _HasDict(Protocol):
    def as_dict(self) -> dict[str, Any]: ...


V = TypeVar("V", bound=_HasDict)

Columns = Mapping[str, Callable[[V], object]]
"""Heading -> what stands there, of one row."""


def output_option(function: F) -> F:
    """`-o table|json|yaml`, passed as `form`."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["table", "json", "yaml"]),
        default="table",
        show_default=True,
        help="How it is printed.",
    )(function)


def listing(views: Sequence[V], columns: Columns[V], form: str, empty: str) -> None:
    """Prints many. `empty` is the line that says, in a table's place, that there are none."""
    if form != "table":
        data([view.as_dict() for view in views], form)
    elif not views:
        click.echo(empty)
    else:
        table(list(columns), [[cell(view) for cell in columns.values()] for view in views])


def data(value: Any, form: str) -> None:
    """Prints plain data as JSON or YAML."""
    if form == "json":
        import json

        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
        return
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the one in C, if it was built: ten times faster
    click.echo(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True), nl=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under headings; columns of numbers stand to the right."""
    head, found = laid_out(headings, rows, columns())
    click.echo(click.style("\n".join(head), bold=True))
    click.echo("".join(line + "\n" for row in found for line in row), nl=False)


def laid_out(
    headings: Sequence[str], rows: Iterable[Sequence[object]], width: int
) -> tuple[list[str], list[list[str]]]:
    """The lines of the headings, and those of each row."""
    cells = [[printable(value) for value in row] for row in rows]
    by_column = list(zip(*cells, strict=True)) or [()] * len(headings)
    right = [bool(at) and all(text.isdecimal() or text in ("-", "") for text in column)
             for at, column in enumerate(by_column)]  # fmt: skip
    natural = [
        max(width_of(heading), *(width_of(line) for text in column for line in text.split("\n")), 1)
        for heading, column in zip(headings, by_column, strict=True)
    ]
    widths = _fitted(natural, width)
    return _lines(headings, widths, right), [_lines(row, widths, right) for row in cells]


def facts(pairs: Mapping[str, object]) -> None:
    """Prints names and what they are, one below the other; what is None or empty is left out."""
    shown = {name: printable(value) for name, value in pairs.items() if value not in (None, "", "-")}
    first = max(map(len, shown), default=0)
    widths = [first, columns() - first - len(_GAP)]
    for name, text in shown.items():
        click.echo("\n".join(_lines([name, text], widths, [False, False])))


def lines(text: str) -> None:
    """Prints sentences, each from its own indentation on; what does not fit goes on two columns further in."""
    for line in printable(text).split("\n"):
        words = line.lstrip(" ")
        first = " " * (len(line) - len(words))
        rest = first + ("    " if words.startswith("- ") else "  ")
        parts = folded(words, columns() - len(rest))
        click.echo("\n".join([first + parts[0], *(rest + part for part in parts[1:])]))


# --- progress ---------------------------------------------------------------------------------

PROGRESS_AFTER_SECONDS = 1.0
"""What takes no longer shows no progress."""

_REDRAWN_SECONDS = 0.25


@contextmanager
def progress(what: str, length: int | None = None) -> Iterator[Callable[[int], None]]:
    """A line on stderr, if that is a terminal, with what is going on and for how long; gone at the end.

    length: of all that is to be done, if that is known: call what it yields with how much of it has been done so far.
    Print nothing meanwhile.
    """
    done = 0

    def at(so_far: int) -> None:
        nonlocal done
        done = so_far

    if not sys.stderr.isatty():
        yield at
        return
    began, over = time.monotonic(), threading.Event()

    def draw() -> None:
        pause, drawn = PROGRESS_AFTER_SECONDS, 0
        while not over.wait(pause):
            line = _progress_line(what, done, length, time.monotonic() - began)
            line = cut(line, shutil.get_terminal_size((WIDTH, 24)).columns - 1)
            _to_stderr("\r" + line + " " * (drawn - width_of(line)))
            pause, drawn = _REDRAWN_SECONDS, width_of(line)
        _to_stderr("\r" + " " * drawn + "\r" if drawn else "")

    drawing = threading.Thread(target=draw, name="raypool-progress", daemon=True)
    drawing.start()
    try:
        yield at
    finally:
        over.set()
        drawing.join()


def _progress_line(what: str, done: int, length: int | None, seconds: float) -> str:
    """ "replaying log.swf: 40 %, 12 s, about 18 s more"."""
    if not length or done <= 0:
        return f"{what}: {duration(seconds)}"
    left = seconds * (length - done) / done
    more = f", about {duration(left)} more" if left >= 1 else ""
    return f"{what}: {100 * done // length} %, {duration(seconds)}{more}"


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


# --- layout -----------------------------------------------------------------------------------
#
# Not rich's: on a busy machine it took 8 s for 5,000 requests, this takes 0.1; and a tenth of a second to import,
# which a query has not got.

_GAP = "  "


def columns() -> int:
    """Of the terminal, 40 at least; `WIDTH` where stdout is none."""
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, 40) if sys.stdout.isatty() else WIDTH


def _fitted(natural: Sequence[int], room: int) -> list[int]:
    """Column widths that fit: the widest give way first, the first column (names, ids) last."""
    widths = list(natural)
    room -= len(_GAP) * (len(widths) - 1)
    while sum(widths) > room:
        may_shrink = [at for at in range(len(widths)) if widths[at] > (_KEPT_WHOLE if at == 0 else 6)]
        if not may_shrink:
            break  # a terminal narrower than any table: its lines are broken by the terminal
        widths[max(may_shrink, key=lambda at: widths[at])] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    """The lines of one row: as many as its tallest cell has."""
    cells = [folded(text, width) for text, width in zip(row, widths, strict=True)]
    lines = []
    for at in range(max(map(len, cells))):
        parts = []
        for cell, width, to_right in zip(cells, widths, right, strict=True):
            text = cell[at] if at < len(cell) else ""
            blank = " " * (width - width_of(text))
            parts.append(blank + text if to_right else text + blank)
        lines.append(_GAP.join(parts).rstrip())
    return lines


def folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`, broken between words, or inside one that is too long."""
    if width_of(text) <= width and "\n" not in text:
        return [text]
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if width_of(longer) <= width:
                line = longer
                continue
            if line:
                lines.append(line)
            while width_of(word) > width:
                head = _head(word, width)
                lines.append(head)
                word = word[len(head) :]
            line = word
        lines.append(line)
    return lines


def _head(word: str, width: int) -> str:
    """The longest beginning that fits, one character at least."""
    end = min(width, len(word))
    while end > 1 and width_of(word[:end]) > width:
        end -= 1
    return word[:end]


def cut(text: str, width: int) -> str:
    """The text, or its beginning with "…", in at most `width` columns."""
    return text if width_of(text) <= width else _head(text, max(width - 1, 1)) + "…"


def width_of(text: str) -> int:
    """Columns on a terminal: Chinese, Japanese and Korean characters take two, accents none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def printable(value: object) -> str:
    """Control characters become "?": a description must not steer the terminal of who reads it."""
    text = "-" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


# --- words for values -------------------------------------------------------------------------


def amounts(figures: Mapping[str, int]) -> str:
    """ "8 gpu, 4000 mcpu"; "-" if there is nothing."""
    return ", ".join(f"{amount} {key}" for key, amount in figures.items() if amount) or "-"


def duration(seconds: float) -> str:
    """How long, in the two largest units that say something: "45 s", "3 min", "2 h 5 min", "3 d 4 h"."""
    left = max(int(seconds), 0)
    if left < 60:
        return f"{left} s"
    minutes, hours, days = left // 60 % 60, left // 3600 % 24, left // 86400
    units = [(days, "d"), (hours, "h"), (minutes, "min")]
    first = next(index for index, (amount, _) in enumerate(units) if amount)
    return " ".join(f"{amount} {unit}" for amount, unit in units[first : first + 2] if amount)
