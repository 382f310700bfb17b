"""Draws the pictures of the manual: what happens in the scenarios that stand on its pages.

    python docs/pictures/make.py     # writes them anew; a test fails when one is not what the simulator says now

A picture has a lane for each request (waits, runs, has its notice) and, below, what each component uses, with its
reserve as a line: what lies above the line is borrowed. All of it is read from the report of `raypool.simulate`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import yaml

import raypool
from raypool import BrokerConfig, ResourceSettings

HERE = Path(__file__).resolve().parent
PAGES = [HERE.parent / "explanation" / "walk.md", HERE.parent / "explanation" / "borrowing.md"]

WIDTH, LEFT, RIGHT, LANE, PLOT = 720, 190, 20, 24, 64
COMPONENTS = 4  # so many colours

STYLE = """
svg { font: 12px system-ui, sans-serif; --ink: #24292f; --paper: #ffffff; --faint: #d0d7de;
  --c0: #2563ab; --c1: #d9822b; --c2: #3d9950; --c3: #7d5ba6 }
@media (prefers-color-scheme: dark) { svg { --ink: #e6e8eb; --paper: #1e2129; --faint: #454c57;
  --c0: #6fa8e6; --c1: #f0a860; --c2: #74c985; --c3: #b79be0 } }
text { fill: var(--ink) } .paper { fill: var(--paper) } .axis { stroke: var(--faint) }
.reserve { stroke: var(--ink); stroke-dasharray: 5 3 }
.waits { fill: none; stroke-width: 1.5; stroke-dasharray: 3 3 }
.leaves { fill-opacity: .45 } .use { fill-opacity: .8 } .borrowed { fill-opacity: .35 }
"""


@dataclass(frozen=True)
class Bar:
    """A request in one status, from one time to another."""

    status: str
    start: float
    end: float


@dataclass(frozen=True)
class Lane:
    request: str
    component: str
    gpus: int
    bars: tuple[Bar, ...]


def scenarios(page: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The scenarios of a page, each with the name of its picture."""
    number = 0
    for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        document = yaml.safe_load(block)
        if "timeline" in document:
            number += 1
            yield f"{page.stem}-{number}.svg", document


def lanes(scenario: dict[str, Any]) -> tuple[list[Lane], float]:
    """What became of each request, from the report; and when the picture ends."""
    report = raypool.simulate(scenario)
    assert report.passed, report.failures
    end = report.steps[-1].at
    moments: dict[str, list[tuple[str, float]]] = {}
    for step in report.steps:
        for change in step.transitions:
            moments.setdefault(change.request, []).append((change.to, change.at))
    found = []
    for entry in scenario["timeline"]:
        if "submit" in entry:
            asked = entry["submit"]
            gpus = ResourceSettings.load(asked["resources"]).demand()["gpu"] * asked.get("workers", 1)
            found.append(Lane(asked["id"], asked["component"], gpus, _bars(moments[asked["id"]], end)))
    return found, end


def _bars(moments: list[tuple[str, float]], end: float) -> tuple[Bar, ...]:
    untils = [at for _, at in moments[1:]] + [end]
    return tuple(
        Bar(status, at, until)
        for (status, at), until in zip(moments, untils, strict=True)
        if until > at and status in ("pending", "allocated", "preempting")
    )


def picture(scenario: dict[str, Any]) -> str:
    drawn, end = lanes(scenario)
    config = BrokerConfig.load({"pools": scenario["pools"], "policies": scenario["policies"]})
    components = [policy.component for policy in config.policies][:COMPONENTS]
    reserves = {policy.component: policy.reserved.get("gpu", 0) for policy in config.policies}
    capacity = config.pools[0].capacity["gpu"]
    height = 30 + LANE * len(drawn) + (PLOT + 22) * len(components) + 30
    parts = [f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>']
    top = 16
    for lane in drawn:
        parts += _lane(lane, top, end, components.index(lane.component))
        top += LANE
    top += 14
    for number, component in enumerate(components):
        mine = [lane for lane in drawn if lane.component == component]
        parts += _use(component, mine, top, end, number, capacity, reserves[component])
        top += PLOT + 22
    parts += _times(drawn, end, top)
    title = escape(scenario["name"])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
        f'aria-label="{title}"><title>{title}</title><style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _x(at: float, end: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * at / end, 1)


def _lane(lane: Lane, top: int, end: float, colour: int) -> list[str]:
    parts = [f'<text x="12" y="{top + 14}">{escape(f"{lane.request}: {lane.component}, {lane.gpus} GPUs")}</text>']
    for bar in lane.bars:
        x, width = _x(bar.start, end), round(_x(bar.end, end) - _x(bar.start, end), 1)
        kind, paint = {
            "pending": ("waits", f"stroke:var(--c{colour})"),
            "allocated": ("runs", f"fill:var(--c{colour})"),
            "preempting": ("leaves", f"fill:var(--c{colour});stroke:var(--c{colour})"),
        }[bar.status]
        word = {"pending": "waits", "allocated": "runs", "preempting": "has to leave"}[bar.status]
        parts.append(
            f'<rect class="{kind}" style="{paint}" x="{x}" y="{top + 2}" width="{width}" height="16" rx="2">'
            f"<title>{escape(lane.request)} {word}, {bar.start:g} to {bar.end:g} s</title></rect>"
        )
    return parts


def _use(
    component: str, mine: list[Lane], top: int, end: float, colour: int, capacity: int, reserve: int
) -> list[str]:
    """What the component uses over time: below its reserve, and above it, which is borrowed."""
    bottom = top + PLOT
    scale = PLOT / capacity
    said = f"reserve {reserve}" if reserve else "no reserve"
    parts = [
        f'<text x="12" y="{top + 14}">{escape(component)} uses</text>',
        f'<text x="12" y="{top + 30}">{said}, of {capacity}</text>',
    ]
    edges = sorted({0.0, end, *(edge for lane in mine for bar in lane.bars for edge in (bar.start, bar.end))})
    for start, until in itertools.pairwise(edges):
        used = sum(
            lane.gpus
            for lane in mine
            for bar in lane.bars
            if bar.status != "pending" and bar.start <= start and until <= bar.end
        )
        width = round(_x(until, end) - _x(start, end), 1)
        for kind, low, high in (("use", 0, min(used, reserve)), ("borrowed", min(used, reserve), used)):
            if high > low:
                y, height = round(bottom - high * scale, 1), round((high - low) * scale, 1)
                parts.append(
                    f'<rect class="{kind}" style="fill:var(--c{colour})" x="{_x(start, end)}" y="{y}" '
                    f'width="{width}" height="{height}"/>'
                )
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
    if reserve:
        y = round(bottom - reserve * scale, 1)
        parts.append(f'<path class="reserve" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
    return parts


def _times(drawn: list[Lane], end: float, top: int) -> list[str]:
    """The moments at which something changed."""
    at = sorted({0.0, end, *(edge for lane in drawn for bar in lane.bars for edge in (bar.start, bar.end))})
    parts, last = [], -100.0
    for moment in at:
        x = _x(moment, end)
        if moment == end or (x - last > 34 and _x(end, end) - x > 50):
            anchor = "end" if moment == end else "middle"
            parts.append(f'<text x="{x}" y="{top + 4}" text-anchor="{anchor}">{moment:g} s</text>')
            last = x
    return parts


def pictures() -> dict[Path, str]:
    return {HERE / name: picture(scenario) for page in PAGES for name, scenario in scenarios(page)}


if __name__ == "__main__":
    for path, drawing in pictures().items():
        path.write_text(drawing, encoding="utf-8")
