"""`raypool simulate`: what it prints and how it exits."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.pages import ROOT, told_commands, write_files

if TYPE_CHECKING:
    from conftest import Cli

SCENARIOS = Path(__file__).parent.parent / "scenarios"

HOLDS = """
name: one waits
grace_seconds: 10
pools: [{name: p, capacity: {gpu: 2}}]
policies:
  - {pool: p, component: low, priority: 1}
  - {pool: p, component: high, priority: 2}
timeline:
  - submit: {id: a, component: low, resources: {gpu_count: 2}}
    expect: {a: allocated}
  - at: 5
    submit: {id: b, component: high, resources: {gpu_count: 2}}
    expect: {a: preempting, b: pending}
  - submit: {id: b, component: low, resources: {gpu_count: 2}}
    refused: true
  - at: 20
    expect: {a: preempted, b: allocated}
"""

FAILS = HOLDS.replace("name: one waits", "name: wrongly expected").replace("b: allocated", "b: pending")


@pytest.fixture
def holds(tmp_path: Path) -> str:
    return _file(tmp_path, "holds.yaml", HOLDS)


@pytest.fixture
def fails(tmp_path: Path) -> str:
    return _file(tmp_path, "fails.yaml", FAILS + "---" + HOLDS)


def _file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_scenario_that_holds_exits_0_and_shows_what_happened_when(cli: Cli, holds: str) -> None:
    shown = cli("simulate", holds).stdout
    assert "passed  one waits" in shown
    assert "AT    REQUEST  WHAT                     POOL  WHY" in shown
    assert "5 s   a        allocated -> preempting  p" in shown
    assert "15 s  a        preempting -> preempted  p" in shown
    assert "refused" in shown
    assert "1 scenario: 1 passed, 0 failed" in shown


def test_an_expectation_that_fails_exits_1_and_says_which(cli: Cli, fails: str) -> None:
    shown = cli("simulate", fails, code=1).stdout
    assert "FAILED  wrongly expected" in shown
    assert "entry 4 (at 20 s): 'b': wanted status pending, came allocated" in shown
    assert "2 scenarios: 1 passed, 1 failed" in shown


def test_quiet_prints_only_what_failed(cli: Cli, holds: str, fails: str) -> None:
    assert cli("simulate", "--quiet", holds).output == ""
    shown = cli("simulate", "--quiet", holds, fails, code=1).stdout
    assert "wrongly expected" in shown
    assert "entry 4 (at 20 s)" in shown
    assert "one waits" not in shown
    assert "REQUEST" not in shown


def test_json_has_every_report_with_its_file(cli: Cli, holds: str, fails: str) -> None:
    found = json.loads(cli("simulate", "--json", holds, fails, code=1).stdout)
    assert list(found) == ["scenarios"]
    assert [(one["file"], one["name"], one["passed"]) for one in found["scenarios"]] == [
        (holds, "one waits", True),
        (fails, "wrongly expected", False),
        (fails, "one waits", True),
    ]
    for one in found["scenarios"]:
        assert set(one) == {"file", "name", "passed", "failures", "steps"}
        assert all(isinstance(failure, str) for failure in one["failures"])
        assert [step["at"] for step in one["steps"]] == [0, 5, 5, 20]
        assert set(one["steps"][0]) == {"at", "refused", "states", "transitions"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\ntimeline:\n  - submit: {component: c}\n", ":3: timeline[0].submit.id: is required"),
        ("name: x\ntimeline:\n  - at: [", "not readable as YAML"),
        ("", "holds no scenario"),
        ("- 1\n", "must be a mapping"),
        ("name: x\npolicies: [{pool: p, component: c, priority: 1}]\n", "there is no pool 'p'"),
    ],
)
def test_a_file_that_is_not_a_scenario_exits_2_naming_it(
    cli: Cli, tmp_path: Path, holds: str, text: str, said: str
) -> None:
    file = _file(tmp_path, "bad.yaml", text)
    for more in ([], ["--json"], ["--quiet"]):
        failed = cli("simulate", *more, holds, file, code=2)
        assert said in failed.stderr
        assert failed.stderr.startswith(f"Error: {file}")
        assert failed.stderr.count("\n") == 1
        assert failed.stdout == ""


def test_a_file_that_is_no_text_or_not_there_exits_2(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    assert "binary.yaml" in cli("simulate", str(tmp_path / "binary.yaml"), code=2).stderr
    assert "nowhere.yaml" in cli("simulate", str(tmp_path / "nowhere.yaml"), code=2).stderr


def test_our_own_scenarios_hold(cli: Cli) -> None:
    files = [str(file) for file in sorted(SCENARIOS.glob("*.yaml"))]
    assert cli("simulate", "--quiet", *files).output == ""


def test_simulate_does_not_import_ray(holds: str) -> None:
    code = f"""if True:
        import sys
        from raypool.cli.main import main
        sys.argv = ["raypool", "simulate", {holds!r}]
        try:
            main()
        except SystemExit as done:
            assert not done.code
        assert "ray" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- a pools file -----------------------------------------------------------------------------


def test_a_pools_file_stands_in_the_place_of_the_scenarios_own_pools(cli: Cli, tmp_path: Path, holds: str) -> None:
    text = "pools: [{name: p, capacity: {gpu: 4}}]\npolicies:\n  - {pool: p, component: low, priority: 1}\n"
    pools = _file(tmp_path, "pools.yaml", text + "  - {pool: p, component: high, priority: 2}\n")
    shown = cli("simulate", "--pools", pools, holds, code=1).stdout
    assert "'a': wanted status preempting, came allocated" in shown, "four GPUs are enough for both"
    wrong = _file(tmp_path, "wrong.yaml", "pools: 7")
    assert cli("simulate", "--pools", wrong, holds, code=2).stderr.startswith(f"Error: {wrong}: ")
    refused = _file(tmp_path, "refused.yaml", text.replace("priority: 1", "priority: 1, reserved: {gpu: 5}"))
    assert "5 gpu is above" in cli("simulate", "--pools", refused, holds, code=2).stderr


def test_the_repository_of_the_manual_passes_until_somebody_lowers_the_reserve(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are those of examples/policies, and its commands run there in order."""
    page = ROOT / "docs" / "how-to" / "test-a-policy-in-ci.md"
    here = tmp_path / "examples" / "policies"
    shutil.copytree(ROOT / "examples" / "policies", here)
    write_files(page, tmp_path / "shown")
    for shown in ("pools.yaml", "scenarios/production.yaml"):
        assert (tmp_path / "shown" / shown).read_text() == (here / shown).read_text(), f"{page}: another {shown}"
    monkeypatch.chdir(tmp_path)
    ran = []
    for command, told in told_commands(page):
        words = shlex.split(command, comments=True)
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
        elif words[0] == "sed":
            subprocess.run(["bash", "-c", command], check=True)
        else:
            ran.append(told.strip())
            assert cli(*words[1:], code=1 if "exit code 1" in command else 0).stdout.rstrip() == told.rstrip()
    assert [bool(told) for told in ran] == [False, True]


# --- JUnit ------------------------------------------------------------------------------------


def test_junit_has_a_case_for_each_scenario_and_a_suite_for_each_file(cli: Cli, tmp_path: Path) -> None:
    odd = HOLDS.replace("name: one waits", 'name: "a <b> & \\"c\\" \\x07"')
    first = _file(tmp_path, "a.yaml", FAILS + "---" + odd)
    second = _file(tmp_path, "b.yaml", HOLDS)
    shown = cli("simulate", first, second, "--quiet", "--junit", str(tmp_path / "out.xml"), code=1).stdout
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "3", "1")
    suites = [(one.get("name"), one.get("tests"), one.get("failures"), len(one)) for one in root]
    assert suites == [(first, "2", "1", 2), (second, "1", "0", 1)]
    assert [case.get("name") for case in root.iter("testcase")] == ["wrongly expected", 'a <b> & "c" ?', "one waits"]
    (failure,) = root.iter("failure")
    assert "wanted status pending, came allocated" in (failure.text or "")
    assert failure.get("message") == failure.text and str(failure.text) in shown


def test_junit_that_cannot_be_written_is_an_error(cli: Cli, holds: str) -> None:
    assert "no/out.xml was not written" in cli("simulate", holds, "--junit", "no/out.xml", code=1).stderr
