"""The pages of the documentation, and the fenced blocks in them: what the tests of the docs read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

RUN_BY = {
    "README.md": "ray/test_readme.py",
    "docs/tutorial.md": "ray/test_manual.py",
    "docs/how-to/share-a-cluster.md": "ray/test_manual.py",
    "docs/how-to/protect-production.md": "ray/test_manual.py",
    "docs/how-to/survive-preemption.md": "ray/test_manual.py",
    "docs/how-to/submit-jobs.md": "ray/test_manual.py",
    "docs/how-to/autoscaling.md": "ray/test_manual.py",
    "docs/how-to/upgrade.md": "ray/test_manual.py",
    "docs/how-to/index.md": "ray/test_manual.py",
    "docs/how-to/test-a-policy-in-ci.md": "cli/test_cli_simulate.py",
    "docs/how-to/why.md": "cli/test_cli_why.py",
    "docs/how-to/replay.md": "simulation/test_replay_command.py",
    "docs/how-to/dashboard.md": "cli/test_cli_dashboard.py",
    "docs/reference/using.md": "ray/test_manual.py",
    "docs/reference/events.md": "ray/test_manual.py",
    "docs/reference/scenarios.md": "test_docs.py",
}
"""Which test runs the commands or programs of a page."""

ONLY_READ = {
    "CONTRIBUTING.md": "a test that runs the tests would run itself",
    "docs/explanation/performance.md": "benchmarks take minutes; tests/test_benchmarks.py runs small ones",
    "docs/how-to/kuberay.md": "needs Kubernetes; tests/test_kuberay.py reads it, and runs the head's command",
    "docs/how-to/operations.md": "needs a cloud, or a head of its own; tests/test_cluster_yaml.py reads cluster.yaml",
    "docs/reference/cli.md": "examples without a story; tests/cli and tests/ray/test_cli.py run the commands",
    "docs/reference/metrics.md": "tests/monitoring and tests/ray/test_metrics.py run what they show",
}
"""Pages whose commands are read only, and why. Those of raypool have to parse (tests/test_docs.py)."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_NAME = re.compile(r"# ([\w./-]+\.(?:yaml|yml|py))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line on which its text begins, its language, its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """A Python block that begins with a comment like `# train.py` is a program of its own."""
        named = _FILE.match(self.text)
        return named[1] if named else None

    @property
    def commands(self) -> list[str]:
        """The command lines of a console block, without the prompt; continued lines are joined."""
        joined = self.text.replace("\\\n", " ")
        return [line[2:].partition("  # ")[0].strip() for line in joined.splitlines() if line.startswith("$ ")]


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
        if found[1] == language
    ]


def all_blocks(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page, language)]


def write_files(page: Path, folder: Path) -> None:
    """The YAML and Python blocks of a page that begin with a comment like `# pools.yaml`, as files."""
    for language in ("yaml", "python"):
        for block in blocks(page, language):
            named = _NAME.match(block.text)
            if named:
                file = folder / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text[named.end() :])


def told_commands(page: Path) -> list[tuple[str, str]]:
    """Each command of a page's console blocks, in order, with what it is said to print; "" if nothing is said."""
    parts = [part for block in blocks(page, "console") for part in ("\n" + block.text).split("\n$ ")[1:]]
    return [(command, told) for command, _, told in (_command(part) for part in parts)]


def _command(part: str) -> tuple[str, str, str]:
    """A command, which may go on behind a backslash, and what follows it."""
    lines = part.split("\n")
    last = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
    return "\n".join(lines[: last + 1]), "\n", "\n".join(lines[last + 1 :])
