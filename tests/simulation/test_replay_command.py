"""`raypool replay`: what it prints and how it exits; and the page of the manual."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raypool.cli.main import main

from ..pages import ROOT, told_commands, write_files

POOLS = """
pools: [{name: p, capacity: {gpu: 4}}]
policies: [{pool: p, component: group-3, priority: 1}]
"""


def raypool(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with pools.yaml, other.yaml and a trace of twenty jobs."""
    monkeypatch.chdir(tmp_path)
    Path("pools.yaml").write_text(POOLS)
    Path("other.yaml").write_text(POOLS.replace("gpu: 4", "gpu: 8"))
    rows = [f"{at} {at} -1 60 4 -1 -1 4 -1 -1 1 9 {3 + at // 18} 1 1 1 -1 -1" for at in range(20)]
    Path("trace.swf").write_text("; a trace\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_it_prints_the_report_and_writes_the_page(here: Path) -> None:
    result = raypool("replay", "trace.swf", "--pools", "pools.yaml", "--html", "page.html")
    assert "20 jobs" in result.stdout and "starts again from nothing" in result.stdout
    assert "no policy attaches team 'group-4' to any pool" in result.stdout
    assert result.stderr == "", "progress is for a terminal only"
    assert Path("page.html").read_text().endswith("</html>\n")


def test_two_policies_side_by_side(here: Path) -> None:
    args = ("replay", "trace.swf", "--pools", "pools.yaml", "--compare", "other.yaml")
    rows = [line.split() for line in raypool(*args).stdout.splitlines() if line.startswith("group-3")]
    assert [row[1] for row in rows[:2]] == ["pools.yaml", "other.yaml"]
    first, second = json.loads(raypool(*args, "-o", "json").stdout)["reports"]
    assert (first["pools_file"], first["makespan_seconds"]) == ("pools.yaml", 18 * 60)
    assert (second["pools_file"], second["makespan_seconds"]) == ("other.yaml", 9 * 60 + 1)
    assert first["reserve_violations"] == 0


def test_bad_lines_are_an_error_and_with_skip_bad_a_number(here: Path) -> None:
    with Path("trace.swf").open("a") as file:
        file.write("30 x -1 60 4 -1 -1 4 -1 -1 1 9 3 1 1 1 -1 -1\n1 2\n")
    result = raypool("replay", "trace.swf", "--pools", "pools.yaml", code=2)
    assert "trace.swf:22: submit: 'x' is not a number. --skip-bad leaves such lines out" in result.stderr
    assert result.stdout == ""
    result = raypool("replay", "trace.swf", "--pools", "pools.yaml", "--skip-bad")
    assert "left out: trace.swf:22: submit: 'x' is not a number" in result.stderr
    assert "20 jobs; not among them: 2 that cannot be read" in " ".join(result.stdout.split())


def test_what_is_not_written_correctly_exits_2_with_one_sentence(here: Path) -> None:
    Path("refused.yaml").write_text(POOLS.replace("priority: 1", "priority: 1, reserved: {gpu: 9}"))
    Path("unread.yaml").write_text("pools: 7")
    for words, says in [
        (["trace.swf", "--pools", "refused.yaml"], "refused.yaml: pools, policies: nothing was changed"),
        (["trace.swf", "--pools", "unread.yaml"], "unread.yaml: BrokerConfig: pools"),
        (["trace.swf", "--pools", "pools.yaml", "--resume-seconds", "3"], "--resume-seconds goes with --preempted"),
        (["pools.yaml", "--pools", "pools.yaml"], "a trace ends with .csv, .swf or .jsonl"),
    ]:
        result = raypool("replay", *words, code=2)
        assert result.stdout == ""
        assert says in result.stderr and result.stderr.splitlines()[-1].startswith("Error: ")


def test_a_page_that_cannot_be_written_is_an_error(here: Path) -> None:
    result = raypool("replay", "trace.swf", "--pools", "pools.yaml", "--html", "no/page.html", code=1)
    assert "no/page.html was not written: No such file or directory" in result.stderr


# --- the manual -------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "how-to" / "replay.md"


def test_the_worked_example_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are the YAML blocks that begin with their names; its commands run in order."""
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    ran = 0
    for command, wanted in told_commands(PAGE):
        words = command.split()
        if words[0] == "python":
            script = ROOT / words[1]
            done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
            assert words[2] == ">"
            Path(words[3]).write_text(done.stdout)
        elif wanted.strip():
            assert raypool(*words[1:]).stdout == wanted.rstrip("\n") + "\n", command
            ran += 1
    assert ran >= 2
