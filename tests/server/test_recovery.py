"""The broker's process dies and comes back: what was acknowledged is known, what is there is taken up."""

import asyncio

import pytest

from raypool.core.snapshot import SCHEMA
from raypool.errors import BrokerDegraded, Refused
from raypool.server import journal
from raypool.server.actor import PoolBroker
from raypool.server.journal import unpacked
from raypool.server.stores import RayStore, SqliteStore

from .fake_cluster import AwayCluster, FakeCluster, HeldBackCluster, LateFigures, node
from .virtual_time import run
from .world import World, policy, pool

# --- requests ---------------------------------------------------------------------------------


def timeless(view):
    """Without what is told from now on."""
    return {name: value for name, value in view.items() if not name.startswith("eta_")}


def test_who_holds_holds_on_and_who_waits_keeps_his_place():
    async def story():
        async with World() as world:
            await world.run("a", gpu=6)
            await world.submit("b", gpu=4)
            await world.submit("c", gpu=4)
            before = [timeless(await world.view(id)) for id in "abc"]
            await world.begin_again()
            await world.pass_seconds(1)
            assert [timeless(await world.view(id)) for id in "abc"] == before
            assert world.cluster.there() == ["raypool/p/red/a"]
            await world.actor.release("a")
            await world.until("b", "allocated")
            await world.until("c", "allocated")

    run(story)


def test_submitting_again_with_the_same_id_is_the_same_request():
    async def story():
        async with World() as world:
            first = await world.submit("a", gpu=2, preemptible=True, job="01")
            await world.begin_again()
            again = await world.submit("a", gpu=2, preemptible=True, job="01")
            assert again["number"] == first["number"] == 1
            with pytest.raises(Refused, match="is taken"):
                await world.submit("a", gpu=3)

    run(story)


def test_a_long_poll_goes_on_where_it_was():
    """Versions grow over the lives of the broker: who has seen the last one waits, who has not is told."""

    async def story():
        async with World() as world:
            await world.submit("a", gpu=8)
            await world.until("a", "allocated")
            await world.submit("b", gpu=8)
            seen = (await world.actor.watch("b", -1, 0))["version"]
            old = (await world.actor.watch("a", -1, 0))["version"]
            await world.begin_again()
            watching = asyncio.create_task(world.actor.watch("b", seen, 30))
            await world.actor.release("a")
            assert (await world.actor.watch("a", old, 30))["request"]["status"] == "released"
            assert (await watching)["request"]["status"] == "allocated"

    run(story)


def test_the_grace_goes_on_while_the_broker_is_away():
    async def story():
        pools, policies = [pool(grace_seconds=30.0)], [policy("red"), policy("blue", priority=9)]
        async with World(pools=pools, policies=policies) as world:
            await world.run("r", gpu=8)
            await world.submit("b", "blue", gpu=8)
            await world.pass_seconds(10)
            await world.begin_again()
            await world.pass_seconds(15)
            assert await world.status("r") == "preempting"
            await world.pass_seconds(6)
            assert (await world.status("r"), await world.status("b")) == ("preempted", "allocated")

    run(story)


def test_the_end_of_a_job_is_seen_by_the_next_life():
    async def story():
        async with World() as world:
            await world.submit("a", job="01")
            await world.submit("kept", job="01", lifetime="detached")
            world.crash()
            world.cluster.jobs_dead.add("01")
            await world.begin_again()
            await world.until("a", "cancelled")
            assert (await world.view("a"))["reason"] == "its job ended"
            assert await world.status("kept") == "allocated"

    run(story)


# --- placement groups -------------------------------------------------------------------------


def test_a_group_that_was_being_made_is_taken_up_and_not_made_twice():
    async def story():
        cluster = HeldBackCluster()
        async with World(cluster) as world:
            await world.submit("a", gpu=4)
            await world.pass_seconds(0.1)
            await world.begin_again()
            await world.pass_seconds(5)
            assert await world.status("a") == "pending"
            cluster.let("/a")
            await world.until("a", "allocated")
            assert len(cluster.groups) == 1

    run(story)


def test_a_group_that_nobody_wants_any_more_is_removed_once_it_is_created():
    async def story():
        cluster = HeldBackCluster()
        async with World(cluster) as world:
            await world.submit("a", gpu=4)
            await world.pass_seconds(0.1)
            await world.actor.cancel("a", "enough")
            await world.begin_again()
            await world.pass_seconds(5)
            assert (cluster.named("/a").state, world.free()) == ("PENDING", 4)
            cluster.let("/a")
            await world.pass_seconds(1)
            assert (cluster.there(), world.free()) == ([], 8)

    run(story)


def test_a_request_that_is_cancelled_while_its_group_is_looked_for_leaves_nothing():
    async def story():
        cluster = HeldBackCluster()
        async with World(cluster) as world:
            await world.submit("a", gpu=4)
            await world.pass_seconds(0.1)
            await world.begin_again()
            await world.actor.cancel("a", "enough")
            cluster.let("/a")
            await world.pass_seconds(1)
            assert (cluster.there(), world.free()) == ([], 8)

    run(story)


def test_a_held_group_that_is_gone_ends_its_request():
    async def story():
        async with World() as world:
            await world.run("a", gpu=4)
            world.crash()
            world.cluster.vanish(world.cluster.named("/a"))
            await world.begin_again()
            await world.until("a", "cancelled")
            await world.pass_seconds(1)
            assert (await world.view("a"))["rule"] == "group-lost"
            assert world.free() == 8

    run(story)


def test_a_removal_that_was_under_way_is_seen_through():
    async def story():
        cluster = LateFigures()
        async with World(cluster) as world:
            await world.run("a", gpu=8)
            cluster.report()
            await world.actor.release("a")
            await world.pass_seconds(1)
            await world.submit("b", gpu=8)
            await world.begin_again()
            await world.pass_seconds(5)
            assert (await world.status("b"), world.free()) == ("pending", 0)
            cluster.report()
            await world.until("b", "allocated")

    run(story)


def test_a_node_that_left_meanwhile_is_noticed():
    async def story():
        async with World(FakeCluster(node("n1", 8), node("n2", 2))) as world:
            await world.run("small", gpu=2, workers=1)
            await world.run("big", gpu=4)
            await world.submit("a", gpu=7)
            world.crash()
            world.cluster.live = [one for one in world.cluster.live if one.id != "n1"]
            await world.begin_again()
            assert (await world.view("a"))["rule"] == "infeasible"

    run(story)


def test_a_journal_of_another_cluster_ends_what_belonged_to_it():
    async def story():
        async with World() as world:
            await world.run("a", gpu=4, job="01")
            await world.submit("b", gpu=8, job="01")
            await world.submit("d", gpu=8, lifetime="detached")
            world.crash()
            world.cluster.name, world.cluster.groups = "a new cluster", {}
            await world.begin_again()
            await world.until("d", "allocated")
            assert [await world.status(id) for id in "abd"] == ["cancelled", "cancelled", "allocated"]
            assert (await world.view("b"))["reason"] == "the cluster that it belonged to is gone"

    run(story)


# --- time -------------------------------------------------------------------------------------


def test_a_clock_that_was_set_back_does_not_run_back():
    async def story():
        async with World() as world:
            await world.submit("a")
            world.crash()
            behind = asyncio.get_running_loop().time() - 500
            later = PoolBroker(world.cluster, clock=lambda: asyncio.get_running_loop().time() - 500)
            await later.begin()
            await later.release("a")
            assert later.broker.requests["a"].ended_at >= behind + 500
            world.actor = later

    run(story)


def test_a_gcs_that_is_away_when_the_broker_comes_back_is_waited_for():
    async def story():
        cluster = AwayCluster()
        async with World(cluster) as world:
            await world.run("a")
            world.crash()
            cluster.away = True
            beginning = asyncio.create_task(world.begin_again())
            await asyncio.sleep(10)
            assert not beginning.done()
            cluster.away = False
            await beginning
            assert await world.status("a") == "allocated"

    run(story)


# --- the journal itself -----------------------------------------------------------------------


def test_snapshots_are_rarer_the_more_requests_live_so_that_each_event_costs_about_one(monkeypatch):
    monkeypatch.setattr(journal, "SNAPSHOT_EVENTS", 10)
    written = []
    begin = RayStore.begin

    async def counted(store, generation, snapshot):
        written.append(len(unpacked(snapshot)))
        await begin(store, generation, snapshot)

    monkeypatch.setattr(RayStore, "begin", counted)

    async def story():
        async with World() as world:
            await world.run("first", gpu=8)
            del written[:]
            for index in range(640):
                await world.submit(f"r{index}")
            assert 4 <= len(written) <= 8
            assert sum(written) < 2 * 640 + 8 * 10
            lines = len(world.actor._journal._lines)
            await world.begin_again()
            assert len(world.actor._journal._lines) >= lines
            del written[:]
            for index in range(300):
                await world.submit(f"s{index}")
            assert len(written) <= 1, "the bound is that of the snapshot that was read"

    run(story)


def test_the_journal_stays_short_and_the_state_whole(monkeypatch):
    monkeypatch.setattr(journal, "SNAPSHOT_EVENTS", 10)

    async def story():
        async with World() as world:
            for index in range(40):
                await world.run(f"r{index}")
                await world.actor.release(f"r{index}")
                await world.pass_seconds(0.1)
            saved = await RayStore(world.cluster).load()
            assert saved.generation > 100
            assert len(saved.batches) < 15
            assert len(world.cluster.store) == 1 + len(saved.batches)
            requests = await world.actor.requests()
            await world.begin_again()
            assert await world.actor.requests() == requests

    run(story)


def test_events_of_one_moment_are_written_together():
    async def story():
        async with World() as world:
            writes = []
            append = world.actor._journal.store.append

            async def counted(generation, first, batch):
                writes.append(len(batch.splitlines()))
                await append(generation, first, batch)

            world.actor._journal.store.append = counted
            await asyncio.gather(*(world.submit(f"r{index}") for index in range(50)))
            assert sum(writes) >= 50
            assert len(writes) < 10

    run(story)


def spoilt(store):
    [last] = [key for key in sorted(store) if key.startswith("journal/")][-1:]
    store[last] = store[last].replace(b'"Submitted"', b'"Sent"')


def damaged(store):
    [key] = [key for key in store if key.startswith("snapshot/")]
    store[key] = store[key][:-4] + b"????"


def a_later_schema(store):
    [key] = [key for key in store if key.startswith("snapshot/")]
    store[key] = with_schema(SCHEMA + 1, store[key])


def with_schema(number, snapshot):
    head, *lines = unpacked(snapshot)
    return journal.packed([head.replace(f'"schema":{SCHEMA}', f'"schema":{number}'), *lines])


def test_a_journal_of_the_schema_before_is_read_and_goes_on():
    async def story():
        async with World() as world:
            await world.run("a")
            await world.submit("b", gpu=8)
            world.crash()
            [key] = [key for key in world.cluster.store if key.startswith("snapshot/")]
            world.cluster.store[key] = with_schema(1, world.cluster.store[key])
            await world.begin_again()
            assert [one["id"] for one in await world.actor.requests()] == ["a", "b"]
            await world.actor.submit_many([{"component": "red"}], ["c", "d"], [0, 0], None)
            await world.begin_again()
            assert [one["id"] for one in await world.actor.requests()] == ["a", "b", "c", "d"]

    run(story)


@pytest.mark.parametrize(
    ("damage", "sentence", "known"),
    [
        (spoilt, "the line of event .* is not understood", ["a"]),
        (damaged, "its snapshot is damaged", []),
        (
            a_later_schema,
            f"it has schema {SCHEMA + 1}, this version of raypool reads schema {SCHEMA} and older ones",
            [],
        ),
    ],
    ids=["a line", "damage", "a later schema"],
)
def test_a_journal_that_cannot_be_read_degrades_the_broker_and_is_left_as_it_is(damage, sentence, known):
    async def story():
        async with World() as world:
            await world.run("a")
            await world.submit("b")
            world.crash()
            damage(world.cluster.store)
            store, there = dict(world.cluster.store), world.cluster.there()
            await world.begin_again()
            await world.pass_seconds(10)
            overview = await world.actor.overview()
            assert "read-only, degraded" in overview["degraded"] and "raypool journal export" in overview["degraded"]
            for change in (
                lambda: world.submit("c"),
                lambda: world.actor.apply({}),
                lambda: world.actor.end_all("stop"),
            ):
                with pytest.raises(BrokerDegraded, match=sentence):
                    await change()
            assert [one["id"] for one in await world.actor.requests()] == known
            with pytest.raises(BrokerDegraded):  # it may have known it: nobody is told that it is lost
                await world.actor.watch("b", -1, 1)
            assert (world.cluster.store, world.cluster.there()) == (store, there)
            written = await world.actor.journal()
            assert all(id in written for id in ('"a"', '"b"')), "all that is there can be saved"
            await world.begin_again()  # and not a crash loop
            await world.actor.end_all("given up", discard_journal=True)
            assert world.cluster.store == {}
            await world.begin_again()
            assert (await world.actor.overview())["degraded"] == ""

    run(story)


@pytest.mark.parametrize("what", ["a directory", "no database", "no place"])
def test_a_journal_that_cannot_be_opened_degrades_the_broker_with_the_place(what, tmp_path):
    path = {"a directory": tmp_path, "no database": tmp_path / "file", "no place": tmp_path / "file" / "deeper"}[what]
    (tmp_path / "file").write_text("this is no database, and long enough to be seen as none" * 20)

    async def story():
        broker = PoolBroker(FakeCluster(), SqliteStore(path))
        await broker.begin()
        overview = await broker.overview()
        assert f"the journal ({path}) cannot be opened" in overview["degraded"]
        with pytest.raises(BrokerDegraded):
            await broker.apply({})
        await broker.end_all("given up", discard_journal=True)
        assert (tmp_path / "file").read_text().startswith("this is no database")

    asyncio.run(story())


def test_two_brokers_never_write_to_one_journal():
    async def story():
        async with World() as world:
            await world.run("a")
            other = World(world.cluster)
            await other.actor.begin()
            await other.submit("b")
            with pytest.raises(BrokerDegraded, match="another broker writes to the same journal"):
                await world.submit("c")
            await other.until("b", "allocated")

    run(story)


@pytest.mark.parametrize("kind", ["ray", "sqlite"])
def test_a_store_keeps_what_it_says_it_keeps(kind, tmp_path):
    async def story():
        cluster = FakeCluster()

        def store():
            return RayStore(cluster) if kind == "ray" else SqliteStore(tmp_path / "deep" / "journal.sqlite")

        assert await store().load() is None
        await store().begin(0, b"s0")
        await store().begin(0, b"s0")  # an answer was lost
        await store().append(0, 1, b"one")
        await store().append(0, 1, b"one")
        await store().append(0, 12, b"two")
        with pytest.raises(Exception, match="1"):
            await store().append(0, 1, b"other")
        saved = await store().load()
        assert (saved.generation, saved.snapshot, saved.batches) == (0, b"s0", (b"one", b"two"))
        await store().begin(12, b"s12")
        with pytest.raises(Exception, match="12"):
            await store().begin(12, b"other")
        await store().append(12, 13, b"three")
        saved = await store().load()
        assert (saved.generation, saved.snapshot, saved.batches) == (12, b"s12", (b"three",))
        await store().erase()
        assert await store().load() is None
        await store().begin(0, b"new")
        assert (await store().load()).batches == ()

    asyncio.run(story())
