"""The core against the rules: every scenario, and thousands of random histories beside a plain oracle.

`plain_rules` is a second, slow, independent writing-down of docs/reference/semantics.md. RAYPOOL_HISTORIES says
how many histories are played (default 10; `make test` plays more).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raypool.core import cycle
from raypool.core.victims import Shortage, choose
from raypool.core.walk import Figures, walk
from raypool.simulation import read_scenarios, simulate

from .core_rules import CoreRules
from .histories import evictions_stop, random_history, trace
from .plain_rules import PlainRules

SCENARIOS = [
    (file.stem, scenario)
    for file in sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml"))
    for scenario in read_scenarios(file)
]
HISTORIES = int(os.environ.get("RAYPOOL_HISTORIES", "10"))
BLOCK = 10


@pytest.mark.parametrize(
    "scenario", [one for _, one in SCENARIOS], ids=[f"{file}: {one.name}" for file, one in SCENARIOS]
)
def test_a_scenario_comes_out_as_written(scenario):
    report = simulate(scenario)
    assert report.passed, "\n".join(report.failures)


def looked_at(pool, outcome, seen):
    """`choose`, with what it chose held against the law."""
    victims = choose(pool, outcome)
    if victims:
        seen.append(len(victims))
        taken = [victim.allocation for victim in victims]
        gone = Figures.when_gone(pool.ledger, taken)
        assert walk(pool, pool.queue, gone, until_granted=outcome.request).granted is outcome.request
        assert not lacking(outcome, victims), "the victims are not enough"
        for spared in victims:
            rest = [victim for victim in victims if victim is not spared]
            assert lacking(outcome, rest), f"{spared.allocation} leaves for nothing"
        for victim in victims:
            assert victim.allocation.preemptible and not victim.allocation.leaving and victim.borrowed
    return victims


def lacking(outcome, victims):
    shortage = Shortage.of(outcome)
    for victim in victims:
        shortage.subtract(victim.allocation.need, victim.allocation.account is outcome.group.account)
    return bool(shortage)


@pytest.fixture(autouse=True)
def choices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Law 5 in every test here: nobody is evicted for nothing. How many victims each choice had."""
    seen: list[int] = []
    monkeypatch.setattr(cycle, "choose", lambda pool, outcome: looked_at(pool, outcome, seen))
    return seen


def test_no_scenario_is_missing():
    assert len(SCENARIOS) >= 91


@pytest.mark.parametrize("first", range(0, HISTORIES, BLOCK))
def test_the_core_decides_as_the_plain_rules_do_and_keeps_the_laws(first):
    for seed in range(first, first + BLOCK):
        history = random_history(seed)
        for step, (core, plain) in enumerate(zip(trace(history, CoreRules), trace(history, PlainRules), strict=True)):
            assert core == plain, f"seed {seed}, event {step}: {plain['event']}"


@pytest.mark.parametrize("first", range(0, HISTORIES, BLOCK))
def test_evictions_stop_when_every_evicted_request_is_submitted_again_at_once(first):
    for seed in range(first, first + BLOCK):
        evictions_stop(seed, CoreRules)


def test_the_same_events_give_the_same_decisions():
    for seed in range(5):
        history = random_history(seed)
        assert trace(history, CoreRules) == trace(history, CoreRules)


def test_the_histories_have_evictions_to_look_at(choices):
    for seed in range(12):
        trace(random_history(seed), CoreRules)
    assert len(choices) > 10 and max(choices) > 1, choices
