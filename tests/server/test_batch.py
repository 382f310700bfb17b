"""Many submissions in one call: each the same as one by itself, all of them or none, in one write."""

import pytest

from raypool.errors import BrokerFault, Refused, SpecError

from .fake_cluster import FakeCluster
from .virtual_time import run
from .world import World, policy

RED = {"component": "red", "resources": {"gpu_count": 1}}
LARGE = {"component": "red", "resources": {"gpu_count": 8, "preemptible": False}, "description": "größer"}
ALIEN = {"component": "nobody"}
DETACHED = {"component": "red", "resources": {"gpu_count": 2, "cpu_count": 1.5}, "lifetime": "detached"}


def test_a_batch_is_decided_as_its_requests_one_by_one_are():
    specs = [{**spec, "id": id} for id, spec in zip("abcde", [RED, LARGE, ALIEN, DETACHED, RED], strict=True)]
    known = []

    async def story(many):
        async with World() as world:
            if many:
                await world.actor.submit_many([RED, LARGE, ALIEN, DETACHED], list("abcde"), [0, 1, 2, 3, 0], "job1")
            else:
                for spec in specs:
                    await world.actor.submit(spec, None if "lifetime" in spec else "job1")
            await world.pass_seconds(10)
            views = [{**view, "submitted_at": 0, "ended_at": 0} for view in await world.actor.requests()]
            await world.begin_again()
            assert len(await world.actor.requests()) == 5
            known.append([(view, world.actor.broker.requests[view["id"]].spec.dump()) for view in views])

    run(lambda: story(many=True))
    run(lambda: story(many=False))
    assert len(known[0]) == 5
    assert known[0] == known[1]


def test_what_they_ask_for_alike_is_in_the_journal_once():
    async def story():
        async with World() as world:
            await world.run("first", gpu=8)
            ids = [f"request{i:04}" for i in range(1_000)]
            await world.actor.submit_many([RED, DETACHED], ids, [i % 2 for i in range(1_000)], "job1")
            line = world.actor._journal._lines[-1]
            assert line.count('"component"') == 2
            assert len(line) < 20 * len(ids)

    run(story)


def test_each_is_told_its_number_its_status_and_why_it_was_rejected():
    async def story():
        async with World() as world:
            told = await world.actor.submit_many([RED, ALIEN], ["a", "b", "c"], [0, 1, 0], None)
            assert [(number, status) for number, status, _ in told] == [
                (1, "pending"),
                (2, "rejected"),
                (3, "pending"),
            ]
            assert [reason for _, _, reason in told] == [
                None, "no policy attaches team 'nobody' to any pool", None,
            ]  # fmt: skip
            await world.until("c", "allocated")
            assert (await world.actor.submit_many([RED], ["c"], [0], None))[0][1] == "allocated"

    run(story)


def test_they_stand_in_line_in_the_order_of_the_list():
    async def story():
        async with World() as world:
            await world.run("first", gpu=8)
            ids = [f"r{i}" for i in range(50)]
            await world.actor.submit_many([RED, LARGE], ids, [i % 2 for i in range(50)], None)
            assert [view["id"] for view in await world.actor.requests()] == ["first", *ids]

    run(story)


@pytest.mark.parametrize(
    ("bodies", "body_of", "says"),
    [
        (
            [RED, {"component": "red", "resources": {"gpu_count": -1}}],
            [0, 1],
            r"bodies\[1\].*gpu_count: must be >= 0",
        ),
        ([RED, {"component": "red", "workers": 0}], [0, 0], r"bodies\[1\].*workers: must be >= 1"),
        ([RED], [0], "body_of: must say a body for each of 2 ids, got 1"),
        ([RED], [0, 1], "body_of: must be places in 1 bodies, got 1"),
        ([RED], [0, -1], "body_of: must be places in 1 bodies, got -1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_submitted(bodies, body_of, says):
    async def story():
        async with World() as world:
            with pytest.raises(SpecError, match=says):
                await world.actor.submit_many(bodies, ["a", "b"], body_of, None)
            assert await world.actor.requests() == []

    run(story)


def test_an_id_that_may_be_none_is_named_with_its_place():
    async def story():
        async with World() as world:
            with pytest.raises(SpecError, match=r"ids\[1\]: must be 1 to 128 printable characters"):
                await world.actor.submit_many([RED], ["a", "b/c"], [0, 0], None)
            assert await world.actor.requests() == []

    run(story)


def test_a_taken_id_refuses_all_of_them():
    async def story():
        async with World() as world:
            await world.submit("c", gpu=2)
            for ids in (["a", "b", "c"], ["a", "b", "a"]):
                with pytest.raises(Refused, match=f"request id '{ids[2]}' is taken"):
                    await world.actor.submit_many([RED, LARGE], ids, [0, 0, 1], None)
            assert [view["id"] for view in await world.actor.requests()] == ["c"]

    run(story)


def test_the_same_again_is_the_same_requests_also_in_the_next_life():
    async def story():
        async with World() as world:
            await world.submit("b", gpu=1)
            call = ([RED, LARGE], ["a", "b", "c", "a"], [0, 0, 1, 0], "job1")
            first = await world.actor.submit_many(*call)
            assert [number for number, _, _ in first] == [2, 1, 3, 2]
            await world.begin_again()
            assert [row[0] for row in await world.actor.submit_many(*call)] == [2, 1, 3, 2]
            assert len(await world.actor.requests()) == 3

    run(story)


def test_they_end_with_their_job_but_for_those_that_outlive_it():
    async def story():
        async with World() as world:
            await world.actor.submit_many([RED, DETACHED, ALIEN], list("abcd"), [0, 1, 2, 0], "job1")
            await world.actor.submit_many([RED], ["other"], [0], "job2")
            await world.pass_seconds(1)
            world.cluster.jobs_dead.add("job1")
            await world.pass_seconds(2)
            status = {view["id"]: view["status"] for view in await world.actor.requests()}
            assert status == {
                "a": "cancelled", "b": "allocated", "c": "rejected", "d": "cancelled", "other": "allocated",
            }  # fmt: skip

    run(story)


class CountedWrites(FakeCluster):
    def __init__(self):
        super().__init__()
        self.writes = 0

    async def save(self, key, value, overwrite=True):
        self.writes += 1
        return await super().save(key, value, overwrite)


def test_a_batch_is_one_write_of_the_journal():
    async def story():
        cluster = CountedWrites()
        async with World(cluster) as world:
            await world.run("first", gpu=8)
            before = cluster.writes
            await world.actor.submit_many([RED], [f"r{i}" for i in range(500)], [0] * 500, None)
            assert cluster.writes == before + 1

    run(story)


def test_after_a_stumble_in_the_middle_none_of_them_is_there_and_the_journal_agrees():
    async def story():
        async with World(policies=[policy("red"), policy("blue")]) as world:
            broker = world.actor.broker
            take = broker._take

            def stumbles(ask, request_id, *more):
                if request_id == "b":
                    raise ZeroDivisionError
                take(ask, request_id, *more)

            broker._take = stumbles
            with pytest.raises(BrokerFault, match="ManySubmitted could not be handled"):
                await world.actor.submit_many([RED], ["a", "b", "c"], [0, 0, 0], None)
            assert await world.actor.requests() == []
            await world.actor.submit_many([RED], ["a", "b", "c"], [0, 0, 0], None)
            assert [view["id"] for view in await world.actor.requests()] == ["a", "b", "c"]

    run(story)
