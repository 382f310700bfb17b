"""A plot over time as inline SVG: shapes on a scale, in classes that the page gives its colours.

Knows nothing of what it shows. All lengths are in units of the plot's own, 480 to its width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from raypool.simulation.timeline import STEPS
from raypool.simulation.workload import Eviction
from raypool.simulation.workload_report import lasted

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 22, 28
"""The lettering beside it is large enough for a screen of 360 pixels."""


class Plot:
    """Time to the right, from 0 to `span` seconds; amounts upward, from 0 to a little above `most`."""

    def __init__(self, span: float, most: float, words: Callable[[float], str]) -> None:
        self.span, self.most, self.words = span or 1.0, most or 1.0, words

    def x(self, at: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * min(at / self.span, 1.0):.1f}"

    def y(self, amount: float) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(amount / self.most / 1.05, 1.0):.1f}"

    def line(self, colour: str, points: Iterable[tuple[float, float]]) -> str:
        path = " ".join(f"{self.x(at)},{self.y(amount)}" for at, amount in points)
        return f'<polyline class="{colour}" points="{path}"/>' if path else ""

    def area(self, colour: str, width: float, below: Sequence[float], levels: Sequence[float]) -> str:
        """Between two lines of steps."""
        steps = min(int(self.span / width) + 1, STEPS)
        edges = [(at * width, (at + 1) * width, levels[at]) for at in range(steps)]
        upper = [
            f"{self.x(end)},{self.y(level)}" for one in edges for end, level in ((one[0], one[2]), (one[1], one[2]))
        ]
        back = [(at * width, (at + 1) * width, below[at]) for at in reversed(range(steps))]
        lower = [
            f"{self.x(end)},{self.y(level)}" for one in back for end, level in ((one[1], one[2]), (one[0], one[2]))
        ]
        return f'<polygon class="{colour}" points="{" ".join(upper + lower)}"/>'

    def level(self, kind: str, amount: float, words: str) -> str:
        y = self.y(amount)
        return (
            f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text class="level" x="{WIDTH - RIGHT}" y="{float(y) - 4:.1f}" text-anchor="end">{escape(words)}</text>'
        )

    def evictions(self, evictions: Sequence[Eviction]) -> str:
        """A mark at the foot for each stretch of time in which somebody was evicted, with how many."""
        stretch = self.span / 120
        found: dict[int, int] = {}
        for one in evictions:
            at = min(int(one.at / stretch), 119)
            found[at] = found.get(at, 0) + 1
        foot = HEIGHT - BOTTOM
        marks = []
        for at, count in sorted(found.items()):
            middle = float(self.x((at + 0.5) * stretch))
            words = f"{count} {'eviction' if count == 1 else 'evictions'}, {lasted(at * stretch)} after the beginning"
            marks.append(
                f'<path class="evicted" d="M{middle - 4:.1f} {foot}h8l-4 -9z"><title>{escape(words)}</title></path>'
            )
        return "".join(marks)

    def figure(self, title: str, drawn: Iterable[str]) -> str:
        grid = []
        for amount in (0.0, self.most / 2, self.most):
            y = self.y(amount)
            grid.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            words = self.words(amount)
            grid.append(f'<text x="{LEFT - 6}" y="{float(y) + 5:.1f}" text-anchor="end">{escape(words)}</text>')
        for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
            words = lasted(self.span * part) if part else "0"
            grid.append(
                f'<text x="{self.x(self.span * part)}" y="{HEIGHT - 8}" text-anchor="{anchor}">{escape(words)}</text>'
            )
        return (
            f"<figure><figcaption>{escape(title)}</figcaption>"
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
            f"{''.join(grid)}{''.join(drawn)}</svg></figure>"
        )
