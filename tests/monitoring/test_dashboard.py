"""The dashboard: every expression is one, and names what there is; and it goes where Grafana looks for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from raypool.cli.main import main
from raypool.monitoring import metrics as m
from raypool.monitoring.dashboard import FILE, WIDTH, dashboard, grafana_folder

from .expressions import METRIC_OF, faults_of, metrics_in

PANELS: list[dict[str, Any]] = dashboard()["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {one["name"]: one for one in dashboard()["templating"]["list"]}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_there_are(expression: str) -> None:
    assert metrics_in(expression) and list(faults_of(expression)) == []


def test_what_there_is_not_is_found() -> None:
    assert list(faults_of("ray_raypool_nothing")) == ["there is no metric ray_raypool_nothing"]
    assert list(faults_of('ray_raypool_free{cause="x"}')) == ["ray_raypool_free has no label cause"]
    assert list(faults_of("max by (pool, le) (ray_raypool_free)")) == [
        "ray_raypool_free has no label le, by which it is grouped"
    ]


def test_prometheus_reads_every_expression(promtool: Any, tmp_path: Path) -> None:
    written = [expression.replace("$__rate_interval", "5m") for expression in EXPRESSIONS]
    rules = [{"record": f"panel:{at}", "expr": one} for at, one in enumerate(written)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)


def test_every_metric_is_on_it() -> None:
    shown = {METRIC_OF[name] for expression in EXPRESSIONS for name in metrics_in(expression)}
    assert set(m.METRICS) - shown == {m.GRACE}, "the notice is for the alert rules"


def test_panels_lie_side_by_side_and_one_below_the_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= WIDTH, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in PANELS)


def test_every_variable_that_is_used_is_there() -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard()))) - {"__rate_interval", "__all"}
    assert used == set(VARIABLES)
    for name in ("SessionName", "pool", "key"):
        assert list(faults_of(VARIABLES[name]["definition"])) == []


def test_who_holds_what_is_stacked_and_lines_are_not() -> None:
    holders = PANELS[0]
    assert holders["repeat"] == "pool"
    assert holders["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    lines = {one["matcher"]["options"] for one in holders["fieldConfig"]["overrides"]}
    assert lines == {"CAPACITY", "RESERVED"} <= {target["legendFormat"] for target in holders["targets"]}


# --- where it goes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RAY_TMPDIR": "/a"},
        {"TMPDIR": "/b"},
        {"RAY_TMPDIR": "/a", "TMPDIR": "/b"},
        {"RAY_METRICS_OUTPUT_ROOT": "/c"},
        {"RAY_METRICS_OUTPUT_ROOT": "/c", "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR": "/d"},
    ],
    ids=str,
)
def test_the_folder_is_the_one_that_ray_works_out(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._common.utils import get_default_ray_temp_dir
    from ray.dashboard.modules.metrics import metrics_head

    for name in ("RAY_TMPDIR", "TMPDIR", "RAY_METRICS_OUTPUT_ROOT", "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    class Head(metrics_head.MetricsHead):
        session_dir = str(Path(get_default_ray_temp_dir(), "session_latest"))
        temp_dir = get_default_ray_temp_dir()

    monkeypatch.setattr(metrics_head.SubprocessModule, "__init__", lambda self: None)
    monkeypatch.setattr(metrics_head.SubprocessModule, "__abstractmethods__", frozenset(), raising=False)
    assert str(grafana_folder()) == Head()._grafana_dashboard_output_dir


def test_install_writes_it_once_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR", str(tmp_path))
    file = tmp_path / FILE
    assert CliRunner().invoke(main, ["grafana", "install"]).stdout == f"wrote {file}\n"
    assert json.loads(file.read_text()) == json.loads(json.dumps(dashboard()))
    assert CliRunner().invoke(main, ["grafana", "install"]).stdout == f"{file} is up to date\n"
    file.write_text("{}")
    assert CliRunner().invoke(main, ["grafana", "install"]).stdout == f"wrote {file}\n"


def test_install_takes_another_folder_and_makes_none(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["grafana", "install", "--folder", str(tmp_path)]).exit_code == 0
    assert (tmp_path / FILE).is_file()
    missing = CliRunner().invoke(main, ["grafana", "install", "--folder", str(tmp_path / "none")])
    assert missing.exit_code == 1 and "there is no folder" in missing.stderr and "--folder" in missing.stderr


def test_show_prints_it() -> None:
    assert json.loads(CliRunner().invoke(main, ["grafana", "show"]).stdout) == json.loads(json.dumps(dashboard()))
