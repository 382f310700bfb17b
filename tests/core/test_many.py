"""Many submissions in one event are decided as the same submissions one by one, in any history."""

import json

import pytest

from raypool.core import events as ev
from raypool.core.snapshot import Snapshots
from raypool.errors import Refused
from raypool.spec import RequestSpec, ResourceSettings

from .core_rules import CoreRules
from .histories import feed, random_history
from .story import Story, policy, pool


class Together(CoreRules):
    """Keeps submissions back until something else happens, and feeds them in one event then."""

    def __init__(self, **more):
        self.kept = []
        self.batches = []
        super().__init__(**more)

    def feed(self, event):
        if isinstance(event, ev.Submitted) and event.spec.id not in {*self.broker.requests, *map(_id, self.kept)}:
            self.kept.append(event.spec)
            return
        self.flush()
        super().feed(event)

    def flush(self):
        if self.kept:
            specs, self.kept = self.kept, []
            alike = [json.dumps(spec.model_copy(update={"id": "?"}).dump()) for spec in specs]
            bodies = list(dict.fromkeys(alike))
            asked = tuple(RequestSpec.load(json.loads(text)) for text in bodies)
            self.batches.append(len(specs))
            super().feed(ev.ManySubmitted(asked, tuple(map(_id, specs)), tuple(map(bodies.index, alike))))

    def states(self):
        self.flush()
        return super().states()


def _id(spec):
    return spec.id


@pytest.mark.parametrize("seed", range(40))
def test_they_are_decided_as_one_by_one(seed):
    setup, events = random_history(seed)
    one_by_one, together = (Rules(grace=setup["grace"], removal=setup["removal"]) for Rules in (CoreRules, Together))
    for rules in (one_by_one, together):
        rules.apply(setup["pools"], setup["policies"])
        for event in events:
            feed(rules, event)
    together.flush()
    assert list(Snapshots().lines_of(one_by_one.broker, 0)) == list(Snapshots().lines_of(together.broker, 0))
    assert one_by_one.changes == together.changes
    assert max(together.batches, default=0) > 0


def test_some_histories_have_many_at_once():
    most = 0
    for seed in range(10):
        setup, events = random_history(seed)
        rules = Together(grace=setup["grace"], removal=setup["removal"])
        rules.apply(setup["pools"], setup["policies"])
        for event in events:
            feed(rules, event)
        most = max(most, *rules.batches)
    assert most >= 5


@pytest.mark.parametrize("ids", [("new", "there"), ("twice", "twice")])
def test_one_id_that_is_taken_refuses_all(ids):
    told = Story(pools=[pool("p", 4)], policies=[policy("red", "p", 1)])
    told.submit("there", "red", 1)
    body = RequestSpec(id="?", component="red", resources=ResourceSettings(gpu_count=1))
    before = list(Snapshots().lines_of(told.broker, 0))
    with pytest.raises(Refused, match="an id is used once"):
        told.broker.handle(ev.ManySubmitted((body,), ids, (0, 0)), told.now)
    assert list(Snapshots().lines_of(told.broker, 0)) == before
