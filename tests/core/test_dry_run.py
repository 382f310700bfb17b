"""A dry run says what a submission would: at thousands of states, and nothing is left of it."""

import random

import pytest

from raypool.core import events as ev
from raypool.core.dry_run import dry_run
from raypool.core.instructions import ChangeStatus
from raypool.core.records import decision_of
from raypool.core.snapshot import Snapshots
from raypool.errors import Refused
from raypool.server.views import view_request
from raypool.spec import RequestSpec

from .core_rules import CoreRules
from .histories import random_history, trace
from .story import Story, policy, pool
from .test_placement_walk import Walk
from .test_rules import HISTORIES


def lines(broker):
    return list(Snapshots().lines_of(broker, 0))


class RunDryFirst(CoreRules):
    """Every submission is run dry before it is made; before every other event, one that is not made."""

    def __init__(self, grace=False, removal=False):
        super().__init__(grace, removal)
        self.compared = 0
        self.chance = random.Random(1)
        made.append(self)

    def feed(self, event):
        before = lines(self.broker)
        if not isinstance(event, ev.Submitted):
            self.run_another_dry()
            assert lines(self.broker) == before
            super().feed(event)
            return
        try:
            answer = dry_run(self.broker, event.spec, self.broker.now)
        except Refused:
            with pytest.raises(Refused):
                super().feed(event)
            raise
        assert lines(self.broker) == before
        decided = self.broker.handle(event, self.broker.now)
        self.changes += [one for one in decided if isinstance(one, ChangeStatus)]
        self.broker.check()
        assert list(map(decision_of, answer.decided)) == list(map(decision_of, decided))
        real = self.broker.requests[event.spec.id]
        assert view_request(answer.broker, answer.request) == view_request(self.broker, real)
        assert answer.granted == (real.current is not None)
        taken = [one for one in self.broker.requests.values() if one.preempted_by == real.id]
        assert sorted(one.id for one, _ in answer.evicted) == sorted(one.id for one in taken)
        assert all(self.broker.requests[one.id].reason == reason for one, reason in answer.evicted)
        self.compared += 1

    def run_another_dry(self):
        submitted = list(self.broker.requests.values())
        if submitted:
            spec = self.chance.choice(submitted).spec
            dry_run(self.broker, RequestSpec.load({**spec.dump(), "id": "dry"}), self.broker.now)


made = []


@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_a_dry_run_is_what_the_submission_becomes(first):
    for seed in range(first, first + (10 if HISTORIES > 10 else 2)):
        made.clear()
        trace(random_history(seed), RunDryFirst)
        assert made[0].compared > 3


class WalkRunDryFirst(Walk):
    compared = 0

    def feed(self, event):
        if isinstance(event, ev.Submitted):
            before = lines(self.broker)
            answer = dry_run(self.broker, event.spec, self.now)
            assert lines(self.broker) == before
        super().feed(event)
        if isinstance(event, ev.Submitted):
            request = self.broker.requests[event.spec.id]
            assert view_request(answer.broker, answer.request) == view_request(self.broker, request)
            assert answer.granted == (request.current is not None)
            self.compared += 1


@pytest.mark.parametrize("seed", range(max(HISTORIES // 10, 1)))
def test_so_it_is_whatever_ray_answers(seed):
    walk = WalkRunDryFirst(seed)
    walk.feed(ev.ConfigApplied(walk.config()))
    for _ in range(200):
        walk.step()
    assert walk.compared > 20


def asked(id="dry", component="red", gpu=1, **fields):
    return RequestSpec.load({"id": id, "component": component, "resources": {"gpu_count": gpu}, **fields})


def test_it_says_whom_it_would_evict_and_why():
    story = Story([pool(grace_seconds=10)], [policy("red"), policy("high", priority=9)])
    story.run("small", gpu=2)
    story.run("large", gpu=6)
    answer = dry_run(story.broker, asked(component="high", gpu=4), 5.0)
    assert not answer.granted
    assert [(one.id, reason.why, reason.by) for one, reason in answer.evicted] == [("large", "preempt", "dry")]
    assert story.statuses() == {"small": "allocated", "large": "allocated"}


def test_an_id_that_is_taken_by_something_that_is_over_is_refused_as_in_earnest():
    story = Story()
    story.run("x")
    story.release("x")
    story.removed("x")
    with pytest.raises(Refused, match="request id 'x' is taken"):
        dry_run(story.broker, asked("x"), 5.0)


def test_what_takes_up_a_lost_place_stands_there():
    story = Story([pool(gpu=1)])
    story.run("first", gpu=1)
    story.submit("second")
    story.lost("first")
    answer = dry_run(story.broker, asked(retry_of="first"), 5.0)
    assert answer.request.number == 1
