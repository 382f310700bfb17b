"""A shell in which the commands of a page are run one after another, as a reader types them, and what they print is
compared with what the page shows.

Where the page and the shell may differ: ids, times, process numbers and the width of columns. A `...` on the page
stands for anything. A command is said to fail by a comment behind it: `# exit code 1`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

MARK = "@@ done"

QUESTION = re.compile(r"raypool (status|why|history|request (list|describe|why)|pool (list|describe|requests))\b")
"""Commands that change nothing: a reader asks them again when what he waits for is not there yet."""

COLOUR = re.compile(r"\x1b\[[\d;]*m")

NOISE = re.compile(
    r"^.*\b(INFO|WARNING) [\w.]+\.py:\d+.*$|^\(\w*pid=.*$|^\(raylet\b.*$|^.*\bINFO:?\s+job_manager.*$", re.MULTILINE
)
"""What Ray and the library log, with times and addresses of the day."""

VARIES = [
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?\b", r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?"),
    (r"\b\d+(\.\d+)? (ms|s|min|h|d)\b( \d+ (ms|s|min)\b)?", r"\d+(\.\d+)? (ms|s|min|h|d)\b( \d+ (ms|s|min)\b)?"),
    (r"\bepoch \d+\b", r"epoch \d+"),
    (r"\b[0-9a-f]{12,}\b", r"[0-9a-f]{12,}"),
    (r"\braysubmit_\w+", r"raysubmit_\w+"),
    (r"\b\d+(\.\d+){3}:\d+\b", r"\d+(\.\d+){3}:\d+"),
    (r"GPUs \[[\d, ]*\]", r"GPUs \[[\d, ]*\]"),
    (r"\.\.\.", r".*"),
    (r"-{4,}", r"-{4,}"),
    (r"\s+", r"\s+"),
]


def pattern(told: str) -> re.Pattern[str]:
    """What a command has to print, of which the page shows `told`."""
    places = re.compile("|".join(f"(?P<v{number}>{what})" for number, (what, _) in enumerate(VARIES)))
    found, end = "", 0
    told = told.strip()
    for place in places.finditer(told):
        found += re.escape(told[end : place.start()])
        number = next(number for number in range(len(VARIES)) if place.group(f"v{number}") is not None)
        found += VARIES[number][1]
        end = place.end()
    return re.compile(found + re.escape(told[end:]), re.DOTALL)


class Shell:
    """A bash in a directory. `run` returns what a command printed; it fails if the command's exit code is another."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env={**environment, "COLUMNS": "100", "PWD": os.fspath(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def run(self, command: str) -> str:
        printed, code = self.once(command)
        wanted = re.search(r"# exit code (\d+)\s*$", command)
        assert code == int(wanted[1] if wanted else 0), f"$ {command}\nexit code {code}\n{printed}"
        return printed

    def once(self, command: str) -> tuple[str, int]:
        """What it printed, without the noise, and its exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\nprintf '\\n%s %s\\n' '{MARK}' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(MARK):
                return NOISE.sub("", COLOUR.sub("", "".join(lines))).strip(), int(line.split()[-1])
            lines.append(line)
        raise AssertionError(f"$ {command}\nthe shell ended:\n{''.join(lines)}")

    def shows(self, command: str, told: str, seconds: float = 90) -> None:
        """Runs it; what it prints is what was told. A question is asked again until it is, or the time is up."""
        until = time.monotonic() + seconds
        while True:
            printed = self.run(command)
            if not told.strip() or pattern(told).fullmatch(printed):
                return
            asked_again = QUESTION.match(command) and time.monotonic() < until
            assert asked_again, f"$ {command}\nthe page says:\n{told}\nit printed:\n{printed}"
