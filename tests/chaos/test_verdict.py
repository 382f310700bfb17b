"""The verdict of a chaos run can fail: each broken promise is seen, and a run that kept them all is not blamed."""

from __future__ import annotations

import json

import pytest

from raypool.core.status import Status
from raypool.view import PolicyView, PoolView
from tests.chaos import soak
from tests.chaos.journal import read
from tests.chaos.ledger import Ledger
from tests.chaos.verdict import Seen, World, doubles, judge

JOB, RUN, NODE, GROUP = "0a", "01", "f" * 56, "c" * 36


def said(what, at=10.0, **fields):
    return {"at": at, "what": what, **fields}


def heard(status, at=10.0, id="r", number=1, to="watch", reason=None, nodes=()):
    return said("heard", at, id=id, status=status, number=number, to=to, reason=reason, nodes=list(nodes))


def journal(*entries, driver="red-1", pid=100):
    return [said("began", 1.0, driver=driver, pid=pid), said("joined", 1.0, job=JOB), *entries]


def seen(status="released", id="r", number=1, **fields):
    whole = {
        "reason": "", "nodes": (), "group_id": None, "pool": None, "demand": {}, "placing": False, "job": JOB,
        "lifetime": None, "ended_at": 20.0,
    }  # fmt: skip
    return Seen(id=id, status=Status(status), number=number, **(whole | fields))


def audit(*requests):
    return {one.id: one for one in requests}


def pool(used, phantom=0):
    account = {"priority": 1, "reserved": {}, "limit": {}, "borrowed": {}, "leaving": {}, "queued": 0, "active": 0}
    red = PolicyView(pool="p", component="red", component_type="team", used={"gpu": used}, **account)
    figures = {"leaving": {}, "borrowed": {}, "queued": 0, "active": 0, "grace_seconds": 0.0}
    more = {"placement_timeout_seconds": 30.0, "infeasible": "wait", "node_labels": {}, "ray_resources": {}}
    return PoolView(
        name="p", description="", queueing="strict", capacity={"gpu": 8}, used={"gpu": used},
        free={"gpu": 8 - used - phantom}, phantom={"gpu": phantom}, policies=[red], **figures, **more,
    )  # fmt: skip


def verdict(journals=(), *audits, **world):
    return judge(Ledger.of(journals), World(audits=list(audits) or [{}], **world))


def faults(verdict):
    kinds = ("lost", "doubled", "leaked", "hung", "unexpected")
    return {kind: getattr(verdict, kind) for kind in kinds if getattr(verdict, kind)}


HELD = (heard("pending", to="submit"), heard("allocated"))
GIVEN_BACK = (*HELD, said("releasing", id="r"), heard("released", to="release"))


@pytest.mark.parametrize(
    "entries, last, world",
    [
        pytest.param(GIVEN_BACK, seen("released"), {}, id="given back by its owner"),
        pytest.param((*HELD, said("releasing", id="r")), seen("released"), {}, id="only the answer was lost"),
        pytest.param(HELD, seen("preempted"), {}, id="preempted"),
        pytest.param(HELD, seen("cancelled"), {"jobs_gone": {JOB: 19.0}}, id="its job was over"),
        pytest.param(HELD, seen("cancelled"), {"pids_killed": {100: 19.0}}, id="who had asked was killed"),
        pytest.param(
            (heard("allocated", nodes=[NODE]),), seen("cancelled"), {"nodes_lost": {NODE}}, id="its node was lost"
        ),
        pytest.param(
            (heard("rejected", reason="asks for 50 gpu, pool 'p' has 8"),), seen("rejected"), {}, id="asked too much"
        ),
        pytest.param((said("asked", id="r"),), None, {}, id="never acknowledged"),
        pytest.param(
            HELD,
            seen("allocated", ended_at=None, job=RUN, group_id=GROUP, pool="p", demand={"gpu": 2}, nodes=(NODE,)),
            {"groups": {GROUP: "raypool/p/red/r"}, "groups_on_nodes": {GROUP}, "pools": [pool(2)], "gpus_taken": 2.0,
             "gpus_of": {GROUP: 2.0}},
            id="held by a living owner",
        ),
        pytest.param(
            (), None, {"groups_on_nodes": {GROUP}, "pools": [pool(0, phantom=2)], "gpus_taken": 2.0},
            id="leaked by Ray and told so by the broker",
        ),
    ],
)  # fmt: skip
def test_a_run_that_kept_its_promises_is_not_blamed(entries, last, world):
    assert faults(verdict([journal(*entries)], audit(last) if last else {}, **world)) == {}


@pytest.mark.parametrize(
    "entries, last, world, sentence",
    [
        pytest.param(HELD, None, {}, "no audit has found it", id="forgotten"),
        pytest.param(HELD, seen(number=2), {}, "the submission numbers [1, 2]", id="lost its place"),
        pytest.param(GIVEN_BACK, seen("allocated", job=RUN), {}, "told to be released", id="came back to life"),
        pytest.param(
            (*HELD, said("releasing", id="r"), heard("allocated", to="release")),
            seen("allocated", job=RUN),
            {},
            "given back, which was acknowledged",
            id="a release was forgotten",
        ),
        pytest.param(HELD, seen("pending", job=RUN), {}, "told to be allocated", id="a grant was forgotten"),
        pytest.param(HELD, seen("cancelled", reason="a restart"), {}, "nobody has asked for", id="cancelled"),
        pytest.param(
            HELD, seen("cancelled"), {"jobs_gone": {JOB: 25.0}}, "nobody has asked for", id="before its job was over"
        ),
        pytest.param(HELD, seen("released"), {}, "nobody has asked for", id="released by nobody"),
        pytest.param(
            (*HELD, said("refused", id="r", to="watch", message="there is no request 'r'; ...")),
            seen("preempted"),
            {},
            "then there was no such request",
            id="unknown for a while",
        ),
        pytest.param(
            (heard("pending"), heard("rejected", reason="asks for ...")),
            seen("rejected"),
            {},
            "nobody has asked for",
            id="rejected later",
        ),
    ],
)  # fmt: skip
def test_what_is_lost_is_seen(entries, last, world, sentence):
    found = faults(verdict([journal(*entries)], audit(last) if last else {}, **world))
    assert sentence in found["lost"][0]
    assert len(found["lost"]) == 1


def test_what_an_earlier_audit_knew_may_be_forgotten_only_by_a_broker_that_is_full():
    story = [journal(*GIVEN_BACK)]
    assert "in an earlier audit" in verdict(story, audit(seen()), {}).lost[0]
    assert verdict(story, audit(seen()), audit(seen(id="other")), ended_kept=1).kept
    changed = verdict([], audit(seen("released")), audit(seen("cancelled")))
    assert "was released in an audit" in changed.lost[0]


def test_what_is_doubled_is_seen():
    held = {"group_id": GROUP, "job": RUN}
    twins = [seen("allocated", "a", number=1, **held), seen("allocated", "b", number=1, **held)]
    assert doubles(twins) == [
        "submission number 1 stands for 2 living requests",
        f"placement group {GROUP} stands for 2 living requests",
    ]
    assert doubles([twins[0], seen("preempted", "b", number=1, **held)]) == []  # a retry keeps the number
    found = verdict([], groups={"1": "raypool/p/red/r", "2": "raypool/p/red/r"})
    assert found.doubled == ["there are 2 placement groups raypool/p/red/r"]


@pytest.mark.parametrize(
    "last, world, sentence",
    [
        pytest.param(None, {"groups": {GROUP: "raypool/p/red/r"}}, "belongs to no living request", id="group"),
        pytest.param(None, {"groups_on_nodes": {GROUP}}, "which is gone", id="bundles"),
        pytest.param(None, {"gpus_taken": 2.0}, "2 GPUs are taken", id="GPUs"),
        pytest.param(
            None,
            {"groups_on_nodes": {GROUP}, "pools": [pool(0, phantom=1)], "gpus_taken": 2.0},
            "which is gone",
            id="told, but not all of it",
        ),
        pytest.param(None, {"pools": [pool(2)]}, "2 gpu used, by its policies 2, by living requests 0", id="charge"),
        pytest.param(seen("pending", ended_at=None), {"jobs_gone": {JOB: 9.0}}, "its job 0a is over", id="owner"),
        pytest.param(
            seen("allocated", ended_at=None, job=RUN, group_id=GROUP), {}, "which Ray does not have", id="no group"
        ),
    ],
)
def test_what_is_leaked_is_seen(last, world, sentence):
    assert sentence in verdict([], audit(last) if last else {}, **world).leaked[0]


def test_a_request_that_outlives_its_killed_owner_is_leaked():
    story = [journal(said("asked", id="r"), *HELD)]
    killed = {"pids_killed": {100: 30.0}}
    assert verdict(story, audit(seen("cancelled", ended_at=34.0)), **killed).kept
    late = verdict(story, audit(seen("cancelled", ended_at=134.0)), **killed)
    assert late.leaked == ["r: its owner was killed, and 104 s later it was still there"]
    restarted = verdict(story, audit(seen("cancelled", ended_at=134.0)), **killed, broker_kills=[20.0, 70.0, 95.0])
    assert restarted.kept  # each life gives everybody a full timeout
    late = verdict(story, audit(seen("cancelled", ended_at=134.0)), **killed, broker_kills=[32.0, 133.0])
    assert late.leaked


def test_a_request_that_outlives_its_owners_patience_is_leaked():
    gave_up = (heard("pending", to="submit"), said("ended", 11.0, id="r", error="WaitTimeout"))
    cancelled = {"status": "cancelled", "reason": "its owner stopped waiting"}
    assert verdict([journal(*gave_up, said("cancelling", id="r"))], audit(seen(ended_at=12.0, **cancelled))).kept
    late = verdict([journal(*gave_up, said("cancelling", id="r"))], audit(seen(ended_at=200.0, **cancelled)))
    assert late.leaked == ["r: its owner stopped waiting, and 189 s later it was still there"]


@pytest.mark.parametrize(
    "entry",
    [
        said("hung", doing="run_task since 3.0"),
        said("stuck", doing=["hold since 3.0"]),
        said("unanswered", id="r", to="release", error="BrokerUnavailable", message="does not answer"),
    ],
    ids=lambda entry: entry["what"],
)
def test_who_hangs_is_seen(entry):
    assert verdict([journal(entry)]).hung[0].startswith("red-1")


def test_an_error_that_nobody_has_to_expect_fails_the_run():
    assert not verdict([journal(said("unexpected", doing="hold", error="Traceback ... AssertionError"))]).kept


def test_a_line_that_a_kill_has_cut_off_was_never_acted_upon(tmp_path):
    path = tmp_path / "red-1.jsonl"
    path.write_text(json.dumps(said("began")) + "\n" + '{"at": 3, "wh')
    assert [entry["what"] for entry in read(path)] == ["began"]


# --- the soak ---------------------------------------------------------------------------------


def test_a_short_soak_leaves_nothing_behind_but_what_is_kept():
    weights = soak.soak(60)
    assert [weight.turn for weight in weights] == list(range(6, 61, 6))
    assert weights[-1].known == 3 * 60
    assert 0 < weights[-1].store < 100_000


def test_growth_that_goes_on_is_seen():
    growing = [soak.Weight(turn, (100 + 5 * turn) * 10**6, 100_000 * turn, 0) for turn in range(10)]
    level = [soak.Weight(turn, 100_000_000 + min(turn, 6) * 10_000_000, 500, 0) for turn in range(10)]
    assert [fault.split()[1] for fault in soak.judge(growing)] == ["memory", "store"]
    assert soak.judge(level) == []
