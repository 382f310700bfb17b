"""`raypool journal`: what was written down, and the same once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.records import line_of
from raypool.core.snapshot import Snapshots
from raypool.spec import BrokerConfig, RequestSpec

if TYPE_CHECKING:
    from conftest import Cli

STORY: list[tuple[float, ev.Event]] = [
    (
        10.0,
        ev.ConfigApplied(
            BrokerConfig.load(
                {
                    "pools": [{"name": "p", "capacity": {"gpu": 4}, "grace_seconds": 30.0}],
                    "policies": [
                        {"pool": "p", "component": "red", "priority": 1},
                        {"pool": "p", "component": "blue", "priority": 9},
                    ],
                }
            )
        ),
    ),
    (11.0, ev.Submitted(RequestSpec.load({"id": "r1", "component": "red", "resources": {"gpu_count": 4}}), "01")),
    (12.0, ev.PlacementReady("r1", 1, "ab", ("n1",))),
    (13.0, ev.Submitted(RequestSpec.load({"id": "b1", "component": "blue", "resources": {"gpu_count": 2}}))),
    (43.0, ev.TimePassed()),
    (44.0, ev.PlacementRemoved("r1", 1)),
    (
        45.0,
        ev.ManySubmitted(
            (RequestSpec.load({"id": "?", "component": "red", "resources": {"gpu_count": 2}}),), ("m1", "m2"), (0, 0)
        ),
    ),
]


@pytest.fixture
def lines() -> list[str]:
    broker = Broker()
    written = list(Snapshots().lines_of(broker, 0))
    for number, (at, event) in enumerate(STORY, 1):
        written.append(line_of(number, at, event, broker.handle(event, at)))
    return written


def test_an_exported_journal_replays_and_shows_every_decision(cli: Cli, lines: list[str], tmp_path: Path) -> None:
    assert cli.client is not None
    cli.client.written = "\n".join(lines) + "\n"
    file = tmp_path / "journal.jsonl"
    cli("journal", "export", str(file))
    assert file.read_text() == cli.client.written
    shown = cli("journal", "replay", str(file)).stdout
    for sentence in (
        "Submitted r1 of red", "create the group of r1 #1 in p", "r1 is allocated in p",
        "r1 is preempting in p (evicted)", "warn r1, it has until 43.000", "remove the group of r1 #1",
        "create the group of b1 #1 in p", "ManySubmitted 2 requests", "create the group of m1 #1 in p",
        "7 events, 10 decisions: all as they were decided then",
    ):  # fmt: skip
        assert sentence in shown
    told = cli.json("journal", "replay", str(file), "-o", "json")
    assert [step["number"] for step in told["steps"]] == [1, 2, 3, 4, 5, 6, 7] and told["fault"] is None


def test_export_writes_to_stdout(cli: Cli) -> None:
    assert cli.client is not None
    cli.client.written = '{"schema":1}\n'
    assert cli("journal", "export").stdout == '{"schema":1}\n'


def test_a_decision_that_comes_out_otherwise_is_told(cli: Cli, lines: list[str], tmp_path: Path) -> None:
    row = json.loads(lines[-1])
    row["decided"] = []
    file = tmp_path / "journal.jsonl"
    file.write_text("\n".join([*lines[:-1], json.dumps(row)]))
    result = cli("journal", "replay", str(file), code=1)
    assert "after 6 events that are as they were: on event 7 (ManySubmitted)" in result.stderr
    assert cli.json("journal", "replay", str(file), "-o", "json", code=1)["fault"]


@pytest.mark.parametrize("text", ["", "not a journal\n", "[1]\n", '{"schema": 7}\n'])
def test_a_file_that_is_no_journal_says_so(cli: Cli, tmp_path: Path, text: str) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text(text)
    result = cli("journal", "replay", str(file), code=1)
    assert "no head of a journal" in result.stderr or "schema 7" in result.stderr
