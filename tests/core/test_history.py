"""Every change of pools and policies has a number, and can be gone back to, all or none."""

import os
import random

import pytest

from raypool.core import events as ev
from raypool.core import history
from raypool.core.snapshot import Snapshots, broker_of
from raypool.errors import Refused

from .core_rules import CoreRules
from .histories import feed, random_history
from .story import Story, policy, pool

SEEDS = int(os.environ.get("RAYPOOL_HISTORIES", "10"))


def versions(story):
    return [(one.number, one.what) for one in story.broker.history.versions]


def test_each_change_has_a_number_a_time_and_says_who_made_it_and_what_it_was():
    story = Story()
    story.now = 5.0
    story.feed(ev.PolicyDetached("p", "red", by="ann"))
    story.apply([pool("p", 4, grace_seconds=3.0), pool("q")], [policy("red", "q"), policy("blue", "q")])
    story.apply(unmanaged="allow")
    story.feed(ev.PoolDeleted("q", by="ben", note="not needed"))
    assert versions(story) == [
        (1, "pool 'p' added; policy of 'red' in pool 'p' added"),
        (2, "policy of 'red' in pool 'p' detached"),
        (
            3,
            "pool 'p' changed: capacity, grace_seconds; pool 'q' added; policy of 'blue' in pool 'q' added; "
            "policy of 'red' in pool 'q' added",
        ),
        (4, "unmanaged allow"),
        (5, "pool 'q' deleted"),
    ]
    last = story.broker.history.versions[-1]
    assert (last.at, last.by, last.note) == (5.0, "ben", "not needed")


def test_what_leaves_everything_as_it_was_has_no_number():
    story = Story()
    story.apply([pool()], [policy()])
    story.feed(ev.RolledBack(1))
    assert story.broker.history.number == 1


def test_what_a_long_change_was_is_told_in_short():
    story = Story([pool(f"p{n}") for n in range(20)], [policy("red", "p0")])
    assert story.broker.history.versions[0].what.endswith("pool 'p15' added; 13 more")


def test_going_back_takes_away_what_was_not_there_and_is_a_number_itself():
    story = Story(owner_timeout_seconds=20.0)
    story.apply([pool("p", 2), pool("q")], [policy("blue"), policy("red", "q")], owner_timeout_seconds=30.0)
    first, second = story.broker.history.config_at(1), story.broker.config
    story.feed(ev.RolledBack(1, by="ann"))
    assert story.broker.config == first
    assert versions(story)[-1] == (
        3,
        "back to 1: pool 'p' changed: capacity; pool 'q' deleted; policy of 'blue' in pool 'p' detached; "
        "owner_timeout_seconds 20.0",
    )
    assert (story.broker.history.versions[-1].by, story.broker.history.versions[-1].back_to) == ("ann", 1)
    story.feed(ev.RolledBack(2))
    assert story.broker.config == second


def test_who_waits_is_judged_again_when_it_goes_back():
    story = Story([pool("p", 4)])
    story.apply([pool("p", 2)])
    story.run("a", gpu=2)
    story.submit("b", gpu=2)
    story.feed(ev.RolledBack(1))
    assert story.created() == [("b", 1, "p")]
    story.submit("c", gpu=4)
    story.feed(ev.RolledBack(2))
    assert story.status("c") == "rejected"


def test_going_back_is_refused_with_every_fault_and_changes_nothing():
    story = Story([pool("p", 2)])
    story.apply(
        [pool("p", 8), pool("q"), {"name": "r", "capacity": {"gpu": 1, "seats": 2}}],
        [policy("blue"), policy("blue", "q"), policy("red", "r")],
    )
    story.apply([{"name": "p", "capacity": {"gpu": 8, "seats": 2}}])
    story.run("a", "blue", pool="q")
    story.submit("b", "blue", gpu=8, pool="q")
    story.run("c", "blue", pool="p", resources={"pool_resources": {"seats": 1}})
    before = story.figures(), story.broker.config, versions(story)
    with pytest.raises(Refused) as refused:
        story.feed(ev.RolledBack(1))
    assert refused.value.faults == (
        "pool 'p': key 'seats' is in use and may not disappear",
        "the policy of 'blue' in pool 'p' is in use: 0 queued, 1 charged; let them end or cancel them first",
        "pool 'q' is in use: 1 queued, 1 charged; let them end or cancel them first",
    )
    assert (story.figures(), story.broker.config, versions(story)) == before


@pytest.mark.parametrize("number", [0, 3, -1, 10**9])
def test_a_version_that_is_not_kept_is_refused(number):
    story = Story()
    story.apply([pool("q")])
    with pytest.raises(Refused, match=f"there is no version {number}: those from 1 to 2 are kept"):
        story.feed(ev.RolledBack(number))


def test_the_oldest_fall_off_and_the_rest_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(history, "KEPT", 5)
    story = Story()
    configs = {1: story.broker.config}
    for n in range(2, 12):
        story.apply([pool("p" if n % 3 else "q", n)])
        configs[n] = story.broker.config
    assert [one.number for one in story.broker.history.versions] == [7, 8, 9, 10, 11]
    assert all(story.broker.history.config_at(n) == configs[n] for n in range(7, 12))
    with pytest.raises(Refused, match="those from 7 to 11 are kept"):
        story.broker.history.config_at(6)


def test_large_changes_fall_off_sooner(monkeypatch):
    monkeypatch.setattr(history, "SPECS_KEPT", 10)
    story = Story([pool(f"p{n}") for n in range(6)], [policy("red", "p0")])
    story.apply([pool(f"p{n}", 2) for n in range(6)])
    assert [one.number for one in story.broker.history.versions] == [2]
    story.apply([pool(f"p{n}", 3) for n in range(20)])
    assert [one.number for one in story.broker.history.versions] == [3]
    assert story.broker.history.config_at(3) == story.broker.config


def test_a_journal_of_before_there_were_versions_begins_with_what_stands():
    story = Story()
    head, version, *rest = Snapshots().lines_of(story.broker, 1)
    assert version.startswith('{"version"')
    head = head.replace('"before":{},', "")
    broker, _ = broker_of([head, *rest])
    assert (broker.history.number, broker.history.before) == (0, story.broker.config)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_any_history_every_version_is_what_it_was_and_going_back_is_all_or_none(seed):
    """The same configs, written down whole after each change, beside the history that keeps differences."""
    chance = random.Random(seed)
    setup, events = random_history(seed)
    rules = CoreRules(setup["grace"], setup["removal"])
    configs = {}

    def remember():
        if not configs or rules.broker.config != configs[max(configs)]:
            configs[len(configs) + 1] = rules.broker.config

    rules.apply(setup["pools"], setup["policies"])
    remember()
    for event in events:
        feed(rules, event)
        remember()
        if chance.random() < 0.15:
            number = chance.choice(sorted(configs))
            before = list(Snapshots().lines_of(rules.broker, 0))
            try:
                rules.feed(ev.RolledBack(number))
                assert rules.broker.config == configs[number]
            except Refused:
                assert list(Snapshots().lines_of(rules.broker, 0)) == before
            remember()
    kept = rules.broker.history
    assert {one.number: kept.config_at(one.number) for one in kept.versions} == configs
