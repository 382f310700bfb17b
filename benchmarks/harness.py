"""What every benchmark here is made of: rows, the table, the clock, and a yardstick for the machine.

A row is one figure with its bar. Machines differ by a factor of three and more, so each figure stands beside a
reference from the same run: for the engine a spin (one step of a fixed loop of plain Python), on Ray what bare Ray
takes for the same, in a growth the figure of the smallest size.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SPINS = 200_000

MEASURE_SECONDS = 20.0
"""About so long one figure may take."""

FEWEST = 20


@dataclass(frozen=True)
class Settings:
    """What the command line says. rounds: each figure is a median of so many, after one that does not count;
    small: sizes that only show that everything runs; idle_seconds: how long an idle broker is looked at."""

    rounds: int = 5
    small: bool = False
    idle_seconds: float = 30.0

    def size(self, full: int, small: int) -> int:
        return small if self.small else full


@dataclass(frozen=True)
class Row:
    """One figure. bar: in words, "" if there is none; met: whether the figure keeps to it, None without one.
    reference: what it is compared with, in the same unit; against: what that is; ratio: value / reference."""

    name: str
    value: float
    unit: str
    bar: str = ""
    reference: float | None = None
    against: str = ""
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None

    def as_dict(self) -> dict[str, Any]:
        names = ("name", "value", "unit", "bar", "reference", "ratio", "met")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Bar:
    """What a figure, or with of_ratio its ratio to the reference, may be at most or must be at least."""

    bound: float
    at_least: bool = False
    of_ratio: bool = False

    def __str__(self) -> str:
        return f"{'ratio ' * self.of_ratio}{'>=' if self.at_least else '<='} {figure(self.bound)}"

    def met_by(self, value: float, reference: float | None) -> bool:
        if self.of_ratio:
            assert reference, "a bar on a ratio needs a reference"
            value = value / reference
        return value >= self.bound if self.at_least else value <= self.bound


def at_most(bound: float) -> Bar:
    return Bar(bound)


def at_least(bound: float) -> Bar:
    return Bar(bound, at_least=True)


def ratio_at_most(bound: float) -> Bar:
    return Bar(bound, of_ratio=True)


def ratio_at_least(bound: float) -> Bar:
    return Bar(bound, at_least=True, of_ratio=True)


def row(
    name: str, value: float, unit: str, bar: Bar | None = None, reference: float | None = None, against: str = ""
) -> Row:
    if bar is None:
        return Row(name, value, unit, "", reference, against)
    return Row(name, value, unit, str(bar), reference, against, bar.met_by(value, reference))


@dataclass(frozen=True)
class Benchmark:
    """name: family and subject, like `engine.turns`. run: measures, and yields a row as soon as it has one; its
    docstring says what the figures include."""

    name: str
    run: Callable[[Settings], Iterable[Row]]

    @property
    def includes(self) -> str:
        measure = self.run.func if isinstance(self.run, partial) else self.run
        return " ".join((measure.__doc__ or "").split())


# --- measuring --------------------------------------------------------------------------------


def processor_seconds(work: Callable[[], object]) -> float:
    """What it costs this process. The garbage collector runs as it does in a broker, from a clean start."""
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def median_round(settings: Settings, one_round: Callable[[], float]) -> float:
    """Fewer rounds where one takes many seconds."""
    began = time.monotonic()
    one_round()  # warm-up
    took = time.monotonic() - began
    rounds = min(settings.rounds, max(round(MEASURE_SECONDS / took), 1))
    return statistics.median(one_round() for _ in range(rounds))


class Patience:
    """Samples are taken while it lasts: so many, fewer if they take long, but never less than `FEWEST`."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._taken = 0
        self._until = time.monotonic() + MEASURE_SECONDS

    def __iter__(self) -> Iterator[int]:
        while self._taken < self.samples and (self._taken < FEWEST or time.monotonic() < self._until):
            yield self._taken
            self._taken += 1


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that is not exceeded by so many percent of them."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


class Steps:
    """What a spin is: a call, two attributes, a dictionary read and written."""

    __slots__ = ("by_key", "total")

    def __init__(self) -> None:
        self.total = 0
        self.by_key: dict[int, int] = {}

    def step(self, key: int) -> int:
        self.total += key
        seen = self.by_key.get(key, 0) + 1
        self.by_key[key] = seen
        return seen


def spin_round() -> float:
    """Processor seconds of one spin."""
    steps = Steps()

    def work() -> None:
        for number in range(SPINS):
            steps.step(number & 255)

    return processor_seconds(work) / SPINS


@lru_cache(maxsize=1)
def spin_seconds() -> float:
    """Processor seconds of one spin on this machine: the median of eleven rounds, once in a run."""
    spin_round()
    return statistics.median(spin_round() for _ in range(11))


SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def cost(name: str, seconds: float, unit: str, bar: Bar | None = None) -> Row:
    """A row of the engine's: seconds of processor time, beside a spin."""
    one = SECONDS[unit]
    return row(name, seconds / one, unit, bar, spin_seconds() / one, "spin")


def rate(name: str, per_second: float, unit: str, bar: Bar | None = None) -> Row:
    """A row of the engine's: so many in a second of processor time, beside spins in a second."""
    return row(name, per_second, unit, bar, 1 / spin_seconds(), "spins/s")


def growth(name: str, value: float, first: float, unit: str, bar: Bar, against: str) -> Row:
    """A figure beside the same figure of the smallest size."""
    return row(name, value, unit, bar, first, against)


# --- telling ----------------------------------------------------------------------------------


def figure(value: float) -> str:
    """Three digits, and no more than are known."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}".rstrip("0").rstrip(".")


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "spins_per_second": round(1 / spin_seconds()),
    }


def _processor_name() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in ("raypool", "ray", "pydantic")}}


def as_document(rows: Iterable[Row]) -> dict[str, Any]:
    return {"machine": machine(), "versions": versions(), "rows": [one.as_dict() for one in rows]}


def progress(benchmark: Benchmark, settings: Settings, tell: Callable[[str], None]) -> Iterator[Row]:
    for one in benchmark.run(settings):
        tell(f"{one.name}: {figure(one.value)} {one.unit}")
        yield one


HEADINGS = ("figure", "value", "bar", "reference", "ratio", "met")


def cells(one: Row) -> tuple[str, ...]:
    reference = "" if one.reference is None else f"{figure(one.reference)} ({one.against})"
    ratio = "" if one.ratio is None else figure(one.ratio)
    met = {True: "yes", False: "NO", None: ""}[one.met]
    return one.name, f"{figure(one.value)} {one.unit}", one.bar, reference, ratio, met


def print_table(rows: Iterable[Row]) -> None:
    table = Table(*HEADINGS)
    for one in rows:
        table.add_row(*cells(one))
    Console(width=None if Console().is_terminal else 170).print(table)


BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def put_into(file: Path, rows: Sequence[Row]) -> None:
    """Writes the figures, and where they are from, between the two marks of a Markdown file. Raises ValueError if
    they are not there."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file} has no lines {BEGIN} and {END}")
    where = ", ".join(f"{name} {value}" for name, value in {**machine(), **versions()}.items())
    lines = [f"| {' | '.join(line)} |" for line in (HEADINGS, ("---",) * len(HEADINGS), *map(cells, rows))]
    table = "\n".join(lines)
    file.write_text(f"{before}{begin}{where}.\n\n{table}\n{end}{after}", encoding="utf-8")
