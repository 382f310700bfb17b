"""The README, as a reader would try it: its programs, in order, on one real cluster."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

import raypool
from raypool import ResourceSettings

from ..pages import ROOT, Block, blocks
from .conftest import SRC, until

README = ROOT / "README.md"
NODES = [{"num_cpus": 2, "num_gpus": 4} for _ in range(2)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader sits: pools.yaml and the programs that the README shows lie there."""
    place = tmp_path_factory.mktemp("readme")
    (place / "pools.yaml").write_text(next(one.text for one in blocks(README, "yaml") if "policies" in one.text))
    (place / "preemption.yaml").write_text(next(one.text for one in blocks(README, "yaml") if "timeline" in one.text))
    for block in blocks(README, "python"):
        if block.file:
            (place / block.file).write_text(block.text)
    return place


Runs = Callable[..., str]

FOUR_GPUS = ResourceSettings(gpu_count=4)
RAYPOOL = "from raypool.cli.main import main; main()"


@pytest.fixture
def runs(cluster: Cluster, directory: Path) -> Iterator[Runs]:
    """Runs Python as a driver of the cluster and returns what it printed; the broker is stopped after. serves: it
    goes on until it is told to end, which it is after its first line."""

    def run(*arguments: str, serves: bool = False, **variables: str) -> str:
        command = [sys.executable, *arguments]
        environment = {
            **os.environ,
            "RAY_ADDRESS": cluster.address,
            "PYTHONPATH": str(SRC),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(directory),
            **variables,
        }
        if serves:
            with subprocess.Popen(
                command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                line = process.stdout.readline()
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
                return line
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=170)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
        return done.stdout

    yield run
    raypool.stop()


def in_order(python: list[Block]) -> str:
    """One program of all blocks that are no program of their own, each on the lines that it has in the README."""
    program = ""
    for block in python:
        if not block.file:
            program += "\n" * (block.line - 1 - program.count("\n")) + block.text
    return program


def test_the_readme_runs_from_top_to_bottom(runs: Runs, directory: Path) -> None:
    program = directory / "README.py"
    program.write_text(in_order(blocks(README, "python")))
    printed = runs(str(program))
    for line in (
        "10 steps on GPUs",
        "20 steps on GPUs",
        "[1, 3] [2, 4]",
        "production holds gpus on 2 bundles",
        "preempt in 'gpus' by 'production'",
        "of which 4 gpu borrowed",
        "asks for 4 gpu, 2 free",
        "asks for 16 gpu, pool 'gpus' has 8",
    ):
        assert line in printed, printed
    assert "50" in printed.splitlines(), "the experiment went on from its checkpoint to its end"


def test_the_program_without_a_component_runs_for_the_team_of_its_job(runs: Runs, directory: Path) -> None:
    client = raypool.start(directory / "pools.yaml")
    metadata = json.dumps({"metadata": {"raypool.component": "team-ml"}})  # as `ray job submit` passes it on
    assert "trained" in runs("train.py", RAY_JOB_CONFIG_JSON_ENV_VAR=metadata)
    until(lambda: [one.component for one in client.requests(status="released")] == ["team-ml"], "it ran for team-ml")


def test_the_commands_of_the_readme_work(runs: Runs, directory: Path) -> None:
    client = raypool.start(directory / "pools.yaml")
    waiting = ""
    printed = {}
    for block in blocks(README, "console"):
        for line in block.commands:
            if line.startswith("raypool request ") and not waiting:
                waiting = [client.submit(component="sandbox", resources=FOUR_GPUS).id for _ in range(3)][-1]
            if line.startswith("raypool "):
                words = shlex.split(line.replace(" ID", f" {waiting[:12]}"))[1:]
                printed[" ".join(words[:2])] = runs("-c", RAYPOOL, *words, serves=words[0] == "dashboard")
    assert "gpus" in printed["start -f"]
    assert "http://127.0.0.1:8266" in printed["dashboard"]
    assert "nobody waits" in printed["top --once"]
    assert waiting in printed["request list"]
    assert "over the limit of 'sandbox'" in printed["request why"]
    assert "production" in printed["pool describe"]
    assert "passed" in printed["simulate preemption.yaml"]
    assert len(printed["run --component"].split(",")) == 2, "the command saw its two GPUs"
