"""The shape of the code: who may import whom, what the core has never heard of, and no drawers."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

import raypool

SOURCE = Path(raypool.__file__).parent

MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "spec": {"errors"},
    "core": {"core", "spec", "errors"},
    "view": set(),
    "monitoring": {"monitoring"},
    "simulation": {"simulation", "core", "view", "spec", "errors"},
    "server": {"server", "core", "monitoring", "view", "spec", "errors", "version"},
    "client": {"client", "view", "spec", "errors"},
    "dashboard": {"dashboard", "client", "view", "errors", "version"},
    "cli": {"cli", "client", "dashboard", "simulation", "monitoring", "view", "spec", "errors", "version"},
    "__main__": {"cli"},
}
RAY = {"server", "client", "cli"}
"""The layers that may import ray, too."""

UNKNOWN_TO_THE_CORE = {"ray", "asyncio", "threading", "time", "datetime", "uuid", "random", "os", "logging"}
ASKS_RAY, READS_FOR_THE_BROKER = "server/cluster.py", "server/plain_data.py"
"""The only file of the server that asks Ray, and the one that narrows what Ray reads there."""

ONE_EXCEPTION = ("client/client.py", "_broker_actor", "raypool.server.ray_actor")
"""The function that creates the actor may import its class."""

DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "base"}

FILES = sorted(SOURCE.rglob("*.py"))


def name_of(file):
    return str(file.relative_to(SOURCE))


def layer_of(file):
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports_of(file):
    """(module, function that imports it or ""); relative imports and `from raypool import x` written out."""
    found = []

    def visit(node, function):
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.Import):
                found.extend((alias.name, function) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{name_of(file)} imports relatively"
                for alias in child.names:
                    module = f"raypool.{alias.name}" if child.module == "raypool" else child.module
                    found.append((module, function))
            visit(child, inside)

    visit(tree_of(file), "")
    return found


@pytest.mark.parametrize("file", [one for one in FILES if one != SOURCE / "__init__.py"], ids=name_of)
def test_imports_go_down_only(file):
    layer = layer_of(file)
    assert layer in MAY_IMPORT, f"{name_of(file)} is in no layer: say in this table where it stands"
    for module, function in imports_of(file):
        if not module.startswith("raypool"):
            continue
        if (name_of(file), function, module) == ONE_EXCEPTION:
            continue
        target = module.split(".")[1] if "." in module else "raypool"
        assert target in MAY_IMPORT[layer], f"{name_of(file)} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_only_the_edges_have_heard_of_ray(file):
    if layer_of(file) not in RAY:
        assert [module for module, _ in imports_of(file) if module.split(".")[0] == "ray"] == []


@pytest.mark.parametrize("file", [one for one in FILES if layer_of(one) in ("core", "view")], ids=name_of)
def test_the_core_has_no_clock_no_luck_and_no_world(file):
    modules = {module.split(".")[0] for module, _ in imports_of(file)}
    assert modules & UNKNOWN_TO_THE_CORE == set()


@pytest.mark.parametrize("file", [one for one in FILES if layer_of(one) == "core"], ids=name_of)
def test_the_core_imports_only_the_standard_library_sorted_lists_and_specs(file):
    for module, _ in imports_of(file):
        root = module.split(".")[0]
        assert root in ("raypool", "sortedcontainers") or root in sys.stdlib_module_names, (
            f"{name_of(file)} imports {module}"
        )


@pytest.mark.parametrize("file", [one for one in FILES if layer_of(one) == "server"], ids=name_of)
def test_only_one_file_of_the_server_asks_ray(file):
    asks = any(module.split(".")[0] == "ray" for module, _ in imports_of(file))
    assert asks == (name_of(file) in (ASKS_RAY, READS_FOR_THE_BROKER))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_module_is_a_drawer(file):
    assert file.stem not in DRAWERS
    assert file.parent.name not in DRAWERS


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_module_says_what_it_holds(file):
    assert ast.get_docstring(tree_of(file)), f"{name_of(file)} has no docstring"
