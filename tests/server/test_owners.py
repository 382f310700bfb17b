"""Whose end gives back what: jobs, processes and actors that are over, silent, or only seemed so."""

import asyncio

import pytest

from raypool.errors import Refused, SpecError

from .fake_cluster import AwayCluster, FakeCluster, HeldBackCluster, actor_id, node
from .virtual_time import run
from .world import World, policy, pool

GONE = ("cancelled", "the process that asked for it is gone")


class Process:
    """What the client library does in a process that holds: one call of `hold`, and one of `here` after another."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.token = f"token of {name}"
        self.signs = 0
        self.holding = asyncio.create_task(world.actor.hold(name))
        self.beating = asyncio.create_task(self._beat())

    async def _beat(self):
        token = [self.token]
        while True:
            self.signs += 1
            known = await self.world.actor.here(self.name, token)
            token = [] if known else [self.token]

    def stops(self):
        """Its thread is starved, or it is stopped: nothing is heard, and Ray thinks that it is well."""
        self.beating.cancel()

    def dies(self):
        self.stops()
        self.says(True)

    def says(self, died):
        token = self.world.cluster.tokens.pop(self.token)
        token.set_result(died)


def stand_still(seconds):
    """The broker's process is stopped for so long."""
    asyncio.get_running_loop().now += seconds


async def outcome(world, id):
    view = await world.view(id)
    return view["status"], view["reason"]


def allocated(world, *ids):
    return [world.actor.broker.requests[id].status.value for id in ids] == ["allocated"] * len(ids)


# --- the end of a job, and of an actor --------------------------------------------------------


def test_the_end_of_a_job_cancels_what_belongs_to_it_and_nothing_else():
    async def story():
        async with World() as world:
            await world.run("a", job="job1")
            await world.run("detached", job="job1", lifetime="detached")
            await world.run("other", job="job2")
            await world.run("nobodys")
            await world.submit("waits", gpu=8, job="job1")
            world.cluster.jobs_dead.add("job1")
            await world.pass_seconds(1)
            for id in ("a", "waits"):
                view = await world.view(id)
                assert (view["status"], view["reason"]) == ("cancelled", "its job ended")
            for id in ("detached", "other", "nobodys"):
                assert await world.status(id) == "allocated"
            assert world.cluster.there() == [f"raypool/p/red/{id}" for id in ("detached", "other", "nobodys")]

    run(story)


def test_a_dead_actor_gives_back_what_it_lived_in():
    async def story():
        async with World() as world:
            for id in ("a", "b"):
                await world.run(id)
                await world.actor.attach_actor(id, actor_id(id))
            await world.pass_seconds(1)
            world.cluster.actors_dead.add(actor_id("a"))
            await world.pass_seconds(1)
            assert (await world.status("a"), await world.status("b")) == ("released", "allocated")
            with pytest.raises(Refused, match="there is no request"):
                await world.actor.attach_actor("x", actor_id("x"))

    run(story)


def test_dead_owners_are_still_found_after_the_gcs_was_away():
    async def story():
        async with World(AwayCluster()) as world:
            await world.run("a", job="job1")
            world.cluster.away = True
            world.cluster.jobs_dead.add("job1")
            await world.pass_seconds(5)
            assert await world.status("a") == "allocated"
            world.cluster.away = False
            await world.pass_seconds(3)
            assert await world.status("a") == "cancelled"
            assert world.free() == 8

    run(story)


def test_dead_actors_are_found_in_turn_when_there_are_many():
    async def story():
        async with World(FakeCluster(node("n1", 60)), [pool(gpu=60)]) as world:
            for i in range(50):
                await world.run(f"r{i}")
                await world.actor.attach_actor(f"r{i}", actor_id(f"r{i}"))
            world.cluster.actors_dead = {actor_id("r0"), actor_id("r49")}
            await world.pass_seconds(2)
            assert [await world.status(f"r{i}") for i in (0, 25, 49)] == ["released", "allocated", "released"]

    run(story)


def test_what_belongs_to_an_actor_does_not_end_with_the_process_that_made_it():
    async def story():
        async with World() as world:
            process = Process(world, "p1")
            await world.run("a", job="job1", holder="p1")
            await world.run("b", job="job1", holder="p1")
            await world.actor.attach_actor("a", actor_id("a"))
            assert (await world.view("a"))["actor"] == actor_id("a")
            process.dies()
            await world.pass_seconds(200)
            assert await outcome(world, "b") == GONE
            assert await world.status("a") == "allocated"
            world.cluster.jobs_dead.add("job1")
            await world.pass_seconds(1)
            assert await outcome(world, "a") == ("cancelled", "its job ended")

    run(story)


# --- the end of a process ---------------------------------------------------------------------


def test_a_process_that_is_gone_gives_back_at_once_what_it_held_and_what_it_waited_for():
    async def story():
        async with World() as world:
            process, other = Process(world, "p1"), Process(world, "p2")
            await world.run("a", job="job1", holder="p1")
            await world.run("b", job="job1", holder="p1")
            await world.run("others", gpu=2, job="job1", holder="p2")
            await world.run("detached", lifetime="detached", job="job1", holder="p1")
            await world.run("nobodys", job="job1")
            await world.submit("waits", gpu=8, job="job1", holder="p1")
            process.dies()
            await world.pass_seconds(0.1)
            for id in ("a", "b", "waits"):
                assert await outcome(world, id) == GONE
            await world.pass_seconds(200)
            assert allocated(world, "others", "detached", "nobodys")
            assert other.signs > 5

    run(story)


def test_what_a_dead_process_asked_for_arrives_after_the_news_of_its_death():
    async def story():
        async with World() as world:
            process = Process(world, "p1")
            await world.pass_seconds(1)
            process.dies()
            await world.pass_seconds(1)
            await world.submit("late", holder="p1")
            await world.pass_seconds(1)
            assert await outcome(world, "late") == GONE

    run(story)


@pytest.mark.parametrize("kind", ["answered", "failed"])
def test_a_token_that_ends_otherwise_says_nothing_and_is_asked_for_anew(kind):
    async def story():
        async with World() as world:
            process = Process(world, "p1")
            await world.run("a", holder="p1")
            if kind == "answered":
                process.says(False)
            else:
                world.cluster.tokens.pop(process.token).set_exception(ConnectionError("a fault"))
            await world.pass_seconds(100)
            assert await world.status("a") == "allocated"
            process.dies()
            await world.pass_seconds(1)
            assert await outcome(world, "a") == GONE

    run(story)


@pytest.mark.parametrize("timeout", [5, 60, 1e9])
def test_a_process_that_has_nothing_any_more_leaves_no_open_call_behind(timeout):
    async def story():
        async with World() as world:
            await world.actor.apply({"owner_timeout_seconds": timeout})
            process = Process(world, "p1")
            await world.run("a", holder="p1")
            await world.actor.release("a")
            await world.actor.bye("p1")
            process.stops()
            await asyncio.wait_for(process.holding, 1)
            await asyncio.wait_for(world.actor.hold("p1"), 1)  # its calls may arrive in any order
            assert await asyncio.wait_for(world.actor.here("p1", [process.token]), 1)
            await world.pass_seconds(200)
            assert world.actor._owners.holders == {}

    run(story)


def test_an_id_that_is_none_changes_nothing():
    async def story():
        async with World() as world:
            await world.run("b")
            for name in ("", 5, "x" * 1000):
                for call, what in (
                    (world.submit("a", job=name), "job"),
                    (world.actor.release("b", name), "job"),
                    (world.actor.attach_actor("b", name), "actor"),
                ):
                    with pytest.raises(SpecError, match=f"{what}.*: must (be|have)|{what}.*: must not be empty"):
                        await call
                for call in (
                    world.actor.hold(name),
                    world.actor.here(name, []),
                    world.actor.bye(name),
                    world.submit("a", holder=name),
                ):
                    with pytest.raises(SpecError, match="holder: must"):
                        await call
            for token in ("x", None, {"a": 1}, ["x", "y"]):
                with pytest.raises(SpecError, match="token: "):
                    await world.actor.here("p1", token)
            assert [one["id"] for one in await world.actor.requests(status="allocated")] == ["b"]
            assert world.actor._owners.holders == {}

    run(story)


# --- silence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [60, 20, 1.5, 600])
def test_a_process_that_is_silent_for_the_timeout_loses_what_it_has_and_one_that_is_heard_does_not(timeout):
    async def story():
        async with World() as world:
            await world.actor.apply({"owner_timeout_seconds": timeout})
            silent, healthy = Process(world, "p1"), Process(world, "p2")
            for id in ("a", "b"):
                await world.run(id, holder="p1")
            await world.run("healthy", holder="p2")
            await world.submit("waits", gpu=6, holder="p1")
            await world.pass_seconds(3 * timeout)
            assert allocated(world, "a", "b", "healthy")
            silent.stops()
            await world.pass_seconds(0.6 * timeout)
            assert allocated(world, "a", "b")
            await world.pass_seconds(0.4 * timeout + 0.6)
            for id in ("a", "b", "waits"):
                status, reason = await outcome(world, id)
                assert status == "cancelled"
                assert reason.startswith("its owner was not heard of for ")
                assert timeout <= float(reason.split()[-2]) <= timeout + 0.6
            assert await world.status("healthy") == "allocated"
            assert healthy.signs < 10 + 4 * timeout

    run(story)


def test_a_process_that_never_came_is_silent_from_its_request_on():
    async def story():
        async with World() as world:
            await world.run("a", holder="p1")
            await world.pass_seconds(59)
            assert await world.status("a") == "allocated"
            await world.pass_seconds(2)
            assert await outcome(world, "a") == ("cancelled", "its owner was not heard of for 60.2 s")

    run(story)


def test_the_timeout_is_kept_by_a_config_that_does_not_say_it_and_survives_in_the_store():
    async def story():
        async with World() as world:
            await world.actor.apply({"owner_timeout_seconds": 5})
            await world.actor.apply({"pools": [pool("q")], "unmanaged": "allow"})
            assert (await world.actor.overview())["owner_timeout_seconds"] == 5
            world.crash()
        after = World(world.cluster)
        await after.actor.begin()
        assert (await after.actor.overview())["owner_timeout_seconds"] == 5
        await after.actor.apply({"owner_timeout_seconds": 60})
        assert (await after.actor.overview())["owner_timeout_seconds"] == 60
        for wrong in (0, -1, "5"):
            with pytest.raises(SpecError, match="owner_timeout_seconds: must be"):
                await after.actor.apply({"owner_timeout_seconds": wrong})

    run(story)


def test_a_timeout_that_is_lowered_holds_from_the_next_sign_of_life_on():
    async def story():
        async with World() as world:
            process = Process(world, "p1")
            await world.run("a", holder="p1")
            await world.pass_seconds(1)
            await world.actor.apply({"owner_timeout_seconds": 3})
            await world.pass_seconds(60)
            assert await world.status("a") == "allocated"
            process.stops()
            await world.pass_seconds(3.5)
            assert await world.status("a") == "cancelled"

    run(story)


@pytest.mark.parametrize("seconds", [10, 70, 5000])
def test_a_broker_that_stood_still_blames_nobody(seconds):
    async def story():
        async with World() as world:
            healthy, silent = Process(world, "p1"), Process(world, "p2")
            await world.run("a", holder="p1")
            await world.run("b", holder="p2")
            await world.pass_seconds(55)
            silent.stops()
            await world.pass_seconds(10)
            stand_still(seconds)
            await world.pass_seconds(59)
            assert allocated(world, "a", "b"), "everybody has a full timeout from then on"
            await world.pass_seconds(2)
            assert (await world.status("a"), await world.status("b")) == ("allocated", "cancelled")
            assert healthy.signs > 4

    run(story)


def test_a_gcs_that_is_away_does_not_keep_silence_from_being_noticed_nor_make_any():
    async def story():
        async with World(AwayCluster()) as world:
            healthy, silent = Process(world, "p1"), Process(world, "p2")
            await world.run("a", job="job1", holder="p1")
            await world.run("b", job="job1", holder="p2")
            world.cluster.away = True
            silent.stops()
            await world.pass_seconds(200)
            assert (await world.status("a"), await world.status("b")) == ("allocated", "cancelled")
            assert healthy.signs > 8

    run(story)


# --- a broker that was away -------------------------------------------------------------------


def test_after_the_broker_was_away_everybody_gets_a_full_timeout_and_is_known_again():
    async def story():
        async with World() as world:
            await world.run("a", job="job1", holder="p1")
            await world.run("b", job="job1", holder="p2")
            await world.run("c", job="job2", holder="p1")
            await world.run("d", job="job1")
            await world.actor.attach_actor("d", actor_id("d"))
            world.crash()
        await asyncio.sleep(500)
        after = World(world.cluster)
        after.actor.broker = world.actor.broker  # as if its journal had been read
        after.actor._owners.begin()
        loops = [after.actor._owners.watch_jobs(), after.actor._owners.watch_holders()]
        tasks = [asyncio.create_task(loop) for loop in loops]
        await after.pass_seconds(30)
        Process(after, "p1")
        await after.pass_seconds(29)
        assert allocated(after, "a", "b", "c", "d")
        await after.pass_seconds(2)
        assert (await after.status("a"), await after.status("b")) == ("allocated", "cancelled")
        after.cluster.jobs_dead.add("job2")
        after.cluster.actors_dead.add(actor_id("d"))
        await after.pass_seconds(1)
        assert (await after.status("c"), await after.status("d")) == ("cancelled", "released")
        assert all(not task.done() for task in tasks)

    run(story)


# --- signals that come late -------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["job", "token", "silence"])
@pytest.mark.parametrize("end", ["released", "preempted", "cancelled"])
def test_what_has_ended_stays_as_it_ended_whatever_is_heard_of_its_owner_later(end, signal):
    async def story():
        teams = [policy("high", priority=9), policy("red", priority=1)]
        async with World(FakeCluster(), [pool()], teams) as world:
            process = Process(world, "p1")
            await world.run("a", gpu=8, job="job1", holder="p1")
            if end == "released":
                await world.actor.release("a", "job1")
            elif end == "cancelled":
                await world.actor.cancel("a", "maintenance")
            else:
                await world.submit("high", "high", gpu=8)
            await world.pass_seconds(0.01)  # its group may still be leaving
            before = await outcome(world, "a")
            assert before[0] == end
            if signal == "job":
                world.cluster.jobs_dead.add("job1")
            elif signal == "token":
                process.dies()
            else:
                process.stops()
            await world.pass_seconds(100)
            assert await outcome(world, "a") == before

    run(story)


def test_an_owner_that_dies_during_the_grace_gives_back_early_and_it_counts_as_preempted():
    async def story():
        teams = [policy("high", priority=9), policy("red", priority=1)]
        async with World(FakeCluster(), [pool(grace_seconds=50)], teams) as world:
            process = Process(world, "p1")
            await world.run("a", gpu=8, job="job1", holder="p1")
            await world.submit("high", "high", gpu=8)
            process.dies()
            await world.pass_seconds(1)
            assert (await world.status("a"), await world.status("high")) == ("preempted", "allocated")

    run(story)


def test_a_request_on_its_way_to_a_node_is_given_up_with_its_owner():
    async def story():
        async with World(HeldBackCluster(node("n1", 8))) as world:
            process = Process(world, "p1")
            await world.submit("a", job="job1", holder="p1")
            await world.pass_seconds(1)
            process.dies()
            await world.pass_seconds(1)
            assert await outcome(world, "a") == GONE
            world.cluster.let("/a")
            await world.pass_seconds(1)
            assert (world.cluster.there(), world.free()) == ([], 8)

    run(story)


# --- who may give it back ---------------------------------------------------------------------


def test_a_request_is_released_by_its_own_job_only_and_a_detached_one_by_anybody():
    async def story():
        async with World() as world:
            await world.run("a", job="job1")
            await world.run("detached", job="job1", lifetime="detached")
            await world.run("nobodys")
            for job in ("job2", None):
                with pytest.raises(Refused, match="'a' belongs to job job1, and only that job gives it back; `"):
                    await world.actor.release("a", job)
            assert await world.status("a") == "allocated"
            for id, job in (("a", "job1"), ("detached", "job2"), ("nobodys", "job2")):
                assert (await world.actor.release(id, job))["status"] == "released"
            assert (await world.actor.release("a", "job1"))["status"] == "released", "once more changes nothing"

    run(story)
