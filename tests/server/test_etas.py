"""How much of the broker's time looks ahead take, whatever is asked, and who has an answer."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from raypool.core.eta import Expected
from raypool.server import etas
from raypool.server.etas import ADVANCE_SECONDS, PATIENCE_SECONDS, REST, SHARE, SHARE_FOR_UNKNOWN, Etas
from raypool.server.spare import Budget

from .virtual_time import run
from .world import World

SLICES = 10


class Desk:
    """Etas in front of a broker of which only is known who waits. A look takes `cost` seconds, of the clock too.

    looks: when each began, what it took, whom it was for; None: all."""

    def __init__(self, monkeypatch, cost=1.0):
        self.requests = {}
        self.now, self.version, self.cost = 0.0, 0, cost
        self.looks = []
        desk = self

        class Look:
            def __init__(self, broker, asked, now, past=None):
                desk.looks.append((now, desk.cost, asked))
                self.expected, self.asked = {}, list(broker.requests) if asked is None else asked

            def steps(self):
                for _ in range(SLICES):
                    desk.now += desk.cost / SLICES
                    yield
                self.expected = {id: Expected(desk.version, desk.version) for id in self.asked}

        monkeypatch.setattr(etas, "Forecast", Look)
        self.etas = Etas(lambda: self, lambda: self.version, lambda: self.now, self.spawn, lambda: self.now)

    def spawn(self, work):
        return asyncio.get_running_loop().create_task(work)

    def submit(self, *ids):
        self.version += 1
        for id in ids:
            self.requests[id] = SimpleNamespace(waiting=True)

    def describe(self, id):
        """The version of the state that the answer is of; None if there is none."""
        found = asyncio.run(self.etas.of([id], at_once=True)).get(id)
        return None if found is None else found.p50

    def list(self):
        return {id: found.p50 for id, found in asyncio.run(self.etas.of(list(self.requests))).items()}

    def dry_run(self):
        return asyncio.run(self.etas.if_it_were(SimpleNamespace(requests={"dry": None}), "dry"))

    @property
    def asked(self):
        return [asked for _, _, asked in self.looks]


@pytest.fixture
def desk(monkeypatch):
    return Desk(monkeypatch)


def test_who_asks_for_one_after_another_has_all_answers_from_two_looks(desk):
    desk.submit(*(f"r{number}" for number in range(50)))
    assert [desk.describe(f"r{number}") for number in range(50)] == [1] * 50
    assert desk.asked == [["r0"], None]


def test_who_is_listed_has_an_answer_whoever_was_asked_for_before(desk):
    desk.submit("a", "b")
    assert desk.describe("a") == 1
    assert desk.list() == {"a": 1}
    desk.now += desk.cost / SHARE
    assert desk.list() == {"a": 1, "b": 1}


def test_until_a_look_has_rested_what_was_found_is_told_again_also_when_the_state_has_changed(desk):
    desk.submit("a")
    assert desk.list() == {"a": 1}
    desk.submit("b")
    assert (desk.list(), desk.describe("a")) == ({"a": 1}, 1)
    desk.now += desk.cost / SHARE
    assert desk.list() == {"a": 2, "b": 2}


def test_lists_that_are_asked_for_all_the_time_keep_nobody_from_an_answer(desk):
    desk.cost = 4.0
    for turn in range(200):
        desk.submit(f"r{turn}")
        desk.list()
        desk.now += 1
    assert desk.describe("r199") is not None


def test_when_too_much_was_asked_nothing_is_told_until_time_has_passed(desk):
    answers = []
    for turn in range(8):
        desk.submit(f"r{turn}")
        answers.append(desk.describe(f"r{turn}") is not None)
    assert answers == [True] * 5 + [False] * 3
    assert desk.dry_run() is None
    desk.now += 10 * desk.cost / SHARE_FOR_UNKNOWN
    assert desk.describe("r7") == 8


def test_a_dry_run_is_told_at_once_and_its_look_counts(desk):
    assert [desk.dry_run() is not None for _ in range(6)] == [True] * 4 + [False] * 2


def test_who_does_not_wait_any_more_is_forgotten(desk):
    desk.submit("a", "b")
    desk.list()
    del desk.requests["a"]
    desk.version += 1
    desk.now += 100
    assert desk.list() == {"b": 2}
    assert desk.etas._known.keys() == desk.etas._fresh == {"b"}


# --- nobody who waits is held up --------------------------------------------------------------


WORK_SECONDS = 40.0


@pytest.fixture
def slow(monkeypatch):
    """Looks take so many seconds of work, a tenth in each slice, by the clock of the loop. Returns for whom each was:
    None: all."""
    looks = []

    class Slow:
        def __init__(self, broker, asked, now, past=None):
            looks.append(asked)
            self.expected = {id: Expected(now + 60, now + 90) for id, one in broker.requests.items() if one.waiting}

        def steps(self):
            loop = asyncio.get_running_loop()
            for _ in range(int(WORK_SECONDS * 10)):
                loop.now += 0.1
                yield

    monkeypatch.setattr(etas, "Forecast", Slow)
    monkeypatch.setattr(etas.Etas.__init__, "__defaults__", (lambda: asyncio.get_running_loop().time(),))
    return looks


def seconds_of(awaited):
    """How long it took, and the answer."""

    async def timed():
        began = asyncio.get_running_loop().time()
        answer = await awaited
        return asyncio.get_running_loop().time() - began, answer

    return timed()


def test_who_waits_has_his_log_in_time_and_is_told_when_it_starts_as_soon_as_it_is_known(slow):
    async def story():
        async with World() as world:
            await world.run("runs", gpu=8)
            for number in range(20):
                await world.submit(f"w{number}", gpu=8)
            seen = world.actor._journal.number + 10_000

            async def log(number):
                took, answer = await seconds_of(world.actor.watch(f"w{number}", seen, 5.0, explain=True))
                assert took < 5.5
                assert answer["why"]["waits"]
                return answer["request"]["eta_p50_seconds"]

            assert await asyncio.gather(*map(log, range(20))) == [None] * 20
            assert slow == [None]
            await world.pass_seconds(WORK_SECONDS * (1 + REST))
            assert None not in await asyncio.gather(*map(log, range(20)))

    run(story)


@pytest.mark.parametrize(
    ("until_its_grant", "patience", "looked"), [(0.9, 5.0, False), (1.1, 5.0, True), (0.4, 0.6, True)]
)
def test_nobody_looks_ahead_for_who_has_his_grant_soon(slow, until_its_grant, patience, looked):
    async def story():
        async with World() as world:
            await world.run("runs", gpu=8)
            asked = {"id": "asked", "component": "red", "resources": {"gpu_count": 8}}
            asking = asyncio.ensure_future(world.actor.acquire(asked, None, None, patience, explain=True))
            await world.pass_seconds(until_its_grant)
            assert bool(slow) == looked
            await world.actor.release("runs")
            await world.pass_seconds(3)
            assert bool(slow) == looked
            assert (await asking)["request"]["status"] == "allocated"

    run(story)


def test_a_look_that_nobody_waits_for_leaves_most_of_the_time_to_others(slow):
    async def story():
        async with World() as world:
            await world.run("runs", gpu=8)
            await world.submit("waits", gpu=8)
            loop = asyncio.get_running_loop()
            began = loop.time()
            world.actor._etas.look_beside(["waits"])
            while not world.actor._etas.known(["waits"]):
                await world.pass_seconds(1)
            assert loop.time() - began == pytest.approx(WORK_SECONDS * (1 + REST), rel=0.1)

    run(story)


@pytest.mark.parametrize("question", ["describe", "why", "requests", "dry run"])
def test_who_asks_a_question_has_an_answer_after_some_seconds_and_others_meanwhile(slow, question):
    async def story():
        async with World() as world:
            await world.run("runs", gpu=8)
            await world.submit("waits", gpu=8)
            ask = {
                "describe": lambda: world.actor.describe("waits"),
                "why": lambda: world.actor.why("waits"),
                "requests": lambda: world.actor.requests(),
                "dry run": lambda: world.actor.dry_run(
                    {"id": "dry", "component": "red", "resources": {"gpu_count": 8}}, None
                ),
            }[question]
            asked = asyncio.ensure_future(seconds_of(ask()))
            took, answer = await seconds_of(world.submit("late", gpu=1))
            assert (took < 0.5, answer["status"]) == (True, "pending")
            took, _ = await asked
            assert PATIENCE_SECONDS <= took < PATIENCE_SECONDS + 1
            await world.pass_seconds(WORK_SECONDS * (1 + REST))
            known = (await world.view("waits"))["eta_p50_seconds"]
            assert (known is None) == (question == "dry run")

    run(story)


def test_a_budget_is_ahead_by_what_its_share_does_not_allow_yet():
    now = [100.0]
    budget = Budget(0.04, lambda: now[0])
    assert budget.ahead == 0
    budget.charge(2.0)
    budget.charge(1.0)
    assert budget.ahead == pytest.approx(3.0)
    now[0] += 25
    assert budget.ahead == pytest.approx(2.0)
    now[0] += 1000
    assert budget.ahead == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_looks_take_no_more_than_their_share(monkeypatch, seed):
    """In any stretch of time; and who asks when nobody has for some minutes has an answer at once."""
    chance, most = random.Random(seed), 2.0
    desk = Desk(monkeypatch)
    quiet_since, answers = 0.0, 0
    for turn in range(600):
        desk.cost = chance.choice([0.01, 0.3, most])
        desk.now += chance.choice([0, 0, 0.1, 1, 1, 600])
        if chance.random() < 0.5:
            desk.submit(f"r{turn}")
        if not desk.requests:
            continue
        id = chance.choice(list(desk.requests))
        match chance.choice(["describe", "list", "dry run"]):
            case "list":
                desk.list()
            case "dry run":
                desk.dry_run()
                quiet_since = desk.now
            case "describe":
                spent = (ADVANCE_SECONDS + most) / SHARE_FOR_UNKNOWN
                if desk.now - quiet_since >= spent:
                    assert desk.describe(id) is not None
                    answers += 1
                quiet_since = desk.now
    assert answers > 20
    for first, (began, _, _) in enumerate(desk.looks):
        work = 0.0
        for at, cost, _ in desk.looks[first:]:
            work += cost
            allowed = (SHARE + SHARE_FOR_UNKNOWN) * (at - began) + ADVANCE_SECONDS + 2 * most
            assert work <= allowed, f"{work} s of work in {at - began} s"
