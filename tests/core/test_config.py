"""Changing pools and policies: each refusal with its sentence, all or nothing, and what work that runs sees."""

import pytest

from raypool.core import events as ev
from raypool.core.config import warnings_of
from raypool.errors import Refused
from raypool.spec import BrokerConfig

from .story import Story, policy, pool


def refusal(story, event):
    before = story.broker.config, story.figures()
    with pytest.raises(Refused) as caught:
        story.feed(event)
    assert (story.broker.config, story.figures()) == before
    return caught.value


def applied(pools=(), policies=(), **config):
    return ev.ConfigApplied(BrokerConfig.load({"pools": list(pools), "policies": list(policies), **config}))


START = ([pool("p"), pool("q", gpu=4)], [policy("red", reserved=4, limit=6), policy("blue", reserved=2)])

FAULTS = [
    (
        "a policy for no pool",
        ([], [policy("red", "x")]),
        ["policy of 'red': there is no pool 'x' (pools: p, q)"],
    ),
    (
        "a reserve of a key that the pool has not",
        ([], [policy("red", reserved={"tpu": 1})]),
        [
            "policy of 'red' in pool 'p': reserved names key 'tpu', the pool has gpu",
            "pool 'p': the policy of 'red' names key 'tpu', which is not in its capacity",
        ],
    ),
    (
        "a limit of a key that the pool has not",
        ([], [policy("green", "q", limit={"tpu": 1})]),
        [
            "policy of 'green' in pool 'q': limit names key 'tpu', the pool has gpu",
            "pool 'q': the policy of 'green' names key 'tpu', which is not in its capacity",
        ],
    ),
    (
        "a reserve above the limit",
        ([], [policy("red", reserved=4, limit=3)]),
        ["policy of 'red' in pool 'p': reserved 4 gpu is above its limit 3"],
    ),
    (
        "a limit above the capacity",
        ([], [policy("red", limit=9)]),
        ["policy of 'red' in pool 'p': limit 9 gpu is above the pool's capacity 8"],
    ),
    (
        "reserves above the capacity in sum",
        ([], [policy("green", reserved=3)]),
        [
            "pool 'p': 9 gpu are reserved (blue 2, green 3, red 4), the capacity is 8; "
            "lower a reserve or raise the capacity"
        ],
    ),
    (
        "a reserve above the capacity alone",
        ([], [policy("green", "q", reserved=5)]),
        [
            "policy of 'green' in pool 'q': reserved 5 gpu is above the pool's capacity 4",
            "pool 'q': 5 gpu are reserved (green 5), the capacity is 4; lower a reserve or raise the capacity",
        ],
    ),
    (
        "a pool that becomes too small for its reserves",
        ([pool("p", gpu=5)], []),
        ["pool 'p': 6 gpu are reserved (blue 2, red 4), the capacity is 5; lower a reserve or raise the capacity"],
    ),
    (
        "a key that a policy names disappears",
        ([{"name": "p", "capacity": {"tpu": 1}}], []),
        [
            "pool 'p': the policy of 'blue' names key 'gpu', which is not in its capacity",
            "pool 'p': the policy of 'red' names key 'gpu', which is not in its capacity",
        ],
    ),
    (
        "several faults at once",
        ([pool("q", gpu=2)], [policy("red", limit=9), policy("red", "x")]),
        [
            "policy of 'red' in pool 'p': limit 9 gpu is above the pool's capacity 8",
            "policy of 'red': there is no pool 'x' (pools: p, q)",
        ],
    ),
]


@pytest.mark.parametrize(("change", "faults"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_change_that_is_not_valid_names_each_fault_and_changes_nothing(change, faults):
    refused = refusal(Story(*START), applied(*change, unmanaged="allow"))
    assert list(refused.faults) == faults
    assert str(refused) == "nothing was changed: " + "; ".join(faults)


def test_a_key_that_is_in_use_may_not_disappear():
    story = Story([{"name": "p", "capacity": {"gpu": 8, "tpu": 4}}], [policy("red")])
    story.submit("a", resources={"gpu_count": 1, "pool_resources": {"tpu": 1}})
    assert refusal(story, applied([pool()])).faults == ("pool 'p': key 'tpu' is in use and may not disappear",)
    story.cancel("a")
    assert refusal(story, applied([pool()])).faults  # its group is not gone yet
    story.removed("a")
    story.apply([pool()])


def test_the_change_is_judged_on_its_final_state():
    story = Story(*START)
    story.apply([pool("p", gpu=3)], [policy("red", reserved=1)])
    assert story.broker.pools["p"].spec.capacity == {"gpu": 3}


def test_what_is_applied_again_is_replaced_whole_defaults_included():
    story = Story([pool(grace_seconds=30, queueing="backfill")], [policy("red", priority=5, reserved=4, limit=6)])
    story.apply([pool()], [policy("red", priority=1)])
    spec = story.broker.pools["p"].spec
    assert (spec.grace_seconds, spec.queueing) == (0.0, "strict")
    assert story.broker.config.policies[0].dump() == {"pool": "p", "component": "red", "priority": 1}


def test_a_limit_above_a_lowered_capacity_is_clamped_while_that_lasts():
    story = Story([pool()], [policy("red", limit=8)])
    story.apply([pool(gpu=4)])
    story.submit("a", gpu=5)
    assert story.view("a").reason == "asks for 5 gpu, pool 'p' has 4"
    story.apply([pool(gpu=8)])
    story.submit("b", gpu=8)
    assert story.created() == [("b", 1, "p")]
    assert story.broker.config.policies[0].limit == {"gpu": 8}


def test_a_policy_that_names_a_limit_above_the_lowered_capacity_anew_is_refused():
    story = Story([pool()], [policy("red", limit=8)])
    story.apply([pool(gpu=4)])
    assert refusal(story, applied([], [policy("red", limit=8)])).faults == (
        "policy of 'red' in pool 'p': limit 8 gpu is above the pool's capacity 4",
    )


def test_running_work_is_never_evicted_by_a_change():
    story = Story([pool()], [policy("red", reserved=8)])
    story.run("a", gpu=8)
    story.apply([pool(gpu=2)], [policy("red", reserved=0, limit=1)])
    assert (story.status("a"), story.free()) == ("allocated", -6)
    assert story.taken_back() == []


def test_a_key_newly_listed_is_charged_to_the_running_work_that_uses_it():
    story = Story()
    story.submit("a", resources={"gpu_count": 1, "cpu_count": 2})
    story.ready("a")
    story.apply([{"name": "p", "capacity": {"gpu": 8, "mcpu": 1500}}])
    assert story.free(key="mcpu") == -500
    story.release("a")
    assert story.leaving(key="mcpu") == 2000
    story.removed("a")
    assert story.free(key="mcpu") == 1500


def test_pending_requests_are_judged_again_at_once():
    story = Story([pool()], [policy("red"), policy("blue")])
    story.run("holder", "blue", gpu=8)
    story.submit("large", gpu=6)
    story.submit("small", gpu=2)
    story.apply([pool(gpu=4)])
    assert story.changes() == [("large", "rejected")]
    assert story.view("large").reason == "asks for 6 gpu, pool 'p' has 4"
    story.apply([pool(gpu=10)])
    assert story.created() == [("small", 1, "p")]


def test_a_new_pool_takes_who_waits():
    story = Story([pool()], [policy("red"), policy("blue")])
    story.run("holder", "blue", gpu=8)
    story.submit("a", gpu=4)
    story.apply([pool("new", gpu=4)], [policy("red", "new")])
    assert story.created() == [("a", 1, "new")]


def test_a_change_goes_on_with_the_evictions_that_were_begun():
    story = Story([pool(grace_seconds=30)], [policy("high", priority=9), policy("red")])
    story.run("victim", gpu=8)
    story.submit("h", "high", gpu=8)
    story.apply([pool(grace_seconds=30, gpu=9)])
    assert (story.status("victim"), story.rule("h")) == ("preempting", "room-being-made")
    story.pass_seconds(30)
    story.removed("victim")
    assert story.created() == [("h", 1, "p")]


# --- detaching and deleting -------------------------------------------------------------------


def test_detaching_says_how_many_are_queued_and_charged():
    story = Story([pool()], [policy("red"), policy("blue")])
    story.run("a", "red", gpu=8)
    story.submit("b", "red", gpu=1)
    story.submit("c", "blue", gpu=1)
    assert str(refusal(story, ev.PolicyDetached("p", "red"))) == (
        "the policy of 'red' in pool 'p' is in use: 1 queued, 1 charged; let them end or cancel them first"
    )
    assert str(refusal(story, ev.PoolDeleted("p"))) == (
        "pool 'p' is in use: 2 queued, 1 charged; let them end or cancel them first"
    )


UNKNOWN = [
    (ev.PolicyDetached("p", "stranger"), "no policy attaches team 'stranger' to pool 'p'"),
    (ev.PolicyDetached("p", "red", "orchestrator"), "no policy attaches orchestrator 'red' to pool 'p'"),
    (ev.PolicyDetached("x", "red"), "no policy attaches team 'red' to pool 'x'"),
    (ev.PoolDeleted("x"), "there is no pool 'x' (pools: p)"),
    (ev.Released("x"), "there is no request 'x'"),
    (ev.Cancelled("x"), "there is no request 'x'"),
    (ev.Forgotten("x"), "there is no request 'x'"),
]


@pytest.mark.parametrize(("event", "sentence"), UNKNOWN, ids=repr)
def test_what_is_not_there_is_said(event, sentence):
    assert str(refusal(Story(), event)) == sentence


def test_an_id_is_taken_once_even_when_its_request_has_ended():
    story = Story()
    story.submit("a")
    story.cancel("a")
    with pytest.raises(Refused, match="request id 'a' is taken"):
        story.submit("a")


def test_the_policies_of_a_deleted_pool_go_with_it():
    story = Story([pool("p"), pool("q")], [policy("red"), policy("red", "q")])
    story.feed(ev.PoolDeleted("p"))
    assert [one.pool for one in story.broker.config.policies] == ["q"]
    story.apply([pool("p")])
    story.submit("a", pool="p")
    assert story.view("a").reason == "pinned to pool 'p', where no policy attaches team 'red'"


# --- warnings ---------------------------------------------------------------------------------


def warnings(story):
    pools = story.broker.pools
    return warnings_of(
        {name: one.spec for name, one in pools.items()}, {name: one.policies for name, one in pools.items()}
    )


def test_a_metered_key_that_a_reserve_leaves_out_is_a_warning():
    capacity = {"gpu": 8, "step_run": 4}
    story = Story([{"name": "p", "capacity": capacity}], [policy("red", reserved=2), policy("blue")])
    assert warnings(story) == [
        "policy of 'red' in pool 'p' reserves no step_run, which the pool meters: every request that uses step_run "
        "counts as a borrower and none can be non-preemptible"
    ]


def test_a_usual_config_has_no_warnings():
    assert warnings(Story(*START)) == []


# --- the config as it stands ------------------------------------------------------------------


def test_the_config_that_is_read_can_be_applied_to_another_broker():
    story = Story(*START, unmanaged="allow")
    wire = story.broker.config.dump()
    assert Story(wire["pools"], wire["policies"], unmanaged=wire["unmanaged"]).broker.config == story.broker.config
