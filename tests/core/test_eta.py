"""When waiting requests will start: copies, lifetimes, and what a look ahead makes of them."""

import math

import pytest

from raypool.core import eta
from raypool.core import events as ev
from raypool.core.broker import World
from raypool.core.copy import copy_of
from raypool.core.eta import FUTURES, HORIZON_SECONDS, Expected, Forecast, Survival, expected_starts, slice_of
from raypool.core.lifetimes import BOUNDS, MOST, ONE, Lifetimes, bucket_of, share_class, size_class
from raypool.core.records import decision_of
from raypool.core.snapshot import Snapshots, broker_of
from raypool.errors import Refused

from .core_rules import CoreRules
from .histories import random_history, trace
from .story import Story, node, policy, pool

INSTANT = World(confirms_placement=False, confirms_removal=False)


def lines_of(broker):
    return list(Snapshots().lines_of(broker, 0))


def worked(lasts=100.0, times=24, most=None, **fields):
    """A pool of 4 GPUs in which so many requests of `red` have lasted so long."""
    story = Story([pool(gpu=4, **fields)], [policy("red"), policy("blue", priority=5)], INSTANT)
    for number in range(times):
        story.submit(f"old{number}", gpu=4, max_duration_seconds=most)
        story.now += lasts
        story.release(f"old{number}")
    story.now += 10_000  # so that nothing like it is expected to come soon
    return story


# --- a copy -----------------------------------------------------------------------------------


class CopyRules(CoreRules):
    """Before every event a copy is made. It must be as one read back from a snapshot, and decide as the original."""

    def __init__(self, grace=False, removal=False):
        super().__init__(grace, removal)
        self.decide = self.broker.handle
        self.broker.handle = self.handle
        made.append(self)
        self.events = 0

    def handle(self, event, now):
        twin, before = copy_of(self.broker), lines_of(self.broker)
        spoilt = copy_of(self.broker)
        over = [one for one in self.broker.requests.values() if one.id not in twin.requests]
        assert all(one.status.terminal for one in over)
        back, _ = broker_of(before, self.broker.world)
        for one in over:
            del back.requests[one.id]
            back._ended.pop(one.id)
        assert lines_of(twin) == lines_of(back)
        if isinstance(event, ev.Forgotten) or getattr(event, "request", None) in {one.id for one in over}:
            return self.decide(event, now)
        try:
            done = self.decide(event, now)
        except Refused:
            if isinstance(event, ev.Submitted) and event.spec.id not in twin.requests:
                raise  # an id that is taken by one that is over
            with pytest.raises(Refused):
                twin.handle(event, now)
            raise
        if not (isinstance(event, ev.Submitted) and event.spec.id in {one.id for one in over}):
            assert [decision_of(one) for one in twin.handle(event, now)] == [decision_of(one) for one in done]
            twin.check()
        after = lines_of(self.broker)
        for request in [*spoilt.requests.values()]:
            spoilt.handle(ev.Cancelled(request.id), now)
        assert lines_of(self.broker) == after
        self.events += 1
        return done


made = []


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_decides_as_the_original_and_what_is_done_to_it_does_not_reach_it(seed):
    made.clear()
    trace(random_history(seed), CopyRules)
    assert made[0].events > 5


# --- lifetimes --------------------------------------------------------------------------------


def seen(story, size=3, component="red"):
    found = story.broker.lifetimes.get(("p", component, "team", size))
    return (0, 0) if found is None else (sum(found.ended) // ONE, sum(found.censored) // ONE)


def test_what_ended_by_itself_counts_whole_and_what_others_ended_only_up_to_then():
    story = Story([pool(gpu=4)], [policy("red"), policy("blue", priority=5)], INSTANT)
    for id, end in (("a", story.release), ("b", story.cancel), ("c", story.lost)):
        story.submit(id, gpu=4)
        story.now += 10
        end(id)
    assert seen(story) == (2, 1)
    story.submit("capped", gpu=4, max_duration_seconds=5)
    story.pass_seconds(5)
    assert (story.status("capped"), seen(story)) == ("cancelled", (2, 2))
    story.submit("victim", gpu=4)
    story.submit("taker", "blue", gpu=4)
    assert (story.status("victim"), seen(story)) == ("preempted", (2, 3))
    story.submit("never", gpu=4)
    story.cancel("never")
    assert seen(story) == (2, 3)


def test_of_one_that_says_how_long_it_may_run_the_share_is_noted_too():
    story = worked(lasts=50, times=3, most=100)
    assert seen(story, share_class(100)) == (3, 0)
    assert story.broker.lifetimes["p", "red", "team", share_class(100)].ended[bucket_of(512)] == 3 * ONE


def test_a_histogram_forgets_slowly_and_survives_a_snapshot():
    found = Lifetimes()
    for _ in range(450):
        found.add(100.0, True)
    assert MOST / 2 <= found.total < MOST
    story = worked(times=3)
    story.broker.lifetimes["p", "red", "team", 3] = found
    again, _ = broker_of(lines_of(story.broker))
    assert again.lifetimes["p", "red", "team", 3].row() == found.row()
    assert Lifetimes.of(found.row()).total == found.total


def test_a_pool_or_policy_that_is_gone_takes_its_history_with_it():
    story = worked(times=2)
    story.feed(ev.PolicyDetached("p", "red"))
    assert story.broker.lifetimes == {}
    story.submit("a", "blue")
    story.release("a")
    assert len(story.broker.lifetimes) == 1
    story.feed(ev.PoolDeleted("p"))
    assert story.broker.lifetimes == {}


@pytest.mark.parametrize(("gpus", "size"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (8, 4)])
def test_sizes_are_told_apart_by_doublings(gpus, size):
    assert size_class({"gpu": gpus}) == size


def life(*lasted, censored=()):
    counts = Lifetimes()
    for seconds in lasted:
        counts.add(seconds, True)
    for seconds in censored:
        counts.add(seconds, False)
    return Survival(counts.ended, counts.censored)


def test_half_end_before_the_median_and_what_has_got_old_lasts_longer():
    survival = life(*[10.0] * 50, *[1000.0] * 50)
    assert survival.left(0, 0.25) < 20 < 500 < survival.left(0, 0.75) < 1500
    assert survival.left(100, 0.25) > 500
    assert all(survival.left(age, 0.5) > 0 for age in (0.0, 10.0, 5_000.0, 1e6))


def test_what_was_cut_short_counts_as_lasting_longer():
    assert (
        life(*[10.0] * 10, censored=[500.0] * 10).left(0, 0.6) > life(*[10.0] * 10, *[500.0] * 10).left(0, 0.6) * 0.9
    )
    assert life(*[10.0] * 10, censored=[500.0] * 10).left(0, 0.9) > life(*[10.0] * 10, *[500.0] * 10).left(0, 0.9)


def test_each_allocation_lives_through_every_slice_of_its_distribution_once():
    for key in range(200):
        slices = sorted(slice_of(key, future) for future in range(FUTURES))
        assert [math.floor(one * FUTURES) for one in slices] == list(range(FUTURES))
    assert len({slice_of(key, 0) for key in range(200)}) > 150


# --- looking ahead ----------------------------------------------------------------------------


def test_what_waits_behind_one_that_lasts_as_long_as_others_did_starts_when_that_ends():
    story = worked(lasts=100)
    story.submit("runs", gpu=4)
    story.now += 20
    story.submit("next", gpu=4)
    story.submit("last", gpu=4)
    found = expected_starts(story.broker)
    assert 60 < found["next"].p50 - story.now < 110
    assert found["next"].p50 <= found["next"].p90 < found["last"].p90
    assert 150 < found["last"].p50 - story.now < 210


def test_max_duration_bounds_what_is_expected():
    story = worked(lasts=5_000)
    story.submit("runs", gpu=4, max_duration_seconds=600)
    story.submit("next", gpu=4)
    assert expected_starts(story.broker)["next"].p90 - story.now == 600


def test_who_uses_half_of_what_he_says_is_expected_to_do_so_again():
    story = worked(lasts=500, most=1000)
    story.submit("runs", gpu=4, max_duration_seconds=100_000)
    story.submit("next", gpu=4)
    assert 45_000 < expected_starts(story.broker)["next"].p50 - story.now < 75_000


def test_who_comes_often_and_goes_first_is_expected_to_come_again():
    """Of two pools alike, in one somebody of a higher priority comes all the time."""
    waits = {}
    for crowd in (0, 30):
        story = Story([pool(gpu=4)], [policy("red"), policy("blue", priority=5, reserved=4)], INSTANT)
        for number in range(30):
            story.submit(f"old{number}", "blue" if number < crowd else "red", gpu=4)
            story.now += 100
            story.release(f"old{number}")
        story.submit("runs", "blue", gpu=4)
        story.submit("next", "red", gpu=4)
        waits[crowd] = expected_starts(story.broker)["next"].p90 or HORIZON_SECONDS
    assert waits[30] > 2 * waits[0]


def test_of_what_waits_for_nodes_nothing_is_known():
    story = worked()
    story.nodes(node("n1", 2))
    story.submit("firm", gpu=4)
    assert story.rule("firm") == "infeasible"
    assert expected_starts(story.broker)["firm"] == Expected(None, None, None)


def test_further_ahead_than_the_horizon_nobody_looks():
    story = worked(lasts=2 * HORIZON_SECONDS)
    story.submit("runs", gpu=4)
    story.submit("next", gpu=4)
    assert expected_starts(story.broker)["next"] == Expected(None, None, story.now + HORIZON_SECONDS)


def test_what_has_not_started_when_the_look_is_over_is_said_to_be_later_than_that(monkeypatch):
    story = worked(lasts=100)
    for number in range(40):
        story.submit(f"w{number}", gpu=4, max_duration_seconds=100)
    monkeypatch.setattr(eta, "WORK_MOST", 20 * FUTURES)
    found = expected_starts(story.broker)
    last, now = found["w39"], story.now
    assert (last.p50, last.p90) == (None, None)
    assert 500 < last.beyond - now < 2100
    assert last.seconds_from(now + 100) == (None, None, last.beyond - now - 100)
    assert last.seconds_from(last.beyond) == (None, None, None)
    between = [one for one in found.values() if one.p50 is not None and one.p90 is None]
    assert between and all(one.p50 <= one.beyond for one in between)
    assert all(one.beyond is None for one in found.values() if one.p90 is not None)


def test_the_less_was_seen_the_wider_is_what_is_expected():
    """Of work of one length, and one that has just begun."""
    wide = []
    for times in (0, 1, 4, 24):
        story = worked(lasts=1000, times=times)
        story.submit("runs", gpu=4)
        story.submit("next", gpu=4)
        found = expected_starts(story.broker)["next"]
        wide.append((found.p90 - story.now) / (found.p50 - story.now))
    assert wide == sorted(wide, reverse=True)
    assert wide[0] > 3 and wide[-1] < 2


def test_without_any_history_something_is_said_all_the_same():
    story = Story([pool(gpu=4)])
    story.run("runs", gpu=4)
    story.submit("next", gpu=4)
    found = expected_starts(story.broker)["next"]
    assert 0 < found.p50 < found.p90 < HORIZON_SECONDS


def test_what_is_being_placed_removed_or_given_its_grace_is_taken_over():
    story = Story([pool(gpu=8, grace_seconds=30)], [policy("red"), policy("blue", priority=5)])
    story.run("victim", gpu=4)
    story.run("left", gpu=2)
    story.submit("placing", gpu=2)
    story.now += 1000
    story.release("left")
    story.submit("two", "blue", gpu=2)
    story.submit("six", "blue", gpu=4)
    before = lines_of(story.broker)
    found = expected_starts(story.broker)
    assert (found["two"].p90, found["six"].p90) == (story.now, story.now + 30)
    assert lines_of(story.broker) == before


def test_who_is_not_asked_for_is_told_only_what_all_futures_say():
    """`next` starts in some futures before `asked` does, and is not looked for beyond that."""
    pools = [pool(gpu=4), pool("q", gpu=4)]
    story = Story(pools, [policy("red"), policy("blue", "q")], INSTANT)
    for number in range(24):
        for component in ("red", "blue"):
            story.submit(f"{component}{number}", component, gpu=4)
        for component in ("red", "blue"):
            story.now += 10 * (1 + number % 7)
            story.release(f"{component}{number}")
    story.now += 10_000
    for component, id in (("red", "asked"), ("blue", "next"), ("red", "far")):
        story.submit(f"before-{id}", component, gpu=4)
        story.submit(id, component, gpu=4)
    whole = expected_starts(story.broker)
    assert whole["next"].p90 is not None
    assert whole.keys() == {"asked", "next", "before-far", "far"}
    assert expected_starts(story.broker, ["asked"]) == {"asked": whole["asked"]}
    assert expected_starts(story.broker, ["far"]).items() <= whole.items()


@pytest.mark.parametrize("alike", [True, False])
def test_the_more_unlike_requests_wait_the_fewer_events_are_looked_ahead(monkeypatch, alike):
    monkeypatch.setattr(eta, "WORK_MOST", 20 * FUTURES)
    monkeypatch.setattr(eta, "GROUPS_PER_WORK", 10)
    story = Story([{"name": "p", "capacity": {"gpu": 4, "mcpu": 99_000}}], world=INSTANT)
    for number in range(41):
        resources = {"gpu_count": 4, "cpu_count": 1 if alike else 1 + number}
        story.submit(f"w{number}", resources=resources, max_duration_seconds=100)
    events = sum(1 for _ in Forecast(story.broker).steps()) / FUTURES - 1
    assert events == 20 if alike else 4 <= events <= 6


class EtaRules(CoreRules):
    """After every event a look ahead, which must leave no trace and say the same again; of one, what it says of
    all."""

    def __init__(self, grace=False, removal=False):
        super().__init__(grace, removal)
        self.decide = self.broker.handle
        self.broker.handle = self.handle
        self.asked = 0
        made.append(self)

    def handle(self, event, now):
        done = self.decide(event, now)
        waiting = [one.id for one in self.broker.requests.values() if one.waiting]
        if waiting and self.asked < 3:
            self.asked += 1
            before = lines_of(self.broker)
            found = expected_starts(self.broker)
            assert set(waiting) == set(found)
            again, _ = broker_of(before, self.broker.world)
            assert expected_starts(again) == found == expected_starts(self.broker)
            assert expected_starts(self.broker, waiting[:1]).items() <= found.items()
            assert lines_of(self.broker) == before
            self.broker.check()
        return done


def test_a_look_ahead_leaves_no_trace_and_the_same_state_says_the_same():
    asked = 0
    for seed in range(3):
        made.clear()
        trace(random_history(seed), EtaRules)
        asked += made[0].asked
    assert asked > 5


def test_a_look_goes_on_in_slices_and_is_of_the_moment_when_it_began():
    story = worked()
    story.submit("runs", gpu=4)
    story.submit("next", gpu=4)
    whole = expected_starts(story.broker)
    forecast = Forecast(story.broker)
    steps = forecast.steps()
    next(steps)
    story.release("runs")
    assert sum(1 for _ in steps) > FUTURES
    assert forecast.expected == whole


def test_a_look_that_comes_later_knows_that_what_runs_has_got_older():
    story = worked(lasts=100)
    story.submit("runs", gpu=4)
    story.submit("next", gpu=4)
    left = {}
    for after in (0, 80, 1000):
        now = story.now + after
        forecast = Forecast(story.broker, ["next"], now)
        list(forecast.steps())
        left[after] = forecast.expected["next"].seconds_from(now)[0]
    assert left[80] < 40 < left[0] < 120 < left[1000]


def test_buckets_ascend_and_hold_what_they_say():
    assert list(BOUNDS) == sorted(BOUNDS)
    assert [bucket_of(seconds) for seconds in (0.0, BOUNDS[0], BOUNDS[-1])] == [0, 1, len(BOUNDS)]


def test_who_has_to_leave_by_the_hundred_in_one_instant_is_asked_again_in_the_look_ahead():
    """More than a copy remembers of those that have ended."""
    story = Story([pool(gpu=300, grace_seconds=60.0)], [policy("low"), policy("high", priority=9)], INSTANT)
    for number in range(300):
        story.submit(f"low{number}", "low", gpu=1, max_duration_seconds=100.0)
    story.submit("high", "high", gpu=300, max_duration_seconds=100.0)
    assert story.status("low299") == "preempting"
    forecast = Forecast(story.broker)
    for _ in forecast.steps():
        pass
    assert forecast.expected["high"].p50 is not None
