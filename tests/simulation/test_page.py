"""The page of a replay: whole, without anything from elsewhere, and nothing that is written breaks it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from raypool.simulation.page import page_of
from raypool.simulation.plot import HEIGHT, WIDTH
from raypool.simulation.traces import Counts
from raypool.simulation.workload import replay_workload
from raypool.simulation.workload_report import report_of

from .test_workload import config, job, random_jobs


def page(*pools_files: str) -> str:
    runs = []
    for at, name in enumerate(pools_files):
        workload = replay_workload(random_jobs(5), config(high=at, low=1))
        runs.append((report_of(workload, "<trace> & co.csv", Counts(), name), workload))
    return page_of(runs)


def plots(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_it_has_a_plot_of_waits_of_each_pool_and_of_each_policy() -> None:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page("a.yaml"))
    assert captions[:2] == ["Wait by time of submission, p90", "gpu in use in p"]
    assert sorted(captions[2:]) == ["gpu of high in p", "gpu of low in p", "gpu of top in p"]


def test_compared_policies_stand_side_by_side_on_one_scale() -> None:
    html = page("a.yaml", "b.yaml")
    rows = re.findall(r'<div class="row">(.*?)</div>', html, re.DOTALL)
    assert len(rows) == 5 and all(row.count("<figure>") == 2 for row in rows)
    left, right = ([text.text for text in svg.iter("text")] for svg in plots(rows[0]))
    assert left == right, "the same waits at the same height"


def test_pools_that_only_one_of_two_policies_has_are_shown_beside_a_gap() -> None:
    more = config()
    more = more.model_copy(update={"pools": (*more.pools, more.pools[0].model_copy(update={"name": "a"}))})
    runs = []
    for name, pools in [("one.yaml", config()), ("two.yaml", more)]:
        workload = replay_workload(random_jobs(5), pools)
        runs.append((report_of(workload, "t", Counts(), name), workload))
    rows = re.findall(r'<div class="row">(.*?)</div>(?=<div class="row">|<h2>)', page_of(runs), re.DOTALL)
    shown = [re.findall(r"<figcaption>(.*?)</figcaption>|<div></div>", row) for row in rows]
    assert ["gpu in use in p, one.yaml", "gpu in use in p, two.yaml"] in shown
    assert ["", "gpu in use in a, two.yaml"] in shown


def test_every_mark_is_inside_its_plot_and_evictions_are_marked() -> None:
    found = plots(page("a.yaml"))
    marks = [mark for svg in found for mark in svg.iter("path")]
    assert marks and all("eviction" in "".join(mark.itertext()) for mark in marks)
    for svg in found:
        for shape in [*svg.iter("polygon"), *svg.iter("polyline")]:
            for point in shape.get("points", "").split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
    lines = [line.get("class") for svg in found for line in svg.iter("line")]
    assert {"capacity", "reserved", "limit"} <= set(lines)


def test_it_needs_nothing_from_elsewhere_and_names_cannot_break_it() -> None:
    html = page("<b>.yaml")
    assert not re.search(r"https?:|<script|src=|href=|@import|url\(", html)
    assert "<b>" not in html and "&lt;trace&gt; &amp; co.csv" in html
    assert "prefers-color-scheme:dark" in html and 'name="viewport"' in html


def test_nothing_happened_is_a_page_too() -> None:
    workload = replay_workload([], config())
    assert len(plots(page_of([(report_of(workload, "t", Counts(), "p"), workload)]))) == 2


def test_more_components_than_colours_are_drawn_as_others() -> None:
    names = [f"team-{at}" for at in range(12)]
    pools = config().model_copy(
        update={"policies": tuple(config().policies[0].model_copy(update={"component": name}) for name in names)}
    )
    workload = replay_workload([job(name, 0, 9, name, 1) for name in names], pools)
    html = page_of([(report_of(workload, "t", Counts(), "p"), workload)])
    assert "5 others" in html and len(plots(html)) == 2 + 8
