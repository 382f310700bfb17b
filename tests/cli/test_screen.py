"""What `raypool top` draws, from views to lines."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from raypool.cli import output
from raypool.cli.screen import Sight, busiest_first, cells, painted, plain, screen
from raypool.view import BrokerView, FrontView, PolicyView, PoolView, RequestView

NOW = 1_000_000.0
WHY = (
    "number 1 in line in pool 'gpus': asks for 4 gpu, 2 free and 1 leaving, held by production and by sandbox, "
    "which have what they were promised and leave when their own work is over, not before that"
)


def policy(component: str = "red", used: int = 0, reserved: int = 0, limit: int = 8, **fields: Any) -> PolicyView:
    borrowed = max(used - reserved, 0)
    return PolicyView(
        pool="gpus", component=component, component_type="team", priority=1, reserved={"gpu": reserved},
        limit={"gpu": limit}, used={"gpu": used}, borrowed={"gpu": borrowed},
        leaving={"gpu": fields.pop("leaving", 0)}, queued=0, active=0, **fields,
    )  # fmt: skip


def pool(name: str = "gpus", policies: tuple[PolicyView, ...] = (), capacity: int = 8, **fields: Any) -> PoolView:
    used = sum(one.used["gpu"] for one in policies)
    phantom = fields.pop("phantom", 0)
    view = PoolView(
        name=name, description="", queueing="strict", capacity={"gpu": capacity}, used={"gpu": used},
        free={"gpu": capacity - used - phantom}, leaving={"gpu": 0}, borrowed={"gpu": 0}, queued=0, active=0,
        grace_seconds=30, placement_timeout_seconds=30, infeasible="wait", node_labels={}, ray_resources={},
        policies=list(policies), phantom={"gpu": phantom},
    )  # fmt: skip
    return replace(view, **fields)


def request(id: str = "a", component: str = "red", status: str = "pending", **fields: Any) -> RequestView:
    view = RequestView(
        id=id, component=component, component_type="team", status=status, pool=None, reason=None, rule=None,
        demand={"gpu": 2}, preemptible=True, workers=1, strategy="PACK", submitted_at=NOW - 90, number=1,
    )  # fmt: skip
    return replace(view, **fields)


def waiting(id: str, **fields: Any) -> RequestView:
    return request(id, reasons={"gpus": WHY}, rule="no-room", reason=WHY, **fields)


def front(of: PoolView, wait: list[RequestView] | None = None, run: list[RequestView] | None = None) -> FrontView:
    return FrontView(of, wait or [], run or [], len(run or []))


def sight(*fronts: FrontView, pools: list[PoolView] | None = None, **fields: Any) -> Sight:
    more = {name: fields.pop(name) for name in ("warnings", "degraded") if name in fields}
    broker = BrokerView(
        pools=[one.pool for one in fronts] if pools is None else pools,
        requests={"pending": 2, "allocated": 3}, unmanaged="reject", started_at=NOW - 7500, version="9.9", **more,
    )  # fmt: skip
    return Sight(broker, fronts, NOW, **fields)


def drawn(seen: Sight, width: int = 80, height: int | None = None, now: float = NOW) -> str:
    lines = screen(seen, width, now, height)
    for line in lines:
        assert output.width_of(plain(line)) <= width, plain(line)
    assert height is None or len(lines) <= height
    return "\n".join(map(plain, lines))


def bar_of(text: str) -> str:
    found = re.search(r"^gpu +\[(.+)\] ", text, re.M)
    assert found is not None, text
    return found[1]


TWO_TEAMS = (policy("production", used=2, reserved=4), policy("sandbox", used=4, leaving=1))
BUSY = front(
    pool(policies=TWO_TEAMS, queued=2, phantom=1),
    [waiting("first", demand={"gpu": 4}), waiting("second")],
    [request("runs", "sandbox", "allocated", granted_at=NOW - 300, nodes=["3f2a91bc77", "3f2a91bc77", "99"])],
)


@pytest.mark.parametrize("width", [80, 200])
def test_the_first_screen_says_who_holds_what_who_waits_and_why(width: int) -> None:
    text = drawn(sight(BUSY), width, 24)
    assert re.search(r"^B production .* 2 +- +- +4 +8 +- +-$", text, re.M), text
    assert re.search(r"^A sandbox .* 4 +4 +1 +- +8 +- +-$", text, re.M), text
    assert re.search(r"^ 1 first +red +4 gpu +1 min", text, re.M), text
    assert WHY in " ".join(text.split()), "the whole reason of the first"
    assert re.search(r"^runs +sandbox +2 gpu +- +5 min +3f2a91bc, 99$", text, re.M), text
    assert "raypool 9.9, up 2 h 5 min" in text and "gpus: 1 running, 2 waiting, strict" in text


def test_a_bar_is_split_by_component_into_reserved_borrowed_leaving_phantom_and_free() -> None:
    assert re.fullmatch(r"a+~+B+#+\.+", bar_of(drawn(sight(BUSY))))
    kept = policy("sandbox", used=6, reserved=4, leaving=1)
    bar = bar_of(drawn(sight(front(pool(policies=(kept,)))), width=200))
    whole = len(bar) / 8
    assert re.fullmatch(r"A+a+~+\.+", bar)
    for sign, amount in (("A", 4), ("a", 1), ("~", 1), (".", 2)):
        assert abs(bar.count(sign) - amount * whole) <= 1, (sign, bar)


def test_what_leaves_may_be_more_than_what_is_borrowed() -> None:
    bar = bar_of(drawn(sight(front(pool(policies=(policy(used=4, reserved=3, leaving=4),))))))
    assert re.fullmatch(r"~+\.+", bar)


def test_reserve_and_limit_are_marked_on_each_components_track() -> None:
    teams = (policy("idle", used=1, reserved=4, limit=6), policy("over", used=4, reserved=2, limit=8), policy("none"))
    text = drawn(sight(front(pool(policies=teams))), width=120)
    assert re.search(r"^B idle +=+-+\| +\] +1", text, re.M), text
    assert re.search(r"^A over +=+\|\++ +\] +4", text, re.M), text
    assert re.search(r"^  none +\] +- ", text, re.M), text


def test_a_pool_that_was_made_smaller_than_its_use_is_drawn_and_said() -> None:
    text = drawn(sight(front(pool(policies=(policy(used=12),), capacity=8))))
    assert re.fullmatch("a+", bar_of(text))
    assert "12 of 8 used, 4 too many" in text


def test_a_notice_counts_down_and_stands_first() -> None:
    leaving = request(
        "out", "sandbox", "preempting", deadline=NOW + 12, reason="has to make room", granted_at=NOW - 9
    )
    seen = sight(front(pool(policies=TWO_TEAMS), [waiting("first")], [leaving]))
    assert "! leaves in 12 s: has to make room" in drawn(seen)
    assert "! leaves in 7 s: has to make room" in drawn(seen, now=NOW + 5)
    assert "! leaves in 0 s: has to make room" in drawn(seen, now=NOW + 50)
    ended = replace(leaving, status="cancelled", ended_at=NOW)
    assert "! is cancelled; its placement group is being removed" in drawn(sight(front(pool(), [], [ended])))


def test_one_that_is_being_placed_and_those_aside_are_told_from_the_others() -> None:
    placing = request("p", placing=True, reason="being placed: looks for a node")
    aside = replace(front(pool(queued=1), [waiting("in")], [placing]), aside=[waiting("out")], aside_in_all=1)
    text = drawn(sight(aside))
    assert re.search(r"^p +red +2 gpu +- +placing +-\n  being placed: looks for a node$", text, re.M), text
    assert re.search(r"^ 1 in ", text, re.M) and re.search(r"^ - out ", text, re.M), text
    assert "gpus: 1 running, 2 waiting" in text


def test_when_one_is_expected_to_start_is_shown_where_it_is_known() -> None:
    known = waiting("first", eta_p50_seconds=40.0, eta_p90_seconds=200.0)
    text = drawn(sight(front(pool(queued=2), [known, waiting("second")])))
    assert "STARTS IN" in text and re.search(r"^ 1 first .* 40 s .. 3 min", text, re.M), text
    assert "STARTS IN" not in drawn(sight(BUSY))


def test_of_several_pools_the_reason_in_this_one_comes_first() -> None:
    both = request("a", reasons={"other": "no room there", "gpus": "no room here"})
    text = drawn(sight(front(pool(queued=1), [both])))
    assert text.index("no room here") < text.index("other: no room there")


def test_a_broker_without_pools_and_a_pool_without_anything_are_said_to_be_so() -> None:
    assert "no pools; `raypool apply" in drawn(sight())
    text = drawn(sight(front(pool())))
    assert "nobody waits" in text and "nothing runs" in text and "0 of 8 used" in text
    nothing = front(pool(capacity=0))
    assert "0 of 0 used" in drawn(sight(nothing))


def test_trouble_degradation_and_warnings_stand_on_top() -> None:
    seen = sight(BUSY, trouble="the broker has not answered for 8 s", degraded="read-only", warnings=["w" * 90, "x"])
    text = drawn(seen).splitlines()
    assert text[1].startswith("! the broker has not answered for 8 s; what stands below is of ")
    assert "! read-only" in text
    assert any(re.fullmatch(r"! w+… \(and 1 more: raypool status\)", line) for line in text), text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (40, 10), (200, 60), (100, None)])
def test_fifty_pools_and_five_thousand_requests_fit_and_the_rest_is_counted(width: int, height: int | None) -> None:
    teams = tuple(policy(f"team{at:02}", used=1) for at in range(60))
    pools = [pool(f"pool{at:02}", teams[:at], queued=0) for at in range(49)]
    big = pool("gpus", teams, capacity=64, queued=5_000)
    runs = [request(f"run{at}", "team01", "allocated", granted_at=NOW - at) for at in range(60)]
    line = [waiting(f"wait{at:04}") for at in range(60)]
    seen = sight(replace(front(big, line, runs), running_in_all=900), pools=[*pools, big])
    text = drawn(seen, width, height)
    assert re.search(r"^gpu +\[", text, re.M)
    if height == 10:
        return
    assert " 1 wait0000" in text and "gpus: 900 running, 5000 waiting" in text
    assert "asks for 4 gpu, 2 free and 1 leaving" in " ".join(text.split())
    if height != 12:
        counted = int(re.search(r"and (\d+) more wait", text)[1])  # type: ignore[index]
        assert counted + len(re.findall(r"^ ?\d+ wait", text, re.M)) == 5_000
        assert re.search(r"and \d+ more run", text) and re.search(r"and \d+ more components", text)
    if height is None:
        assert "> gpus" in text and "and 40 more pools" in text


def test_names_of_any_script_and_length_keep_the_columns() -> None:
    teams = (policy("研究チーム" * 6, used=3), policy("é́quipe", used=2), policy("x" * 120, used=1))
    seen = sight(
        front(pool(policies=teams, queued=1), [waiting("要求" * 20, component="研究チーム" * 6)]),
        pools=[pool("プール" * 10), pool(policies=teams)],
    )
    for width in (60, 80, 200):
        text = drawn(seen, width)
        tracks = [line for line in text.splitlines() if re.match(r"[A-Z] ", line)]
        assert len({output.width_of(line) for line in tracks}) == 1, tracks
    assert "研究チ" in text


def test_control_characters_of_others_do_not_steer_the_terminal() -> None:
    seen = sight(
        front(pool(queued=1), [request("a", reasons={"gpus": "bad \x1b[2J reason"})]), warnings=["\x1b[31m!"]
    )
    for line in screen(seen, 80, NOW):
        assert "\x1b" not in plain(line)


@pytest.mark.parametrize("colours", [True, False])
def test_colours_only_repeat_what_the_characters_say(colours: bool) -> None:
    lines = screen(sight(BUSY, trouble="it is away"), 80, NOW)
    escape = re.compile(r"\x1b\[([0-9;]*)m")
    for line in lines:
        assert escape.sub("", painted(line, colours)).rstrip() == plain(line)
    codes = {code for line in lines for code in escape.findall(painted(line, colours))}
    assert (codes - {"0", "1", "2"} != set()) == colours, "without colours only bold and dim are left"


def test_the_key_that_is_shown_by_component_can_be_chosen() -> None:
    two = {"mcpu": 4000, "gpu": 8}
    one = replace(policy(used=2), used={"gpu": 2, "mcpu": 3000}, borrowed={"gpu": 2, "mcpu": 3000})
    full = replace(pool(policies=(one,)), capacity=two, used={"gpu": 2, "mcpu": 3000}, free={"gpu": 6, "mcpu": 1000})
    runs = [request("r", "red", "allocated", granted_at=NOW, demand={"gpu": 2, "mcpu": 3000})]
    assert re.search(r"^  gpu .*USED.*\nA red .* 2 +2 ", drawn(sight(front(full))), re.M)
    text = drawn(sight(front(full, [], runs), key="mcpu"))
    assert re.search(r"^  mcpu .*USED.*\nA red .* 3000 +3000 ", text, re.M), text
    assert re.search(r"^r +red +3000 mcpu, … ", text, re.M), text
    assert re.search(r"^r +red +3000 mcpu, 2 gpu ", drawn(sight(front(full, [], runs), key="mcpu"), 120), re.M)


def test_the_busiest_pool_comes_first() -> None:
    idle, used = pool("idle"), pool("used", (policy(used=4),))
    queued = pool("queued", queued=3)
    assert [one.name for one in busiest_first([idle, used, queued])] == ["queued", "used", "idle"]


@pytest.mark.parametrize("width", [1, 5, 8, 60])
@pytest.mark.parametrize("amounts", [[], [0, 0], [8], [1, 1000], [1] * 8, [1] * 80, [0, 5, 0, 3], [10**12, 1, 1]])
def test_cells_are_in_proportion_and_hide_nothing_that_has_room(amounts: list[int], width: int) -> None:
    found = cells(amounts, width)
    assert len(found) == len(amounts)
    if not sum(amounts):
        assert sum(found) == 0
        return
    assert sum(found) == width
    there = [amount for amount in amounts if amount]
    if len(there) <= width:
        assert all(bool(cell) == bool(amount) for cell, amount in zip(found, amounts, strict=True))
    for cell, amount in zip(found, amounts, strict=True):
        assert abs(cell - amount * width / sum(amounts)) <= max(1, len(there)), (found, amounts)
