"""One self-contained page of a replayed workload: the report's tables, and plots as inline SVG.

No network, no script, no library: a handful of shapes on a scale, in colours that follow the reader's light or
dark setting (docs/decisions/016-plots-of-our-own.md). Runs that are compared stand side by side, and below each
other on a narrow screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from raypool.simulation.plot import Plot
from raypool.simulation.timeline import STEPS, Timeline
from raypool.simulation.workload import Tally, Workload
from raypool.simulation.workload_report import WorkloadReport, facts_of, lasted, rank_of, tables_of

Run = tuple[WorkloadReport, Workload]

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
    rows = "".join(f'<div class="row">{"".join(row)}</div>' for row in _rows(plots))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(reports[0].trace)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(reports[0].trace)} under {escape(' and '.join(one.pools_file for one in reports))}</h1>"
        f"<dl>{facts}</dl>{_legend(names)}{rows}{tables}</body></html>\n"
    )


def _rows(plots: Sequence[dict[str, str]]) -> list[list[str]]:
    """Plots of several runs: the same of each run in a row, a gap where one has it not. Those of one run follow each
    other."""
    if len(plots) == 1:
        return [list(plots[0].values())]
    titles = dict.fromkeys(title for one in plots for title in one)
    return [[one.get(title, "<div></div>") for one in plots] for title in titles]


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


def _plots(run: Run, names: Sequence[str], scale: _Scale, several: bool) -> dict[str, str]:
    """Title -> the plot; where there are several runs, its caption says which one it is of."""
    report, workload = run
    which = f", {report.pools_file}" if several else ""
    title = "Wait by time of submission, p90"
    plots = {title: _waits(workload, names, scale, title + which)}
    for pool in sorted(workload.config.pools, key=lambda one: one.name):
        for key, capacity in sorted(pool.capacity.items()):
            title = f"{key} in use in {pool.name}"
            plots[title] = _stacked(workload, names, scale, pool.name, key, capacity, title + which)
            for name in _with_a_policy(workload, pool.name, names):
                title = f"{key} of {name} in {pool.name}"
                place = pool.name, key
                plots[title] = _against_its_policy(workload, names, scale, place, name, capacity, title + which)
    return plots


def _with_a_policy(workload: Workload, pool: str, names: Sequence[str]) -> list[str]:
    """The components with a policy in the pool that get a plot of their own."""
    owners = [_name_of(policy.owner) for policy in workload.config.policies if policy.pool == pool]
    return [name for name in names[:COLOURS] if name in owners]


def _name_of(owner: tuple[str, str]) -> str:
    return owner[0] if owner[1] == "team" else f"{owner[0]} ({owner[1]})"


def _waits(workload: Workload, names: Sequence[str], scale: _Scale, title: str) -> str:
    plot = Plot(scale.span, scale.wait, lasted)
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
    plot = Plot(scale.span, capacity, _amount)
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
    plot = Plot(scale.span, limit, _amount)
    drawn = [plot.area(_colour(names, name), line.width, [0.0] * STEPS, line.levels())]
    if reserved:
        drawn.append(plot.level("reserved", reserved, f"reserved {reserved}"))
    drawn.append(plot.level("limit", limit, f"limit {limit}"))
    drawn.append(plot.evictions([one for one in workload.evictions if one.pool == pool and one.victim == name]))
    return plot.figure(title, drawn)


def _amount(amount: float) -> str:
    return f"{amount:g}"


# --- colours and layout -----------------------------------------------------------------------

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
figure{margin:14px 0 0}figcaption{font-weight:600;overflow-wrap:anywhere}svg{display:block;width:100%;height:auto}
text{font:15px system-ui,sans-serif;fill:var(--ink)}
text.level{paint-order:stroke;stroke:var(--paper);stroke-width:3px}
line{stroke:var(--ink);stroke-width:1.5}line.grid{stroke:var(--faint);stroke-width:1}
line.reserved{stroke-dasharray:7 4}line.limit{stroke-dasharray:2 3}
polyline{fill:none;stroke-width:2}polygon{stroke:none}path.evicted{fill:var(--ink)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{position:sticky;left:0;background:var(--paper)}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--faint);white-space:nowrap}
.legend span{display:inline-block;margin-right:16px}.legend i{display:inline-block;width:12px;height:12px;
margin-right:6px;border-radius:2px}.legend i.evicted{background:var(--ink);clip-path:polygon(50% 0,100% 100%,0 100%)}
"""
    + "".join(
        f"polyline.c{at}{{stroke:var(--c{at})}}polygon.c{at}{{fill:var(--c{at})}}i.c{at}{{background:var(--c{at})}}"
        for at in range(COLOURS)
    )
)
