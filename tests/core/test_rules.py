"""The core against the rules: every scenario, and thousands of random histories beside a plain oracle.

`plain_rules` is a second, slow, independent writing-down of docs/semantics.md. RAYPOOL_HISTORIES says
how many histories are played (default 20; `make test` plays more).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raypool.simulation import read_scenarios, simulate

from .core_rules import CoreRules
from .histories import evictions_stop, random_history, trace
from .plain_rules import PlainRules

SCENARIOS = [
    (file.stem, scenario)
    for file in sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml"))
    for scenario in read_scenarios(file)
]
HISTORIES = int(os.environ.get("RAYPOOL_HISTORIES", "20"))
BLOCK = 10


@pytest.mark.parametrize(
    "scenario", [one for _, one in SCENARIOS], ids=[f"{file}: {one.name}" for file, one in SCENARIOS]
)
def test_a_scenario_comes_out_as_written(scenario):
    report = simulate(scenario)
    assert report.passed, "\n".join(report.failures)


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
        assert trace(random_history(seed), CoreRules) == trace(random_history(seed), CoreRules)
