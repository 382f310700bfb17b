"""`raypool watch`: what is told of a request, and the exit code; without Ray."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from raypool.cli.watch import Told
from raypool.errors import BrokerUnavailable
from raypool.view import RequestView

if TYPE_CHECKING:
    from conftest import Cli

NOW = 1000.0

WAITS = RequestView(
    id="a", component="red", component_type="team", status="pending", pool=None, reason="no room", rule="no-room",
    demand={"gpu": 2, "step_run": 1}, preemptible=True, workers=1, strategy="PACK", submitted_at=NOW, number=1,
    reasons={"p": "no room"}, position=2,
)  # fmt: skip
RUNS = replace(
    WAITS, status="allocated", pool="p", reasons={}, position=None, borrowed={"gpu": 1}, nodes=["n1", "n1"]
)
LEAVES = replace(RUNS, status="preempting", reason="has to make room", deadline=NOW + 40)


def test_each_change_is_told_once() -> None:
    told = Told()
    assert told.news(WAITS, NOW) == ["pending, number 2 in line: no room"]
    assert told.news(WAITS, NOW + 5) == []
    assert told.news(replace(WAITS, position=1), NOW + 6) == ["pending, number 1 in line: no room"]
    other = replace(WAITS, position=1, reasons={"p": "number 1 in line: over the limit", "q": "aside"})
    assert told.news(other, NOW + 7) == ["pending: number 1 in line: over the limit; aside"]
    assert told.news(RUNS, NOW + 8) == ["allocated in pool 'p': 2 gpu, of which 1 gpu borrowed, on n1"]
    assert told.news(replace(RUNS, status="released", reason=None), NOW + 9) == ["released"]


def test_a_notice_is_told_again_as_its_time_runs_out() -> None:
    told = Told()
    assert told.news(RUNS, NOW) != []
    assert told.news(LEAVES, NOW) == ["preempting, leaves in 40 s: has to make room"]
    heard = [(second, told.news(LEAVES, NOW + second)) for second in range(1, 45)]
    assert [(second, lines) for second, lines in heard if lines] == [
        (10, ["leaves in 30 s"]),
        (30, ["leaves in 10 s"]),
        (35, ["leaves in 5 s"]),
    ]
    ended = replace(LEAVES, status="preempted", reason="had to make room")
    assert told.news(ended, NOW + 45) == ["preempted: had to make room"]


def test_an_expected_start_is_told_when_it_becomes_known_and_when_it_has_moved() -> None:
    told = Told()
    told.news(WAITS, NOW)

    def known(seconds: float) -> RequestView:
        return replace(WAITS, eta_p50_seconds=seconds, eta_p90_seconds=seconds)

    assert told.news(known(100), NOW) == [
        "pending, number 2 in line: no room; expected to start within 2 min",
    ]
    assert told.news(known(60), NOW + 40) == [], "it comes nearer as time passes"
    assert told.news(known(65), NOW + 50) == [], "about the same"
    assert len(told.news(known(300), NOW + 50)) == 1
    assert len(told.news(WAITS, NOW + 51)) == 1, "it is not known any more"


# --- the command ------------------------------------------------------------------------------


def play(cli: Cli, *acts: list[RequestView] | BaseException) -> None:
    """Has the client tell this: each act is one line to the broker, until it ends or breaks."""
    assert cli.client is not None
    left = list(acts)

    def changes(id: str) -> Iterator[RequestView]:
        assert id == "aaaa1111", "the whole id"
        act = left.pop(0)
        if isinstance(act, BaseException):
            raise act
        yield from act

    cli.client.changes = changes  # type: ignore[attr-defined]


@pytest.mark.parametrize(("status", "code"), [("released", 0), ("rejected", 1), ("preempted", 4), ("cancelled", 5)])
def test_the_exit_code_tells_how_it_ended(busy: Cli, status: str, code: int) -> None:
    play(busy, [WAITS, RUNS, replace(RUNS, status=status, reason="so it was")])
    lines = busy("watch", "aaaa", code=code).stdout.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d  ", "", line).split(" ")[0].strip(",:") for line in lines] == [
        "pending", "allocated", status,
    ]  # fmt: skip


def test_json_is_a_line_for_each_change(busy: Cli) -> None:
    play(busy, [WAITS, WAITS, RUNS, replace(RUNS, status="released")])
    rows = [json.loads(line) for line in busy("watch", "aaaa", "-o", "json").stdout.splitlines()]
    assert [row["status"] for row in rows] == ["pending", "allocated", "released"]
    assert abs(rows[0]["at"] - time.time()) < 60 and rows[0]["told"].startswith("pending, number 2 in line")
    assert RequestView.from_dict(rows[0]) == WAITS


def test_a_broker_that_is_away_is_looked_for_again(busy: Cli) -> None:
    play(busy, [WAITS], BrokerUnavailable("the broker does not answer"), [replace(RUNS, status="released")])
    heard = busy("watch", "aaaa")
    assert "the broker does not answer; looking for it again" in heard.stderr
    assert "released" in heard.stdout


def test_ctrl_c_says_that_the_request_goes_on(busy: Cli) -> None:
    play(busy, KeyboardInterrupt())
    assert "'aaaa1111' goes on" in busy("watch", "aaaa", code=130).stderr


def test_an_unknown_id_is_an_error(busy: Cli) -> None:
    assert "there is no request 'x'" in busy("watch", "x", code=1).stderr
