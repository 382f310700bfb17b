"""`python -m benchmarks`: measures, and prints a table."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

from benchmarks import (
    engine_baseline,
    engine_turns,
    engine_victims,
    engine_waiting,
    ray_broker,
    ray_hand_over,
    ray_leases,
)
from benchmarks.curves import curves, picture
from benchmarks.harness import (
    Benchmark,
    Row,
    Settings,
    as_document,
    machine,
    print_table,
    progress,
    put_into,
    versions,
)
from raypool.server.ray_actor import GC_THRESHOLD

BENCHMARKS: tuple[Benchmark, ...] = (
    *engine_turns.BENCHMARKS,
    *engine_victims.BENCHMARKS,
    *engine_waiting.BENCHMARKS,
    *engine_baseline.BENCHMARKS,
    *ray_hand_over.DEFAULT,
    *ray_leases.DEFAULT,
    *ray_hand_over.TUNED,
    *ray_leases.TUNED,
    *ray_broker.TUNED,
)
"""Those on one cluster follow each other."""


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    chosen = [one for one in BENCHMARKS if any(one.name.startswith(prefix) for prefix in given.only)]
    if not chosen:
        names = ", ".join(one.name for one in BENCHMARKS)
        sys.exit(f"no benchmark begins with {' or '.join(given.only)}; there are {names}")
    if given.list:
        for one in chosen:
            print(f"{one.name}\n    {one.includes}")
        return
    gc.set_threshold(*GC_THRESHOLD)
    settings = Settings(given.rounds, given.small, given.idle_seconds)
    rows: list[Row] = []
    for one in chosen:
        rows += progress(one, settings, lambda text: print(text, file=sys.stderr))
        if given.json is not None:  # as far as it came, also if a later one fails
            given.json.write_text(json.dumps(as_document(rows), indent=1) + "\n", encoding="utf-8")
    if given.into is not None:
        put_into(given.into, rows)
        if found := curves(rows):
            given.into.with_name("growth.svg").write_text(picture(found), encoding="utf-8")
    print_table(rows)
    print(", ".join(f"{name} {value}" for name, value in {**machine(), **versions()}.items()))
    missed = [one.name for one in rows if one.met is False]
    judged = sum(one.met is not None for one in rows)
    print(f"{judged - len(missed)} of {judged} bars are met" + "".join(f"\n  not: {name}" for name in missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures what raypool costs. Engine figures are processor time of this process.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="NAME",
        help="those whose names begin so, like engine or ray-tuned.lease",
    )
    parser.add_argument("--list", action="store_true", help="tell the benchmarks, with what each includes, and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FILE",
        help="put the table into that Markdown file, and the curves beside it, into growth.svg",
    )
    parser.add_argument("--rounds", type=int, default=5, help="a figure is the median of so many (default 5)")
    parser.add_argument("--small", action="store_true", help="small sizes, which only show that everything runs")
    parser.add_argument(
        "--idle-seconds", type=float, default=30.0, help="how long an idle broker is looked at (default 30)"
    )
    return parser


if __name__ == "__main__":
    main()
