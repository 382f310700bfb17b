"""The Standard Workload Format, version 2.2, in which the Parallel Workloads Archive publishes its logs.

A line is a job: 18 numbers in a fixed order, -1 for what is not known. Lines that begin with ";" are comments, also
those of the header; none of them is needed here: times are seconds since the log's own beginning, and how many
processors the machine had is for the pools file to say. Defined at
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
_NAMES = [(name, _AT[name]) for name in ("user", "group", "executable", "queue", "partition")]
"""Numbers that name something: "group-7" is a better component than "7"."""


def is_comment(line: str) -> bool:
    return not (text := line.lstrip()) or text.startswith(";")


def row_of(line: str) -> list[str]:
    """The cells of a line, as COLUMNS; empty ones for what is not known. Raises BadLine, NeverRan."""
    row = line.split()
    if len(row) != len(FIELDS):
        raise BadLine(f"has {len(row)} fields, the Standard Workload Format has {len(FIELDS)}")
    row = ["" if cell == "-1" else cell for cell in row]
    row.append(row[_AT["allocated_processors"]] or row[_AT["requested_processors"]])
    if row[-1] in ("", "0"):
        raise NeverRan  # it never got a processor
    for name, at in _NAMES:
        row[at] = f"{name}-{row[at] or 'unknown'}"
    return row
