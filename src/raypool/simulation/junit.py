"""Reports of scenarios as JUnit XML, which every CI shows: one test case per scenario, one suite per file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from raypool.simulation.report import SimulationReport

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_of(reports: Sequence[SimulationReport]) -> str:
    """The document. A scenario that does not hold is a failure, with its sentences one per line."""
    failed = sum(not report.passed for report in reports)
    root = ElementTree.Element(
        "testsuites", name="raypool simulate", tests=str(len(reports)), failures=str(failed), errors="0"
    )
    by_file: dict[str, list[SimulationReport]] = {}
    for report in reports:
        by_file.setdefault(report.file or "", []).append(report)
    for file, its in by_file.items():
        failed = sum(not report.passed for report in its)
        suite = ElementTree.SubElement(
            root, "testsuite", name=_text(file), tests=str(len(its)), failures=str(failed), errors="0", skipped="0"
        )
        for report in its:
            case = ElementTree.SubElement(suite, "testcase", classname=_text(file), name=_text(report.name))
            if not report.passed:
                failure = ElementTree.SubElement(case, "failure", message=_text(report.failures[0]))
                failure.text = _text("\n".join(report.failures))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _text(text: str) -> str:
    """Without what XML cannot hold: control characters and halves of characters become "?"."""
    return _NOT_XML.sub("?", text)
