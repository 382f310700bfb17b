"""The progress of commands that take long: on stderr, and only where somebody looks at it."""

from __future__ import annotations

import io
import sys
import threading
import time
from pathlib import Path

import pytest

from raypool.cli import output
from tests.terminal import Terminal


class Screen(io.StringIO):
    """A terminal. `shown` is set once something was drawn on it."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()
        self.wanted = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if text.strip() and self.wanted in text:
            self.shown.set()
        return count

    def until(self, text: str) -> None:
        self.wanted = text
        self.shown.clear()
        assert self.shown.wait(30), self.getvalue()


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, after: float = 0.01) -> Screen:
    """Not a fixture: pytest puts its own stderr in place once those are made."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", after)
    return screen


def test_what_takes_long_is_shown_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stderr = on_a_terminal(monkeypatch)
    with output.progress("counting", 200) as progress:
        stderr.until("counting: 0 s")
        progress(50)
        stderr.until("counting: 25 %, ")
    assert "\n" not in stderr.getvalue()
    *_, drawn, blank, end = stderr.getvalue().split("\r")
    assert drawn.startswith("counting: ") and blank == " " * len(blank) and len(blank) >= len(drawn.rstrip())
    assert end == ""
    assert capsys.readouterr().out == ""


def test_what_is_soon_over_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = on_a_terminal(monkeypatch, after=60)
    with output.progress("nothing much"):
        pass
    assert stderr.getvalue() == ""


def test_a_failure_takes_the_line_away_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = on_a_terminal(monkeypatch)

    def fail() -> None:
        with output.progress("trying"):
            stderr.until("trying")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert stderr.getvalue().endswith(" \r")


def test_nothing_is_written_where_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "PROGRESS_AFTER_SECONDS", 0.0)
    before = threading.active_count()
    with output.progress("counting"):
        assert threading.active_count() == before, "nobody would draw"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("done", "length", "seconds", "line"),
    [
        (0, None, 3, "x: 3 s"),
        (0, 100, 3, "x: 3 s"),
        (25, 100, 30, "x: 25 %, 30 s, about 1 min more"),
        (100, 100, 30, "x: 100 %, 30 s"),
    ],
)
def test_the_line_says_how_far_it_is_and_how_long_it_may_take(
    done: int, length: int | None, seconds: float, line: str
) -> None:
    assert output._progress_line("x", done, length, seconds) == line


REPLAY = """
import sys
from raypool.cli import output
output.PROGRESS_AFTER_SECONDS = 0.0
from raypool.cli.main import main
main(sys.argv[1:])
"""


def test_a_long_replay_shows_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(
        "pools: [{name: gpus, capacity: {gpu: 4}}]\npolicies: [{pool: gpus, component: group-3, priority: 1}]\n"
    )
    rows = [f"{at} {at * 30} -1 60 4 -1 -1 4 -1 -1 1 9 3 1 1 1 -1 -1" for at in range(6000)]
    (tmp_path / "trace.swf").write_text("\n".join(rows) + "\n")
    words = ["replay", str(tmp_path / "trace.swf"), "--pools", str(tmp_path / "pools.yaml")]
    terminal = Terminal(REPLAY, *words)
    try:
        began = time.monotonic()
        terminal.until(lambda: "6000 jobs" in terminal.written, "the report")
        assert terminal.ended() == 0, time.monotonic() - began
        head, _, report = terminal.written.partition("6000 jobs")
        assert "trace.swf under pools.yaml: " in head and "%" in head
        assert "trace.swf under pools.yaml" not in report, "the line is gone before the report is printed"
    finally:
        terminal.close()
