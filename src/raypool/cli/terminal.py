"""The terminal as a screen of its own, with keys; whatever ends it, the terminal is as it was before.

Only the standard library: what is needed of a terminal here is six escape sequences. Knows nothing of what is shown.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The alternate screen, without a cursor; and back."""

_ENDS = (signal.SIGTERM, signal.SIGHUP)


def is_screen() -> bool:
    """Whether stdout is a terminal that knows the sequences."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


def has_colours() -> bool:
    """https://no-color.org"""
    return not os.environ.get("NO_COLOR")


class Screen:
    """`with Screen() as screen:` shows lines, waits for keys, and gives the terminal back."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._mode: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._waker, self._woken = -1, -1
        self._lock = threading.RLock()  # a signal's handler wakes, too

    def __enter__(self) -> Screen:
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._handlers = {one: signal.signal(one, _end) for one in _ENDS}
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: self.wake())
        if self._keys is not None:
            self._mode = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._write(_LEAVE)
        finally:
            if self._keys is not None:
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)
            for one, handler in self._handlers.items():
                signal.signal(one, handler)
            with self._lock:
                os.close(self._waker)
                os.close(self._woken)
                self._waker = -1

    def size(self) -> tuple[int, int]:
        """Columns and lines, of which there are at least 40 and 5 for who draws."""
        found = shutil.get_terminal_size((80, 24))
        return max(found.columns, 40), max(found.lines, 5)

    def show(self, lines: Sequence[str]) -> None:
        """These lines and no others, from the top."""
        drawn = [f"\x1b[{at};1H\x1b[2K{line}" for at, line in enumerate(lines, 1)]
        self._write("".join(drawn) + f"\x1b[{len(lines) + 1};1H\x1b[J")

    def key(self, timeout_seconds: float) -> str:
        """The next key; "" when the time is over, or the screen was woken or has another size."""
        heard = [self._woken] if self._keys is None else [self._woken, self._keys]
        ready, _, _ = select.select(heard, [], [], timeout_seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._keys not in ready:
            return ""
        pressed = os.read(self._keys, 1)
        if not pressed:
            raise SystemExit(1)  # the terminal is gone
        return pressed.decode("ascii", "replace")

    def wake(self) -> None:
        """Ends a wait for a key, from any thread."""
        with self._lock, contextlib.suppress(BlockingIOError):  # it is woken already
            if self._waker >= 0:
                os.write(self._waker, b".")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
