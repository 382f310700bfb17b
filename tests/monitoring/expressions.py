"""Reads PromQL expressions, as far as a test has to: which metrics and labels they name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from raypool.monitoring import metrics as m
from raypool.monitoring.metrics import Metric

ENDINGS = {m.GAUGE: ("",), m.COUNTER: ("",), m.HISTOGRAM: ("_bucket", "_count", "_sum")}

METRIC_OF = {one.exported + ending: one for one in m.METRICS for ending in ENDINGS[one.kind]}
"""By every name that is exported."""

RAYS_LABELS = {"SessionName"}

_NAME = re.compile(r"\bray_\w+")
_SELECTED = re.compile(r"\b(ray_\w+)\{([^}]*)\}")
_GROUPED = re.compile(r"\b(?:by|on) \(([^)]*)\)\s*\w*\s*\(")


def metrics_in(expression: str) -> set[str]:
    """Every name that begins as Ray's do."""
    return set(_NAME.findall(expression))


def labels_of(name: str) -> set[str]:
    metric: Metric = METRIC_OF[name]
    return {*metric.labels, *RAYS_LABELS, *({"le"} if name.endswith("_bucket") else ())}


def faults_of(expression: str) -> Iterator[str]:
    """A sentence for each metric or label that there is not."""
    known = {name for name in metrics_in(expression) if name in METRIC_OF}
    yield from (f"there is no metric {name}" for name in metrics_in(expression) - known if "raypool" in name)
    for name, selector in _SELECTED.findall(expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            if name in known and label not in labels_of(name):
                yield f"{name} has no label {label}"
    for grouped in _GROUPED.finditer(expression):
        for name in metrics_in(_inside(expression, grouped.end())) & known:
            for label in filter(None, (one.strip() for one in grouped[1].split(","))):
                if label not in labels_of(name):
                    yield f"{name} has no label {label}, by which it is grouped"


def _inside(expression: str, start: int) -> str:
    """Up to where the parenthesis that is open at `start` closes."""
    depth = 1
    for at in range(start, len(expression)):
        depth += {"(": 1, ")": -1}.get(expression[at], 0)
        if not depth:
            return expression[start:at]
    raise AssertionError(f"a parenthesis is left open: {expression}")
