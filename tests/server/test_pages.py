"""A few of many requests at a time: in the order of the line, each once, and counted."""

import pytest

from raypool.errors import SpecError
from raypool.server.pages import page_of, places_of, view_page
from raypool.server.views import view_requests
from raypool.view import PageView

from ..core.core_rules import CoreRules
from ..core.histories import feed, random_history
from ..core.story import Story, policy, pool
from ..core.test_rules import HISTORIES
from .virtual_time import run
from .world import World


def ids_of(broker, kind, pool=None, component=None, first=0, count=1000):
    requests, in_all = page_of(broker, kind, pool, component, first, count)
    return [one.id for one in requests], in_all


def crowd():
    """Room for 8 in each of two pools. In p run r1, within the reserve, and b1, which has to leave for r3; b2 waits
    behind that. In q runs g1, and g2 waits."""
    story = Story(
        [pool("p", grace_seconds=30), pool("q")],
        [policy("red", "p", 9, reserved=4), policy("blue", "p", 1), policy("green", "q", 1)],
    )
    story.submit("r1", "red", 4)
    story.submit("b1", "blue", 4)
    story.ready("r1")
    story.ready("b1")
    story.submit("b2", "blue", 4)
    story.submit("r3", "red", 2)
    story.submit("g1", "green", 8)
    story.ready("g1")
    story.submit("g2", "green", 1)
    return story


def test_the_line_of_a_pool_is_told_in_its_order_and_page_by_page():
    broker = crowd().broker
    assert ids_of(broker, "waiting", "p") == (["r3", "b2"], 2)
    assert ids_of(broker, "waiting", "p", first=1, count=1) == (["b2"], 2)
    assert ids_of(broker, "waiting", "p", first=5) == ([], 2)
    assert ids_of(broker, "waiting", "p", "blue") == (["b2"], 1)
    assert ids_of(broker, "waiting", "nowhere") == ([], 0)


def test_of_all_pools_the_first_of_each_line_comes_before_the_second_of_any():
    assert ids_of(crowd().broker, "waiting") == (["r3", "g2", "b2"], 3)


def test_who_stands_in_several_lines_is_told_with_his_place_in_the_line_that_is_looked_at():
    story = Story([pool("p"), pool("q")], [policy("red", "p", 2), policy("red", "q", 1), policy("blue", "q", 3)])
    story.submit("r1", "red", 8)
    story.submit("b1", "blue", 8)
    story.submit("r2", "red", 8)
    story.submit("b2", "blue", 8)

    def places(pool):
        requests, in_all = page_of(story.broker, "waiting", pool, None, 0, 9)
        return view_page(story.broker, requests, in_all, 0, {}, pool).places

    assert places(None) == {"r2": ["p", 1], "b2": ["q", 1]}
    assert places("p") == {"r2": ["p", 1]}
    assert places("q") == {"b2": ["q", 1], "r2": ["q", 2]}
    assert story.view("r2").position == 1, "which is its place in p"


def test_who_has_to_leave_is_told_first_of_those_who_run():
    story = crowd()
    assert ids_of(story.broker, "running", "p") == (["b1", "r1"], 2)
    assert ids_of(story.broker, "running") == (["b1", "r1", "g1"], 3)


def test_who_ended_last_is_told_first():
    story = crowd()
    for id in ("g1", "r1"):
        story.pass_seconds(1)
        story.release(id)
    assert ids_of(story.broker, "ended") == (["r1", "g1"], 2)
    assert ids_of(story.broker, "ended", "q") == (["g1"], 1)
    assert ids_of(story.broker, "ended", first=1, count=1) == (["g1"], 2)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_pages_have_everybody_once_in_the_order_of_the_positions_and_as_the_list_of_all_has_them(seed):
    setup, events = random_history(seed)
    rules = CoreRules(grace=setup["grace"], removal=setup["removal"])
    rules.apply(setup["pools"], setup["policies"])
    seen = 0
    for number, event in enumerate(events):
        feed(rules, event)
        if number % 10:
            continue
        broker = rules.broker
        views = {one.id: one for one in view_requests(broker, broker.requests.values())}
        waiting, in_all = ids_of(broker, "waiting")
        assert in_all == len(waiting) == len(set(waiting))
        assert set(waiting) == {one.id for one in views.values() if one.status == "pending" and not one.placing}
        positions = [views[id].position for id in waiting if views[id].position is not None]
        assert positions == sorted(positions)
        for name in broker.pools:
            line, _ = page_of(broker, "waiting", name, None, 0, 1000)
            places = places_of(line, name)
            assert [place for _, place in places.values()] == list(range(1, len(places) + 1))
            assert list(places) == [one.id for one in line[: len(places)]], "who stands aside comes last"
        for id, (name, place) in places_of((broker.requests[id] for id in waiting), None).items():
            assert place == views[id].position and name in views[id].reasons
        running, _ = ids_of(broker, "running")
        assert set(running) == {one.id for one in views.values() if one.running or one.placing}
        ended, _ = ids_of(broker, "ended")
        assert set(ended) == {one.id for one in views.values() if one.ended}
        for kind in ("waiting", "running", "ended"):
            requests, in_all = page_of(broker, kind, None, None, 1, 3)
            for view in view_page(broker, requests, in_all, 1, {}).requests:
                assert view == views[view.id]
                seen += 1
    assert seen


def test_the_broker_tells_a_page_and_bounds_it():
    async def story():
        async with World() as world:
            await world.run("a", gpu=8)
            await world.submit("b", gpu=1)
            answer = PageView.from_dict(await world.actor.page("waiting", "p"))
            assert ([one.id for one in answer.requests], answer.in_all, answer.first) == (["b"], 1, 0)
            assert PageView.from_dict(answer.as_dict()) == answer
            assert answer.places == {"b": ["p", 1]}
            for wrong in ({"count": 501}, {"count": 0}, {"skip": -1}, {"which": "all"}):
                with pytest.raises(SpecError, match=next(iter(wrong))):
                    await world.actor.page(**{"which": "waiting", **wrong})

    run(story)
