"""All that the processes of a chaos run were told, put together by request.

A request was *acknowledged* when some process has heard the broker say how it stands. What was heard is kept in the
order in which each process heard it; processes are not compared with one another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Entry = dict[str, Any]


@dataclass
class Told:
    """One request, as its clients know it.

    pids: of all who have asked or heard. askers: of those who have asked for it.
    heard: for each process, the answers in order. given_back: somebody has asked the broker to end it;
    given_back_at: when a broker has first acknowledged that. withdrawn_at: when its owner gave up waiting for it.
    unknown: a broker has said that there is no such request.
    """

    id: str
    pids: set[int] = field(default_factory=set)
    askers: set[int] = field(default_factory=set)
    heard: dict[int, list[Entry]] = field(default_factory=dict)
    given_back: bool = False
    given_back_at: float | None = None
    withdrawn_at: float | None = None
    held: bool = False
    unknown: list[Entry] = field(default_factory=list)

    @property
    def acknowledged(self) -> bool:
        return bool(self.heard)

    @property
    def answers(self) -> list[Entry]:
        return [entry for entries in self.heard.values() for entry in entries]

    @property
    def nodes(self) -> set[str]:
        return {node for entry in self.answers for node in entry["nodes"]}


@dataclass
class Ledger:
    """requests: by id. jobs: of drivers, by name. gone: when a driver meant to die or had finished. hung, unexpected:
    sentences. counts: how often what ended or crashed how."""

    requests: dict[str, Told] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    hung: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, journals: Iterable[Iterable[Entry]]) -> Ledger:
        ledger = cls()
        for process, journal in enumerate(journals):
            about: Entry = {}
            for entry in journal:
                about = entry if entry["what"] == "began" else about
                ledger._take(process, about, entry)
        return ledger

    def _take(self, process: int, about: Entry, entry: Entry) -> None:
        what, driver = entry["what"], about["driver"]
        if entry.get("id"):
            self._take_of_request(process, about, entry)
        if what == "hung":
            self.hung.append(f"{driver}: {entry['doing']}: no result in time")
        elif what == "stuck":
            self.hung += [f"{driver} was told to stop, and is still at it: {doing}" for doing in entry["doing"]]
        elif what == "unanswered":
            self.hung.append(f"{driver}: {entry['to']} of {entry['id']}: {entry['error']}: {entry['message']}")
        elif what == "unexpected":
            self.unexpected.append(f"{driver}: {entry['doing']}: {entry['error']}")
        elif what == "joined":
            self.jobs[driver] = entry["job"]
        elif what in ("dying", "finished"):
            self.gone[driver] = entry["at"]
        if what in ("ended", "crashed"):
            kind = f"{what}: {entry['error']}"
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def _take_of_request(self, process: int, about: Entry, entry: Entry) -> None:
        what, id = entry["what"], entry["id"]
        told = self.requests.setdefault(id, Told(id))
        told.pids.add(about["pid"])
        if what == "heard":
            told.heard.setdefault(process, []).append(entry)
            if entry["to"] in ("release", "cancel") and told.given_back_at is None:
                told.given_back_at = entry["at"]
        elif what == "asked":
            told.askers.add(about["pid"])
        elif what in ("releasing", "cancelling"):
            told.given_back = True
        elif what == "held":
            told.held = True
        elif what == "ended" and entry["error"] == "WaitTimeout":
            told.withdrawn_at = entry["at"]
        elif what == "refused" and "there is no request" in entry["message"]:
            told.unknown.append(entry)
