"""The alert rules for Prometheus, as a file."""

from pathlib import Path

RULES = Path(__file__).with_name("alerts.yml")
