"""Reading traces: what of a line is what of a job, and what becomes of lines that cannot be read."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.records import line_of
from raypool.core.snapshot import Snapshots
from raypool.errors import SpecError
from raypool.simulation.job import Job
from raypool.simulation.mapping import Mapping, read_mapping
from raypool.simulation.traces import Trace
from raypool.spec import BrokerConfig, RequestSpec, ResourceSettings

COLUMNS = "asked,began,ended,who,n,kind\n"
MAPPING = {
    "submit": "asked",
    "start": "began",
    "end": "ended",
    "component": {"column": "who", "map": {"a": "alpha", "b": "beta"}},
    "gpus": "n",
    "preemptible": {"column": "kind", "map": {"firm": False}, "default": True},
}


def mapping(**more: Any) -> Mapping:
    loaded: Mapping = Mapping.load(MAPPING | more)
    return loaded


def trace(folder: Path, text: str, name: str = "trace.csv", **options: Any) -> Trace:
    file = folder / name
    data = text.encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return Trace(file, **options)


def swf_line(number: int, submit: int, run: int, processors: int, group: int = 3, **fields: int) -> str:
    row = [number, submit, -1, run, processors, -1, -1, processors, -1, -1, 1, 9, group, -1, 2, -1, -1, -1]
    for name, value in fields.items():
        row[int(name.removeprefix("field"))] = value
    return " ".join(map(str, row)) + "\n"


def facts(job: Job) -> tuple[float, float, str, dict[str, int], bool]:
    demand = {key: amount for key, amount in job.spec.demand().items() if key != "step_run"}
    return job.submitted_at, job.duration_seconds, job.spec.component, demand, job.spec.is_preemptible


def test_a_csv_is_read_as_its_mapping_says(tmp_path: Path) -> None:
    read = trace(tmp_path, COLUMNS + "10,12,20,a,2,firm\n11,11,11.5,b,1,\n", mapping=mapping())
    assert list(map(facts, read)) == [
        (10, 8, "alpha", {"gpu": 2}, False),
        (11, 0.5, "beta", {"gpu": 1}, True),
    ]
    assert read.counts.jobs == 2


def test_constants_scales_defaults_and_iso_times(tmp_path: Path) -> None:
    wanted = {
        "submit": "when",
        "duration": {"column": "minutes", "scale": 60},
        "component": {"value": "batch"},
        "gpus": {"column": "milli", "scale": 0.001},
        "cpus": 2,
        "memory_mb": 100,
        "workers": {"column": "w", "default": 1},
    }
    text = "when,minutes,milli,w\n2026-01-01T00:00:00Z,2,460,\n2026-01-01 01:00:01+01:00,1,2000,3\n"
    first, second = trace(tmp_path, text, mapping=Mapping.load(wanted))
    assert facts(first)[1:4] == (120, "batch", {"gpu": 1, "mcpu": 2000, "memory_mb": 100})
    assert facts(second)[1:4] == (60, "batch", {"gpu": 6, "mcpu": 6000, "memory_mb": 300})
    assert second.submitted_at - first.submitted_at == 1


def test_cells_may_stand_apart_and_be_parted_by_something_else(tmp_path: Path) -> None:
    text = "\ufeff\n" + COLUMNS.replace(",", "; ") + '10; 12; 20; "a"; 2; firm;\r\n\r\n'
    (job,) = trace(tmp_path, text, mapping=mapping(delimiter=";"))
    assert facts(job) == (10, 8, "alpha", {"gpu": 2}, False)


def test_a_quote_that_nothing_closes_costs_its_own_line_only(tmp_path: Path) -> None:
    rows = [f"{at},{at},{at + 9},a,1,\n" for at in range(5000)]
    rows[7] = '7,7,16,"a,1,\n'
    read = trace(tmp_path, COLUMNS + "".join(rows), mapping=mapping(), skip_bad=True)
    assert [job.submitted_at for job in read] == [at for at in range(5000) if at != 7]
    assert (read.counts.bad, "trace.csv:9: not readable as CSV" in read.counts.told[0]) == (1, True)


def test_a_cell_may_go_over_lines_and_its_row_is_named_by_the_first(tmp_path: Path) -> None:
    text = COLUMNS + '1,1,2,a,1,"two\n\nlines"\n2,2,3,a,1,"two\nlines"\n3,3,4,a,x,\n'
    read = trace(tmp_path, text, mapping=mapping(), skip_bad=True)
    assert [job.submitted_at for job in read] == [1, 2]
    assert read.counts.told[0].startswith(f"{read.file}:7: gpus")


def test_jobs_that_never_ran_and_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    rows = "1,,9,a,1,\n2,2,9,a,0,\n3,3,9,a,1,\n9,9,9,a,1,\n"
    read = trace(tmp_path, COLUMNS + rows, mapping=mapping(leave_out={"n": 0}, until=5))
    assert [job.submitted_at for job in read] == [3]
    assert (read.counts.jobs, read.counts.never_ran, read.counts.left_out) == (1, 1, 2)


BAD = {
    "a word for a time": ("x,1,2,a,1,", "submit (column 'asked'): 'x' is not a number"),
    "no time": (",1,2,a,1,", "submit: is empty"),
    "half a time": (
        "2026-13-01,1,2,a,1,",
        "submit (column 'asked'): '2026-13-01' is neither seconds nor an ISO time",
    ),
    "no number": ("1,1,nan,a,1,", "end (column 'ended'): 'nan' is not a number"),
    "more than time can be": ("1e300,1,2,a,1,", "submit (column 'asked'): '1e300' is beyond"),
    "for ever": ("1,1,inf,a,1,", "end (column 'ended'): 'inf' is beyond"),
    "an end before its start": ("1,5,2,a,1,", "end: 2 is before 5, when it started"),
    "an unmapped component": ("1,1,2,c,1,", "component (column 'who'): the mapping has no value for 'c'"),
    "a name for a gpu": ("1,1,2,a,1_0,", "gpus (column 'n'): '1_0' is not a number"),
    "half a gpu": ("1,1,2,a,1.5,", "gpus (column 'n'): 1.5 is not a whole number"),
    "fewer than none": ("1,1,2,a,-1,", "gpus (column 'n'): -1 is negative"),
    "too few cells": ("1,1,2", "has 3 cells, the header has 6"),
    "too many cells": ("1,1,2,a,1,000,firm", "has 7 cells, the header has 6"),
    "more than may be": ("1,1,2,a,1e16,", "gpus (column 'n'): '1e16' is beyond"),
    "an open quote": ('1,1,2,a,1,"', "not readable as CSV"),
}


@pytest.mark.parametrize(("line", "says"), BAD.values(), ids=BAD)
def test_a_bad_line_is_named_with_its_field_and_left_out_only_when_told(tmp_path: Path, line: str, says: str) -> None:
    text = COLUMNS + "0,0,1,a,1,\n" + line
    with pytest.raises(SpecError) as caught:
        list(trace(tmp_path, text, mapping=mapping()))
    assert says in str(caught.value)
    assert "trace.csv:3: " in str(caught.value) and "--skip-bad" in str(caught.value)
    read = trace(tmp_path, text, mapping=mapping(), skip_bad=True)
    assert [job.submitted_at for job in read] == [0]
    assert read.counts.bad == 1 and says in read.counts.told[0]


@pytest.mark.parametrize(
    ("field", "cell", "says"),
    [
        ("cpus", "-1", "cpus (column 'n'): must be > 0, got -1.0"),
        ("workers", "0", "workers (column 'n'): must be >= 1, got 0"),
        ("component", "a/b", "component (column 'n'): must be 1 to 128 printable characters"),
    ],
)
def test_what_no_request_may_have_is_named_by_its_column(tmp_path: Path, field: str, cell: str, says: str) -> None:
    wanted = Mapping.load({"submit": "asked", "duration": 1, "component": {"value": "a"}} | {field: "n"})
    with pytest.raises(SpecError, match=re.escape(f"trace.csv:2: {says}")):
        list(trace(tmp_path, f"asked,n\n1,{cell}\n", mapping=wanted))


def test_all_bad_lines_are_counted_and_ten_are_told(tmp_path: Path) -> None:
    read = trace(tmp_path, COLUMNS + "x,,,a,1,\n" * 25, mapping=mapping(), skip_bad=True)
    assert list(read) == []
    assert read.counts.bad == 25 and len(read.counts.told) == 10


def test_times_that_run_backwards_are_an_error_whatever_is_skipped(tmp_path: Path) -> None:
    text = COLUMNS + "5,5,6,a,1,\n4,4,6,a,1,\n"
    with pytest.raises(SpecError, match=r"trace\.csv:3: submit: 4 is before 5 of line 2: times must not run backw"):
        list(trace(tmp_path, text, mapping=mapping(), skip_bad=True))


@pytest.mark.parametrize(
    ("name", "text", "options", "says"),
    [
        ("trace.csv", "a,b\n", {}, "a CSV needs a mapping file"),
        ("trace.csv", "", {"mapping": mapping()}, "is empty"),
        (
            "trace.csv",
            'asked,"began\n' + COLUMNS,
            {"mapping": mapping(), "skip_bad": True},
            ":1: the names of the colu",
        ),
        ("trace.csv", "n," + COLUMNS, {"mapping": mapping()}, "gpus: there are 2 columns 'n'"),
        ("trace.csv", "asked,began\n", {"mapping": mapping()}, "end: there is no column 'ended'"),
        ("trace.csv", COLUMNS, {"mapping": Mapping()}, "does not say what is submit and what is component and what"),
        ("trace.csv", COLUMNS, {"mapping": mapping(leave_out={"x": "1"})}, "leave_out: there is no column 'x'"),
        ("trace.txt", "", {}, "a trace ends with .csv, .swf or .jsonl"),
        ("trace.jsonl", "", {"mapping": mapping()}, "a mapping is for .csv and .swf"),
    ],
)
def test_a_trace_that_cannot_be_read_says_why(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        list(trace(tmp_path, text, name, **options))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("submit: [", "not readable as YAML"),
        ("submit: {column: a, value: 1}", "give either column or value"),
        ("submit: {value: 1, default: 2}", "map and default go with a column"),
        ("duration: a\nend: b", "give either duration, or end"),
        ("delimiter: xx", "delimiter"),
        ("gpu: 1", "gpu"),
        ("- 1", "must be"),
    ],
)
def test_a_mapping_that_is_none_says_why(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=says) as caught:
        read_mapping(file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("name", ["trace.swf", "trace.swf.gz"])
def test_the_standard_workload_format_needs_no_mapping(tmp_path: Path, name: str) -> None:
    text = "; Version: 2.2\n; UnixStartTime: 1000\n;\n\n" + swf_line(1, 0, 100, 4) + swf_line(2, 5, -1, 4)
    read = trace(tmp_path, text + "  " + swf_line(3, 6, 9, -1, field7=2, group=-1), name)
    assert list(map(facts, read)) == [
        (0, 100, "group-3", {"gpu": 4}, True),
        (6, 9, "group-unknown", {"gpu": 2}, True),
    ]
    assert read.counts.never_ran == 1, "the second has no run time"


NEVER_RAN = {
    "no run time": swf_line(2, 5, -1, 4),
    "no processor": swf_line(2, 5, 9, 0),
    "none asked either": swf_line(2, 5, 9, -1, field7=0),
    "cancelled before it began": swf_line(2, 5, 0, -1, field7=4, field10=5),
    "cancelled, the run time not known": swf_line(2, 5, -1, 4, field10=5),
}


@pytest.mark.parametrize("line", NEVER_RAN.values(), ids=NEVER_RAN)
def test_a_job_of_a_swf_that_never_ran_is_counted(tmp_path: Path, line: str) -> None:
    read = trace(tmp_path, swf_line(1, 0, 100, 4) + line, "trace.swf")
    assert (len(list(read)), read.counts.never_ran) == (1, 1)


def test_a_job_of_a_swf_that_failed_or_was_cancelled_late_has_run(tmp_path: Path) -> None:
    lines = [swf_line(1, 0, 0, 4), swf_line(2, 1, 7, 4, field10=5), swf_line(3, 2, 8, 4, field10=0)]
    assert [job.duration_seconds for job in trace(tmp_path, "".join(lines), "trace.swf")] == [0, 7, 8]


def test_the_parts_of_a_job_that_was_swapped_out_are_not_jobs_of_their_own(tmp_path: Path) -> None:
    parts = [swf_line(1, 0, 30, 4, field10=2), swf_line(1, -1, 70, 4, field10=3)]
    read = trace(tmp_path, swf_line(1, 0, 100, 4) + "".join(parts) + swf_line(2, 9, 5, 4), "trace.swf")
    assert [job.duration_seconds for job in read] == [100, 5]
    assert (read.counts.jobs, read.counts.parts, read.counts.bad) == (2, 2, 0)


def test_a_swf_that_does_not_know_its_processors_needs_a_mapping(tmp_path: Path) -> None:
    line = swf_line(1, 0, 9, -1, field7=-1)
    with pytest.raises(SpecError, match=r"trace\.swf:1: gpus \(column 'processors'\): 'unknown' is not a number"):
        list(trace(tmp_path, line, "trace.swf"))
    (job,) = trace(tmp_path, line, "trace.swf", mapping=Mapping.load({"gpus": 1}))
    assert facts(job)[3] == {"gpu": 1}


def test_a_mapping_says_otherwise_for_a_swf(tmp_path: Path) -> None:
    wanted = Mapping.load(
        {"component": {"column": "queue", "map": {"queue-2": "night"}}, "gpus": 1, "end": "requested_time"}
    )
    (job,) = trace(tmp_path, swf_line(1, 3, 100, 4, field8=50), "trace.swf", mapping=wanted)
    assert facts(job) == (3, 47, "night", {"gpu": 1}, True)


def test_a_short_line_of_a_swf_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"trace\.swf:2: has 3 fields, the Standard Workload Format has 18"):
        list(trace(tmp_path, swf_line(1, 0, 1, 1) + "1 2 3\n", "trace.swf"))


def test_a_torn_gzip_is_an_error_that_nothing_skips(tmp_path: Path) -> None:
    file = tmp_path / "trace.swf.gz"
    file.write_bytes(gzip.compress((swf_line(1, 0, 1, 1) * 5000).encode())[:-20])
    with pytest.raises(SpecError, match="the rest is not readable as gzip"):
        list(Trace(file, skip_bad=True))


def test_progress_reaches_the_size_of_the_file(tmp_path: Path) -> None:
    read = trace(tmp_path, "".join(swf_line(at, at, 1, 1) for at in range(5000)), "trace.swf.gz")
    heard: list[int] = []
    read.progress = heard.append
    assert sum(1 for _ in read) == 5000
    assert heard == sorted(heard) and heard[-1] == read.size and len(heard) == 3


# --- journals ---------------------------------------------------------------------------------

POOLS = {
    "pools": [{"name": "p", "capacity": {"gpu": 2}}],
    "policies": [
        {"pool": "p", "component": "low", "priority": 1},
        {"pool": "p", "component": "high", "priority": 2},
    ],
}


def submitted(id: str, component: str, gpus: int, **more: Any) -> ev.Submitted:
    return ev.Submitted(RequestSpec(id=id, component=component, resources=ResourceSettings(gpu_count=gpus), **more))


def journal(events: list[tuple[float, ev.Event]], snapshot_after: int) -> str:
    """An exported journal: a snapshot after so many events, then a line of each."""
    broker = Broker(World(confirms_placement=False, confirms_removal=False))
    for at, event in events[:snapshot_after]:
        broker.handle(event, at)
    lines = list(Snapshots().lines_of(broker, snapshot_after))
    for number, (at, event) in enumerate(events[snapshot_after:], snapshot_after + 1):
        lines.append(line_of(number, at, event, broker.handle(event, at)))
    return "\n".join(lines) + "\n"


STORY: list[tuple[float, ev.Event]] = [
    (100, ev.ConfigApplied(BrokerConfig.load(POOLS))),
    (100, submitted("a", "low", 2)),
    (110, submitted("b", "high", 2)),  # a has to leave
    (111, submitted("a2", "low", 2, retry_of="a")),
    (120, submitted("c", "low", 3)),  # rejected
    (150, ev.Released("b")),  # a2 begins
    (180, ev.Released("a2")),
    (190, submitted("d", "high", 1)),
    (200, submitted("e", "high", 2)),
    (230, ev.Cancelled("e")),
]


@pytest.mark.parametrize("cut", range(1, len(STORY) + 1))
def test_a_journal_tells_when_jobs_were_asked_and_how_long_they_ran(tmp_path: Path, cut: int) -> None:
    read = trace(tmp_path, journal(STORY, cut), "trace.jsonl")
    found = [(job.spec.id, job.submitted_at, job.duration_seconds) for job in read]

    assert found == [("a", 100, 30), ("b", 110, 40), ("d", 190, 40)]
    assert (read.counts.still_running, read.counts.never_ran) == (1, 2), "d holds on; c and e never ran"


def test_who_is_taken_up_again_before_he_has_left_ends_only_once(tmp_path: Path) -> None:
    """a is asked again within its grace: that a ends then is not the end of what goes on as a2."""
    pools = [{"name": "p", "capacity": {"gpu": 2}, "grace_seconds": 30}]
    story: list[tuple[float, ev.Event]] = [
        (100, ev.ConfigApplied(BrokerConfig.load(POOLS | {"pools": pools}))),
        (100, submitted("a", "low", 2)),
        (110, submitted("b", "high", 2)),
        (115, submitted("a2", "low", 2, retry_of="a")),
        (140, ev.TimePassed()),  # a leaves, b begins
        (150, ev.Released("b")),  # a2 begins
        (160, submitted("c", "low", 1)),
    ]
    read = trace(tmp_path, journal(story, 1), "trace.jsonl")
    assert [(job.spec.id, job.duration_seconds) for job in read] == [("a", 10), ("b", 10)]
    assert (read.counts.still_running, read.counts.never_ran) == (1, 1), "a2 holds on; c waits"


def test_of_many_that_were_asked_at_once_each_is_a_job(tmp_path: Path) -> None:
    bodies = (submitted("?", "low", 1).spec, submitted("?", "low", 2).spec)
    story: list[tuple[float, ev.Event]] = [
        (100, ev.ConfigApplied(BrokerConfig.load(POOLS))),
        (110, ev.ManySubmitted(bodies, ("a", "b", "c"), (0, 1, 0))),
        (120, ev.Released("a")),  # b is the first in line
        (150, ev.Released("b")),
        (160, ev.Released("c")),
    ]
    read = trace(tmp_path, journal(story, 1), "trace.jsonl")
    assert [(job.spec.id, job.submitted_at, job.duration_seconds) for job in read] == [
        ("a", 110, 10), ("b", 110, 30), ("c", 110, 10),
    ]  # fmt: skip


def test_a_bad_line_of_a_journal_is_named(tmp_path: Path) -> None:
    lines = journal(STORY, 1).splitlines()
    event = {"n": 2, "event": "Submitted", "at": 1e9}
    times = {"submitted_at": 1, "granted_at": "x", "ended_at": None}
    rows = [
        event, event | {"at": "x"}, event | {"at": math.nan}, {"schema": 1, "at": None},
        {"n": 2, "event": "TimePassed", "at": 1e9, "decided": [[]]},
        {"request": {"spec": {"component": "low"}, **times}},
        {"n": 2, "event": "ManySubmitted", "at": 1e9, "with": {"bodies": [], "ids": ["a"], "body_of": [0]}},
    ]  # fmt: skip
    for wrong in ["{", "[]", "7", "{}", *map(json.dumps, rows)]:
        text = "\n".join([*lines[:3], wrong])
        with pytest.raises(SpecError, match=r"trace\.jsonl:4: is not a line of an exported journal"):
            list(trace(tmp_path, text, "trace.jsonl"))
    read = trace(tmp_path, text, "trace.jsonl", skip_bad=True)
    list(read)
    assert read.counts.bad == 1


def test_a_journal_whose_times_run_backwards_is_an_error(tmp_path: Path) -> None:
    lines = journal(STORY, 1).splitlines()
    with pytest.raises(SpecError, match="times must not run backwards"):
        list(trace(tmp_path, "\n".join([*lines, lines[-2]]), "trace.jsonl", skip_bad=True))
