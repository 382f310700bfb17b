"""What checks rules and expressions: Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def promtool() -> Callable[..., None]:
    """Runs it; fails with what it says."""
    tool = shutil.which("promtool")
    assert tool, "promtool is missing: `apt-get install --no-install-recommends prometheus` (.ci/run does that)"

    def run(*words: str | Path) -> None:
        done = subprocess.run([tool, *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run
