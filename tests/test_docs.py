"""What the documentation says is so: its snippets load, run or compile, and its links lead somewhere."""

from __future__ import annotations

import codeop
import dataclasses
import doctest
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

import raypool
from raypool.cli.main import main as raypool_main
from raypool.client.decorators import PoolOptions
from raypool.core import bundles
from raypool.core.reasons import Reason
from raypool.server.record import KINDS
from raypool.simulation import run, scenario, workload_report
from raypool.spec import BrokerConfig, PolicySpec, PoolSpec, RequestSpec, ResourceSettings, new_request_id

from .pages import DOCS, ONLY_READ, PAGES, ROOT, RUN_BY, Block, all_blocks, blocks

NAMED_IN = [DOCS / "reference" / "using.md", DOCS / "reference" / "pools.md"]
EXCEPTIONS = [name for name in raypool.__all__ if name in dir(raypool.errors)]
"""They are explained by their docstrings, of which reference/exceptions.md is made."""


def ids(values: list[Any]) -> list[str]:
    return [one.where if isinstance(one, Block) else str(one.relative_to(ROOT)) for one in values]


def each(values: list[Any], name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, values, ids=ids(values))


# --- snippets ---------------------------------------------------------------------------------


def documents(block: Block) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(block.text) if isinstance(one, dict)]


YAML = all_blocks("yaml")
TIMELINES = [block for block in YAML if any("timeline" in one for one in documents(block))]
SCENARIOS = [block for block in TIMELINES if all("pools" in one for one in documents(block))]
"""Those that hold no pools are run with a pools file: tests/cli/test_cli_simulate.py."""
CONFIGS = [
    block
    for block in YAML
    if block not in TIMELINES and any("pools" in one or "policies" in one for one in documents(block))
]


@each(CONFIGS, "block")
def test_pools_in_the_docs_load(block: Block) -> None:
    BrokerConfig.from_yaml(block.text)


@each(SCENARIOS, "block")
def test_scenarios_in_the_docs_come_out_as_written(block: Block) -> None:
    for document in documents(block):
        report = raypool.simulate(document)
        assert report.passed, "\n".join(report.failures)


@each(all_blocks("python"), "block")
def test_python_in_the_docs_compiles(block: Block) -> None:
    compile("\n" * (block.line - 1) + block.text, str(block.page), "exec", flags=0x2000)  # a bare `await` is meant


@each([block for block in blocks(ROOT / "README.md", "python") if not block.file], "block")
def test_programs_of_the_readme_can_be_pasted_into_a_session(block: Block) -> None:
    """There a statement that is indented ends with an empty line, and not before."""
    lines: list[str] = []
    for line in [*block.text.splitlines(), ""]:
        lines.append(line)
        if codeop.compile_command("\n".join(lines), symbol="single") is not None:
            lines = []
    assert not any(lines), "the last statement is not whole"


CI_JOBS = [block for block in YAML if block.text.startswith(("# .github/", "# .gitlab-ci.yml"))]
LANGUAGES = {"text", "console", "python", "pycon", "yaml", "json"}


@each(CI_JOBS, "block")
def test_the_jobs_for_a_ci_run_the_simulator_on_files_of_the_page(block: Block) -> None:
    job = yaml.safe_load(block.text.replace("on:", "'on':"))
    simulate = job["simulate"] if "simulate" in job else job["jobs"]["simulate"]
    lines = simulate.get("script") or [step["run"] for step in simulate["steps"] if "run" in step]
    (line,) = [one for one in lines if one.startswith("raypool simulate ")]
    assert shlex.split(line)[2:4] == ["--pools", "pools.yaml"]
    assert "# pools.yaml\n" in block.page.read_text(encoding="utf-8")


def test_every_snippet_is_looked_at_by_a_test() -> None:
    """A page cannot have code of a kind that nobody runs or reads."""
    fences = [
        (page.name, fence)
        for page in PAGES
        for fence in re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert {language for _, language in fences if language} <= LANGUAGES, fences
    read = {*(one.where for one in [*CONFIGS, *TIMELINES, *CI_JOBS])}
    of_a_command = re.compile(r"# [\w./-]+\.yaml\n")  # written to a file that the commands of the page use
    assert [one.where for one in YAML if one.where not in read and not of_a_command.match(one.text)] == []


def test_the_page_of_the_scenarios_shows_what_is_printed_and_its_program_runs(tmp_path: Path) -> None:
    page = DOCS / "reference" / "scenarios.md"
    file = tmp_path / "preemption.yaml"
    file.write_text(blocks(page, "yaml")[0].text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        printed = CliRunner().invoke(raypool_main, ["simulate", file.name, "--json"]).stdout
    (report,), (shown,) = (json.loads(text)["scenarios"] for text in (printed, blocks(page, "json")[0].text))
    assert all(step in report["steps"] for step in shown.pop("steps"))
    assert shown == {name: value for name, value in report.items() if name != "steps"}
    (program,) = blocks(page, "python")
    exec(compile(program.text, str(page), "exec"), {})


def test_no_other_page_shows_json() -> None:
    assert {block.page.name for block in all_blocks("json")} == {"scenarios.md"}


HOW_TO = [DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]


def test_each_page_with_commands_or_programs_is_run_by_a_test_or_there_is_a_reason() -> None:
    with_code = {
        str(page.relative_to(ROOT)): page for page in PAGES if blocks(page, "console") or blocks(page, "python")
    }
    assert sorted(with_code) == sorted([*RUN_BY, *ONLY_READ])
    assert [name for name in ONLY_READ if blocks(with_code[name], "python")] == [], "a program has to be run"


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_of_a_page_names_it(page: str) -> None:
    test = ROOT / "tests" / RUN_BY[page]
    text = test.read_text(encoding="utf-8")
    assert Path(page).name in text or "RUN_BY" in text, f"{test} does not name {page}"


def test_every_example_is_shown_on_a_page() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    examples = [str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.*")]
    assert examples and [name for name in examples if f"/{name})" not in pages] == []


@pytest.mark.parametrize(("page", "reason"), ONLY_READ.items())
def test_what_is_named_as_read_by_others_is_there(page: str, reason: str) -> None:
    assert [name for name in re.findall(r"tests/[\w/.]+\b", reason) if not (ROOT / name).exists()] == []


def test_the_targets_and_files_that_the_commands_of_the_pages_name_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line for block in all_blocks("console") for line in block.commands]
    targets = {found[1] for line in lines if (found := re.search(r"\bmake ([a-z]+)", line))}
    assert targets and [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
    files = {name for line in lines for name in re.findall(r"(?<![\w/])(?:docs|examples|tests)/[\w/.-]+\.\w+", line)}
    assert files and [name for name in files if not (ROOT / name).is_file()] == []


@each(HOW_TO, "page")
def test_the_files_that_a_page_shows_are_used_by_its_commands(page: Path) -> None:
    commands = " ".join(command for block in blocks(page, "console") for command in block.commands)
    files = re.findall(r"^```\w+\n# ([\w/-]+\.(?:py|yaml))\n", page.read_text(), re.MULTILINE)
    assert [name for name in files if name not in commands] == []


def test_the_docs_have_pools_scenarios_and_programs() -> None:
    assert CONFIGS and SCENARIOS and all_blocks("python"), "the tests of the docs look at nothing"


@each(all_blocks("pycon"), "block")
def test_examples_with_a_prompt_print_what_they_say(block: Block) -> None:
    example = doctest.DocTestParser().get_doctest(block.text, {}, block.where, str(block.page), block.line - 1)
    assert not doctest.DocTestRunner().run(example).failed


@pytest.mark.parametrize(
    "module", [raypool.spec, bundles, run, scenario, workload_report], ids=lambda module: module.__name__
)
def test_examples_in_docstrings_print_what_they_say(module: Any) -> None:
    assert not doctest.testmod(module).failed


# --- commands ---------------------------------------------------------------------------------


def written_commands() -> list[tuple[str, str]]:
    """Every `raypool ...` of a console block, with its place; also the one behind `ray job submit --`."""
    found = []
    for block in all_blocks("console"):
        for line in block.commands:
            start = re.search(r"(^|-- )(?=raypool )", line)
            if start:
                found.append((block.where, line[start.end() :]))
    return found


@pytest.mark.parametrize(("where", "line"), written_commands(), ids=lambda value: str(value))
def test_the_command_line_takes_the_commands_in_the_docs(where: str, line: str, tmp_path: Path) -> None:
    words = shlex.split(line.partition(" > ")[0].partition(" | ")[0])[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for word in words:
            if word.endswith((".yaml", ".jsonl", ".csv", ".swf", ".gz")):
                (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / word).touch()
        command: click.Command = raypool_main
        context = click.Context(command, info_name="raypool")
        while isinstance(command, click.Group):
            with command.make_context(context.info_name, words, parent=context.parent) as parsed:
                name, found, words = command.resolve_command(parsed, [*parsed._protected_args, *parsed.args])
            assert found is not None, f"{where}: no command '{name}'"
            command, context = found, click.Context(found, info_name=name, parent=parsed)
        command.make_context(context.info_name, words, parent=context.parent).close()


def every_command(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from every_command(found, f"{path} {name}")
    else:
        yield path, command


def sections(page: str) -> dict[str, str]:
    """What stands below each heading of a command in cli.md, by the words that call it."""
    parts = re.split(r"^#+ ", page, flags=re.MULTILINE)
    named = {re.match(r"`(raypool(?: [a-z][a-z-]*)*)", part): part for part in parts}
    return {name[1]: part.partition("\n")[2] for name, part in named.items() if name}


def test_the_page_of_the_commands_says_of_each_what_it_does() -> None:
    found = sections((DOCS / "reference" / "cli.md").read_text(encoding="utf-8"))
    paths = [path for path, _ in every_command(raypool_main, "raypool")]
    assert sorted(found) == sorted(paths)
    for path in paths:
        said = re.sub(r"^```.*?^```$", "", found[path], flags=re.MULTILINE | re.DOTALL)
        text, mark, _ = said.partition(f"<!-- made from the code: command {path} -->")
        assert mark and text.strip(), path


def test_every_option_says_what_it_is_for() -> None:
    silent = [
        f"{path} {option.opts[0]}"
        for path, command in every_command(raypool_main, "raypool")
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert not silent


# --- what the site makes from the code --------------------------------------------------------


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


HOOKS = module_of(DOCS / "hooks.py")
PICTURES = module_of(DOCS / "pictures" / "make.py").pictures()


def test_the_pages_that_are_made_from_the_code_have_all_of_it() -> None:
    reference = {page.stem: HOOKS.with_parts(page.read_text()) for page in DOCS.glob("reference/*.md")}
    assert "made from the code:" not in "".join(reference.values())
    commands = sections(reference["cli"])
    for path, command in every_command(raypool_main, "raypool"):
        rows = " ".join(re.findall(r"^\| (`-.*?) \|", commands[path], flags=re.MULTILINE))
        options = [option for option in command.params if isinstance(option, click.Option)]
        told = {name for option in options for name in [*option.opts, *option.secondary_opts]}
        assert {name for name in told if f"`{name}`" not in rows} <= {"--address"}, path
    for name in raypool.__all__:
        page = "exceptions" if name in EXCEPTIONS else "api"
        assert name == "__version__" or f"## `{name}`\n" in reference[page], name
        assert name == "__version__" or getattr(raypool, name).__doc__, f"{name} does not say what it is"
    for spec in (ResourceSettings, PoolSpec, PolicySpec, RequestSpec, BrokerConfig):
        part = reference["config"].partition(f"## `{spec.__name__}`\n")[2].partition("\n## ")[0]
        assert [name for name in spec.model_fields if f"| `{name}` |" not in part] == []
    assert "| `workers` | whole number | >= 1, <= 10,000 | `1` |" in reference["config"]
    assert "| at least 1, at most 10,000 entries | none |" in reference["config"]
    assert "| `-p`, `--priority` | `INTEGER` | required |" in reference["cli"]
    assert "| `-n`, `--limit` | `INTEGER`, 1 to 10,000 | `1000` |" in reference["cli"]
    assert "| `--token` | `TEXT`; else the variable `RAYPOOL_DASHBOARD_TOKEN` |" in reference["cli"]


def test_links_lead_where_they_lead_in_the_repository() -> None:
    mend = HOOKS.with_links
    assert mend("[a](../../examples/gang.py)", "how-to/x.md") == "[a](../repository/examples/gang.py)"
    assert mend("[a](../docs/how-to/why.md#b)", "index.md") == "[a](how-to/why.md#b)"
    assert mend("[the `x` rule](docs/reference/pools.md)", "repository/README.md") == (
        "[the `x` rule](../reference/pools.md)"
    )
    assert mend("[decisions](docs/decisions/)", "repository/README.md") == "decisions"
    assert mend("see [tests/scenarios/](../../tests/scenarios/).", "reference/x.md") == "see tests/scenarios/."
    assert mend("```text\n[a](../b.md)\n```", "index.md") == "```text\n[a](../b.md)\n```"
    assert mend("[a](https://x.org/y) [b](#c)", "index.md") == "[a](https://x.org/y) [b](#c)"


def test_every_variable_is_in_the_page_of_the_environment() -> None:
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"\bRAYPOOL_[A-Z_]+\b", source))
    assert named and [name for name in sorted(named) if f"`{name}`" not in page] == []


@each(list(PICTURES), "picture")
def test_the_pictures_show_what_the_simulator_does_now(picture: Path) -> None:
    made = PICTURES[picture]
    assert picture.read_text(encoding="utf-8") == made, "run: python docs/pictures/make.py"
    page = (DOCS / "explanation" / f"{picture.stem.partition('-')[0]}.md").read_text(encoding="utf-8")
    assert f"](../pictures/{picture.name})" in page


def test_every_picture_is_made_and_no_other_is_there() -> None:
    assert sorted(PICTURES) == sorted((DOCS / "pictures").glob("*.svg"))


def test_every_decision_is_listed() -> None:
    listed = (DOCS / "explanation" / "index.md").read_text(encoding="utf-8")
    assert [one.name for one in (DOCS / "decisions").glob("*.md") if f"/{one.name})" not in listed] == []


# --- links and names --------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(kept.strip().replace(" ", "-"))
    return found


@each(PAGES, "page")
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        found = target.exists() and ROOT in (target, *target.parents)
        if not found or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


NAMES = [name for name in raypool.__all__ if not name.startswith("_") and name not in EXCEPTIONS]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_explained(name: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in NAMED_IN)
    assert re.search(rf"\b{name}\b", text), f"'{name}' is in raypool.__all__ and in none of {ids(NAMED_IN)}"


def test_every_method_of_the_client_and_every_field_of_a_view_is_on_a_page_of_the_reference() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    methods = [name for name in vars(raypool.Client) if not name.startswith("_")]
    assert methods and [name for name in methods if f"`{name}(" not in text and f"await {name}(" not in text] == []
    views = [getattr(raypool, name) for name in NAMES if isinstance(getattr(raypool, name), type)]
    views = [view for view in views if dataclasses.is_dataclass(view) and view is not raypool.ReportRowView]
    fields = {f"{view.__name__}.{field.name}": field.name for view in views for field in dataclasses.fields(view)}
    assert fields and [name for name, field in fields.items() if f"`{field}`" not in text] == []


def told_defaults(page: str, heading: str) -> dict[str, str]:
    """The defaults by field, as the first table below the heading of that page of the reference says them. A row may
    hold several fields, and then a default for each."""
    text = (DOCS / "reference" / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    table = re.search(r"(^\|.*\n)+", text, flags=re.MULTILINE)
    assert table, heading
    told: dict[str, str] = {}
    for row in table[0].splitlines()[2:]:
        names, defaults = (cell.strip().replace("`", "").split(", ") for cell in row.split("|")[1:3])
        told |= zip(names, defaults if len(defaults) > 1 else defaults * len(names), strict=True)
    return told


def written(default: Any) -> str:
    """A default as the pages write it."""
    if default is None or isinstance(default, bool):
        return {None: "none", True: "true", False: "false"}[default]
    if isinstance(default, float | int):
        return f"{default:g}"
    return "[]" if default == () else str(default or '""')


@pytest.mark.parametrize(
    ("spec", "page", "heading"),
    [
        (PoolSpec, "pools.md", "A pool: `PoolSpec`"),
        (PolicySpec, "pools.md", "A policy: `PolicySpec`"),
        (BrokerConfig, "pools.md", "The file: `BrokerConfig`"),
        (ResourceSettings, "pools.md", "What one request holds: `ResourceSettings`"),
        (RequestSpec, "using.md", "Requests"),
    ],
)
def test_every_field_is_explained_with_its_default(spec: Any, page: str, heading: str) -> None:
    made = {new_request_id: "made by the client", dict: "{}", None: "required"}
    wanted = {
        name: made[field.default_factory] if field.default_factory or field.is_required() else written(field.default)
        for name, field in spec.model_fields.items()
    }
    assert told_defaults(page, heading) == wanted


def test_every_option_of_a_decorator_is_explained_with_its_default() -> None:
    wanted = {field.name: written(field.default) for field in dataclasses.fields(PoolOptions)}
    of_others = {"component": "see above", "component_type": "see above", "grace_seconds": "the pool's"}
    wanted |= of_others | {"repair_seconds": written(RequestSpec.model_fields["repair_seconds"].default)}
    told = told_defaults("using.md", "Decorated tasks")
    assert told.pop("Ray's own") == ""
    assert told == wanted


def all_reasons(kind: type[Reason]) -> Iterator[type[Reason]]:
    for one in kind.__subclasses__():
        yield one
        yield from all_reasons(one)


def test_every_reason_is_in_the_table_of_reasons() -> None:
    page = (DOCS / "how-to" / "operations.md").read_text(encoding="utf-8")
    assert [kind.rule for kind in all_reasons(Reason) if f"`{kind.rule}`" not in page] == []


def test_the_table_of_kinds_is_what_the_broker_records() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    table = page.partition("## Kinds")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", table, flags=re.MULTILINE)) == KINDS


def test_every_field_of_a_record_and_column_of_the_report_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    fields, columns = page.partition("## Fields")[2].partition("\n## ")[0], page.partition("## The report")[2]
    assert [one.name for one in dataclasses.fields(raypool.EventView) if f"`{one.name}`" not in fields] == []
    names = [one.name for one in dataclasses.fields(raypool.ReportRowView)]
    told = [name.removeprefix("wait_").removesuffix("_seconds").removesuffix("_type") for name in names]
    assert [name for name in told if name not in columns] == []


def test_the_project_stands_alone() -> None:
    """Nothing in it leads to a place outside it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    outside = re.compile(rb"\.\./shared|shared/conformance|/work/(main|wt|shared)")
    files = [ROOT / name for name in listed.stdout.splitlines() if name != "tests/test_docs.py"]
    assert [str(file) for file in files if file.is_file() and outside.search(file.read_bytes())] == []


PROMISED = re.findall(r"`(tests/[^`]+)::(\w+)`", (DOCS / "explanation" / "guarantees.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), PROMISED, ids=[name for _, name in PROMISED])
def test_every_promise_is_held_by_a_test_that_is_there(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_there_are_promises() -> None:
    assert len(PROMISED) > 30
