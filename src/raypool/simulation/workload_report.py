"""The report of a replayed workload: figures per component, of the pools, and of what preemption cost.

Percentiles are nearest-rank, of the wait from a job's submission until it first began. A utilisation is what was
held of a key over the whole makespan, as a part of the pool's capacity: the components' parts add up to the
pool's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raypool.simulation.traces import Counts
from raypool.simulation.workload import HeldUp, Tally, Workload


@dataclass(frozen=True)
class Wait:
    """In seconds, of the jobs that began; None if none did."""

    p50: float | None
    p90: float | None
    max: float | None


@dataclass(frozen=True)
class Refusal:
    """So many jobs were rejected, for this reason."""

    reason: str
    jobs: int


@dataclass(frozen=True)
class ComponentReport:
    """One component. never_began: jobs that still waited when nothing was left to happen. held_hours: pool ->
    key -> amount times hours. utilisation: the same as a part of what the pool has over the makespan.
    lost_hours: key -> what preempted jobs had held for nothing. reserve_violations: of its requests, see
    `WorkloadReport`. makespan_seconds: from its first job's submission to its last job's end; None if none ended."""

    component: str
    jobs: int
    finished: int
    never_began: int
    refused: tuple[Refusal, ...]
    wait: Wait
    held_hours: dict[str, dict[str, float]]
    utilisation: dict[str, dict[str, float]]
    preemptions: int
    lost_hours: dict[str, float]
    reserve_violations: int
    makespan_seconds: float | None


@dataclass(frozen=True)
class PoolReport:
    """One pool. reserve_violations: in it, see `WorkloadReport`."""

    pool: str
    capacity: dict[str, int]
    utilisation: dict[str, float]
    reserve_violations: int


@dataclass(frozen=True)
class Loss:
    """What one cause did to one component: preemptions of `victim` for `by` under a rule (semantics 6)."""

    victim: str
    by: str
    rule: str
    preemptions: int
    lost_hours: dict[str, float]


@dataclass(frozen=True)
class WorkloadReport:
    """A trace under one pools file. bad_lines to still_running: of the trace, see `Counts`.
    reserve_violations: requests that were held up inside their reserve (semantics 7, law 4); known_gap: those of
    them that the gap described there explains, which are not counted as violations."""

    trace: str
    pools_file: str
    after_preemption: str
    jobs: int
    bad_lines: int
    never_ran: int
    left_out: int
    parts: int
    still_running: int
    makespan_seconds: float
    reserve_violations: int
    known_gap: int
    pools: tuple[PoolReport, ...]
    components: tuple[ComponentReport, ...]
    losses: tuple[Loss, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def report_of(workload: Workload, trace: str, counts: Counts, pools_file: str) -> WorkloadReport:
    """Components by name, losses by what was lost, most first."""
    span = workload.ended_at - workload.began_at
    capacity = {pool.name: pool.capacity for pool in workload.config.pools}
    losses = _losses(workload)
    violations = [one for one in workload.held_up if not one.known_gap]
    components = tuple(
        _component(name, tally, span, capacity, losses, violations)
        for name, tally in sorted(workload.components.items())
    )
    return WorkloadReport(
        trace=trace,
        pools_file=pools_file,
        after_preemption=workload.after_preemption.sentence,
        jobs=counts.jobs,
        bad_lines=counts.bad,
        never_ran=counts.never_ran,
        left_out=counts.left_out,
        parts=counts.parts,
        still_running=counts.still_running,
        makespan_seconds=_rounded(span),
        reserve_violations=len({one.request for one in violations}),
        known_gap=len({one.request for one in workload.held_up if one.known_gap}),
        pools=tuple(_pool(name, amounts, components, violations) for name, amounts in sorted(capacity.items())),
        components=components,
        losses=losses,
    )


def _component(
    name: str,
    tally: Tally,
    span: float,
    capacity: Mapping[str, Mapping[str, int]],
    losses: Sequence[Loss],
    violations: Sequence[HeldUp],
) -> ComponentReport:
    held: dict[str, dict[str, float]] = {}
    for (pool, key), amount in sorted(tally.held.items()):
        held.setdefault(pool, {})[key] = amount
    refused = sum(tally.refusals.values())
    return ComponentReport(
        component=name,
        jobs=tally.jobs,
        finished=tally.finished,
        never_began=tally.jobs - refused - len(tally.waits),
        refused=tuple(Refusal(reason, jobs) for reason, jobs in sorted(tally.refusals.items())),
        wait=wait_of(tally.waits),
        held_hours={pool: _hours(keys) for pool, keys in held.items()},
        utilisation={
            pool: {key: _rounded(_part(amount, capacity[pool].get(key, 0) * span)) for key, amount in keys.items()}
            for pool, keys in held.items()
            if pool
        },
        preemptions=tally.preemptions,
        lost_hours=_added([loss.lost_hours for loss in losses if loss.victim == name]),
        reserve_violations=len({one.request for one in violations if one.component == name}),
        makespan_seconds=None
        if tally.last_end is None or tally.first_at is None
        else _rounded(tally.last_end - tally.first_at),
    )


def _pool(
    name: str, capacity: Mapping[str, int], components: Sequence[ComponentReport], violations: Sequence[HeldUp]
) -> PoolReport:
    used = _added([one.utilisation.get(name, {}) for one in components])
    return PoolReport(
        pool=name,
        capacity=dict(capacity),
        utilisation={key: used.get(key, 0.0) for key in sorted(capacity)},
        reserve_violations=len({one.request for one in violations if one.pool == name}),
    )


def _losses(workload: Workload) -> tuple[Loss, ...]:
    counts: dict[tuple[str, str, str], int] = {}
    lost: dict[tuple[str, str, str], dict[str, float]] = {}
    for one in workload.evictions:
        cause = one.victim, one.by, one.rule
        counts[cause] = counts.get(cause, 0) + 1
        sums = lost.setdefault(cause, {})
        for key, amount in one.lost.items():
            sums[key] = sums.get(key, 0.0) + amount
    found = [Loss(*cause, counts[cause], _hours(lost[cause])) for cause in counts]
    return tuple(sorted(found, key=lambda one: (-sum(one.lost_hours.values()), one.victim, one.by, one.rule)))


def wait_of(waits: Sequence[float]) -> Wait:
    ordered = sorted(waits)
    if not ordered:
        return Wait(None, None, None)
    return Wait(*(_rounded(rank_of(ordered, part)) for part in (0.5, 0.9, 1.0)))


def rank_of(ordered: Sequence[float], part: float) -> float:
    """The nearest-rank percentile.

    >>> rank_of([1, 2, 3, 4], 0.5), rank_of([1, 2, 3, 4], 0.9)
    (2, 4)
    """
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]


def _added(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in figures:
        for key, amount in one.items():
            total[key] = total.get(key, 0.0) + amount
    return {key: _rounded(amount) for key, amount in sorted(total.items())}


def _hours(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: _rounded(amount / 3600) for key, amount in sorted(seconds.items())}


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0


def _rounded(figure: float) -> float:
    """Sums of floats differ in the last digits with the order in which they are made; reports must not."""
    return round(figure, 6)


# --- as tables --------------------------------------------------------------------------------

Rows = list[list[str]]


def tables_of(reports: Sequence[WorkloadReport]) -> list[tuple[str, list[str], Rows]]:
    """Title, headings and rows of each table. Several reports stand side by side: a row of each, and which;
    there is no room for each component's makespan then."""
    by_file = len(reports) > 1
    tables = [
        ("Components", ["COMPONENT", "JOBS", "WAIT P50", "P90", "MAX", "USED", "PREEMPTED", "LOST", "MAKESPAN"],
         _component_rows),
        ("Pools", ["POOL", "CAPACITY", "USED", "MAKESPAN", "RESERVE VIOLATIONS"], _pool_rows),
        ("Lost to preemption", ["COMPONENT", "FOR", "RULE", "PREEMPTED", "LOST"], _loss_rows),
        ("Did not run", ["COMPONENT", "JOBS", "WHY"], _refused_rows),
    ]  # fmt: skip
    found = []
    for title, headings, rows_of in tables:
        rows = [[row[0], report.pools_file, *row[1:]] for report in reports for row in rows_of(report)]
        if not by_file:
            rows = [[row[0], *row[2:]] for row in rows]
        elif title == "Components":
            headings, rows = headings[:-1], [row[:-1] for row in rows]
        order = {report.pools_file: at for at, report in enumerate(reports)}
        if by_file and title in ("Components", "Pools"):
            rows.sort(key=lambda row: (row[0], order[row[1]]))
        if rows:
            found.append((title, [headings[0], "POLICIES", *headings[1:]] if by_file else headings, rows))
    return found


def _component_rows(report: WorkloadReport) -> Rows:
    return [
        [
            one.component, str(one.jobs), lasted(one.wait.p50), lasted(one.wait.p90), lasted(one.wait.max),
            _used(one.utilisation), str(one.preemptions), _hours_in_words(one.lost_hours),
            lasted(one.makespan_seconds),
        ]
        for one in report.components
    ]  # fmt: skip


def _pool_rows(report: WorkloadReport) -> Rows:
    return [
        [
            one.pool,
            ", ".join(f"{amount} {key}" for key, amount in sorted(one.capacity.items())),
            _parts(one.utilisation),
            lasted(report.makespan_seconds),
            str(one.reserve_violations),
        ]
        for one in report.pools
    ]


def _loss_rows(report: WorkloadReport) -> Rows:
    return [
        [one.victim, one.by, one.rule, str(one.preemptions), _hours_in_words(one.lost_hours)] for one in report.losses
    ]


def _refused_rows(report: WorkloadReport) -> Rows:
    rows = []
    for one in report.components:
        rows += [[one.component, str(refusal.jobs), refusal.reason] for refusal in one.refused]
        if one.never_began:
            rows.append([one.component, str(one.never_began), "still waited when nothing was left to happen"])
    return rows


def facts_of(reports: Sequence[WorkloadReport]) -> dict[str, str]:
    """What is to be known of the trace, which all reports share, what was assumed, and whether the reserved guarantee
    held in each."""
    report = reports[0]
    apart = {
        "that cannot be read": report.bad_lines,
        "that never ran": report.never_ran,
        "left out by the mapping": report.left_out,
        "that are parts of a job": report.parts,
    }
    without = ", ".join(f"{count} {what}" for what, count in apart.items() if count)
    running = f" ({report.still_running} still ran at its end)" if report.still_running else ""
    kept = [_violations(one) for one in reports]
    if len(set(kept)) > 1:
        kept = [f"{one.pools_file}: {sentence}" for one, sentence in zip(reports, kept, strict=True)]
    noun = "job" if report.jobs == 1 else "jobs"
    return {
        "trace": f"{report.trace}: {report.jobs} {noun}{running}"
        + (f"; not among them: {without}" if without else ""),
        "preempted jobs": report.after_preemption,
        "reserved guarantee": "; ".join(dict.fromkeys(kept)),
    }


def _violations(report: WorkloadReport) -> str:
    """ "2 violations (serving 2)"."""
    whose = ", ".join(
        f"{one.component} {one.reserve_violations}" for one in report.components if one.reserve_violations
    )
    gap = f" (and {report.known_gap} by the known gap of law 4)" if report.known_gap else ""
    noun = "violation" if report.reserve_violations == 1 else "violations"
    return f"{report.reserve_violations} {noun}" + (f" ({whose})" if whose else "") + gap


def _used(utilisation: Mapping[str, Mapping[str, float]]) -> str:
    if len(utilisation) == 1:
        return _parts(next(iter(utilisation.values())))
    return "; ".join(f"{pool}: {_parts(keys)}" for pool, keys in utilisation.items()) or "-"


def _parts(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{part * 100:.1f} % {key}" for key, part in figures.items()) or "-"


def _hours_in_words(figures: Mapping[str, float]) -> str:
    """ "12.5 GPU-h"."""
    names = {"gpu": "GPU-h"}
    shown = [f"{amount:,.1f} {names.get(key, key + '-h')}" for key, amount in figures.items() if amount]
    return ", ".join(shown) or "-"


def lasted(seconds: float | None) -> str:
    """In the largest unit of which there is one: "45 s", "2.1 h"; "-" for None. Short, to stand beside others."""
    if seconds is None:
        return "-"
    for unit, least, size in (("d", 2 * 86400, 86400), ("h", 3600, 3600), ("min", 60, 60)):
        if seconds >= least:
            return f"{seconds / size:.1f} {unit}"
    return f"{round(seconds, 1):g} s"
