"""The alert rules: read and tested by Prometheus' own tool, and each explained in the manual."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from raypool.cli.main import main
from raypool.monitoring.alerts import RULES

from ..pages import ROOT
from ..test_docs import anchors
from .expressions import faults_of

ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]
TESTS = Path(__file__).with_name("alerts_test.yml")

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def test_prometheus_reads_them(promtool: Any) -> None:
    promtool("check", "rules", RULES)


def test_they_fire_when_they_should_and_not_before(promtool: Any) -> None:
    promtool("test", "rules", TESTS)


@each_alert
def test_an_alert_is_tested_with_what_it_says(alert: dict[str, Any]) -> None:
    stories = [
        case for story in yaml.safe_load(TESTS.read_text())["tests"] for case in story.get("alert_rule_test", [])
    ]
    told = [case["exp_alerts"] for case in stories if case["alertname"] == alert["alert"]]
    assert [] in told and any(told)


@each_alert
def test_an_alert_names_metrics_and_labels_that_there_are(alert: dict[str, Any]) -> None:
    assert list(faults_of(alert["expr"])) == []


@each_alert
def test_an_alert_leads_to_what_to_do(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower() and anchor in anchors(ROOT / page)


def test_five_things_are_worth_waking_up_for() -> None:
    assert len(ALERTS) == 5
    assert all(re.fullmatch(r"Raypool\w+", alert["alert"]) for alert in ALERTS)


def test_the_command_prints_them() -> None:
    assert CliRunner().invoke(main, ["grafana", "rules"]).stdout == RULES.read_text()
