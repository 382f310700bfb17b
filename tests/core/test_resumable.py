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
from raypool.core import victims
from raypool.core.cycle import Cycle
from raypool.core.resumable import ResumableWalk
from raypool.core.victims import granted_when_gone

from . import core_rules
from .core_rules import CoreRules
from .histories import feed, trace
from .plain_rules import PlainRules

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

    def _stays_blocked(self, account):
        stays = super()._stays_blocked(account)
        self.seen["stays blocked", stays, bool(self.taken)] += 1
        return stays

    def eased(self, *args):
        return self.counted("eased", super().eased(*args))

    def freed(self):
        return self.counted("freed", super().freed())

    def run(self):
        return self.counted("run", super().run())

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


def behind(seed, events=120):
    """A history of one or two pools in which small requests run behind large ones that are blocked."""
    chance = random.Random(seed)
    names = ["p", "q"][: chance.choice((1, 1, 2))]
    keys = ["gpu", "lic"][: chance.choice((1, 2))]
    size = chance.choice((8, 12))
    teams = ["low", "low2", "mid", "top"]
    policies = [
        {
            "pool": name,
            "component": team,
            "priority": chance.choice((at // 2, at // 2, 3)),
            "reserved": {key: chance.choice((0, 0, size // 5)) for key in keys},
            "limit": {key: chance.choice((size, size, size * 3 // 4)) for key in keys},
        }
        for name in names
        for at, team in enumerate(teams)
    ]
    setup = {
        "grace": chance.random() < 0.5,
        "removal": chance.random() < 0.5,
        "pools": [{"name": name, "capacity": dict.fromkeys(keys, size), "queueing": "backfill"} for name in names],
        "policies": policies,
    }
    happened = []
    for number in range(events):
        if chance.random() < 0.6:
            large = chance.random() < 0.2
            amount = chance.randint(size // 2, size) if large else chance.choice((1, 1, 2))
            demand = {chance.choice(keys): amount, "step_run": 1}
            if chance.random() < 0.2:
                demand[keys[-1]] = 1
            team = chance.choice(teams[2:] if large else teams)
            more = {"preemptible": chance.random() < 0.85, "pool": chance.choice((None, None, names[0]))}
            happened.append(("submit", {"id": f"r{number:04d}", "component": team, "demand": demand, **more}))
        elif setup["removal"] and chance.random() < 0.3:
            happened.append(("removed", chance.randrange(1000)))
        elif setup["grace"] and chance.random() < 0.2:
            happened.append(("grace_over", chance.randrange(1000)))
        else:
            happened.append(("release", chance.randrange(1000), chance.choice(("running", "running", "pending"))))
    return setup, happened


@pytest.mark.parametrize("first", range(0, CROWDS, 10))
def test_what_runs_behind_a_blocked_one_is_what_the_plain_rules_say(first, seen):
    for seed in range(first, first + 10):
        history = behind(seed)
        for step, (core, plain) in enumerate(zip(trace(history, CoreRules), trace(history, PlainRules), strict=True)):
            assert core == plain, f"seed {seed}, event {step}: {plain['event']}"
    assert seen["stays blocked", True, False] > 0, seen
    assert first or seen["stays blocked", True, True] > 0, seen  # with some set aside before it: not in every ten


def crowded_pool():
    """Three of `low` run, and one unit is left; `top` asks for more than all of them hold together."""
    rules = CoreRules()
    rules.apply(
        [{"name": "p", "capacity": {"gpu": 8}, "queueing": "backfill"}],
        [
            {"pool": "p", "component": "firm", "priority": 9, "reserved": {"gpu": 4}},
            {"pool": "p", "component": "top", "priority": 5},
            {"pool": "p", "component": "low", "priority": 1},
        ],
    )
    rules.submit("f", "firm", {"gpu": 3, "step_run": 1}, preemptible=False)
    for number in range(3):
        rules.submit(f"l{number}", "low", {"gpu": 1, "step_run": 1})
    rules.submit("t", "top", {"gpu": 6, "step_run": 1})
    return rules


def test_what_runs_behind_a_blocked_one_lets_nobody_look_for_victims_again(monkeypatch):
    rules = crowded_pool()
    looked = []
    plain = victims._may_be_enough
    monkeypatch.setattr(victims, "_may_be_enough", lambda *args: looked.append(args) or plain(*args))
    monkeypatch.setattr(core_rules, "walks_agree", lambda broker: None)
    monkeypatch.setattr(rules.broker, "check", lambda: None)
    for number in (3, 4):
        rules.submit(f"l{number}", "low", {"gpu": 1, "step_run": 1})
    assert rules.states()["l4"] == ("allocated", "p") and not looked
    rules.release("f")
    assert rules.states()["t"] == ("allocated", "p") and looked


def test_who_comes_behind_a_blocked_one_and_cannot_run_leaves_the_cycle_alone(monkeypatch):
    rules = crowded_pool()
    ran = []
    plain = Cycle.run
    monkeypatch.setattr(Cycle, "run", lambda self, first=(): ran.append(first) or plain(self, first))
    rules.submit("large", "low", {"gpu": 3, "step_run": 1})
    assert not ran
    rules.submit("small", "low", {"gpu": 1, "step_run": 1})
    assert ran and rules.states()["small"] == ("allocated", "p")
