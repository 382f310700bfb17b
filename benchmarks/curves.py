"""How costs grow with the number of those who wait or run, as a picture: SVG that is readable on light and dark."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

from benchmarks.harness import Row, figure

CURVES = (
    ("release to grant, # stuck passed over, p50", "grant, # passed over"),
    ("release to grant, # stuck behind, p50", "grant, # stuck behind"),
    ("victims: 64 of #, p50", "64 victims of #"),
    ("victims: 1 of #, p50", "1 victim of #"),
)
"""Of the rows whose name is so, but for the number at #; and what the curve is called."""

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 160, 16, 40
LETTERS = 14

STYLE = """
text { font: 13px sans-serif; fill: #1f2933 }
.grid { stroke: #c4ccd4 } .curve { fill: none; stroke-width: 2.5 }
.c0 { stroke: #0b62a4 } .c1 { stroke: #b3480a; stroke-dasharray: 8 4 }
.c2 { stroke: #1b7a43; stroke-dasharray: 2 4 } .c3 { stroke: #8a2a86; stroke-dasharray: 12 4 2 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e9ee } .grid { stroke: #4a5560 }
  .c0 { stroke: #6db7f2 } .c1 { stroke: #f2a06d } .c2 { stroke: #6dd49a } .c3 { stroke: #de8adb }
}
"""

Points = list[tuple[int, float]]


def curves(rows: Iterable[Row]) -> dict[str, Points]:
    """For each curve that has at least two points: (how many, milliseconds), ascending."""
    found: dict[str, Points] = {}
    for one in rows:
        for pattern, name in CURVES:
            match = re.fullmatch(re.escape(pattern).replace(r"\#", "([0-9,]+)"), one.name)
            if match:
                found.setdefault(name, []).append((int(match[1].replace(",", "")), one.value))
    return {name: sorted(points) for name, points in found.items() if len(points) > 1}


def picture(found: dict[str, Points]) -> str:
    """Numbers to the right on a logarithmic scale, milliseconds upward from 0."""
    counts = [count for points in found.values() for count, _ in points]
    few, many = math.log10(min(counts)), math.log10(max(counts))
    highest = max(value for points in found.values() for _, value in points)
    step = _step(highest / 5)
    lines = math.ceil(highest / step)
    most = step * lines

    def x(count: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(count) - few) / (many - few)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most

    drawn = []
    for part in range(lines + 1):
        value = step * part
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{figure(value)} ms</text>')
    for power in range(math.ceil(few), math.floor(many) + 1):
        drawn.append(f'<text x="{x(10**power):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{10**power:,}</text>')
    names = _apart([y(points[-1][1]) + 4 for points in found.values()])
    for at, ((name, points), place) in enumerate(zip(found.items(), names, strict=True)):
        path = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in points)
        drawn.append(f'<polyline class="curve c{at}" points="{path}"><title>{escape(name)}</title></polyline>')
        drawn.append(f'<text x="{x(points[-1][0]) + 8:.1f}" y="{place:.1f}">{escape(name)}</text>')
    title = "Milliseconds of processor time by how many wait or run (#)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title><style>{STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def _step(least: float) -> float:
    """The next of 1, 2 and 5 with a power of ten."""
    power: float = 10 ** math.floor(math.log10(least))
    return next(one * power for one in (1, 2, 5, 10) if one * power >= least)


def _apart(places: Sequence[float]) -> list[float]:
    """The same places, each at least a letter's height below the one above it."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved, last = list(places), float("-inf")
    for at in order:
        moved[at] = last = max(places[at], last + LETTERS)
    return moved
