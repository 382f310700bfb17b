"""What came of a scenario: a step per timeline entry, what changed, and which expectations failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Transition:
    """One change of status. `old` is None for a submission; `pool` is None where none is concerned."""

    request: str
    old: str | None
    to: str
    pool: str | None
    reason: str | None
    at: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "from": self.old,
            "to": self.to,
            "pool": self.pool,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Step:
    """One timeline entry: when, whether it was refused (with the sentence), and how all stand after it.

    states: id -> {"status", "pool"} of every request submitted so far; `pool` is None while pending
    or rejected. transitions: all changes since the entry before.
    """

    at: float
    refused: str | None
    states: dict[str, dict[str, str | None]]
    transitions: tuple[Transition, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "refused": self.refused,
            "states": self.states,
            "transitions": [transition.as_dict() for transition in self.transitions],
        }


@dataclass(frozen=True)
class SimulationReport:
    """A scenario's run. `passed` is whether every expectation held; `failures` says which did not."""

    name: str
    passed: bool
    failures: tuple[str, ...]
    steps: tuple[Step, ...] = field(default=())
    file: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "name": self.name,
            "passed": self.passed,
            "failures": list(self.failures),
            "steps": [step.as_dict() for step in self.steps],
        }
