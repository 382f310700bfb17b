"""The Standard Workload Format, version 2.2, in which the Parallel Workloads Archive publishes its logs.

A line is a job: 18 numbers in a fixed order, -1 for what is not known. Lines that begin with ";" are comments, also
those of the header; none of them is needed here: times are seconds since the log's own beginning, and how many
processors the machine had is for the pools file to say. A job that was swapped out has a line of its own for each
part of its run (status 2, 3 or 4), beside the one that sums it up; only the latter counts. Defined at
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html.
"""

from __future__ import annotations

from raypool.simulation.mapping import Mapping
from raypool.simulation.table import BadLine, NeverRan

FIELDS = (
    "job", "submit", "wait", "run_time", "allocated_processors", "cpu_time", "memory_kb", "requested_processors",
    "requested_time", "requested_memory_kb", "status", "user", "group", "executable", "queue", "partition",
    "preceding", "think_time",
)  # fmt: skip
"""Of a line, in order."""

COLUMNS = (*FIELDS, "processors")
"""What a mapping can name. `processors`: the allocated ones; the requested ones where the log has no others."""

DEFAULT = Mapping.load(
    {
        "submit": "submit",
        "duration": "run_time",
        "component": {"column": "group"},
        "gpus": "processors",
        "workers": 1,
        "preemptible": True,
    }
)
"""How a log is read where a mapping says nothing else: a processor is a GPU, and a component is a group of users,
"group-7"."""

_AT = {name: at for at, name in enumerate(COLUMNS)}
_RUN_TIME, _ALLOCATED, _REQUESTED, _STATUS = map(
    _AT.__getitem__, ("run_time", "allocated_processors", "requested_processors", "status")
)
_NAMES = [(name, _AT[name]) for name in ("user", "group", "executable", "queue", "partition")]
"""Numbers that name something: "group-7" is a better component than "7"."""

_UNKNOWN = frozenset({"-1", "-1.0", "-1.00"})
_PARTS = frozenset({"2", "3", "4"})
_CANCELLED = "5"
_NOTHING = frozenset({"", "0", "0.0", "0.00"})


class PartOfAJob(Exception):
    """One of several runs of a job, which another line sums up."""


def is_comment(line: str) -> bool:
    return not (text := line.lstrip()) or text.startswith(";")


def row_of(line: str) -> list[str]:
    """The cells of a line, as COLUMNS; empty ones for what is not known. Raises BadLine, NeverRan, PartOfAJob."""
    row = line.split()
    if len(row) != len(FIELDS):
        raise BadLine(f"has {len(row)} fields, the Standard Workload Format has {len(FIELDS)}")
    row = ["" if cell in _UNKNOWN else cell for cell in row]
    if row[_STATUS] in _PARTS:
        raise PartOfAJob
    processors = row[_ALLOCATED] or row[_REQUESTED] or "unknown"
    if processors == "0" or (row[_STATUS] == _CANCELLED and row[_RUN_TIME] in _NOTHING):
        raise NeverRan
    row.append(processors)
    for name, at in _NAMES:
        row[at] = f"{name}-{row[at] or 'unknown'}"
    return row
