"""The benchmarks run, and say what they promise. Their figures are not judged here."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.curves import CURVES, curves, picture
from benchmarks.harness import (
    Patience,
    Settings,
    at_least,
    at_most,
    figure,
    percentile,
    put_into,
    ratio_at_least,
    ratio_at_most,
    row,
    spin_seconds,
)

ENGINE = [one for one in BENCHMARKS if one.name.startswith("engine.")]


@pytest.mark.parametrize("benchmark", ENGINE, ids=lambda one: one.name)
def test_every_engine_benchmark_runs_and_yields_figures(benchmark) -> None:
    rows = list(benchmark.run(Settings(rounds=1, small=True)))
    assert rows
    assert all(one.value >= 0 for one in rows)
    assert len({one.name for one in rows}) == len(rows)


def test_every_benchmark_says_what_its_figures_include() -> None:
    assert all(len(one.includes) > 80 for one in BENCHMARKS)


@pytest.mark.parametrize(
    ("bar", "value", "reference", "said", "met"),
    [
        (at_most(0.5), 0.5, None, "<= 0.5", True),
        (at_most(0.5), 0.51, None, "<= 0.5", False),
        (at_least(100_000), 99_999, None, ">= 100,000", False),
        (ratio_at_most(1.5), 3.0, 2.0, "ratio <= 1.5", True),
        (ratio_at_most(1.5), 3.1, 2.0, "ratio <= 1.5", False),
        (ratio_at_least(0.6), 1.0, 2.0, "ratio >= 0.6", False),
    ],
)
def test_a_bar_judges_the_figure_or_its_ratio_to_the_reference(bar, value, reference, said, met) -> None:
    judged = row("x", value, "ms", bar, reference)
    assert (judged.bar, judged.met) == (said, met)


def test_a_row_without_a_bar_is_not_judged() -> None:
    assert row("x", 2.0, "ms", reference=4.0).as_dict() == {
        "name": "x", "value": 2.0, "unit": "ms", "bar": "", "reference": 4.0, "ratio": 0.5, "met": None,
    }  # fmt: skip


def test_percentiles_are_samples() -> None:
    samples = [float(one) for one in range(100, 0, -1)]
    assert (percentile(samples, 50), percentile(samples, 99), percentile([7.0], 99)) == (50.0, 99.0, 7.0)


def test_figures_are_told_with_three_digits() -> None:
    assert [figure(one) for one in (0, 0.012345, 1.005, 12.345, 99_999.5, 0.5)] == [
        "0", "0.0123", "1", "12.3", "100,000", "0.5",
    ]  # fmt: skip


def test_a_spin_is_measured_once_in_a_run() -> None:
    assert 1e-9 < spin_seconds() < 1e-4
    assert spin_seconds() == spin_seconds()


def test_samples_are_fewer_when_they_take_long_but_never_less_than_the_fewest(monkeypatch) -> None:
    assert len(list(Patience(50))) == 50
    monkeypatch.setattr("benchmarks.harness.MEASURE_SECONDS", 0.0)
    assert len(list(Patience(50))) == 20


def test_the_command_writes_the_figures_as_json_and_prints_which_bars_are_missed(tmp_path: Path, capsys) -> None:
    file = tmp_path / "figures.json"
    main(["--only", "engine.keys", "--small", "--rounds", "1", "--json", str(file)])
    document = json.loads(file.read_text())
    assert document["machine"]["spins_per_second"] > 0
    assert {"python", "raypool", "ray", "pydantic"} <= set(document["versions"])
    names = [one["name"] for one in document["rows"]]
    assert names == ["a turn: 1 policy, 2 keys", "a turn: 100 policies, 10 keys"]
    assert set(document["rows"][0]) == {"name", "value", "unit", "bar", "reference", "ratio", "met"}
    assert "of 1 bars are met" in capsys.readouterr().out


def test_a_name_that_no_benchmark_has_ends_with_those_there_are() -> None:
    with pytest.raises(SystemExit, match=r"no benchmark begins with engine\.nothing; there are engine\.turns"):
        main(["--only", "engine.nothing"])


def test_the_list_tells_each_benchmark_and_measures_nothing(capsys) -> None:
    main(["--list"])
    told = capsys.readouterr().out
    assert all(f"{one.name}\n" in told for one in BENCHMARKS)


def test_the_table_is_put_between_the_marks_of_a_page_and_may_be_put_there_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Before\n\n<!-- figures -->\n<!-- end of figures -->\n\nAfter.\n")
    for value in (1.0, 3.0):
        put_into(page, [row("a turn", value, "us", at_most(2), 0.5, "spin")])
    text = page.read_text()
    assert text.startswith("# Before\n\n<!-- figures -->\nsystem ")
    assert text.endswith("\n| a turn | 3 us | <= 2 | 0.5 (spin) | 6 | NO |\n<!-- end of figures -->\n\nAfter.\n")
    assert text.count("a turn") == 1


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n")
    with pytest.raises(ValueError, match="has no lines <!-- figures -->"):
        put_into(page, [])
    assert page.read_text() == "# Nothing\n"


def test_costs_by_number_are_drawn_as_curves_that_name_themselves() -> None:
    rows = [
        row("victims: 1 of 50,000, p50", 0.03, "ms"), row("victims: 1 of 1,000, p50", 0.02, "ms"),
        row("victims: 1 of 1,000, p99", 9.0, "ms"), row("victims: 64 of 1,000, p50", 0.3, "ms"),
    ]  # fmt: skip
    found = curves(rows)
    assert found == {"1 victim of #": [(1_000, 0.02), (50_000, 0.03)]}
    drawn = ElementTree.fromstring(picture(found))
    (curve,) = (one for one in drawn.iter() if one.tag.endswith("polyline"))
    (first, last) = ([float(part) for part in point.split(",")] for point in curve.attrib["points"].split())
    assert first[0] < last[0] and first[1] > last[1], "more to the right, dearer above"


def test_every_curve_is_of_a_benchmark() -> None:
    names = [row.name for one in ENGINE if one.name in ("engine.hand-over", "engine.victims")
             for row in one.run(Settings(rounds=1, small=True))]  # fmt: skip
    for pattern, _ in CURVES:
        parts = pattern.split("#")
        assert any(name.startswith(parts[0]) and name.endswith(parts[1]) for name in names), pattern
