"""What the metrics say, over a fake cluster in virtual time; and that nothing they do disturbs the broker."""

from __future__ import annotations

import asyncio
import logging

import pytest

from raypool.core import events as ev
from raypool.core.instructions import ChangeStatus
from raypool.monitoring import metrics as m
from raypool.server.metrics import LAG_SECONDS, TELL_SECONDS

from .fake_cluster import AwayCluster, FakeCluster, HeldBackCluster, LeakingCluster, RefusingCluster, node
from .virtual_time import run
from .world import World, policy, pool

TOLD = TELL_SECONDS + 0.5


class Told:
    """What the world's cluster was told: `told(m.USED, "p", "gpu", "red")`; None if there is no such series."""

    def __init__(self, world):
        self.world = world

    def __call__(self, metric, *labels):
        return self.world.cluster.told.get(metric.name, {}).get(labels)

    def series(self, metric):
        return set(self.world.cluster.told.get(metric.name, {}))


def story(cluster=None, pools=None, policies=None):
    """Runs the test as a story in a world of its own."""

    def decorate(test):
        def told():
            async def begin():
                async with World(cluster() if cluster else None, pools, policies) as world:
                    await test(world, Told(world))

            run(begin)

        told.__name__, told.__doc__ = test.__name__, test.__doc__
        return told

    return decorate


TWO = [policy("red", reserved={"gpu": 2}), policy("blue", priority=5, reserved={"gpu": 4})]


@story(policies=TWO)
async def test_who_holds_what_against_capacity_and_reserves(world, told):
    await world.run("r1", gpu=5)
    await world.run("b1", "blue", gpu=1)
    await world.pass_seconds(TOLD)
    assert (told(m.CAPACITY, "p", "gpu"), told(m.RESERVED, "p", "gpu")) == (8, 6)
    assert (told(m.FREE, "p", "gpu"), told(m.PHANTOM, "p", "gpu")) == (2, 0)
    assert (told(m.USED, "p", "gpu", "red"), told(m.BORROWED, "p", "gpu", "red")) == (5, 3)
    assert (told(m.USED, "p", "gpu", "blue"), told(m.BORROWED, "p", "gpu", "blue")) == (1, None)
    assert (told(m.GRACE, "p"), told(m.DEGRADED), told(m.JOURNAL_PENDING), told(m.JOURNAL_LAG)) == (0, 0, 0, 0)


@story()
async def test_who_waits_and_for_how_long_the_first_has(world, told):
    await world.run("r1", gpu=6)
    await world.submit("r2", gpu=5)
    await world.pass_seconds(100)
    await world.submit("r3", gpu=1)
    await world.pass_seconds(TOLD)
    assert told(m.WAITING, "p", "red") == 2
    assert told(m.HEAD_AGE, "p") == pytest.approx(100 + TOLD, abs=TELL_SECONDS)
    assert told(m.RESERVE_WAIT, "p") == 0
    await world.actor.release("r1")
    await world.until("r3", "allocated")
    await world.pass_seconds(TOLD)
    assert (told(m.WAITING, "p", "red"), told(m.HEAD_AGE, "p")) == (0, 0)


@story(policies=[policy(limit={"gpu": 2})])
async def test_whom_his_own_limit_stops_is_not_the_first_in_line(world, told):
    await world.run("r1", gpu=2)
    await world.submit("r2", gpu=1)
    await world.pass_seconds(50)
    assert (told(m.WAITING, "p", "red"), told(m.HEAD_AGE, "p")) == (1, 0)


@story(policies=[policy(reserved={"gpu": 2})])
async def test_who_may_not_be_preempted_and_waits_for_its_own_reserve_is_not_the_first_in_line(world, told):
    await world.run("r1", gpu=2, preemptible=False)
    await world.submit("r2", gpu=1, preemptible=False)
    await world.pass_seconds(50)
    assert (told(m.WAITING, "p", "red"), told(m.HEAD_AGE, "p")) == (1, 0)


@story(
    pools=[pool(grace_seconds=40.0)],
    policies=[policy("red"), policy("blue", priority=5, reserved={"gpu": 4}, limit={"gpu": 4})],
)
async def test_a_reserve_that_is_waited_for_is_seen(world, told):
    await world.run("r1", gpu=8)
    await world.submit("b1", "blue", gpu=4)
    await world.pass_seconds(30)
    assert told(m.GRACE, "p") == 40
    assert 20 <= told(m.RESERVE_WAIT, "p") <= 30 <= told(m.HEAD_AGE, "p") + TELL_SECONDS
    await world.until("b1", "allocated")
    await world.pass_seconds(TOLD)
    assert told(m.RESERVE_WAIT, "p") == 0 == told(m.HEAD_AGE, "p")


@story(
    cluster=lambda: FakeCluster(node("n1"), node("n2")),
    pools=[pool("p", 2), pool("q", 8, grace_seconds=300.0)],
    policies=[
        policy("red", "p", reserved={"gpu": 2}),
        policy("red", "q", priority=9, reserved={"gpu": 2}),
        policy("blue", "p"),
        policy("blue", "q"),
    ],
)
async def test_whose_room_is_made_in_another_pool_does_not_wait_for_the_reserve_of_this_one(world, told):
    await world.run("b1", "blue", gpu=8)
    await world.run("b2", "blue", gpu=2)
    await world.submit("r1", gpu=2)
    await world.pass_seconds(60)
    assert await world.status("b1") == "preempting" and await world.status("b2") == "allocated"
    assert told(m.WAITING, "p", "red") == told(m.WAITING, "q", "red") == 1
    assert told(m.RESERVE_WAIT, "p") == 0 and 50 <= told(m.RESERVE_WAIT, "q") <= 60


@story()
async def test_waits_and_grant_latencies_are_observed_once_for_each_grant(world, told):
    await world.run("r1", gpu=8)
    await world.submit("r2", gpu=8)
    await world.submit("r3", gpu=8)
    await world.pass_seconds(30)
    await world.actor.cancel("r3", "not needed")
    await world.actor.release("r1")
    await world.until("r2", "allocated")
    await world.pass_seconds(TOLD)
    assert not world.actor._metrics._placing, "nothing is kept of grants that are placed"
    first, second = told(m.WAIT, "p")
    assert first < 1 and second == pytest.approx(30, abs=1)
    assert len(told(m.GRANT_LATENCY, "p")) == 2 and max(told(m.GRANT_LATENCY, "p")) < 1


@story()
async def test_a_group_that_changes_hands_is_a_grant_without_latency(world, told):
    await world.run("r1", gpu=8)
    await world.submit("r2", gpu=8)
    await world.pass_seconds(30)
    await world.actor.release("r1", None, True)
    assert await world.status("r2") == "allocated"
    await world.pass_seconds(TOLD)
    assert told(m.WAIT, "p")[1] == pytest.approx(30, abs=1)
    assert told(m.GRANT_LATENCY, "p")[1] == 0


@story(cluster=HeldBackCluster)
async def test_the_latency_of_a_grant_is_that_of_its_placement(world, told):
    await world.submit("r1")
    await world.pass_seconds(7)
    world.cluster.let("r1")
    await world.until("r1", "allocated")
    await world.pass_seconds(TOLD)
    assert told(m.GRANT_LATENCY, "p") == told(m.WAIT, "p") == [pytest.approx(7, abs=0.5)]


@pytest.mark.parametrize(
    ("cause", "policies", "gpu"),
    [
        ("preempt", [policy("red", priority=1), policy("blue", priority=5)], 3),
        ("reclaim", [policy("red", priority=9), policy("blue", priority=5, reserved={"gpu": 3})], 3),
    ],
)
@pytest.mark.parametrize("grace", [0.0, 20.0])
def test_evictions_are_counted_by_cause_with_the_gpu_seconds_that_they_cost(cause, policies, gpu, grace):
    async def begin():
        async with World(pools=[pool(grace_seconds=grace)], policies=policies) as world:
            told = Told(world)
            await world.run("r1", gpu=6)
            await world.pass_seconds(100)
            await world.submit("b1", "blue", gpu=gpu)
            await world.until("b1", "allocated")
            await world.pass_seconds(TOLD)
            assert told.series(m.EVICTIONS) == {("p", cause)} and told(m.EVICTIONS, "p", cause) == 1
            assert told(m.LOST_GPU_SECONDS, "p", cause) == pytest.approx(6 * (100 + grace), abs=6)

    run(begin)


@story(pools=[pool(queueing="backfill")], policies=[policy("red"), policy("blue")])
async def test_an_eviction_of_one_that_ran_ahead_is_one_of_backfill(world, told):
    await world.run("b1", "blue", gpu=6)
    await world.submit("r1", gpu=8)
    await world.run("b2", "blue", gpu=2)
    await world.actor.release("b1")
    await world.until("r1", "allocated")
    await world.pass_seconds(TOLD)
    assert told.series(m.EVICTIONS) == {("p", "backfilled")} and told(m.EVICTIONS, "p", "backfilled") == 1


@story(cluster=lambda: FakeCluster(node("n1"), node("n2")), pools=[pool(gpu=16)])
async def test_gpu_seconds_are_lost_with_a_node_too(world, told):
    await world.run("r1", gpu=8)
    await world.run("r2", gpu=4)
    await world.pass_seconds(50)
    world.cluster.lose(world.cluster.named("r1").nodes[0])
    await world.until("r1", "cancelled")
    await world.pass_seconds(TOLD)
    assert told.series(m.LOST_GPU_SECONDS) == {("p", "node-lost")}
    assert told(m.LOST_GPU_SECONDS, "p", "node-lost") == pytest.approx(400, abs=40)
    assert told.series(m.EVICTIONS) == set()
    assert told(m.SHORTFALL, "p", "gpu") == 8


@story(pools=[pool("p", 6), pool("q", 9)])
async def test_pools_that_promise_too_much_together_fall_short_both(world, told):
    await world.pass_seconds(TOLD)
    assert (told(m.SHORTFALL, "p", "gpu"), told(m.SHORTFALL, "q", "gpu")) == (7, 7)


@story()
async def test_what_ends_by_itself_or_is_cancelled_costs_nothing(world, told):
    await world.run("r1", max_duration_seconds=10)
    await world.run("r2")
    await world.run("r3")
    await world.actor.release("r2")
    await world.actor.cancel("r3", "not needed")
    await world.pass_seconds(30)
    assert await world.status("r1") == "cancelled"
    assert told.series(m.EVICTIONS) == told.series(m.LOST_GPU_SECONDS) == set()


@story(cluster=LeakingCluster)
async def test_phantom_room_is_seen(world, told):
    await world.run("r1", gpu=3)
    await world.actor.release("r1")
    await world.pass_seconds(60)
    assert told(m.PHANTOM, "p", "gpu") == world.phantom() == 3
    assert (told(m.FREE, "p", "gpu"), told(m.USED, "p", "gpu", "red")) == (5, 0)
    world.cluster.give_back()
    await world.pass_seconds(10)
    assert (told(m.PHANTOM, "p", "gpu"), told(m.FREE, "p", "gpu")) == (0, 8)


@story(cluster=RefusingCluster, pools=[pool(placement_timeout_seconds=2.0)])
async def test_each_placement_that_fails_is_counted(world, told):
    await world.submit("r1")
    await world.pass_seconds(20)
    before = world.actor.broker.requests["r1"].placement_failures
    await world.pass_seconds(TOLD)
    assert 2 <= before <= told(m.PLACEMENT_FAILURES, "p") <= world.actor.broker.requests["r1"].placement_failures


@story(policies=[policy("red"), policy("red", component_type="orchestrator")])
async def test_components_of_one_name_and_two_types_are_one_series(world, told):
    await world.run("r1", gpu=1)
    await world.run("r2", gpu=2, component_type="orchestrator")
    await world.pass_seconds(TOLD)
    assert told.series(m.USED) == {("p", "gpu", "red")} and told(m.USED, "p", "gpu", "red") == 3


@story(pools=[pool("p"), pool("q", 1)])
async def test_a_pool_that_is_gone_is_told_as_0_once_and_no_more(world, told):
    await world.pass_seconds(TOLD)
    assert told(m.CAPACITY, "q", "gpu") == 1
    await world.actor.delete_pool("q")
    await world.pass_seconds(TOLD)
    assert set(world.actor._metrics._in_reserve) == {"p"}
    assert {told(metric, "q", "gpu") for metric in (m.CAPACITY, m.FREE, m.SHORTFALL)} == {0}
    del world.cluster.told[m.CAPACITY.name]["q", "gpu"]
    await world.pass_seconds(TOLD)
    assert told(m.CAPACITY, "q", "gpu") is None
    await world.actor.apply({"pools": [pool("q", 2)]})
    await world.pass_seconds(TOLD)
    assert told(m.CAPACITY, "q", "gpu") == 2


def test_series_are_bounded_and_those_without_one_are_summed(monkeypatch):
    monkeypatch.setattr(m, "MOST_SERIES", 2)

    async def begin():
        names = ["a", "b", "c", "d"]
        async with World(policies=[policy(name) for name in names]) as world:
            told = Told(world)
            for name in names:
                await world.run(f"{name}1", name, gpu=2)
            await world.pass_seconds(TOLD)
            others = ("p", "gpu", m.OTHERS)
            assert told.series(m.USED) == {("p", "gpu", "a"), ("p", "gpu", "b"), others}
            assert told(m.USED, *others) == 4
            await world.actor.release("a1")  # its series stays its own: Ray forgets none
            await world.actor.release("c1")
            await world.pass_seconds(TOLD)
            assert (told(m.USED, "p", "gpu", "a"), told(m.USED, *others)) == (0, 2)
            await world.run("a2", "a", gpu=1)
            await world.pass_seconds(TOLD)
            assert (told(m.USED, "p", "gpu", "a"), told(m.USED, *others)) == (1, 2)

    run(begin)


@story(cluster=AwayCluster)
async def test_the_age_of_what_is_not_in_the_journal_yet_is_told(world, told):
    world.cluster.away = True
    asking = asyncio.ensure_future(world.submit("r1"))
    await world.pass_seconds(20)
    assert told(m.JOURNAL_PENDING) == 1 and 10 < told(m.JOURNAL_LAG) <= 20
    world.cluster.away = False
    await asking
    await world.pass_seconds(TOLD)
    assert (told(m.JOURNAL_PENDING), told(m.JOURNAL_LAG)) == (0, 0)


@story()
async def test_a_degraded_broker_says_so(world, told):
    world.actor._degrade("for a test")
    await world.pass_seconds(TOLD)
    assert told(m.DEGRADED) == 1


@story()
async def test_the_lag_of_the_loop_is_measured_all_the_time(world, told):
    loop = asyncio.get_running_loop()
    await world.pass_seconds(20)
    assert len(told(m.LOOP_LAG)) >= 15 / LAG_SECONDS - 1 and max(told(m.LOOP_LAG)) < 0.001
    loop.now += 3.0  # it was busy
    await world.pass_seconds(TOLD)
    assert 2 <= max(told(m.LOOP_LAG)) <= 3


@story()
async def test_a_broker_that_comes_back_counts_nothing_twice(world, told):
    await world.run("r1", gpu=6)
    await world.pass_seconds(TOLD)
    assert len(told(m.WAIT, "p")) == 1
    await world.begin_again()
    await world.pass_seconds(TOLD)
    assert len(told(m.WAIT, "p")) == 1 and told(m.USED, "p", "gpu", "red") == 6


@story()
async def test_what_fails_is_logged_now_and_then_and_disturbs_nobody(world, told):
    def fail(*_):
        raise ZeroDivisionError("a bug")

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("raypool").addHandler(handler)
    try:
        world.actor._metrics._changed = fail
        world.actor._metrics._pool_figures = fail
        for number in range(8):
            await world.run(f"r{number}")
        await world.pass_seconds(30)
    finally:
        logging.getLogger("raypool").removeHandler(handler)
    assert sum("for the metrics failed" in line for line in lines) == 1
    assert not world.actor.degraded and await world.status("r7") == "allocated"
    del world.actor._metrics._changed, world.actor._metrics._pool_figures
    await world.pass_seconds(TOLD)
    assert told(m.USED, "p", "gpu", "red") == 8


def test_no_label_has_a_value_of_its_own_for_each_request():
    """Requests, jobs, nodes and owners come and go by the thousand."""
    assert {label for metric in m.METRICS for label in metric.labels} == {"pool", "key", "component", "cause"}


def test_names_follow_prometheus():
    for metric in m.METRICS:
        assert metric.name.startswith("raypool_")
        assert metric.name.endswith("_total") == (metric.kind == m.COUNTER)
        assert bool(metric.bounds) == (metric.kind == m.HISTOGRAM) and list(metric.bounds) == sorted(metric.bounds)
        unit = metric.name.removesuffix("_total").rpartition("_")[2]
        assert (unit == "seconds") == ("seconds" in metric.unit), metric.name
    assert len({metric.name for metric in m.METRICS}) == len(m.METRICS)


@story()
async def test_what_is_heard_late_of_a_grant_that_is_over_counts_nothing(world, told):
    await world.run("r1")
    world.actor._metrics.saw(world.actor.broker.now, ev.PlacementFailed("r1", 1, "no nodes"), [])
    await world.pass_seconds(TOLD)
    assert told.series(m.PLACEMENT_FAILURES) == set()


def test_a_status_that_did_not_change_counts_nothing():
    """A repaired group is told so."""

    async def begin():
        async with World() as world:
            await world.run("r1")
            await world.pass_seconds(TOLD)
            before = {name: dict(told) for name, told in world.cluster.told.items() if "wait" in name}
            status = world.actor.broker.requests["r1"].status
            world.actor._metrics.saw(1.0, None, [ChangeStatus("r1", status, status, "p", None)])
            await world.pass_seconds(TOLD)
            assert {name: dict(told) for name, told in world.cluster.told.items() if "wait" in name} == before

    run(begin)
