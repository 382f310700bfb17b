"""What one process of a chaos run knows of the broker, written down before the process goes on.

A line of JSON for each thing that it asked and each answer that it got, on the disk before anything follows from
it: so a process that is killed has lost nothing that it was told. One file per process; nothing is decided
here.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raypool.client.broker import BrokerLine
from raypool.errors import Refused

ASKS = {"acquire": "asked", "submit": "asked", "release": "releasing", "cancel": "cancelling", "forget": "forgetting"}
"""Calls that change a request, and what is written before they are sent."""

TELLS = ("acquire", "submit", "release", "cancel", "describe", "watch")
"""Calls whose answer is how a request stands."""


class Journal:
    """Appends to one file; any thread may write."""

    def __init__(self, path: Path, **about: Any) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._lock = threading.Lock()
        self.write("began", pid=os.getpid(), **about)

    def write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": time.time(), "what": what, **fields}, default=str) + "\n"
        with self._lock:
            os.write(self._file, line.encode())
            os.fsync(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of one file. A last line that was cut off by a kill was never acted upon."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def listen(journal: Journal) -> None:
    """From now on all that this process asks of a broker, and each answer, goes through the journal: the client
    library's own calls too, whoever makes them."""
    send, call, acall = BrokerLine.send, BrokerLine.call, BrokerLine.acall

    def listened_send(line: BrokerLine, method: str, *args: Any, **more: Any) -> Any:
        if method in ASKS:
            journal.write(ASKS[method], id=_id_in(args))
        return send(line, method, *args, **more)

    def listened_call(line: BrokerLine, method: str, *args: Any, **more: Any) -> Any:
        try:
            answer = call(line, method, *args, **more)
        except Exception as error:
            _write_error(journal, method, args, error)
            raise
        _write_answer(journal, method, answer)
        return answer

    async def listened_acall(line: BrokerLine, method: str, *args: Any, **more: Any) -> Any:
        try:
            answer = await acall(line, method, *args, **more)
        except Exception as error:
            _write_error(journal, method, args, error)
            raise
        _write_answer(journal, method, answer)
        return answer

    BrokerLine.send, BrokerLine.call, BrokerLine.acall = (  # type: ignore[method-assign]
        listened_send,
        listened_call,
        listened_acall,
    )


def _write_answer(journal: Journal, method: str, answer: Any) -> None:
    if method not in TELLS:
        return
    view = answer.get("request", answer)
    told = {name: view[name] for name in ("id", "status", "number", "reason", "group_id", "nodes", "retry_of")}
    journal.write("heard", to=method, **told)


def _write_error(journal: Journal, method: str, args: tuple[Any, ...], error: Exception) -> None:
    """A refusal is an answer; all else says that there was none."""
    if method in (*ASKS, *TELLS):
        what = "refused" if isinstance(error, Refused) else "unanswered"
        journal.write(what, to=method, id=_id_in(args), error=type(error).__name__, message=str(error)[:2000])


def _id_in(args: tuple[Any, ...]) -> Any:
    """Of the request that a call is about: it begins with the id, or with the spec."""
    return args[0]["id"] if isinstance(args[0], dict) else args[0]
