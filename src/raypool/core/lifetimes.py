"""How long what a policy was granted has lasted: a histogram in whole numbers, which forgets slowly.

What ended by itself (it was given back, or cancelled by whoever owns it) is seen whole. What was ended by others, for
others or for its own limit (an eviction, a lost node, `max_duration_seconds`) is *censored*: it would have lasted at
least so long. Nothing is guessed here; what is expected of it is worked out in eta.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

BOUNDS: tuple[float, ...] = tuple(2.0 ** (step / 4) for step in range(-8, 101))
"""Where one bucket ends and the next begins, in seconds: four to a doubling, from a quarter of a second on."""

ONE = 16
"""What one allocation counts for: halved four times before nothing is left of it."""

MOST = 400 * ONE
"""When so much is counted, all of it is halved: the last few hundred say what is usual now."""

Kind = tuple[str, str, str, int]
"""Pool, component, component type, size class."""


ALL_OF_IT = 1024.0
"""What stands for the whole share: the end of a bucket."""


def share_class(most: float) -> int:
    """Below 0: in place of seconds it is counted which share of `max_duration_seconds` was used. Who says how long it
    may run says more about how long it will than its team's history does. By fourfolds of what is said: who says
    much exaggerates more."""
    return -1 - int(most).bit_length() // 2


def size_class(demand: Mapping[str, int]) -> int:
    """0 for none, 1 for one, 2 for two and three, 3 for four to seven ... GPUs: large jobs last unlike
    small ones."""
    return demand.get("gpu", 0).bit_length()


class Lifetimes:
    """ended, censored: by bucket; bucket 0 is what lasted less than BOUNDS[0]."""

    __slots__ = ("censored", "ended", "total")

    def __init__(self) -> None:
        self.ended = [0] * (len(BOUNDS) + 1)
        self.censored = [0] * (len(BOUNDS) + 1)
        self.total = 0

    def add(self, seconds: float, whole: bool) -> None:
        """whole: it ended by itself."""
        (self.ended if whole else self.censored)[bucket_of(seconds)] += ONE
        self.total += ONE
        if self.total >= MOST:
            self.ended = [count // 2 for count in self.ended]
            self.censored = [count // 2 for count in self.censored]
            self.total = sum(self.ended) + sum(self.censored)

    def row(self) -> list[list[int]]:
        """[bucket, ended, censored] where there is something: for a snapshot."""
        pairs = zip(self.ended, self.censored, strict=True)
        return [[at, ended, censored] for at, (ended, censored) in enumerate(pairs) if ended or censored]

    @classmethod
    def of(cls, row: list[list[int]]) -> Lifetimes:
        """Back from `row`."""
        found = cls()
        for at, ended, censored in row:
            found.ended[at], found.censored[at] = ended, censored
        found.total = sum(found.ended) + sum(found.censored)
        return found


def bucket_of(seconds: float) -> int:
    return bisect_right(BOUNDS, seconds)


def rows_of(lifetimes: Mapping[Kind, Lifetimes]) -> list[list[Any]]:
    return [[*kind, found.row()] for kind, found in sorted(lifetimes.items())]


def lifetimes_of(rows: list[list[Any]]) -> dict[Kind, Lifetimes]:
    """Back from `rows_of`."""
    return {(pool, component, kind, size): Lifetimes.of(row) for pool, component, kind, size, row in rows}
