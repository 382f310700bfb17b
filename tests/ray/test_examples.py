"""Every example runs as users run it: as a process of its own, against a cluster that local_cluster.py started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples"
RAY = str(Path(sys.executable).with_name("ray"))

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    "PYTHONPATH": str(TOP / "src"),
    "PYTHONUNBUFFERED": "1",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with local_cluster(tmp_path_factory.mktemp("local_cluster")) as found:
        yield found


@contextlib.contextmanager
def local_cluster(directory: Path, *options: str) -> Iterator[dict[str, str]]:
    """What a user has in the second terminal: the exports that local_cluster.py printed."""
    log = directory / "log"
    with log.open("wb") as out:
        command = [sys.executable, str(EXAMPLES / "local_cluster.py"), *options]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=ENVIRONMENT)
    try:
        exports = _wait_for_exports(process, log)
        yield {**ENVIRONMENT, **exports}
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    assert code == 0, log.read_text()
    assert not Path(exports["RAY_AUTH_TOKEN_PATH"]).parent.exists(), "its temporary directory is still there"


def _wait_for_exports(process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    for _ in range(1200):
        found = re.search(r"^export (.*)\n(?s:.*)Ctrl-C", log.read_text(), re.MULTILINE)
        if found:
            return dict(pair.split("=", 1) for pair in found[1].split())
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"local_cluster.py did not come up:\n{log.read_text()}")


def run(environment: dict[str, str], *command: str, seconds: float = 180) -> str:
    """The command's output; fails with it if the command does."""
    done = subprocess.run(
        command,
        cwd=TOP,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def in_order(text: str, *parts: str) -> bool:
    """Whether the parts stand in the text, one after another."""
    return re.search(".*".join(map(re.escape, parts)), text, re.DOTALL) is not None


def test_two_teams_shows_who_got_what_and_why(environment: dict[str, str]) -> None:
    output = run(environment, sys.executable, "examples/two_teams.py")
    first, second, third, fourth = re.split(r"\n\d\. ", output)[1:]
    assert "sandbox holds 12 gpu, 10 of them borrowed" in first
    assert in_order(second, "sandbox", "preempting", "'team-ml' takes back what is reserved for it", "pending")
    assert "team-ml holds 4 gpu, 0 of them borrowed" in third
    assert in_order(fourth, "sandbox", "pending", "asks for 12 gpu, 8 free")


def test_work_that_survives_preemption_goes_on_from_its_checkpoint(environment: dict[str, str]) -> None:
    output = run(environment, sys.executable, "examples/survive_preemption.py")
    assert in_order(output, "training from step 0", "production wants the room", "finished all 60 steps")
    checkpoint = re.search(r"wrote the checkpoint of step (\d+)", output)
    assert checkpoint is not None, output
    assert in_order(output, "queued again (1 of 3)", f"training from step {checkpoint[1]}")
    assert in_order(output, "finished all 60 steps", "preempted", "takes back what is reserved", "released")


def test_training_that_was_preempted_comes_out_as_if_it_had_not_been(
    environment: dict[str, str], tmp_path: Path
) -> None:
    program = [sys.executable, "examples/train_with_checkpoints.py", "--component", "sandbox", "--epochs", "40"]
    undisturbed = run(environment, *program, "--checkpoint", str(tmp_path / "a.json"), "--seconds-per-epoch", "0")
    disturb = f"""
import subprocess, time, raypool
client = raypool.connect()
command = {[*program, "--checkpoint", str(tmp_path / "b.json"), "--seconds-per-epoch", "0.3"]!r}
process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
def runs():
    return [one for one in client.requests(component="sandbox", status="allocated")]
while not runs():
    time.sleep(0.1)
with raypool.lease({{"gpu_count": 3}}, component="production", workers=2):
    with raypool.lease({{"gpu_count": 1}}, component="team-ml", workers=4):
        assert not runs()
print(process.communicate()[0])
"""
    output = run(environment, sys.executable, "-c", disturb)
    assert len(re.findall(r"run \d began at epoch \d+", undisturbed)) == 1
    assert in_order(output, "run 1 began at epoch 0", "run 2 began at epoch ", "finished: "), output
    assert re.findall(r"finished: .*", output) == re.findall(r"finished: .*", undisturbed)
    assert list(tmp_path.iterdir()) == []


def test_a_gang_has_each_worker_on_a_node_of_its_own(environment: dict[str, str]) -> None:
    output = run(environment, sys.executable, "examples/gang.py")
    workers = re.findall(r"rank (\d) of 3 on node (\w{8}), GPUs \[0, 1\]", output)
    assert [rank for rank, _ in workers] == ["0", "1", "2"], output
    assert len({node for _, node in workers}) == 3, output
    assert "CREATED, STRICT_SPREAD" in output
    assert re.findall(r"bundle \d .* on node (\w{8})", output) == [node for _, node in workers]


def test_a_submitted_pipeline_runs_each_step_in_the_pools_of_its_team(environment: dict[str, str]) -> None:
    metadata = json.dumps({"raypool.component": "team-ml"})
    submit = (RAY, "job", "submit", "--metadata-json", metadata, "--working-dir", "examples")
    output = run(environment, *submit, "--", "python", "pipeline.py")
    assert "prepare: in pool 'cpus'" in output
    assert re.search(r"train: in pool 'gpus' on GPUs \[0, 1, 2, 3\]", output), output
    assert re.search(r"publish: in pool 'gpus' on GPUs \[\d\]", output), output
    assert re.search(r"published: weight (3\.0|2\.9)\d, error 0\.0", output), output


@pytest.mark.parametrize("example", ["two_teams", "survive_preemption", "train_with_checkpoints", "gang", "pipeline"])
def test_without_a_cluster_an_example_says_how_to_get_one(example: str) -> None:
    nowhere = {**ENVIRONMENT, "RAY_ADDRESS": "127.0.0.1:1"}
    more = ["--component", "sandbox", "--checkpoint", "state.json"] if example == "train_with_checkpoints" else []
    command = [sys.executable, f"examples/{example}.py", *more]
    done = subprocess.run(command, cwd=TOP, env=nowhere, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout
    assert "python examples/local_cluster.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_happens_as_it_says(tmp_path: Path) -> None:
    output = run({**ENVIRONMENT, "TMPDIR": str(tmp_path)}, sys.executable, "examples/demo.py", seconds=390)
    assert output.count("✓") == 9, output
    assert "✗" not in output
    assert not list(tmp_path.iterdir()), "it left files behind"
