"""Integrals by minute and hour, and what people see of them."""

from __future__ import annotations

import pytest

from raypool.core.moves import Level
from raypool.server.usage import Cell, Span, Usage, quantile, report_rows, step_of, timeline, wait_bucket, wait_of

RED, BLUE = ("red", "team"), ("blue", "team")


def level(red=0, blue=0, capacity=8, reserved=4):
    return Level(
        ("gpu",), (capacity,), (capacity - red - blue,), (0,), {RED: ((red,), (0,)), BLUE: ((blue,), (reserved,))}
    )


def usage_at(at, **levels):
    usage = Usage()
    usage.begin(at, {"p": level(**levels)})
    return usage


def cell_of(usage, who, at):
    total = Span(0)
    for span in usage.spans(0.0, at):
        total.add(span)
    return total.cells.get(("p", *who, "gpu"), Cell())


def test_what_stands_still_is_summed_up_however_long_it_does():
    usage = usage_at(90.0, red=6, blue=1)
    at = 90.0 + 3 * 86_400
    usage.advance(at)
    assert len(usage.minutes) == 1_440
    assert len({id(one.cells) for one in usage.minutes}) == 1
    assert [one.seconds for one in usage.minutes][-1] == 60
    assert len(usage.fresh_hours) == 72
    hour = usage.fresh_hours[-1]
    assert (hour.seconds, hour.start % 3600) == (3600, 0)
    assert hour.cells[("p", *RED, "gpu")] == Cell(used=6 * 3600.0, borrowed=6 * 3600.0)
    assert hour.cells[("p", *BLUE, "gpu")] == Cell(reserved=4 * 3600.0, used=3600.0, lent=2 * 3600.0)
    assert hour.capacity == {("p", "gpu"): 8 * 3600.0}
    assert usage.fresh_hours[0].seconds == 3600 - 90


@pytest.mark.parametrize(
    ("red", "blue", "lent"),
    [(4, 0, 0), (6, 0, 2), (8, 0, 4), (6, 1, 2), (6, 2, 2), (4, 4, 0), (2, 6, 0)],
)
def test_lent_is_what_borrowers_use_of_an_idle_reserve(red, blue, lent):
    usage = usage_at(0.0, red=red, blue=blue)
    assert cell_of(usage, BLUE, 10.0).lent == lent * 10
    assert cell_of(usage, RED, 10.0).lent == 0


def test_what_was_gathered_of_a_minute_is_taken_up_as_it_was():
    usage = usage_at(100.0, red=3, blue=2)
    usage.waited("p", RED, ["gpu"], 7.0)
    usage.lost("p", RED, {"gpu": 2}, 5.0)
    usage.advance(130.0)  # a minute is over at 120
    row = usage.gathered(131.0)
    again = Usage()
    again.begin(131.0, {"p": level(red=3, blue=2)}, row, [Span.of(one.row()) for one in usage.fresh_minutes])
    for who in (RED, BLUE):
        assert cell_of(again, who, 200.0) == cell_of(usage, who, 200.0)
    assert cell_of(again, RED, 200.0) == Cell(0.0, 300.0, 300.0, 0.0, 10.0, ((wait_bucket(7.0), 1),), 7.0)


def test_minutes_of_an_earlier_life_come_before_its_own_and_make_whole_hours():
    before = usage_at(0.0, red=2)
    before.advance(3_000.0)
    after = usage_at(3_000.0, red=2)
    after.advance(3_700.0)
    after.remember(Span.of(one.row()) for one in before.minutes)
    assert [one.start for one in after.minutes] == list(range(0, 3_660, 60))
    (hour,) = after.fresh_hours
    assert (hour.seconds, hour.cells[("p", *RED, "gpu")].used) == (3600, 7200.0)


def test_a_timeline_has_means_and_none_where_nothing_is_known():
    usage = usage_at(150.0, red=4)
    found = timeline(usage.spans(0.0, 290.0), 0.0, 290.0, 120)
    assert found["times"] == [0.0, 120.0, 240.0]
    gpu = found["pools"]["p"]["gpu"]
    assert gpu["capacity"] == [None, 8, 8]
    assert (gpu["components"], gpu["borrowed"]) == ({"red": [None, 4, 4]}, {"red": [None, 4, 4]})


def test_a_timeline_of_one_pool_is_its_part_of_that_of_all():
    usage = Usage()
    usage.begin(0.0, {"p": level(red=4), "q": level(blue=1)})
    spans = usage.spans(0.0, 290.0)
    everything = timeline(spans, 0.0, 290.0, 60)
    assert timeline(spans, 0.0, 290.0, 60, "q") == {**everything, "pools": {"q": everything["pools"]["q"]}}
    assert timeline(spans, 0.0, 290.0, 60, "none")["pools"] == {}


def test_steps_are_whole_minutes_or_hours_and_not_too_many():
    assert [step_of(asked, 3_600, False) for asked in (1, 60, 61, 90)] == [60, 60, 120, 120]
    assert step_of(60, 30 * 86_400, True) == 3_600
    assert 400 * 86_400 / step_of(1, 400 * 86_400, True) <= 2_000


def test_waits_are_told_within_five_percent():
    for seconds in (0.003, 0.5, 7.0, 3_600.0, 1e7):
        assert wait_of(wait_bucket(seconds)) == pytest.approx(seconds, rel=0.05)
    usage = usage_at(0.0)
    for seconds in range(1, 101):
        usage.waited("p", RED, ["gpu"], float(seconds))
    (row,) = [row for row in report_rows(usage.spans(0.0, 1.0), {("p", *RED, "gpu"): 3}) if row["component"] == "red"]
    assert (row["waits"], row["wait_max_seconds"], row["waiting"]) == (100, 100.0, 3)
    assert row["wait_p50_seconds"] == pytest.approx(50, rel=0.05)
    assert row["wait_p90_seconds"] == pytest.approx(90, rel=0.05)
    assert quantile((), 0.5, 0.0) is None
