"""The Grafana dashboard of the metrics, and the folder from which a Grafana beside Ray reads its dashboards.

Written for the provisioning that Ray sets up: the data source is a variable, as in Ray's own dashboards. Gauges are
read as `max by (...)`: for some seconds after the broker's process was started again, both lives are shown.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raypool.monitoring import metrics as m
from raypool.monitoring.metrics import Metric

FILE = "raypool_grafana_dashboard.json"
UID = "raypoolDashboard"

WIDTH = 24
"""Columns of Grafana's grid."""

_HEIGHT = 8

Query = tuple[str, str]
"""An expression, and the legend of what it yields."""


def dashboard() -> dict[str, Any]:
    """As JSON: for Grafana 9 and later."""
    panels: list[dict[str, Any]] = []
    for row in _ROWS:
        top = max((one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels), default=0)
        for at, panel in enumerate(row):
            width = WIDTH // len(row)
            place = {"x": at * width, "y": top, "w": width, "h": _HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": place, **panel})
    return {
        "title": "raypool",
        "uid": UID,
        "tags": ["ray", "raypool"],
        "schemaVersion": 36,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 2}
    capacity = m.CAPACITY.exported
    return [
        source,
        _choice("SessionName", f"label_values({capacity}, SessionName)", "The Ray cluster's session.", of_all=True),
        _choice("pool", f'label_values({capacity}{{SessionName=~"$SessionName"}}, pool)', "Pools.", of_all=True),
        _choice("key", f'label_values({capacity}{{SessionName=~"$SessionName"}}, key)', "A key of the pools.", "gpu"),
    ]


def _choice(name: str, query: str, description: str, chosen: str = "", of_all: bool = False) -> dict[str, Any]:
    current = {"text": ["All"], "value": ["$__all"]} if of_all else {"text": chosen, "value": chosen}
    return {
        "name": name,
        "type": "query",
        "description": description,
        "datasource": "${datasource}",
        "definition": query,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "refresh": 2,
        "sort": 1,
        "includeAll": of_all,
        "multi": of_all,
        "current": current,
    }


# --- queries ----------------------------------------------------------------------------------


def _of(metric: Metric, ending: str = "") -> str:
    """The metric with the chosen session, pools and key, as far as it has these labels."""
    chosen = ['SessionName=~"$SessionName"']
    if "pool" in metric.labels:
        chosen.append('pool=~"$pool"')
    if "key" in metric.labels:
        chosen.append('key="$key"')
    return f"{metric.exported}{ending}{{{', '.join(chosen)}}}"


def _gauge(metric: Metric, *by: str) -> str:
    return f"max by ({', '.join(by or ('SessionName',))}) ({_of(metric)})"


def _in_an_hour(metric: Metric, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (increase({_of(metric)}[1h]))"


def _quantiles(metric: Metric, *by: str) -> list[Query]:
    buckets = f"sum by ({', '.join((*by, 'le'))}) (rate({_of(metric, '_bucket')}[15m]))"
    behind = "".join(f" {{{{{label}}}}}" for label in by)
    return [(f"histogram_quantile({share}, {buckets})", f"p{share * 100:g}{behind}") for share in (0.5, 0.9, 0.99)]


# --- panels -----------------------------------------------------------------------------------


def _panel(title: str, description: str, unit: str, queries: list[Query], **more: Any) -> dict[str, Any]:
    """A graph over time."""
    return {
        "title": title,
        "description": description,
        "type": "timeseries",
        "datasource": "${datasource}",
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "range": True}
            for at, (expression, legend) in enumerate(queries)
        ],
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "lineWidth": 1}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}},
        **more,
    }


def _stacked(panel: dict[str, Any], lines: Mapping[str, str]) -> dict[str, Any]:
    """All of its queries upon each other, but for those legends: lines above, each with its colour."""
    custom = panel["fieldConfig"]["defaults"]["custom"]
    custom.update(fillOpacity=70, lineWidth=0, stacking={"mode": "normal", "group": "A"})
    panel["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": legend},
            "properties": [
                {"id": "custom.stacking", "value": {"mode": "none"}},
                {"id": "custom.fillOpacity", "value": 0},
                {"id": "custom.lineWidth", "value": 2},
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
                {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}},
            ],
        }
        for legend, colour in lines.items()
    ]
    return panel


def _holders() -> dict[str, Any]:
    queries = [
        (_gauge(m.USED, "component"), "{{component}}"),
        (f"max({_of(m.PHANTOM)}) > 0", "phantom"),
        (f"max({_of(m.CAPACITY)})", "CAPACITY"),
        (f"max({_of(m.RESERVED)})", "RESERVED"),
    ]
    about = "What each component uses, upon each other, against what the pool has and what is reserved in it."
    lines = {"CAPACITY": "blue", "RESERVED": "dark-yellow"}
    panel = _panel("$pool: who holds $key", about, "short", queries, repeat="pool", repeatDirection="h", maxPerRow=2)
    return _stacked(panel, lines)


_ROWS: list[list[dict[str, Any]]] = [
    [_holders()],
    [
        _panel("Free $key", m.FREE.meaning, "short", [(_gauge(m.FREE, "SessionName", "pool"), "{{pool}}")]),
        _panel(
            "Borrowed $key",
            m.BORROWED.meaning,
            "short",
            [(_gauge(m.BORROWED, "SessionName", "pool", "component"), "{{pool}} {{component}}")],
        ),
    ],
    [
        _panel(
            "Waiting requests",
            m.WAITING.meaning,
            "short",
            [(_gauge(m.WAITING, "SessionName", "pool", "component"), "{{pool}} {{component}}")],
        ),
        _panel(
            "Age of the head of the queue",
            m.HEAD_AGE.meaning,
            "s",
            [
                (_gauge(m.HEAD_AGE, "SessionName", "pool"), "{{pool}}"),
                (f"{_gauge(m.RESERVE_WAIT, 'SessionName', 'pool')} > 0", "{{pool}}, inside a reserve"),
            ],
        ),
    ],
    [
        _panel("Wait until it starts", m.WAIT.meaning, "s", _quantiles(m.WAIT, "pool")),
        _panel("Grant latency", m.GRANT_LATENCY.meaning, "s", _quantiles(m.GRANT_LATENCY, "pool")),
    ],
    [
        _panel(
            "Evictions per hour",
            m.EVICTIONS.meaning,
            "short",
            [(_in_an_hour(m.EVICTIONS, "pool", "cause"), "{{pool}} {{cause}}")],
        ),
        _panel(
            "GPU-hours lost per hour",
            m.LOST_GPU_SECONDS.meaning,
            "short",
            [(f"{_in_an_hour(m.LOST_GPU_SECONDS, 'pool', 'cause')} / 3600", "{{pool}} {{cause}}")],
        ),
    ],
    [
        _panel(
            "Phantom and missing $key",
            f"{m.PHANTOM.meaning} Missing: {m.SHORTFALL.meaning[0].lower()}{m.SHORTFALL.meaning[1:]}",
            "short",
            [
                (_gauge(m.PHANTOM, "SessionName", "pool"), "{{pool}} phantom"),
                (_gauge(m.SHORTFALL, "SessionName", "pool"), "{{pool}} missing"),
            ],
        ),
        _panel(
            "Placements that failed",
            m.PLACEMENT_FAILURES.meaning,
            "short",
            [(_in_an_hour(m.PLACEMENT_FAILURES, "pool"), "{{pool}}")],
        ),
    ],
    [
        _panel("Lag of the broker's loop", m.LOOP_LAG.meaning, "s", _quantiles(m.LOOP_LAG)),
        _panel(
            "Lag of the journal",
            "How old the oldest event is that was decided and is not in the journal yet.",
            "s",
            [(_gauge(m.JOURNAL_LAG), "seconds")],
        ),
        _panel("Not in the journal yet", m.JOURNAL_PENDING.meaning, "short", [(_gauge(m.JOURNAL_PENDING), "events")]),
        _panel("Degraded", m.DEGRADED.meaning, "short", [(_gauge(m.DEGRADED), "degraded")]),
    ],
]
"""Top down."""


# --- where it goes ----------------------------------------------------------------------------


def grafana_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where Ray's running session has its dashboards, as Ray itself works it out. It is there once Ray's dashboard
    has started, which empties it."""
    environ = os.environ if environ is None else environ
    if "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR" in environ:
        return Path(environ["RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR"])
    root = environ.get("RAY_METRICS_OUTPUT_ROOT")
    if root is None:
        root = os.path.join(_temp_dir(environ), "ray", "session_latest", "metrics")
    return Path(root, "grafana", "dashboards")


def _temp_dir(environ: Mapping[str, str]) -> str:
    if "RAY_TMPDIR" in environ:
        return environ["RAY_TMPDIR"]
    if sys.platform.startswith("linux") and "TMPDIR" in environ:
        return environ["TMPDIR"]
    return "/tmp" if sys.platform.startswith(("linux", "darwin")) else tempfile.gettempdir()
