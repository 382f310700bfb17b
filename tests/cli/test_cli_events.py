"""`raypool events` and `report`: what they ask the client, and how it is printed."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from raypool.cli.values import SINCE
from raypool.view import EventView, ReportRowView, ReportView

if TYPE_CHECKING:
    from conftest import Cli


EVICTED = EventView(
    event=7, index=0, at=1_800_000_000.0, kind="evicted", request="nightly-7", number=3, component="red",
    component_type="team", pool="gpus", by={"request": "urgent-1", "component": "blue"}, rule="reclaim",
    why="has to make room in pool 'gpus' for 'urgent-1' of 'blue', which lacks 2 gpu",
    figures={"before": {"gpu": {"used": 4, "leaving": 0}}, "after": {"gpu": {"used": 4, "leaving": 4}}},
)  # fmt: skip
APPLIED = EventView(
    event=8, index=0, at=1_800_000_001.0, kind="config-applied", why="pool 'gpus' changed: capacity",
    by={"name": "ann", "note": "more room", "version": 2},
)  # fmt: skip
ROW = ReportRowView("red", "team", "gpus", "gpu", 84.0, 120.126, 36.5, 0.0, 1.25, 12, 3.25, 61.0, 7_300.0, 2)


@pytest.fixture
def asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def answer(name: str, value: Any) -> None:
        def ask(*words: Any, **more: Any) -> Any:
            found.append((name, words, more))
            return value

        monkeypatch.setattr(cli.client, name, ask, raising=False)

    answer("events", [EVICTED, APPLIED])
    answer("follow_events", iter([APPLIED]))
    answer(
        "report",
        ReportView(
            1_000.0, 2_000.0, [ROW, ReportRowView("blue", "team", "gpus", "mcpu", *[0.0] * 5, 0, None, None, None, 0)]
        ),
    )
    return found


def test_events_are_lines_with_who_and_why_and_what_changed(cli: Cli, asked: list[Any]) -> None:
    text = " ".join(cli("events", "--component", "red", "-n", "5").stdout.split())
    assert "evicted 'nightly-7' of 'red' in 'gpus' for 'urgent-1' of 'blue' (reclaim): has to make room" in text
    assert "gpu: leaving 0 -> 4" in text
    assert "config-applied by name ann, version 2: pool 'gpus' changed: capacity; more room" in text
    ((_, _, more),) = asked
    assert more == {"since": None, "component": "red", "pool": None, "request": None, "kind": None, "limit": 5}


def test_events_as_json_are_one_record_in_each_line(cli: Cli, asked: list[Any]) -> None:
    lines = cli("events", "-o", "json").stdout.splitlines()
    assert [EventView.from_dict(json.loads(line)) for line in lines] == [EVICTED, APPLIED]


def test_events_are_followed(cli: Cli, asked: list[Any]) -> None:
    assert "config-applied" in cli("events", "--follow", "--pool", "gpus", "--since", "2h").stdout
    ((name, _, more),) = asked
    assert (name, more["pool"]) == ("follow_events", "gpus")
    assert more["since"] == pytest.approx(time.time() - 7_200, abs=60)


def test_the_report_is_a_table_csv_or_json(cli: Cli, asked: list[Any]) -> None:
    table = cli("report", "--key", "gpu").stdout
    assert "120.13" in table and "2 h" in table and "blue" not in table
    rows = list(csv.DictReader(io.StringIO(cli("report", "-o", "csv").stdout)))
    assert [row["component"] for row in rows] == ["red", "blue"]
    assert (float(rows[0]["used"]), rows[1]["wait_p50_seconds"]) == (120.126, "")
    assert cli.json("report", "-o", "json", "--pool", "gpus")["rows"][0] == ROW.as_dict()
    assert asked[0][1][0] == pytest.approx(7 * 86_400, abs=60)


def test_what_nothing_is_known_of_is_told_and_what_there_is(cli: Cli, asked: list[Any]) -> None:
    told = "nothing is known of key 'gpus' of pool 'gpus'; there is: gpu of 'gpus', mcpu of 'gpus'\n"
    assert cli("report", "--key", "gpus", "--pool", "gpus").stdout.splitlines(keepends=True)[1:] == [told]
    assert "nothing is known of pool 'x'; there is" in cli("report", "--pool", "x").stdout
    cli.client.report = lambda since: ReportView(1_000.0, 2_000.0, [])
    assert "no pool was used" in cli("report", "--pool", "x").stdout
    cli.client.events = lambda **about: []
    answer = cli("events", "--component", "x")
    assert (answer.stdout, answer.stderr) == ("", "no record is of that time and about all that\n")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("90s", 90), ("30min", 1_800), ("30m", 1_800), ("1.5h", 5_400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_since_is_how_long_ago(said: str, seconds: float) -> None:
    assert SINCE.convert(said, None, None) == pytest.approx(time.time() - seconds, abs=5)


def test_since_is_a_time(cli: Cli, asked: list[Any]) -> None:
    assert SINCE.convert("2026-11-30T12:00:00+00:00", None, None) == 1_796_040_000.0
    assert SINCE.convert("2026-11-30T12:00", None, None) == datetime(2026, 11, 30, 12).timestamp()
    assert "neither like 30min" in cli("events", "--since", "yesterday", code=2).stderr
