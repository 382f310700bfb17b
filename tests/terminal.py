"""A terminal (a pty) in which a test runs a command, presses keys and sees what a person would see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"

ESCAPES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


class Terminal:
    """A command in a terminal, with what it has written and how the terminal is set."""

    def __init__(self, program: str, *words: str, columns: int = 80, lines: int = 24, **variables: str) -> None:
        self.written = ""
        self.code: int | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(SRC), **variables}
            for name in ("COLUMNS", "LINES", *(["NO_COLOR"] if "NO_COLOR" not in variables else [])):
                env.pop(name, None)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # who runs the tests in the background ignores it
            os.execve(sys.executable, [sys.executable, "-c", program, *words], env)
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.fd)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    @property
    def frame(self) -> str:
        """The latest whole frame, as a person sees it."""
        frames = self.written.split("\x1b[1;1H")
        whole = [one for one in frames if one.endswith("\x1b[J") or "\x1b[J\x1b" in one]
        lines = re.sub(r"\x1b\[\d+;1H", "\n", whole[-1] if whole else "")
        return ESCAPES.sub("", lines)

    def until(self, so: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not so():
            assert time.monotonic() < deadline, f"{what}: {self.frame or self.written!r}"
            ready, _, _ = select.select([self.fd], [], [], 0.2)
            if ready and not self._read():
                assert so(), f"it has ended; {what}: {self.written!r}"

    def ended(self, seconds: float = 30.0) -> int:
        """The exit code."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            assert time.monotonic() < deadline, f"it does not end: {self.frame}"
            ready, _, _ = select.select([self.fd], [], [], 0.05)
            if ready:
                self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def _read(self) -> bool:
        try:
            text = os.read(self.fd, 65536)
        except OSError:  # Linux says so when nobody has the other end any more
            return False
        self.written += text.decode()
        return bool(text)

    def is_restored(self) -> bool:
        """The screen from before, the cursor, and the mode of the keys."""
        while select.select([self.fd], [], [], 0)[0] and self._read():
            pass
        after = self.written.rpartition("\x1b[?1049h")[2]
        return "\x1b[?25h\x1b[?1049l" in after and termios.tcgetattr(self.fd) == self.before

    def close(self) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
