"""No test is written and never run: `make test` or `make chaos` selects every one."""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import pytest_itemcollected

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
MODULES = [file for file in FILES if file.name.startswith("test_")]
MARKS = ("ray", "chaos")


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


class Run:
    """A call of pytest in the Makefile: the tests it selects."""

    def __init__(self, words: list[str]) -> None:
        options = argparse.ArgumentParser()
        options.add_argument("-q", action="store_true")
        options.add_argument("-n")
        options.add_argument("--dist")
        options.add_argument("--no-loadscope-reorder", action="store_true")
        options.add_argument("--timeout")
        options.add_argument("-m", default="True")
        options.add_argument("--ignore", action="append", default=[])
        options.add_argument("paths", nargs="*", default=["tests"])
        self.options = options.parse_args(words)

    def selects(self, file: Path, marks: set[str]) -> bool:
        places = {ROOT / path for path in self.options.paths}
        ignored = {ROOT / path for path in self.options.ignore}
        around = {file, *file.parents}
        return bool(
            places & around
            and not ignored & around
            and eval(self.options.m, {"__builtins__": {}}, {mark: mark in marks for mark in MARKS})
        )


def runs_of(target: str) -> Iterator[Run]:
    """What `make` of that target runs, with the targets that it needs."""
    found = re.search(rf"^{target}:(.*)\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if found is None:
        return
    for needed in found[1].split():
        yield from runs_of(re.escape(needed))
    for line in found[2].splitlines():
        _, runs_pytest, words = line.partition(" -m pytest ")
        if runs_pytest:
            yield Run(shlex.split(words))


def marks_in(file: Path) -> set[str]:
    """Those of `MARKS` that some test of the file has, or may have."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr in MARKS}


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_every_module_is_run(request: pytest.FixtureRequest, file: Path) -> None:
    runs = [*runs_of("test"), *runs_of("chaos")]
    module = pytest.Module.from_parent(request.session, path=file)
    item = pytest.Function.from_parent(module, name="test_any", callobj=lambda: None)
    pytest_itemcollected(item)
    by_place = {mark.name for mark in item.iter_markers()}
    assert ("ray" in by_place) == (file.parent == TESTS / "ray")
    of_its_own = sorted(marks_in(file))
    for marks in itertools.chain.from_iterable(
        itertools.combinations(of_its_own, count) for count in range(len(of_its_own) + 1)
    ):
        assert any(run.selects(file, by_place | set(marks)) for run in runs), f"nobody runs it, marked {marks}"


@pytest.mark.parametrize("file", [file for file in FILES if file not in MODULES], ids=name_of)
def test_tests_are_only_in_modules_that_pytest_looks_into(file: Path) -> None:
    statements = ast.parse(file.read_text(encoding="utf-8")).body
    named = [one.name for one in statements if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    assert [name for name in named if name.startswith(("test", "Test"))] == []
