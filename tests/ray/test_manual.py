"""The tutorial and the how-to pages, as a reader would follow them: their files, their commands in order, and what
the pages say that these print. All on one cluster, each page with a broker of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..pages import DOCS, ROOT, RUN_BY, told_commands, write_files
from ..shell import Shell
from .test_examples import ENVIRONMENT, local_cluster

pytestmark = pytest.mark.timeout(600)

HERE = "ray/test_manual.py"
PAGES = [page for page, test in RUN_BY.items() if test == HERE and page != "how-to/index.md"]
IN_THE_FIRST_TERMINAL = ("pip install .", "python examples/local_cluster.py --no-broker")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with local_cluster(tmp_path_factory.mktemp("local_cluster"), "--no-broker") as found:
        yield {
            **found,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAYPOOL_USER": "ada",
            "NO_COLOR": "1",
        }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_printed(page: str, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_files(DOCS / page, tmp_path)
    commands = told_commands(DOCS / page)
    with Shell(tmp_path, environment) as shell:
        try:
            for command, told in commands:
                if command not in IN_THE_FIRST_TERMINAL:
                    shell.shows(command, told)
        finally:
            shell.once("raypool stop")  # it may have ended on the page


def test_the_first_page_says_what_is_done_here_before_each() -> None:
    commands = [command for command, _ in told_commands(DOCS / "how-to" / "index.md")]
    assert commands == [*IN_THE_FIRST_TERMINAL, "raypool stop"]
    assert "PYTHONPATH" in ENVIRONMENT, "the tests take raypool from the checkout"
