"""Every decision is recorded once, with the figures as they were, wherever the broker's process dies."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from raypool.core import events as ev
from raypool.core.instructions import ChangeStatus, HandOverPlacementGroup, WarnHolder
from raypool.core.status import Status
from raypool.server import journal as journal_module
from raypool.server import trail as trail_module
from raypool.server import trail_files as files_module
from raypool.server import usage as usage_module
from raypool.server.record import KINDS, lines_of, records_of
from raypool.spec import RequestSpec

from ..chaos.crash_points import play, random_story, story_of_hand_overs
from .fake_cluster import FakeCluster, LeakingCluster, node
from .virtual_time import run
from .world import World, policy, pool

TWO = {
    "pools": [pool(gpu=4, grace_seconds=5.0)],
    "policies": [policy("red", priority=1), policy("blue", priority=5, reserved={"gpu": 2})],
}

STORIES = [random_story(seed) for seed in range(4)] + [story_of_hand_overs()]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Many snapshots, and little in memory."""
    monkeypatch.setattr(journal_module, "SNAPSHOT_EVENTS", 15)
    monkeypatch.setattr(trail_module, "RECENT", 12)


def written(folder):
    """All records in the files, oldest first, without those that say that a life began."""
    files = [folder / f"{files_module.EVENTS_FILE}.{place}" for place in range(9, 0, -1)]
    rows = []
    for file in [*files, folder / files_module.EVENTS_FILE]:
        if file.exists():
            rows += [json.loads(line) for line in file.read_text().splitlines()]
    return [row for row in rows if row["kind"] != "started"]


class Heard:
    """What each event came to, by number, as the journal was told it; a later life's is what counts."""

    def __init__(self):
        self.events = {}

    def __call__(self, world):
        add, journal = world.actor._journal.add, world.actor._journal

        def heard(at, event, instructions):
            add(at, event, instructions)
            self.events[journal.number] = (at, event, list(instructions))

        journal.add = heard


def said(event, instructions):
    """What has to be recorded of it, as far as it does not stand in figures: written anew, and plainly."""
    told = []
    for one in instructions:
        if isinstance(one, ChangeStatus):
            kind = {
                Status.PENDING: "submitted", Status.ALLOCATED: "ready", Status.REJECTED: "rejected",
                Status.PREEMPTING: "evicted", Status.PREEMPTED: "preempted", Status.RELEASED: "released",
                Status.CANCELLED: "cancelled",
            }[one.to]  # fmt: skip
            told.append((one.request, kind, one.reason.sentence if one.reason else None))
        elif isinstance(one, WarnHolder):
            told.append((one.request, "notice", one.reason.sentence))
        elif isinstance(one, HandOverPlacementGroup):
            told.append((one.to, "handed-over", None))
    kinds = {ev.ConfigApplied: "config-applied", ev.Forgotten: "forgotten", ev.NodesChanged: "nodes-changed"}
    if type(event) in kinds:
        told.insert(0, (getattr(event, "request", None), kinds[type(event)], None))
    return told


FIGURES_ALONE = {"granted", "freed", "phantom", "returned", "not-placed", "pool-changed"}


def each_decision_is_recorded_once(records, heard):
    places = [(record["event"], record["index"]) for record in records]
    assert places == sorted(set(places))
    by_event = {}
    for record in records:
        by_event.setdefault(record["event"], []).append(record)
    for number, (at, event, instructions) in heard.events.items():
        found = by_event.pop(number, [])
        assert [record["index"] for record in found] == list(range(len(found)))
        assert {record["at"] for record in found} <= {at}
        told = [
            (record["request"], record["kind"], record["why"])
            for record in found
            if record["kind"] not in FIGURES_ALONE
        ]
        expected = said(event, instructions)
        assert [one[:2] for one in told] == [one[:2] for one in expected], number
        assert all(why == reason for (*_, why), (*_, reason) in zip(told, expected, strict=True) if reason)
    assert not by_event
    assert {record["kind"] for record in records} <= set(KINDS)


def figures_are_a_chain(records, broker):
    """What is after one record is before the next, from nothing to what the ledger has."""
    pools, policies = {}, {}
    for record in records:
        before, after = record["figures"].get("before", {}), record["figures"].get("after", {})
        where = record["pool"]
        if record["kind"] == "pool-changed":
            assert before == {key: row for (name, key), row in full(pools, where).items()}, record
            for key in before:
                del pools[where, key]
            pools |= {(where, key): (row["free"], row["phantom"], row["capacity"]) for key, row in after.items()}
            continue
        for key, row in before.items():
            assert (row["free"], row["phantom"]) == pools[where, key][:2], record
            pools[where, key] = (after[key]["free"], after[key]["phantom"], pools[where, key][2])
            if "used" in row:
                whose = (where, record["component"], key)
                assert (row["used"], row["leaving"]) == policies.get(whose, (0, 0)), record
                policies[whose] = (after[key]["used"], after[key]["leaving"])
                assert after[key]["borrowed"] == max(after[key]["used"] - after[key]["reserved"], 0)
    for name, found in broker.pools.items():
        for at, key in enumerate(found.ledger.keys):
            assert pools[name, key][:2] == (found.ledger.free[at], found.ledger.phantom[at])
            for owner, account in found.ledger.accounts.items():
                used = account.used[at]
                assert policies.get((name, owner[0], key), (0, 0)) == (used, used - account.staying[at])


def spans_follow_each_other(folder):
    for name in (files_module.MINUTES_FILE, files_module.HOURS_FILE):
        if (folder / name).exists():
            starts = [json.loads(line)["start"] for line in (folder / name).read_text().splitlines()]
            assert starts == sorted(set(starts))
            if name == files_module.MINUTES_FILE:
                assert starts == list(range(starts[0], starts[-1] + 60, 60))


def full(pools, where):
    return {
        (name, key): {"capacity": capacity, "used": capacity - free - phantom, "free": free, "phantom": phantom}
        for (name, key), (free, phantom, capacity) in pools.items()
        if name == where
    }


@pytest.mark.parametrize("story", STORIES, ids=range(len(STORIES)))
def test_each_decision_is_recorded_once_with_figures_that_add_up(story, tmp_path):
    heard = Heard()
    world = play(story, folder=tmp_path, watch=heard)
    records = written(tmp_path)
    each_decision_is_recorded_once(records, heard)
    figures_are_a_chain(records, world.actor.broker)
    usage_is_as_summed_up_plainly(world, records, story)


@pytest.mark.parametrize("story", STORIES, ids=range(len(STORIES)))
def test_so_it_is_wherever_the_process_dies(story, tmp_path):
    chance = random.Random(len(story))
    points = play(story, folder=tmp_path / "whole").points
    for at in range(3):
        deaths = sorted(chance.sample(range(1, points), 6))
        heard = Heard()
        world = play(story, deaths, settle=chance.choice((0.0, 0.1, 1.5)), folder=tmp_path / str(at), watch=heard)
        assert world.died_at
        records = written(tmp_path / str(at))
        each_decision_is_recorded_once(records, heard)
        figures_are_a_chain(records, world.actor.broker)
        usage_is_as_summed_up_plainly(world, records, story)
        spans_follow_each_other(tmp_path / str(at))


# --- usage ------------------------------------------------------------------------------------


def plainly(records, until, policies):
    """used, borrowed, lent and reserved by pool, component and key, x seconds: every figure of every policy, from one
    record to the next."""
    sums, levels, capacity, reserves = {}, {}, {}, {}
    last = records[0]["at"]
    for record in [*records, {"at": until, "kind": "the end", "figures": {}}]:
        seconds, last = record["at"] - last, record["at"]
        for (name, key), amount in capacity.items():
            mine = {who: used for (where, who, what), used in levels.items() if (where, what) == (name, key)}
            reserved = {who: reserves.get((name, who, key), 0) for who in mine}
            above = sum(max(used - reserved[who], 0) for who, used in mine.items())
            idle = {who: max(reserved[who] - used, 0) for who, used in mine.items()}
            lent = min(max(above - (amount - sum(reserved.values())), 0), sum(idle.values()))
            for who, used in mine.items():
                share = lent * idle[who] / sum(idle.values()) if lent else 0.0
                row = sums.setdefault((name, who, key), [0.0] * 3)
                for at, figure in enumerate((used, max(used - reserved[who], 0), share)):
                    row[at] += figure * seconds
        if record["kind"] == "pool-changed":
            capacity |= {(record["pool"], key): row["capacity"] for key, row in record["figures"]["after"].items()}
        elif record["figures"]:
            for key, row in record["figures"]["after"].items():
                if "used" in row:
                    whose = (record["pool"], record["component"], key)
                    levels[whose], reserves[whose] = row["used"], row["reserved"]
        if record["kind"] == "config-applied":
            for one in policies:
                whose = (one["pool"], one["component"], "gpu")
                reserves[whose] = one.get("reserved", {}).get("gpu", 0)
                levels.setdefault(whose, 0)
    return sums


def usage_is_as_summed_up_plainly(world, records, story):
    usage = world.actor._trail.usage
    found = {}
    for span in usage.spans(0.0, usage.at):
        for (name, who, _, key), cell in span.cells.items():
            row = found.setdefault((name, who, key), [0.0] * 3)
            for at, amount in enumerate(cell[1:4]):
                row[at] += amount
    policies = next(step[1]["policies"] for step in story if step[0] == "apply" and "policies" in step[1])
    expected = plainly(records, usage.at, policies)
    for series, row in expected.items():
        assert found.get(series, [0.0] * 3) == pytest.approx(row, abs=1e-6), series
    assert set(found) <= set(expected)


# --- one by one -------------------------------------------------------------------------------


def world_in(folder, cluster=None):
    cluster = cluster or FakeCluster(node("n1", 4))
    cluster.folder = folder
    world = World(cluster)
    world.config = TWO
    return world


def test_an_eviction_says_who_took_what_from_whom(tmp_path):
    async def story():
        async with world_in(tmp_path) as world:
            await world.run("a", gpu=4)
            await world.submit("b", "blue", gpu=2)
            await world.until("b", "allocated")
            (evicted,) = await world.actor.events(kind="evicted")
            assert (evicted["request"], evicted["component"], evicted["pool"]) == ("a", "red", "p")
            assert (evicted["by"], evicted["rule"]) == ({"request": "b", "component": "blue"}, "reclaim")
            before = {"used": 4, "borrowed": 4, "reserved": 0, "leaving": 0, "free": 0, "phantom": 0}
            assert evicted["figures"] == {"before": {"gpu": before}, "after": {"gpu": {**before, "leaving": 4}}}
            assert evicted in await world.actor.events(component="blue")
            assert evicted in await world.actor.events(request_id="b")
            told = [one["kind"] for one in await world.actor.events(request_id="a")]
            assert told == ["submitted", "granted", "ready", "evicted", "notice", "preempted", "freed"]

    run(story)


def test_who_applied_what_is_told(tmp_path):
    async def story():
        async with world_in(tmp_path) as world:
            await world.actor.apply({"pools": [pool(gpu=6)]}, "ann", "more room")
            applied, changed = (await world.actor.events())[-2:]
            assert (applied["kind"], applied["by"]) == (
                "config-applied", {"name": "ann", "note": "more room", "version": 2},
            )  # fmt: skip
            assert "capacity" in applied["why"]
            assert (changed["kind"], changed["figures"]["after"]["gpu"]["capacity"]) == ("pool-changed", 6)
            await world.actor.apply({"pools": [pool(gpu=6)]}, "ben")
            assert (await world.actor.events())[-1]["why"] == "nothing changed"
            await world.actor.rollback(1, "ben")
            await world.actor.detach_policy("p", "red", "team", "ben")
            await world.actor.delete_pool("p", "ben", "closed")
            kinds = [one["kind"] for one in await world.actor.events() if one["by"].get("name") == "ben"]
            assert kinds == ["config-applied", "rolled-back", "policy-detached", "pool-deleted"]

    run(story)


def test_room_that_ray_does_not_give_back_is_told(tmp_path):
    async def story():
        cluster = LeakingCluster(node("n1", 4))
        async with world_in(tmp_path, cluster) as world:
            await world.run("a", gpu=1)
            await world.actor.release("a")
            await world.pass_seconds(60)
            cluster.give_back()
            await world.pass_seconds(60)
            told = [one for one in await world.actor.events(request_id="a") if one["kind"] in ("phantom", "freed")]
            assert [one["kind"] for one in told] == ["phantom", "freed"]
            assert [one["figures"]["after"]["gpu"]["phantom"] for one in told] == [1, 0]
        figures_are_a_chain(written(tmp_path), world.actor.broker)

    run(story)


def test_older_records_come_from_the_files_as_they_were_told(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "EVENTS_BYTES", 5_000)

    async def story():
        async with world_in(tmp_path) as world:
            for number in range(12):
                await world.run(f"r{number}", gpu=1)
                await world.actor.release(f"r{number}")
                await world.pass_seconds(1)
            everything = [row for row in written(tmp_path) if row["kind"] != "started"]
            assert len(list(tmp_path.glob("raypool_events.jsonl*"))) > 3
            events = world.actor.events

            def whole(found):
                return [one for one in found if one["kind"] != "started"]

            assert whole(await events()) == everything
            assert await events(limit=30) == everything[-30:]
            assert await events(request_id="r1") == [one for one in everything if one["request"] == "r1"]
            since = everything[20]["at"]
            assert await events(since=since) == [one for one in everything if one["at"] >= since]
            after = everything[7]["event"]
            first = await events(after=after, limit=5)
            assert first == [one for one in everything if one["event"] > after][: len(first)]
            assert 5 <= len(first) <= 8
            await world.begin_again()
            await world.pass_seconds(1)
            assert whole(await world.actor.events()) == everything

    run(story)


def test_whoever_follows_is_told_all_of_it_once(tmp_path):
    async def story():
        async with world_in(tmp_path) as world:
            last = (await world.actor.next_events(None, 0.0))["last"]
            told = []

            async def follow():
                nonlocal last
                while True:
                    answer = await world.actor.next_events(last, 30.0, limit=3)
                    last = answer["last"]
                    told.extend(answer["events"])

            following = asyncio.ensure_future(follow())
            for number in range(6):
                await world.run(f"r{number}", gpu=1)
                await world.actor.release(f"r{number}")
            await world.pass_seconds(5)
            following.cancel()
            assert told == [one for one in await world.actor.events() if one["event"] > told[0]["event"] - 1]
            assert {one["request"] for one in told} == {f"r{number}" for number in range(6)}
            began = asyncio.get_running_loop().time()
            assert await world.actor.next_events(last, 7.0) == {"events": [], "last": last}
            assert asyncio.get_running_loop().time() - began == pytest.approx(7.0, abs=0.2)

    run(story)


def test_recording_that_fails_changes_nothing_else(tmp_path, caplog):
    async def story():
        async with world_in(tmp_path) as world:
            world.actor._trail.usage.moved = None
            await world.run("a", gpu=1)
            assert "was not recorded" in caplog.text

    run(story)


def test_a_record_that_cannot_be_made_is_told_and_others_are_written(tmp_path, caplog, monkeypatch):
    async def story():
        async with world_in(tmp_path) as world:
            made = files_module.lines_of

            def stumbles(turn):
                assert "b" not in (getattr(one, "request", None) for one in turn.instructions)
                return made(turn)

            monkeypatch.setattr(files_module, "lines_of", stumbles)
            for id in "abc":
                await world.run(id, gpu=1)
                await world.pass_seconds(1)
            assert "is not in the records" in caplog.text
            assert {row["request"] for row in written(tmp_path)} >= {"a", "c"}
            assert [one["kind"] for one in await world.actor.events(request_id="b")] == [
                "submitted",
                "granted",
                "ready",
            ]

    run(story)


DAMAGE = [b"\0\0\0\0\n", b"\xff\xfe not text\n", b"{}\n", b"[1]\n", b'{"event":1,"kind":"started"}\n', b"12\n"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_lines_that_a_disk_has_spoilt_are_passed_over_and_told(tmp_path, caplog, damage):
    async def story():
        async with world_in(tmp_path) as world:
            for number in range(20):
                await world.run(f"a{number}", gpu=1)
                await world.actor.release(f"a{number}")
                await world.pass_seconds(1)
            await world.pass_seconds(120)
            before = await world.actor.events(limit=1000)
            for name in (files_module.EVENTS_FILE, files_module.MINUTES_FILE):
                lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
                (tmp_path / name).write_bytes(b"".join([*lines[:1], damage, *lines[1:], damage]))
            await world.begin_again()
            await world.run("b", gpu=1)
            await world.pass_seconds(60)
            assert (await world.actor.events(limit=1000))[: len(before)] == before
            assert (await world.actor.events(limit=1000))[-1]["request"] == "b"
            assert "cannot be read, and are passed over" in caplog.text
            assert (await world.warnings()) == []

    run(story)


def test_a_folder_that_cannot_be_written_is_a_warning_and_all_is_written_later(tmp_path):
    async def story():
        folder = tmp_path / "logs"
        folder.write_text("in the way")
        async with world_in(folder) as world:
            await world.run("a", gpu=1)
            await world.pass_seconds(100)
            assert any("records of events cannot be written" in one for one in await world.warnings())
            folder.unlink()
            await world.pass_seconds(10)
            assert not any("records of events" in one for one in await world.warnings())
            assert [row["kind"] for row in written(folder) if row["request"] == "a"] == [
                "submitted",
                "granted",
                "ready",
            ]

    run(story)


def test_another_broker_on_the_same_cluster_goes_on_in_the_same_files(tmp_path):
    async def story():
        async with world_in(tmp_path) as first:
            await first.run("a", gpu=1)
            await first.actor.end_all("the broker was stopped")
            first.crash()
        old = written(tmp_path)
        assert old[-1]["request"] == "a"
        async with world_in(tmp_path, first.cluster) as second:
            await second.run("b", gpu=1)
            await second.pass_seconds(1)
            assert await second.actor.events(request_id="a") == [one for one in old if one["request"] == "a"]
            await second.begin_again()
            await second.pass_seconds(1)
            new = written(tmp_path)[len(old) :]
            assert [(one["event"], one["index"]) for one in new] == sorted(
                {(one["event"], one["index"]) for one in new}
            )
            assert new[0]["event"] == 1

    run(story)


def test_many_submissions_as_lines_are_the_records_of_each(tmp_path):
    async def story():
        async with world_in(tmp_path) as world:
            bodies = [{"component": "red", "resources": {"gpu_count": n}} for n in (1, 3, 9)]
            await world.actor.submit_many(bodies, [f"r{n}" for n in range(9)], [0, 1, 2] * 3, "01")
            turn = next(
                one.turn
                for one in world.actor._trail._recent
                if one.turn and type(one.turn.event) is ev.ManySubmitted
            )
            assert [json.loads(line) for line in lines_of(turn)] == [
                json.loads(json.dumps(record)) for record in records_of(turn)
            ]
            spec = RequestSpec.load({"id": "x", **bodies[0]})
            assert records_of(turn)[0]["facts"] == {"demand": {"gpu": 1, "step_run": 1}} and spec.id == "x"

    run(story)


def test_usage_and_the_report_are_answered(tmp_path):
    async def story():
        async with world_in(tmp_path) as world:
            await world.run("a", gpu=4)
            await world.pass_seconds(1_800)
            await world.submit("b", "blue", gpu=2)
            await world.until("b", "allocated")
            await world.submit("c", gpu=4)
            await world.pass_seconds(1_800)
            found = await world.actor.report(1e6)
            rows = {(row["component"], row["key"]): row for row in found["rows"]}
            red, blue = rows["red", "gpu"], rows["blue", "gpu"]
            assert red["used"] == red["borrowed"] == pytest.approx(2.0, abs=0.02)
            assert red["lost"] == pytest.approx(2.0, abs=0.02)
            assert (red["waits"], red["waiting"], blue["waits"], blue["waiting"]) == (1, 1, 1, 0)
            assert blue["wait_max_seconds"] == pytest.approx(5.0, abs=0.5)  # the grace of who left for it
            assert blue["used"] == pytest.approx(1.0, abs=0.02)
            assert blue["lent"] == pytest.approx(1.0, abs=0.02)
            used = (await world.actor.usage(600, 60))["pools"]["p"]["gpu"]
            assert used["components"] == {"blue": [2.0] * 11} and used["capacity"] == [4.0] * 11

    run(story)


def test_a_broker_younger_than_what_is_asked_for_is_told_by_the_minute_though_an_hour_is_over(tmp_path):
    async def story():
        async with world_in(tmp_path) as world:
            await world.run("a", gpu=4)
            await world.pass_seconds(3_000)
            assert asyncio.get_running_loop().time() > 3_600 + 120
            steps = await world.actor.usage(7_200, 60)
            assert steps["step_seconds"] == 60
            used = steps["pools"]["p"]["gpu"]["components"]["red"]
            assert used[-40:] == [pytest.approx(4.0)] * 40 and used[0] is None

    run(story)


def test_hours_come_from_the_file_when_the_minutes_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(usage_module, "KEPT_MINUTES", 70)
    monkeypatch.setattr(trail_module, "KEPT_MINUTES", 70)

    async def story():
        async with world_in(tmp_path) as world:
            await world.run("a", gpu=4)
            for _ in range(2):
                await world.pass_seconds(4_200)
                await world.begin_again()
                await world.pass_seconds(60)
            now = asyncio.get_running_loop().time()
            spans_follow_each_other(tmp_path)
            found = await world.actor.report(1e6)
            (red,) = [row for row in found["rows"] if row["component"] == "red"]
            assert red["used"] == pytest.approx(4 * (now - 1_000) / 3_600, abs=0.02)
            steps = await world.actor.usage(1e5, 60)
            assert steps["step_seconds"] == 3_600
            used = steps["pools"]["p"]["gpu"]["components"]["red"]
            assert used == [pytest.approx(4.0, abs=0.02)] * 3

    run(story)
