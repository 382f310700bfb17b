"""The command of `raypool run` as a plain child process: no Ray, no lease."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from raypool.client import runner as runners
from raypool.client.runner import Child, environment_of

TRAIN = """
import signal, sys, time
def leave(*_):
    time.sleep(0.3); print("checkpoint written", flush=True); sys.exit(3)
signal.signal(signal.SIGTERM, leave)
print("started", flush=True)
time.sleep(60)
"""


def child(*command: str) -> Child:
    return Child(command, os.environ, "/tmp")


def text(child: Child) -> str:
    return b"".join(piece.data for piece in child.output()).decode()


def test_output_and_exit_code_are_the_commands() -> None:
    one = child("sh", "-c", "echo out; echo err >&2; exit 7")
    assert sorted((piece.stream, piece.data) for piece in one.output()) == [
        ("stderr", b"err\n"),
        ("stdout", b"out\n"),
    ]
    assert one.exit_code() == 7
    big = child(sys.executable, "-c", "print('x' * 3_000_000)")
    assert len(text(big)) == 3_000_001
    killed = child("sh", "-c", "kill -9 $$")
    assert (text(killed), killed.exit_code()) == ("", 137)


def test_it_ends_with_its_command_and_not_with_what_that_left_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runners, "DRAIN_SECONDS", 0.2)
    began = time.monotonic()
    one = child("sh", "-c", "sleep 6 & echo hi; exit 3")
    assert (text(one), one.exit_code()) == ("hi\n", 3)
    assert time.monotonic() - began < 4


def test_a_background_that_never_stops_talking_does_not_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "DRAIN_SECONDS", 0.2)
    one = child("sh", "-c", "(for i in $(seq 300); do echo tick; sleep 0.02; done) & exit 0")
    assert len(text(one)) < 500
    assert one.exit_code() == 0


def test_the_notice_reaches_a_program_under_a_shell_and_its_checkpoint_is_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    one = child("sh", "-c", f"{sys.executable} {script}; echo the next line")
    seen = ""
    for piece in one.output():
        seen += piece.data.decode()
        if seen == "started\n":
            one.terminate()
    assert seen == "started\ncheckpoint written\n", "and the shell did not go on"
    assert one.exit_code() == 143, "the shell's own"


def test_a_notice_after_the_end_finds_nobody() -> None:
    one = child("true")
    assert text(one) == ""
    one.terminate()
    assert one.exit_code() == 0


def test_the_callers_environment_holds_but_for_what_ray_set_for_the_actor() -> None:
    caller = {
        "PATH": "/caller", "OMP_NUM_THREADS": "8", "TOKEN": "t", "CUDA_VISIBLE_DEVICES": "7",
        "TPU_VISIBLE_CHIPS": "1", "RAY_ADDRESS": "caller", "RAY_JOB": "caller's",
    }  # fmt: skip
    node = {"PATH": "/node", "OMP_NUM_THREADS": "1", "NODE_ONLY": "x", "CUDA_VISIBLE_DEVICES": "0,1", "RAY_NODE": "n"}
    assert environment_of(caller, node, {"RAY_ADDRESS": "gcs"}) == {
        "PATH": "/caller", "OMP_NUM_THREADS": "8", "TOKEN": "t", "CUDA_VISIBLE_DEVICES": "0,1",
        "RAY_JOB": "caller's", "RAY_NODE": "n", "RAY_ADDRESS": "gcs",
    }  # fmt: skip
