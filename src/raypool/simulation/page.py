"""One self-contained page of a replayed workload: the report's tables, and plots as inline SVG.

No network, no script, no library: a handful of shapes on a scale, in colours that follow the reader's light or
dark setting (docs/decisions/016-plots-of-our-own.md). Runs that are compared stand side by side, and below each
other on a narrow screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from raypool.simulation.timeline import STEPS, Timeline
from raypool.simulation.workload import Eviction, Tally, Workload
from raypool.simulation.workload_report import WorkloadReport, facts_of, lasted, rank_of, tables_of

Run = tuple[WorkloadReport, Workload]

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 22, 28
"""Of a plot, in units of its own; the lettering is large enough for a screen of 360 pixels."""

COLOURS = 8
"""So many components are told apart in a plot, by what they used, most first; the rest are one: "others"."""

WAIT_STEPS = 60


def page_of(runs: Sequence[Run]) -> str:
    """HTML of one run, or of several over the same trace."""
    reports = [report for report, _ in runs]
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts_of(reports).items())
    tables = "".join(_table(*one) for one in tables_of(reports))
    names = _names(runs)
    scale = _Scale(
        max(workload.ended_at - workload.began_at for _, workload in runs),
        max((_highest_wait(workload, names) for _, workload in runs), default=0.0),
    )
    plots = [_plots(run, names, scale, len(runs) > 1) for run in runs]
    rows = "".join(f'<div class="row">{"".join(row)}</div>' for row in zip(*plots, strict=False))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(reports[0].trace)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(reports[0].trace)} under {escape(' and '.join(one.pools_file for one in reports))}</h1>"
        f"<dl>{facts}</dl>{_legend(names)}{rows}{tables}</body></html>\n"
    )


@dataclass(frozen=True)
class _Scale:
    """What all runs share, so that they can be compared by eye: seconds to the right, the highest wait."""

    span: float
    wait: float


def _names(runs: Sequence[Run]) -> list[str]:
    """The components, those that used most first; the same order, and colours, in all plots."""
    used: dict[str, float] = {}
    for _, workload in runs:
        for name in workload.components:
            used.setdefault(name, 0.0)
        for (_, name, _), line in workload.usage.items():
            used[name] = used.get(name, 0.0) + line.total
    return sorted(used, key=lambda name: (-used[name], name))


def _colour(names: Sequence[str], name: str) -> str:
    return f"c{min(names.index(name), COLOURS - 1)}"


def _legend(names: Sequence[str]) -> str:
    shown = list(names[:COLOURS])
    if len(names) > COLOURS:
        shown[-1] = f"{len(names) - COLOURS + 1} others"
    marks = "".join(f'<span><i class="c{at}"></i>{escape(name)}</span>' for at, name in enumerate(shown))
    return f'<p class="legend">{marks}<span><i class="evicted"></i>evictions</span></p>'


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<h2>{escape(title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


# --- the plots of one run ---------------------------------------------------------------------


def _plots(run: Run, names: Sequence[str], scale: _Scale, several: bool) -> list[str]:
    report, workload = run
    which = f", {report.pools_file}" if several else ""
    plots = [_waits(workload, names, scale, f"Wait by time of submission, p90{which}")]
    for pool in sorted(workload.config.pools, key=lambda one: one.name):
        for key, capacity in sorted(pool.capacity.items()):
            title = f"{key} in use in {pool.name}{which}"
            plots.append(_stacked(workload, names, scale, pool.name, key, capacity, title))
            for policy in pool_policies(workload, pool.name, names):
                title = f"{key} of {policy} in {pool.name}{which}"
                plots.append(_against_its_policy(workload, names, scale, (pool.name, key), policy, capacity, title))
    return plots


def pool_policies(workload: Workload, pool: str, names: Sequence[str]) -> list[str]:
    """The components with a policy in the pool that get a plot of their own."""
    owners = [_name_of(policy.owner) for policy in workload.config.policies if policy.pool == pool]
    return [name for name in names[:COLOURS] if name in owners]


def _name_of(owner: tuple[str, str]) -> str:
    return owner[0] if owner[1] == "team" else f"{owner[0]} ({owner[1]})"


def _waits(workload: Workload, names: Sequence[str], scale: _Scale, title: str) -> str:
    plot = _Plot(scale.span, scale.wait, lasted)
    drawn = [plot.line(_colour(names, name), points) for name, points in _wait_lines(workload, names)]
    return plot.figure(title, drawn)


def _highest_wait(workload: Workload, names: Sequence[str]) -> float:
    return max((wait for _, points in _wait_lines(workload, names) for _, wait in points), default=0.0)


def _wait_lines(workload: Workload, names: Sequence[str]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Of each component that has a colour of its own, the p90 of those that were asked in each stretch of time."""
    stretch = (workload.ended_at - workload.began_at) / WAIT_STEPS or 1.0
    lines = []
    for name in names if len(names) <= COLOURS else names[: COLOURS - 1]:
        tally = workload.components.get(name, Tally())
        steps: dict[int, list[float]] = {}
        for at, wait in zip(tally.asked, tally.waits, strict=True):
            steps.setdefault(min(int(at / stretch), WAIT_STEPS - 1), []).append(wait)
        lines.append((name, [((at + 0.5) * stretch, rank_of(sorted(steps[at]), 0.9)) for at in sorted(steps)]))
    return lines


def _stacked(
    workload: Workload, names: Sequence[str], scale: _Scale, pool: str, key: str, capacity: int, title: str
) -> str:
    below = [0.0] * STEPS
    drawn = []
    plot = _Plot(scale.span, capacity, _amount)
    for name in names:
        line = workload.usage.get((pool, name, key))
        if line is None:
            continue
        levels = [under + level for under, level in zip(below, line.levels(), strict=True)]
        drawn.append(plot.area(_colour(names, name), line.width, below, levels))
        below = levels
    drawn.append(plot.level("capacity", capacity, f"capacity {capacity}"))
    drawn.append(plot.evictions([one for one in workload.evictions if one.pool == pool]))
    return plot.figure(title, drawn)


def _against_its_policy(
    workload: Workload,
    names: Sequence[str],
    scale: _Scale,
    place: tuple[str, str],
    name: str,
    capacity: int,
    title: str,
) -> str:
    pool, key = place
    policy = next(one for one in workload.config.policies if one.pool == pool and _name_of(one.owner) == name)
    line = workload.usage.get((pool, name, key), Timeline())
    reserved, limit = policy.reserved.get(key, 0), min(policy.limit.get(key, capacity), capacity)
    plot = _Plot(scale.span, limit, _amount)
    drawn = [plot.area(_colour(names, name), line.width, [0.0] * STEPS, line.levels())]
    if reserved:
        drawn.append(plot.level("reserved", reserved, f"reserved {reserved}"))
    drawn.append(plot.level("limit", limit, f"limit {limit}"))
    drawn.append(plot.evictions([one for one in workload.evictions if one.pool == pool and one.victim == name]))
    return plot.figure(title, drawn)


def _amount(amount: float) -> str:
    return f"{amount:g}"


# --- shapes -----------------------------------------------------------------------------------


class _Plot:
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


_LIGHT = ["#2563ab", "#d9822b", "#3d9950", "#b5443c", "#7d5ba6", "#6f5b4c", "#c65b9a", "#8a8f98"]
_DARK = ["#6fa8e6", "#f0a860", "#74c985", "#e8827a", "#b79be0", "#b8a08d", "#eb9ac8", "#a8adb6"]


def _variables(colours: Sequence[str], ink: str, paper: str, faint: str) -> str:
    named = "".join(f"--c{at}:{colour};" for at, colour in enumerate(colours))
    return f":root{{{named}--ink:{ink};--paper:{paper};--faint:{faint}}}"


_STYLE = (
    ":root{color-scheme:light dark}"
    + _variables(_LIGHT, "#1d232b", "#ffffff", "#d4d9df")
    + f"@media(prefers-color-scheme:dark){{{_variables(_DARK, '#e4e8ee', '#14181d', '#3a424c')}}}"
    + """
body{font:16px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1100px;
margin:0 auto;padding:12px}
h1{font-size:1.3rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.6em 0 .4em}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:0}dt{opacity:.7}dd{margin:0}
@media(max-width:560px){dl{display:block}dd{margin-bottom:6px}}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:8px 20px;max-width:1100px}
.row>:only-child{max-width:640px}
figure{margin:14px 0 0}figcaption{font-weight:600;overflow-wrap:anywhere}svg{display:block;width:100%;height:auto}
text{font:15px system-ui,sans-serif;fill:var(--ink)}
text.level{paint-order:stroke;stroke:var(--paper);stroke-width:3px}
line{stroke:var(--ink);stroke-width:1.5}line.grid{stroke:var(--faint);stroke-width:1}
line.reserved{stroke-dasharray:7 4}line.limit{stroke-dasharray:2 3}
polyline{fill:none;stroke-width:2}polygon{stroke:none}path.evicted{fill:var(--ink)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--faint);white-space:nowrap}
.legend span{display:inline-block;margin-right:16px}.legend i{display:inline-block;width:12px;height:12px;
margin-right:6px;border-radius:2px}.legend i.evicted{background:var(--ink);clip-path:polygon(50% 0,100% 100%,0 100%)}
"""
    + "".join(
        f"polyline.c{at}{{stroke:var(--c{at})}}polygon.c{at}{{fill:var(--c{at})}}i.c{at}{{background:var(--c{at})}}"
        for at in range(COLOURS)
    )
)
