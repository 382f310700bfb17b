"""The broker's calls: asked once, watched, given back by owners that die, and ended as a whole."""

import asyncio
import time
from collections import Counter

import pytest

from raypool.errors import BrokerDegraded, BrokerFault, Refused, SpecError
from raypool.server import etas
from raypool.server.actor import steady_clock
from raypool.server.metrics import LAG_SECONDS, TELL_SECONDS
from raypool.server.views import view_request

from .fake_cluster import FakeCluster, HeldBackCluster, node
from .virtual_time import run
from .world import World, policy, pool

TWO_TEAMS = [policy("high", priority=9), policy("low", priority=1)]


def now():
    return asyncio.get_running_loop().time()


async def seconds_of(call):
    begun = now()
    answer = await call
    return now() - begun, answer


# --- asking -----------------------------------------------------------------------------------


def test_submitting_the_same_twice_is_one_request():
    async def story():
        async with World() as world:
            first = await world.submit("a", gpu=2)
            again = await world.submit("a", gpu=2)
            assert (first["number"], again["number"]) == (1, 1)
            await world.until("a", "allocated")
            assert (await world.submit("a", gpu=2))["status"] == "allocated"
            assert world.free() == 6

    run(story)


def test_submitting_other_content_under_a_taken_id_is_refused():
    async def story():
        async with World() as world:
            await world.submit("a", gpu=2)
            with pytest.raises(Refused, match="request id 'a' is taken"):
                await world.submit("a", gpu=3)
            assert len(await world.actor.requests()) == 1

    run(story)


def test_what_is_not_valid_is_said_and_changes_nothing():
    async def story():
        async with World() as world:
            with pytest.raises(SpecError, match="did you mean 'component'"):
                await world.actor.submit({"id": "a", "component": "red", "componet": "red"}, None)
            with pytest.raises(SpecError, match="must not be empty"):
                await world.actor.apply({"pools": [{"name": "x", "capacity": {}}]})
            with pytest.raises(Refused, match="there is no pool 'x'"):
                await world.actor.apply({"policies": [policy(pool="x")]})
            assert await world.actor.requests() == []

    run(story)


def test_a_request_is_found_by_a_unique_beginning_of_its_id():
    async def story():
        async with World() as world:
            for id in ("abc1", "abd2"):
                await world.submit(id)
            assert (await world.view("abc"))["id"] == "abc1"
            with pytest.raises(Refused, match="'ab' is the beginning of 2 request ids; give more of it"):
                await world.view("ab")
            for unknown in ("x", ""):
                with pytest.raises(Refused, match="`raypool request list` shows those there are"):
                    await world.view(unknown)
            with pytest.raises(SpecError, match="request_id: must be a string, got 5"):
                await world.view(5)

    run(story)


def test_requests_can_be_chosen_by_status_component_and_pool():
    async def story():
        pools, teams = [pool("p", gpu=2), pool("q", gpu=2)], [policy("red"), policy("blue", "q")]
        async with World(FakeCluster(), pools, teams) as world:
            await world.run("a", "red", gpu=2)
            await world.submit("b", "red", gpu=2)
            await world.run("c", "blue")
            await world.actor.release("c")

            async def ids(**wanted):
                return [one["id"] for one in await world.actor.requests(**wanted)]

            assert await ids() == ["a", "b", "c"]
            assert await ids(status="pending") == ["b"]
            assert await ids(component="red") == ["a", "b"]
            assert await ids(pool="p") == ["a", "b"]
            assert await ids(pool="q") == ["c"]
            assert await ids(ended=False) == ["a", "b"]

    run(story)


def test_the_front_of_a_pool_has_the_first_of_each_kind_and_counts_the_others():
    async def story():
        teams = [policy("low", priority=1), policy("high", priority=9)]
        async with World(FakeCluster(), [pool("p", gpu=4, grace_seconds=60), pool("q", gpu=2)], teams) as world:
            for number in range(4):
                await world.run(f"run{number}", "low")
            for number in range(5):
                await world.submit(f"low{number}", "low", gpu=3)
            await world.submit("high", "high", gpu=2)
            seen = await world.actor.front("p", 2)
            assert [one["id"] for one in seen["waiting"]] == ["high", "low0"], "in the order of the line"
            assert [one["position"] for one in seen["waiting"]] == [1, 2]
            assert (seen["pool"]["queued"], seen["running_in_all"]) == (6, 4)
            assert [one["id"] for one in seen["running"]] == ["run3", "run2"], "those that must leave come first"
            assert [one["status"] for one in seen["running"]] == ["preempting"] * 2
            everyone = await world.actor.front("p", 9)
            assert [one["id"] for one in everyone["running"]] == ["run3", "run2", "run1", "run0"], "the latest first"
            in_line = [one["id"] for one in everyone["waiting"]]
            assert [one["position"] for one in everyone["waiting"]] == [1, 2, 3, 4, 5, 6]
            assert in_line == ["high", *(f"low{number}" for number in range(5))]
            assert [one["borrowed"] for one in everyone["running"]] == [{"gpu": 1}] * 4
            empty = await world.actor.front("q", 2)
            assert (empty["waiting"], empty["running"], empty["running_in_all"]) == ([], [], 0)
            with pytest.raises(Refused, match="there is no pool 'x'"):
                await world.actor.front("x", 2)
            with pytest.raises(SpecError, match="first: must be >= 1"):
                await world.actor.front("p", 0)

    run(story)


def test_the_front_of_a_pool_names_who_stands_aside_and_who_is_being_placed():
    async def story():
        cluster = HeldBackCluster(node("n1", gpu=2, cpu=0))
        async with World(cluster, [pool("p", gpu=4)]) as world:
            await world.submit("a", gpu=1)
            await world.submit("never", resources={"gpu_count": 1, "cpu_count": 1})
            await world.pass_seconds(1)
            seen = await world.actor.front("p", 5)
            assert [(one["id"], one["placing"]) for one in seen["running"]] == [("a", True)]
            assert ([one["id"] for one in seen["aside"]], seen["aside_in_all"]) == (["never"], 1)
            assert seen["waiting"] == []

    run(story)


def test_pools_and_the_broker_as_a_whole_can_be_seen():
    async def story():
        async with World() as world:
            await world.run("a", gpu=3)
            seen = await world.actor.pool("p")
            assert (seen["used"], seen["free"], seen["active"]) == ({"gpu": 3}, {"gpu": 5}, 1)
            whole = await world.actor.overview()
            assert (whole["requests"], [one["name"] for one in whole["pools"]]) == ({"allocated": 1}, ["p"])
            assert (await world.actor.hello())["version"] == whole["version"]
            with pytest.raises(Refused, match=r"there is no pool 'x' \(pools: p\)"):
                await world.actor.pool("x")

    run(story)


def test_a_group_leads_back_to_its_request():
    async def story():
        async with World() as world:
            await world.run("a")
            group = (await world.view("a"))["group_id"]
            assert (await world.actor.request_of_group(group))["id"] == "a"
            assert await world.actor.request_of_group("ffff") is None

    run(story)


# --- watching ---------------------------------------------------------------------------------


def test_watch_answers_at_once_when_there_is_news_already():
    async def story():
        async with World() as world:
            await world.submit("a")
            seconds, answer = await seconds_of(world.actor.watch("a", 0, 30))
            assert seconds == 0
            assert answer["version"] >= 1

    run(story)


def test_watch_answers_on_a_change():
    async def story():
        async with World(HeldBackCluster()) as world:
            await world.submit("a")
            seen = (await world.actor.watch("a", 0, 0))["version"]
            watching = asyncio.create_task(seconds_of(world.actor.watch("a", seen, 30)))
            await world.pass_seconds(7)
            world.cluster.let("/a")
            seconds, answer = await watching
            assert 7 <= seconds < 7.1
            assert (answer["request"]["status"], answer["version"]) == ("allocated", seen + 1)

    run(story)


def test_watch_answers_when_its_time_is_up_and_never_later_than_a_minute():
    async def story():
        async with World(HeldBackCluster()) as world:
            await world.submit("a")
            seen = (await world.actor.watch("a", 0, 0))["version"]
            for asked, waited in ((5, 5), (3600, 60)):
                seconds, answer = await seconds_of(world.actor.watch("a", seen, asked))
                assert seconds == pytest.approx(waited)
                assert answer["version"] == seen

    run(story)


def wanted(id, gpu=1):
    return {"id": id, "component": "red", "resources": {"gpu_count": gpu}}


def test_one_call_asks_and_answers_when_the_room_is_there_and_nothing_comes_of_asking_twice():
    async def story():
        async with World(HeldBackCluster()) as world:
            asking = [
                asyncio.create_task(seconds_of(world.actor.acquire(wanted("a"), "01", None, 30))) for _ in range(2)
            ]
            await world.pass_seconds(7)
            world.cluster.let("/a")
            for asked in asking:
                seconds, answer = await asked
                assert 7 <= seconds < 7.1
                assert answer["request"]["status"] == "allocated"
                assert answer["version"] == (await world.actor.watch("a", -1, 0))["version"]
            assert len(world.cluster.groups) == 1

    run(story)


def test_one_call_that_asks_says_how_it_stands_when_its_time_is_up_and_why_if_that_is_asked():
    async def story():
        async with World() as world:
            await world.run("all", gpu=8)
            for explain, told in ((False, None), (True, "'a' waits")):
                seconds, answer = await seconds_of(world.actor.acquire(wanted("a"), "01", None, 5, explain))
                assert seconds == pytest.approx(5)
                assert answer["request"]["status"] == "pending"
                assert str(answer.get("why", {"sentence": None})["sentence"]).startswith(str(told))
            seconds, answer = await seconds_of(world.actor.acquire(wanted("b", 9), "01", None, 5))
            assert (seconds, answer["request"]["status"]) == (0, "rejected")

    run(story)


def test_everybody_who_watches_is_told_of_a_notice_and_of_the_end():
    async def story():
        async with World(FakeCluster(), [pool(grace_seconds=10)], TWO_TEAMS) as world:
            await world.run("victim", "low", gpu=8)
            seen = (await world.actor.watch("victim", 0, 0))["version"]
            watching = [asyncio.create_task(world.actor.watch("victim", seen, 30)) for _ in range(3)]
            await world.pass_seconds(0.1)
            await world.submit("high", "high", gpu=8)
            answers = await asyncio.gather(*watching)
            assert {answer["request"]["status"] for answer in answers} == {"preempting"}
            assert answers[0]["request"]["deadline"] == pytest.approx(now() + 10, abs=0.2)
            answer = await world.actor.watch("victim", answers[0]["version"], 30)
            assert answer["request"]["status"] == "preempted"

    run(story)


def test_a_watcher_of_a_request_that_is_forgotten_is_told_so_at_once():
    async def story():
        async with World() as world:
            await world.run("a")
            await world.actor.release("a")
            await world.pass_seconds(1)
            seen = (await world.actor.watch("a", 0, 0))["version"]
            watching = asyncio.create_task(seconds_of(world.actor.watch("a", seen, 30)))
            await world.pass_seconds(1)
            await world.actor.forget("a")
            with pytest.raises(Refused, match="there is no request 'a'"):
                await watching
            assert now() < 1010

    run(story)


def test_no_watcher_is_left_behind():
    async def story():
        async with World(HeldBackCluster()) as world:
            await world.submit("a")
            for _ in range(5):
                await world.actor.watch("a", 99, 1)
            watching = asyncio.create_task(world.actor.watch("a", 99, 30))
            await world.pass_seconds(1)
            watching.cancel()
            await world.pass_seconds(1)
            assert world.actor._watchers == {}

    run(story)


# --- time -------------------------------------------------------------------------------------


def test_the_grace_is_over_when_it_is_over_though_nobody_calls():
    async def story():
        async with World(FakeCluster(), [pool(grace_seconds=10)], TWO_TEAMS) as world:
            await world.run("victim", "low", gpu=8)
            await world.submit("high", "high", gpu=8)
            await world.pass_seconds(9.9)
            assert await world.status("victim") == "preempting"
            await world.pass_seconds(0.2)
            assert (await world.status("victim"), await world.status("high")) == ("preempted", "allocated")

    run(story)


def test_a_timer_that_comes_a_rounding_error_too_early_does_not_spin():
    async def story():
        pools, policies = [pool(grace_seconds=3.0)], [policy("red"), policy("blue", priority=9)]
        async with World(pools=pools, policies=policies) as world:
            await world.run("r", gpu=8)
            await world.submit("b", "blue", gpu=8)
            time, due = asyncio.get_running_loop().time, world.actor.broker.next_deadline
            world.actor._clock = lambda: min(time(), due - 7e-13) if time() < due + 0.0005 else time()
            await world.until("b", "allocated")
            assert await world.status("r") == "preempted"

    run(story)


def test_the_brokers_clock_is_the_epochs_and_stays_steady_when_somebody_sets_the_machines(monkeypatch):
    clock = steady_clock()
    assert abs(clock() - time.time()) < 5
    before = clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock() < before + 5


# --- the whole --------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [FakeCluster, HeldBackCluster], ids=lambda one: one.__name__)
def test_end_all_returns_when_every_group_is_gone(cluster):
    async def story():
        async with World(cluster(node("n1", 4))) as world:
            for id in "abc":
                await world.submit(id, gpu=2)
            await world.pass_seconds(0.1)
            await world.submit("late", gpu=1)
            ending = asyncio.create_task(world.actor.end_all("the broker was stopped"))
            await world.pass_seconds(5)
            if cluster is HeldBackCluster:
                assert not ending.done()
                for group in list(world.cluster.groups.values()):
                    world.cluster.let(group.name)
            await ending
            assert world.cluster.there() == []
            assert world.cluster.store == {}
            for one in await world.actor.requests():
                assert (one["status"], one["reason"]) == ("cancelled", "the broker was stopped")
            assert world.free() == 8

    run(story)


def test_end_all_waits_for_a_group_whose_making_has_only_just_begun():
    async def story():
        async with World() as world:
            await world.submit("a")
            while not world.actor._placements._in("creating"):
                await asyncio.sleep(0)
            await world.actor.end_all("the broker was stopped")
            await world.pass_seconds(5)
            assert (world.cluster.there(), world.cluster.store) == ([], {})

    run(story)


def test_a_limit_above_a_capacity_that_was_lowered_since_does_not_keep_the_broker_from_coming_back():
    async def story():
        async with World(policies=[policy(limit={"gpu": 8})]) as world:
            await world.actor.apply({"pools": [pool(gpu=4)]})
            await world.begin_again()
            [view] = (await world.actor.pool("p"))["policies"]
            assert view["limit"] == {"gpu": 4}
            assert (await world.actor.config())["policies"][0]["limit"] == {"gpu": 8}

    run(story)


def test_a_broker_that_is_being_stopped_takes_nothing_new():
    async def story():
        async with World() as world:
            await world.run("a")
            await world.actor.end_all("the broker was stopped")
            for asked in (world.submit("b"), world.actor.apply({"pools": [pool("q")]})):
                with pytest.raises(Refused, match="being stopped and takes nothing new"):
                    await asked
            assert world.cluster.there() == []

    run(story)


def test_what_changes_something_takes_whole_ids_only():
    async def story():
        async with World() as world:
            await world.run("exp10")
            for call in (
                world.actor.release("exp1"),
                world.actor.cancel("exp1", "no"),
                world.actor.watch("exp1", 0, 1),
            ):
                with pytest.raises(Refused, match="there is no request 'exp1'"):
                    await call
            assert await world.status("exp10") == "allocated"

    run(story)


def test_nodes_are_known_before_the_first_call_is_answered():
    async def story():
        world = World(FakeCluster(node("n1", 4)), [pool(infeasible="reject")])
        await world.actor.begin()
        await world.actor.apply(world.config)
        assert (await world.submit("a", gpu=8))["status"] == "rejected"

    run(story)


def test_pools_and_policies_survive_in_the_store_as_they_stand():
    async def story():
        async with World() as world:
            await world.actor.apply({"pools": [pool("q")], "policies": [policy("blue", "q")], "unmanaged": "allow"})
            await world.actor.detach_policy("q", "blue", "team")
            await world.actor.apply({"pools": [pool("r")]})
            await world.actor.delete_pool("r")
            config = await world.actor.config()
            await world.begin_again()
            assert await world.actor.config() == config
            assert [one["name"] for one in config["pools"]] == ["p", "q"]
            assert config["unmanaged"] == "allow"

    run(story)


def test_apply_returns_what_is_allowed_but_rarely_meant():
    async def story():
        async with World() as world:
            metered = {"name": "p", "capacity": {"gpu": 8, "mcpu": 8000}}
            warnings = await world.actor.apply({"pools": [metered], "policies": [policy(reserved={"gpu": 2})]})
            assert warnings == (await world.actor.overview())["warnings"]
            assert "reserves no mcpu" in warnings[0]

    run(story)


def test_what_is_kept_per_request_is_forgotten_with_it():
    async def story():
        async with World() as world:
            world.actor.broker.ended_kept = 5
            for index in range(20):
                await world.run(f"r{index}")
                await world.actor.release(f"r{index}")
                await world.pass_seconds(0.1)
            await world.pass_seconds(1)
            kept = {one["id"] for one in await world.actor.requests()}
            assert len(kept) == 5
            assert set(world.actor._versions) == kept
            assert set(world.actor._groups.values()) == kept

    run(story)


def test_what_the_core_stumbles_over_leaves_no_trace():
    async def story():
        async with World() as world:
            await world.run("a", gpu=2)
            handle = world.actor.broker.handle

            def stumbles(event, now):
                handle(event, now)
                raise AssertionError("a bug")

            world.actor.broker.handle = stumbles
            with pytest.raises(BrokerFault, match=r"Submitted could not be handled \(AssertionError"):
                await world.submit("b", gpu=3)
            assert [one["id"] for one in await world.actor.requests()] == ["a"]
            await world.run("c", gpu=6)
            assert (world.free(), world.actor.degraded) == (0, "")

    run(story)


def test_what_the_world_reports_cannot_be_left_out_so_the_broker_is_degraded():
    async def story():
        async with World() as world:
            await world.run("a", gpu=2)

            def stumbles(event, now):
                raise AssertionError("a bug")

            world.actor.broker.handle = stumbles
            world.cluster.live.append(node("n2"))
            await world.pass_seconds(2)
            assert "NodesChanged could not be handled" in world.actor.degraded
            with pytest.raises(BrokerDegraded, match="read-only, degraded: a bug of raypool's"):
                await world.submit("b")
            assert await world.status("a") == "allocated"
            assert "read-only, degraded" in (await world.actor.overview())["degraded"]

    run(story)


def test_what_could_not_be_carried_out_is_tried_again_by_the_next_life():
    async def story():
        async with World() as world:

            def broken(instruction):
                raise AssertionError("a bug")

            world.actor._place = broken
            await world.submit("a")
            assert "CreatePlacementGroup was decided and could not be carried out" in world.actor.degraded
            await world.begin_again()
            await world.until("a", "allocated")

    run(story)


# --- when it will start -----------------------------------------------------------------------


def test_who_waits_is_told_when_it_is_expected_to_start():
    async def story():
        async with World() as world:
            await world.run("long", gpu=8, max_duration_seconds=600)
            assert (await world.submit("next", gpu=8))["eta_p90_seconds"] is None  # nobody waits for that
            view = await world.view("next")
            assert 0 < view["eta_p50_seconds"] <= view["eta_p90_seconds"] <= 600
            await world.pass_seconds(100)
            later = await world.view("next")
            assert later["eta_p90_seconds"] <= 500.1
            rows = {row["id"]: row for row in await world.actor.requests()}
            assert rows["next"]["eta_p90_seconds"] == pytest.approx(later["eta_p90_seconds"])
            assert rows["long"]["eta_p90_seconds"] is None
            answer = await world.actor.watch("next", world.actor.broker.requests["next"].number + 10_000, 1.0)
            assert answer["request"]["eta_p90_seconds"] == pytest.approx(later["eta_p90_seconds"] - 1)
            await world.actor.release("long")
            await world.until("next", "allocated")
            assert (await world.view("next"))["eta_p50_seconds"] is None

    run(story)


def test_a_look_ahead_is_kept_until_the_state_has_changed(monkeypatch):
    looks = []

    class Counted(etas.Forecast):
        def __init__(self, broker, asked, now):
            looks.append(asked)
            super().__init__(broker, asked, now)

    monkeypatch.setattr(etas, "Forecast", Counted)

    async def story():
        async with World() as world:
            await world.run("long", gpu=8)
            await world.submit("next", gpu=8)
            await asyncio.gather(world.view("next"), world.view("next"), world.actor.requests())
            assert looks == [["next"]]
            await world.submit("last", gpu=8)
            await world.view("last")
            assert looks == [["next"], None]
            await world.pass_seconds(1000)
            await world.actor.cancel("last", "enough")
            await world.pass_seconds(1000)
            await world.actor.requests()
            assert looks[2:] == [None]

    run(story)


def test_a_look_ahead_that_fails_is_logged_and_keeps_nobody_from_his_view(monkeypatch, caplog):
    monkeypatch.setattr(etas, "Forecast", lambda *_: 1 / 0)

    async def story():
        async with World() as world:
            await world.run("long", gpu=8)
            await world.submit("next", gpu=8)
            view = await world.view("next")
            assert (view["position"], view["eta_p50_seconds"]) == (1, None)
            assert "could not be worked out" in caplog.text

    run(story)


class CountedQuestions(FakeCluster):
    def __init__(self):
        super().__init__()
        self.asked = Counter()

    async def nodes(self):
        self.asked["nodes"] += 1
        return await super().nodes()

    async def free(self):
        self.asked["free"] += 1
        return await super().free()

    async def dead_jobs(self):
        self.asked["dead_jobs"] += 1
        return await super().dead_jobs()


def test_a_broker_that_nobody_uses_asks_and_wakes_seldom():
    async def story():
        cluster = CountedQuestions()
        async with World(cluster) as world:
            await world.run("a", job="01", holder="h1")
            await world.actor.release("a", "01")
            await world.actor.bye("h1")
            await world.pass_seconds(200)
            loop = asyncio.get_running_loop()
            call_at, timers = loop.call_at, []
            loop.call_at = lambda *args, **more: timers.append(1) or call_at(*args, **more)
            cluster.asked.clear()
            await world.pass_seconds(60)
            loop.call_at = call_at
            assert 55 <= cluster.asked["nodes"] <= 61
            assert 8 <= cluster.asked["free"] <= 12
            assert cluster.asked["dead_jobs"] == 0
            metrics = 60 / LAG_SECONDS + 60 / TELL_SECONDS
            assert len(timers) <= 61 + 2 * 12 + 5 + metrics, "nothing else wakes it"
            await world.run("b", job="01", holder="h2")
            cluster.asked.clear()
            await world.pass_seconds(3)
            assert cluster.asked["dead_jobs"] >= 6 and cluster.asked["free"] >= 2

    run(story)


def test_who_is_woken_together_hears_the_same_made_once(monkeypatch):
    views = []

    def counted(broker, request, *more):
        views.append(request.id)
        return view_request(broker, request, *more)

    monkeypatch.setattr("raypool.server.actor.view_request", counted)

    async def story():
        async with World() as world:
            await world.run("a", gpu=8)
            await world.submit("b", gpu=8)
            await world.submit("c", gpu=1)
            seen = (await world.actor.watch("b", -1, 0))["version"]
            watches = [asyncio.ensure_future(world.actor.watch(id, seen, 30.0)) for id in "bbbbbbbbbcc"]
            late = asyncio.ensure_future(world.actor.watch("b", seen, 0.5))
            await world.pass_seconds(1)
            assert (await late)["version"] == seen
            views.clear()
            await world.actor.cancel("b", "enough")
            told = await asyncio.gather(*watches[:9])
            assert [one["request"]["status"] for one in told] == ["cancelled"] * 9
            assert views.count("b") <= 2, "one for the watchers, one for who cancelled"
            again = await asyncio.gather(*(world.actor.watch("c", -1, 0) for _ in range(2)))
            await world.actor.cancel("c", "enough")
            assert (await world.actor.watch("c", -1, 0))["request"]["status"] == "cancelled", "never an older one"
            assert again[0]["request"]["status"] == "pending"
            assert world.actor._watchers == {}

    run(story)
