"""A short chaos run on a real cluster; the long one is `make chaos`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.machines import REPOSITORY

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(600)]


def test_a_short_storm_loses_doubles_and_leaks_nothing_and_nobody_hangs() -> None:
    command = [sys.executable, "-m", "tests.chaos.real", "--seed", "1", "--kills", "8", "--gcs-restarts", "2"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=580)
    last = run.stdout.splitlines()[-1]
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert last.endswith("lost=0 doubled=0 leaked=0 hung=0")
