"""The tutorial and the how-to pages, as a reader would follow them: their files, their commands in order, and what
the pages say that these print; and the programs of the reference. All on one cluster, each page with a broker of its
own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..pages import DOCS, ROOT, RUN_BY, blocks, told_commands, write_files
from ..shell import Shell
from .test_examples import ENVIRONMENT, local_cluster

pytestmark = pytest.mark.timeout(600)

HERE = "ray/test_manual.py"
PAGES = [
    page
    for page, test in RUN_BY.items()
    if test == HERE and not page.startswith("docs/reference/") and page != "docs/how-to/index.md"
]
IN_THE_FIRST_TERMINAL = ("pip install .", "python examples/local_cluster.py --no-broker")
LINK = "mkdir try && cd try && ln -s ../examples"

POOLS = """
pools: [{name: gpus, capacity: {gpu: 12}}]
policies:
  - {pool: gpus, component: team-ml, priority: 50, reserved: {gpu: 12}}
  - {pool: gpus, component: sandbox, priority: 10}
"""
"""For the programs of the reference, which name no pools."""


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
    write_files(ROOT / page, tmp_path)
    commands = told_commands(ROOT / page)
    with Shell(tmp_path, environment) as shell:
        try:
            for command, told in commands:
                if command not in IN_THE_FIRST_TERMINAL:
                    shell.shows(command, told)
        finally:
            shell.once("raypool stop")  # it may have ended on the page


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Iterator[Shell]:
    """In a directory with the pools of the reference's programs, with a broker of its own."""
    (tmp_path / "pools.yaml").write_text(POOLS)
    with Shell(tmp_path, environment) as shell:
        try:
            shell.run("raypool start -f pools.yaml")
            yield shell
        finally:
            shell.once("raypool stop")


def test_the_programs_of_the_page_on_python_run(shell: Shell, tmp_path: Path) -> None:
    leases, client, many = (block.text for block in blocks(DOCS / "reference" / "using.md", "python"))
    (tmp_path / "leases.py").write_text(leases)
    (tmp_path / "client.py").write_text(client + many + "print(len(specs), len(rejected))")
    printed = shell.run("python leases.py")
    assert "[0, 1, 2, 3] gpus" in printed and "PACK" in printed, printed
    printed = shell.run("python client.py")
    assert "gpus {'gpu': 12} {'gpu': 12} 0" in printed and "runs in pool 'gpus'" in printed, printed
    assert printed.endswith("10000 0"), printed


def test_the_program_of_the_page_on_events_tells_what_was_and_what_comes(
    shell: Shell, environment: dict[str, str], tmp_path: Path
) -> None:
    (program,) = blocks(DOCS / "reference" / "events.md", "python")
    shell.run("raypool submit --component sandbox --gpus 4 --workers 3 --id study")
    shell.run("raypool submit --component team-ml --gpus 1 --id first")
    command = ["timeout", "120", sys.executable, "-u", "-c", program.text]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as follows:
        assert follows.stdout is not None
        try:
            assert any(line.startswith("study left for first {") for line in follows.stdout)
            shell.run("raypool request cancel first")
            assert any("cancelled" in line and "first" in line for line in follows.stdout)
        finally:
            follows.terminate()  # it goes on without end


def test_the_first_page_says_what_is_done_here_before_each() -> None:
    commands = [command for command, _ in told_commands(DOCS / "how-to" / "index.md")]
    assert commands == [*IN_THE_FIRST_TERMINAL, LINK, "raypool stop"]
    assert "PYTHONPATH" in ENVIRONMENT, "the tests take raypool from the checkout"
