"""Nothing that is sent can stop or spoil the broker: calls with junk, nearly right, in any order, twice, after
the end, with crashes in between.

After each call the laws hold, the journal tells the same state, and a call that raised has changed nothing.
RAYPOOL_HISTORIES says how many are played. What they have found stands as plain tests at the end.
"""

import asyncio
import inspect
import json
import math
import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from raypool.core.snapshot import Snapshots
from raypool.errors import BrokerDegraded, BrokerFault, RaypoolError, Refused, SpecError
from raypool.server.actor import PoolBroker
from raypool.server.calls import CONFIG_CHARACTERS, SPEC_CHARACTERS, WORDS
from raypool.server.ray_actor import CALLS

from .fake_cluster import FakeCluster, actor_id, node
from .virtual_time import run
from .world import World, policy, pool

EXAMPLES = 2 * int(os.environ.get("RAYPOOL_HISTORIES", "10"))
SEARCH = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    phases=[Phase.explicit, Phase.generate],  # to make a failure smaller would take minutes
)

# --- what is sent -----------------------------------------------------------------------------

NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, 5e-324, math.nan, math.inf, -math.inf, True]
TEXTS = [
    "",
    " ",
    "a",
    "p",
    "red",
    "\x00",
    "\n",
    "\ud800",
    "x" * 129,
    "y" * 5_000,
    "é/ü",
    "__class__",
    "None",
    "16GiB",
]
ODD = [None, False, b"x", (1,), {1}, object, [], {}, *NUMBERS, *TEXTS]
JUNK = st.recursive(
    st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
    max_leaves=6,
)
IDS = st.sampled_from(["a", "b", "c", "ab", "d"])
POOLS = st.sampled_from(["p", "q"])
OWNERS = st.sampled_from(["red", "blue", "green"])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "gpu_count": st.integers(0, 9),
        "cpu_count": st.sampled_from([1, 0.5, 1e9, 5e-324]),
        "memory": st.sampled_from(["1KB", "16GiB", "999999PB"]),
        "pool_resources": st.dictionaries(st.sampled_from(["gpu", "licence", "\u00e9"]), st.integers(1, 10**15)),
        "preemptible": st.booleans(),
    },
)
SPECS = st.fixed_dictionaries(
    {"id": IDS, "component": OWNERS},
    optional={
        "resources": SETTINGS,
        "workers": st.sampled_from([1, 2, 10_000]),
        "bundles": st.lists(SETTINGS, min_size=1, max_size=3),
        "pool": POOLS,
        "strategy": st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
        "grace_seconds": st.sampled_from([0, 5, 1e9]),
        "lifetime": st.just("detached"),
        "retry_of": IDS,
        "description": st.sampled_from(["", "x" * 4096]),
    },
)
AMOUNTS = st.dictionaries(st.sampled_from(["gpu", "licence", "mcpu"]), st.sampled_from([1, 4, 8, 10**15]), max_size=2)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "pools": st.lists(
            st.fixed_dictionaries(
                {"name": POOLS, "capacity": AMOUNTS},
                optional={
                    "queueing": st.sampled_from(["strict", "backfill"]),
                    "grace_seconds": st.sampled_from([0, 1e9]),
                    "infeasible": st.sampled_from(["wait", "reject"]),
                    "placement_timeout_seconds": st.sampled_from([5e-324, 1, 10**6]),
                    "ray_resources": st.just({"licence": "trt"}),
                    "node_labels": st.just({"kind": "a"}),
                },
            ),
            max_size=2,
        ),
        "policies": st.lists(
            st.fixed_dictionaries(
                {"pool": POOLS, "component": OWNERS, "priority": st.sampled_from([0, 1, 10**15])},
                optional={"reserved": AMOUNTS, "limit": AMOUNTS},
            ),
            max_size=3,
        ),
        "unmanaged": st.sampled_from(["allow", "reject"]),
    },
)


@st.composite
def nearly(draw, right):
    """What is right, with a place in it that may not be."""
    value = draw(right)
    place = value
    while draw(st.booleans()):
        inner = [
            one for one in (place.values() if isinstance(place, dict) else place) if isinstance(one, dict | list)
        ]
        if not inner:
            break
        place = draw(st.sampled_from(inner))
    if isinstance(place, list):
        place.append(draw(JUNK))
    else:
        place[draw(st.sampled_from([*sorted(place), "unknown", "z" * 10_000]))] = draw(JUNK)
    return value


def without_id(spec):
    return {name: value for name, value in spec.items() if name != "id"}


RIGHT = {
    "config": CONFIGS,
    "by": st.sampled_from(["", "ann"]),
    "note": st.sampled_from(["", "as it was"]),
    "version": st.integers(0, 6),
    "spec": SPECS,
    "bodies": st.lists(SPECS.map(without_id), min_size=1, max_size=2),
    "ids": st.lists(IDS, min_size=2, max_size=2),
    "body_of": st.lists(st.integers(0, 1), min_size=2, max_size=2),
    "first": st.integers(1, 3),
    "request_id": IDS,
    "group_id": st.just("0001"),
    "actor_id": st.just(actor_id("a")),
    "job": st.none() | st.sampled_from(["job1", "job2"]),
    "holder": st.none() | st.sampled_from(["h1", "h2"]),
    "token": st.just([]),
    "name": POOLS,
    "pool": POOLS,
    "component": OWNERS,
    "component_type": st.just("team"),
    "status": st.none() | st.just("pending"),
    "reason": st.just("because"),
    "seen": st.sampled_from([-1, 0, 5]),
    "timeout_seconds": st.sampled_from([0, 0.5, 2]),
    "since": st.sampled_from([0, 1000.5, 2**40]),
    "after": st.sampled_from([-1, 0, 7]),
    "limit": st.sampled_from([1, 10_000]),
    "kind": st.sampled_from(["granted", "pool-changed"]),
    "since_seconds": st.sampled_from([1, 3600, 10**7]),
    "step_seconds": st.sampled_from([0.1, 60, 10**7]),
    "which": st.sampled_from(["waiting", "running", "ended"]),
    "skip": st.sampled_from([0, 1]),
    "count": st.sampled_from([1, 50]),
    "ended": st.booleans(),
    "explain": st.booleans(),
    "clean": st.booleans(),
    "discard_journal": st.booleans(),
}
NEARLY = {
    word: nearly(RIGHT[word]) | JUNK if word in ("config", "spec", "bodies", "ids", "body_of") else JUNK
    for word in RIGHT
}
ANSWERED = [name for name in CALLS if name not in ("hold", "here")]
"""The two others stay open: tests/server/test_owners.py has them."""

TAKES = {name: list(inspect.signature(getattr(PoolBroker, name)).parameters)[1:] for name in ANSWERED}
OFTEN = ("submit", "submit", "submit_many", "submit_many", "apply", "rollback", "release", "cancel", "forget")


@st.composite
def calls(draw, wrong):
    """A call, by name, with its arguments; wrong: whether one of them, or their number, is."""
    name = draw(st.sampled_from([*ANSWERED, *OFTEN]))
    more = {word: draw(RIGHT[word]) for word in TAKES[name]}
    args = ()
    if draw(wrong):
        how = draw(st.sampled_from(["value", "value", "value", "left out", "unknown", "too many"]))
        if how == "unknown":
            more[draw(st.sampled_from(["sean", "self", "z" * 10_000]))] = draw(JUNK)
        elif how == "too many":
            args = (draw(JUNK),) * (len(more) + 1)
        elif more:
            word = draw(st.sampled_from(sorted(more)))
            del more[word]
            if how == "value":
                more[word] = draw(NEARLY[word])
    return name, args, more


ANY = calls(st.booleans())
STEPS = st.lists(st.one_of(ANY, ANY, ANY, st.sampled_from(["again", "crash", "pass"])), min_size=8, max_size=16)


# --- what must be so --------------------------------------------------------------------------


def state(broker):
    """All that a broker knows, but for the time of the last event."""
    head, *lines = Snapshots().lines_of(broker, 0)
    return [{**json.loads(head), "at": None}, *map(json.loads, lines)]


async def send(world, name, args, more):
    """Sends it, and looks whether anything went wrong that must not."""
    broker = world.actor.broker
    before = state(broker)
    try:
        json.dumps(await getattr(world.actor, name)(*args, **more))
    except BrokerFault as error:
        raise AssertionError(f"{name} {args} {more}") from error
    except RaypoolError as error:
        assert world.actor.broker is broker and state(broker) == before, "a call that raised has changed something"
        assert 0 < len(str(error)) < 3_000, error
    await world.pass_seconds(0.1)
    if not world.actor._stopping:
        assert state(world.actor._journal.again()) == state(world.actor.broker), "the journal tells something else"
    assert not world.actor.degraded


async def crash(world):
    """The process is gone; the one after it knows the same, unless everything was ended."""
    await world.pass_seconds(2)
    before, ended = state(world.actor.broker), world.actor._stopping
    await world.begin_again()
    await world.pass_seconds(0.1)
    if ended:
        assert await world.actor.requests() == []
    else:
        assert [*state(world.actor.broker)] == before
    assert not world.actor.degraded


async def one_of_each(world):
    """A request that runs, one that waits, and one that is over."""
    await world.run("c")
    await world.actor.release("c")
    await world.run("a", gpu=2)
    await world.submit("b", gpu=8)
    await world.pass_seconds(1)


async def play(steps):
    policies = [policy("red", reserved={"gpu": 4}), policy("blue", priority=2), policy("blue", pool="q")]
    pools = [pool(), pool("q", queueing="backfill", grace_seconds=1)]
    last = ("hello", (), {})
    async with World(FakeCluster(node("n1"), node("n2", kind="a")), pools, policies) as world:
        await one_of_each(world)
        for step in steps:
            if step == "crash":
                await crash(world)
            elif step == "pass":
                await world.pass_seconds(40)
            else:
                last = last if step == "again" else step
                await send(world, *last)


USUAL = {
    "config": {}, "by": "ann", "note": "", "version": 1,
    "spec": {"component": "red"}, "bodies": [{"component": "red"}], "ids": ["d"], "body_of": [0],
    "request_id": "a", "group_id": "0001", "actor_id": actor_id("a"),
    "job": None, "holder": "h1", "token": [], "name": "p", "pool": "p", "component": "red",
    "component_type": "team", "first": 1, "status": None, "reason": "because", "seen": 2**40,
    "timeout_seconds": 0, "explain": True, "ended": True, "clean": True,
    "discard_journal": False, "since": 0, "after": 0, "limit": 10, "kind": "granted",
    "which": "ended", "skip": 0, "count": 1,
    "since_seconds": 60, "step_seconds": 60,
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERED)
def test_every_argument_of_every_call_may_be_anything(name):
    async def story():
        async with World() as world:
            await one_of_each(world)
            for word, value in ((word, value) for word in TAKES[name] for value in ODD):
                try:
                    json.dumps(
                        await getattr(world.actor, name)(**{**{one: USUAL[one] for one in TAKES[name]}, word: value})
                    )
                except BrokerFault as error:
                    raise AssertionError(f"{name}: {word} is {value!r}") from error
                except RaypoolError:
                    pass
            await world.pass_seconds(1)
            if not world.actor._stopping:
                assert state(world.actor._journal.again()) == state(world.actor.broker)
            assert not world.actor.degraded

    run(story)


@SEARCH
@given(st.lists(calls(st.just(True)), min_size=6, max_size=12))
def test_junk_in_any_call_is_refused_in_a_sentence_and_changes_nothing(sent):
    run(lambda: play(sent))


@SEARCH
@given(STEPS)
def test_calls_in_any_order_twice_and_after_the_end_with_crashes_in_between(steps):
    run(lambda: play(steps))


def test_every_word_of_a_call_is_known_here_and_there():
    said = {word for name in CALLS for word in list(inspect.signature(getattr(PoolBroker, name)).parameters)[1:]}
    assert said == set(WORDS) == set(RIGHT) == set(USUAL)


# --- bounds -----------------------------------------------------------------------------------


def test_a_submission_is_bounded_and_with_it_the_lines_of_the_journal():
    async def story():
        async with World() as world:
            long = {"x" * 100 + str(i): 10**15 for i in range(8_000)}
            await world.actor.submit({"id": "a", "component": "red", "resources": {"pool_resources": long}}, None)
            assert SPEC_CHARACTERS * 0.9 < max(map(len, world.actor._journal._lines)) < SPEC_CHARACTERS * 1.1
            longer = [{"pool_resources": {f"licence{i}": 1}} for i in range(30_000)]
            with pytest.raises(SpecError, match=f"spec: must be at most {SPEC_CHARACTERS} characters of JSON"):
                await world.actor.submit({"id": "b", "component": "red", "bundles": longer}, None)

    run(story)


def test_a_gang_of_ten_thousand_unlike_bundles_is_within_the_bound():
    gang = [{"gpu_count": i % 9, "cpu_count": 64.5, "memory": "512GiB"} for i in range(10_000)]
    assert len(json.dumps(gang)) < SPEC_CHARACTERS


def test_a_change_of_pools_is_bounded():
    async def story():
        async with World() as world:
            long = {"pools": [pool(f"p{i}", description="x" * 4096) for i in range(1_000)]}
            says = f"config: must be at most {CONFIG_CHARACTERS} characters of JSON"
            for call in (world.actor.apply, world.actor.check):
                with pytest.raises(SpecError, match=says):
                    await call(long)
            await world.actor.apply({"policies": [policy(f"team{i}") for i in range(100)]})

    run(story)


@pytest.mark.parametrize(
    ("call", "args", "says"),
    [
        ("watch", ("a", True, 1.0), "watch: seen: must be a whole number, got True"),
        ("watch", ("a", 0, math.nan), "watch: timeout_seconds: must be a finite number, got nan"),
        ("watch", ("a", 0, 10**10), "watch: timeout_seconds: must be <= 1000000000, got 10000000000"),
        ("watch", ("a", 0, -1), "watch: timeout_seconds: must be >= 0, got -1"),
        ("watch", ("a", 0, "1"), "watch: timeout_seconds: must be a number, got '1'"),
        ("describe", ("a" * 10_000_000,), "describe: request_id: must have at most 512 characters, got 'aaaa"),
        ("describe", ("a\nb",), r"describe: request_id: must be printable, got 'a\\nb'"),
        ("describe", (), "describe: request_id: is required"),
        ("describe", ("a", "b"), "describe: takes request_id, got 2 arguments"),
        ("hello", (1,), "hello: takes no arguments, got 1 arguments"),
        ("cancel", ("a", "x" * 1001), "cancel: reason: must have at most 1000 characters, got 'xxx"),
        ("attach_actor", ("a", "junk"), "attach_actor: actor_id: must be an id of Ray's, got 'junk'"),
        ("requests", ("pendin",), "requests: status: must be 'pending', 'allocated'"),
        ("requests", (None, None, None, 1), "requests: ended: must be true or false, got 1"),
        ("submit", ([], None), r"submit: spec: must be a mapping, got \[\]"),
        ("submit", ({"id": object()}, None), "submit: spec: must be plain data"),
        ("submit", ({"id": "a", "component": "red", "grace_seconds": math.inf}, None), "must be a finite number"),
        ("detach_policy", (None, "red", "team"), "detach_policy: pool: must be a string, got None"),
    ],
)
def test_what_a_call_takes_is_said_when_it_got_something_else(call, args, says):
    async def story():
        async with World() as world:
            await world.submit("a")
            with pytest.raises(SpecError, match=says) as caught:
                await getattr(world.actor, call)(*args)
            assert len(str(caught.value)) < 300

    run(story)


def test_an_argument_given_twice_or_unknown_is_said():
    async def story():
        async with World() as world:
            with pytest.raises(SpecError, match="describe: request_id is given twice"):
                await world.actor.describe("a", request_id="a")
            with pytest.raises(SpecError, match=r"describe: 'sel' is no argument of it \(it takes request_id\)"):
                await world.actor.describe("a", sel="a")

    run(story)


# --- what was found ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "args"),
    [("delete_pool", ("p",)), ("detach_policy", ("p", "red", "team")), ("forget", ("a",)), ("release", ("a",))],
)
def test_a_change_after_the_end_is_refused_and_does_not_wait_for_ever(call, args):
    async def story():
        async with World() as world:
            await world.run("a")
            await world.actor.end_all("the end")
            world.cluster.live.append(node("n2"))
            await world.pass_seconds(60)
            with pytest.raises(Refused, match="the broker has ended"):
                await asyncio.wait_for(getattr(world.actor, call)(*args), 100)
            await asyncio.wait_for(world.actor.end_all("the end"), 100)
            assert world.cluster.store == {}

    run(story)


def test_a_request_submitted_again_to_a_broker_that_lost_its_journal_is_answered():
    async def story():
        async with World() as world:
            await world.run("a")
            other = World(world.cluster)
            await other.actor.begin()
            await other.submit("b")
            for id in ("c", "c", "a"):
                with pytest.raises(BrokerDegraded, match="another broker writes to the same journal"):
                    await asyncio.wait_for(world.submit(id), 100)

    run(story)


def test_what_a_call_stumbles_over_is_a_fault_with_its_traceback_in_the_log(monkeypatch, caplog):
    def stumble(*_):
        raise KeyError("x" * 10_000)

    async def story():
        async with World() as world:
            await world.submit("a")
            monkeypatch.setattr("raypool.server.actor.view_request", stumble)
            with pytest.raises(BrokerFault, match=r"describe could not be answered \(KeyError\('xxx") as caught:
                await world.view("a")
            assert len(str(caught.value)) < 500
            assert "in stumble" in caplog.text

    run(story)


def test_a_call_that_is_cancelled_is_cancelled():
    async def story():
        async with World() as world:
            await world.submit("a", gpu=100)
            call = asyncio.ensure_future(world.actor.watch("a", 10**9, 30.0))
            await world.pass_seconds(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    run(story)
