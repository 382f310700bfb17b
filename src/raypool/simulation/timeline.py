"""An amount over time, kept in so many steps however long it gets: sums are exact, times as fine as a step.

The steps are as wide as they have to be: when something lies behind the last one, they are made twice as wide,
two and two becoming one. So a trace can be streamed, and nobody has to know its length before.
"""

from __future__ import annotations

STEPS = 480


class Timeline:
    """Amount times seconds per step. width: seconds of a step; step i is [i * width, (i + 1) * width)."""

    __slots__ = ("sums", "width")

    def __init__(self, width: float = 1.0) -> None:
        self.width = width
        self.sums: list[float] = [0.0] * STEPS

    def add(self, start: float, end: float, amount: float) -> None:
        """That much from start to end, in seconds >= 0."""
        self.reach(end)
        width, sums = self.width, self.sums
        first, last = int(start / width), min(int(end / width), STEPS - 1)
        if first >= last:
            sums[last] += (end - start) * amount
            return
        sums[first] += ((first + 1) * width - start) * amount
        for at in range(first + 1, last):
            sums[at] += width * amount
        sums[last] += (end - last * width) * amount

    def reach(self, end: float) -> None:
        """Makes the steps wide enough for that time."""
        while end > self.width * STEPS:
            sums = self.sums
            merged = [sums[at] + sums[at + 1] for at in range(0, STEPS, 2)]
            self.sums = merged + [0.0] * (STEPS - len(merged))
            self.width *= 2

    @property
    def total(self) -> float:
        return sum(self.sums)

    def levels(self) -> list[float]:
        """The mean amount of each step."""
        return [one / self.width for one in self.sums]
