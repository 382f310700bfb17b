"""The walk that goes on ends as one that begins anew: `walks_agree` (core_rules.py) looks after every event.

Here are the histories that it was made for, with crowds set aside and their room coming back bit by bit; and that
it does go on there, since a walk that always began anew would be right as well, and slow.
"""

import os
import random
from collections import Counter
from typing import ClassVar

import pytest

from raypool.core import pool as pools
from raypool.core.resumable import ResumableWalk
from raypool.core.victims import granted_when_gone

from .core_rules import CoreRules
from .histories import feed

CROWDS = int(os.environ.get("RAYPOOL_HISTORIES", "10"))


class Counted(ResumableWalk):
    """Counts, by what has happened, how often a walk that had taken somebody went on, and how often it could not."""

    seen: ClassVar[Counter] = Counter()

    def counted(self, name, went_on):
        if self.taken:
            self.seen[name, went_on] += 1
        return went_on

    def arrived(self, *args):
        return self.counted("arrived", super().arrived(*args))

    def left(self, *args):
        return self.counted("left", super().left(*args))

    def granted_here(self, *args):
        return self.counted("granted here", super().granted_here(*args))

    def eased(self, *args):
        return self.counted("eased", super().eased(*args))

    def freed(self):
        return self.counted("freed", super().freed())

    def run(self):
        return self.settled or self.counted("run", super().run())

    def first_when_gone(self, victims):
        plain = super().first_when_gone(victims)
        assert not plain or granted_when_gone(self.pool, self, victims), "the look-ahead forbids it"
        return self.counted("first when gone", plain)


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    Counted.seen = Counter()
    monkeypatch.setattr(pools, "ResumableWalk", Counted)
    return Counted.seen


def crowd(seed, events=150):
    """One or two pools in which much is leaving and comes back slowly."""
    chance = random.Random(seed)
    rules = CoreRules(grace=True, removal=True)
    names = ["p", "q"][: chance.choice((1, 1, 2))]
    keys = ["gpu", "lic"][: chance.choice((1, 1, 2))]
    size = chance.choice((6, 12, 20))
    teams = ["low", "mid", "top", "own"][: chance.choice((2, 3, 4))]
    policies = []
    for name in names:
        left = dict.fromkeys(keys, size)
        for at, team in enumerate(teams):
            if name == "q" and chance.random() < 0.4:
                continue
            reserved = {key: chance.choice((0, 0, left[key] // 3)) for key in keys}
            for key in keys:
                left[key] -= reserved[key]
            limit = {key: max(reserved[key], chance.choice((size, size, size // 2))) for key in keys}
            policies.append(
                {
                    "pool": name,
                    "component": team,
                    "priority": chance.choice((at, 1)),
                    "reserved": reserved,
                    "limit": limit,
                }
            )
    queueing = chance.choice(("strict", "strict", "backfill"))
    rules.apply([{"name": n, "capacity": dict.fromkeys(keys, size), "queueing": queueing} for n in names], policies)
    for number in range(events):
        kind = chance.choices(
            ("submit", "release", "cancel", "grace_over", "removed"),
            (10, 1.5, 1, 2, 4 if number > events // 3 else 1),
        )[0]
        if kind == "submit":
            team = chance.choice(teams if number > size else teams[:1])
            demand = {"gpu": chance.choice((1, 1, 1, 2, 3)), "step_run": 1}
            if "lic" in keys and chance.random() < 0.3:
                demand["lic"] = 1
            feed(rules, ("submit", {"id": f"r{number:04d}", "component": team, "demand": demand,
                                    "preemptible": chance.random() < 0.85}))  # fmt: skip
        else:
            event = (kind, chance.randrange(1000))
            feed(
                rules,
                event if kind in ("grace_over", "removed") else (*event, "live" if kind == "cancel" else "running"),
            )


@pytest.mark.parametrize("first", range(0, CROWDS, 10))
def test_a_walk_that_goes_on_ends_as_one_that_begins_anew(first, seen):
    for seed in range(first, first + 10):
        crowd(seed)
    for what in ("arrived", "left", "granted here", "eased", "freed", "run", "first when gone"):
        assert seen[what, True] > 0, (what, seen)
