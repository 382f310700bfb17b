"""The table of metrics in the manual is the one in the code."""

from __future__ import annotations

from raypool.monitoring import metrics as m

from ..pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def test_the_manual_has_every_metric_as_it_is() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `raypool_")]
    assert rows == [
        [f"`{one.name}`", one.kind, one.unit, ", ".join(f"`{label}`" for label in one.labels) or "-", one.meaning]
        for one in m.METRICS
    ]


def test_the_manual_has_the_bounds() -> None:
    assert f"{m.MOST_SERIES:,}" in PAGE and f"`{m.OTHERS}`" in PAGE
