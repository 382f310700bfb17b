"""Law 5: nobody is evicted for nothing. Looked at in the moment of each choice."""

from __future__ import annotations

import pytest

from raypool.core import cycle
from raypool.core.victims import Shortage, choose
from raypool.core.walk import Figures, walk

from .core_rules import CoreRules
from .histories import random_history, trace


def looked_at(pool, outcome, seen):
    """`choose`, with what it chose held against the law."""
    victims = choose(pool, outcome)
    if victims:
        seen.append(len(victims))
        taken = [victim.allocation for victim in victims]
        accounts = [allocation.account for allocation in taken]
        gone = Figures.when_gone(pool.ledger, [one.need for one in taken], accounts)
        assert walk(pool, pool.queue, gone, until_granted=outcome.request).granted is outcome.request
        assert not lacking(outcome, victims), "the victims are not enough"
        for spared in victims:
            rest = [victim for victim in victims if victim is not spared]
            assert lacking(outcome, rest), f"{spared.allocation} leaves for nothing"
        for victim in victims:
            assert victim.allocation.preemptible and not victim.allocation.leaving and victim.borrowed
    return victims


def lacking(outcome, victims):
    shortage = Shortage.of(outcome.group.need, outcome.group, outcome.figures)
    for victim in victims:
        shortage.subtract(victim.allocation.need, victim.allocation.account is outcome.group.account)
    return bool(shortage)


def test_victims_are_chosen_only_if_that_grants_the_waiter_and_none_could_be_spared(monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    monkeypatch.setattr(cycle, "choose", lambda pool, outcome: looked_at(pool, outcome, seen))
    for seed in range(60):
        trace(random_history(seed), CoreRules)
    assert len(seen) > 40 and max(seen) > 1, f"too few evictions to tell: {seen}"
