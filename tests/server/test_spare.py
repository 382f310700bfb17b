"""A bounded share of the broker's time: who comes first is served, and after that it rests."""

import asyncio

import pytest

from raypool.server import spare
from raypool.server.spare import REST, Spare

from .virtual_time import run


class Clocks:
    """`now` is the loop's, `used` the processor's: that moves only where work says so."""

    used = 0.0

    def perf_counter(self):
        return self.used


@pytest.fixture
def clocks(monkeypatch):
    made = Clocks()
    monkeypatch.setattr(spare, "time", made)
    return made


def pieces(clocks, count, seconds=0.02):
    async def begin():
        return work()

    def work():
        for piece in range(count):
            clocks.used += seconds
            yield piece if piece % 2 == 0 else None

    return begin


def made():
    return Spare(asyncio.get_running_loop().time)


def test_work_is_done_to_its_end_and_then_there_is_none_until_it_has_rested(clocks):
    async def story():
        own = made()
        assert await own.spend(pieces(clocks, 4)) == [0, 2]
        assert clocks.used == pytest.approx(0.08)
        await asyncio.sleep(REST * 0.08 - 0.01)
        assert await own.spend(pieces(clocks, 4)) == []
        await asyncio.sleep(0.02)
        assert await own.spend(pieces(clocks, 1)) == [0]
        assert clocks.used == pytest.approx(0.10), "who got nothing cost nothing"

    run(story)


def test_it_is_cut_off_when_its_time_is_up(clocks):
    async def story():
        assert await made().spend(pieces(clocks, 1000, 0.025)) == [0, 2]
        assert clocks.used == pytest.approx(spare.MOST_SECONDS)

    run(story)


def test_of_those_who_come_together_one_is_served_also_while_it_waits_for_what_it_needs(clocks):
    async def story():
        own, asked = made(), []

        async def slow():
            asked.append(1)
            await asyncio.sleep(1)
            return await pieces(clocks, 3)()

        assert await asyncio.gather(*(own.spend(slow) for _ in range(1000))) == [[0, 2], *[[]] * 999]
        assert len(asked) == 1

    run(story)


def test_work_that_fails_is_paid_for_and_the_next_is_served(clocks):
    async def story():
        own = made()

        async def fails():
            return broken()

        def broken():
            clocks.used += 0.05
            yield 1 / 0

        with pytest.raises(ZeroDivisionError):
            await own.spend(fails)
        assert await own.spend(pieces(clocks, 1)) == []
        await asyncio.sleep(REST * 0.05 + 0.01)
        assert await own.spend(pieces(clocks, 1)) == [0]

    run(story)


def test_what_it_needs_may_fail_too(clocks):
    async def story():
        own = made()

        async def fails():
            raise KeyError("gone")

        with pytest.raises(KeyError):
            await own.spend(fails)
        assert await own.spend(pieces(clocks, 1)) == [0]

    run(story)
