"""`raypool report`: what each component used, and how long it waited."""

from __future__ import annotations

import csv
import sys
import time
from dataclasses import fields
from typing import TYPE_CHECKING

import click

from raypool.cli import connection, output
from raypool.cli.values import SINCE
from raypool.view import about

if TYPE_CHECKING:
    from raypool.view import ReportRowView


@click.command()
@click.option("--since", type=SINCE, metavar="WHEN", default="7d", show_default=True,
              help="From then on: 30min, 2h, 7d ago, or a time.")  # fmt: skip
@click.option("--key", help="Only this key of the pools, like gpu.")
@click.option("--pool", help="Only this pool.")
@click.option("-o", "--output", "form", type=click.Choice(["table", "csv", "json"]), default="table",
              show_default=True, help="How it is printed.")  # fmt: skip
@connection.address_option()
def report(since: float, key: str | None, pool: str | None, form: str) -> None:
    """Report what each component had reserved, used, borrowed, lent and lost to preemption, and its waits.

    Amounts are amount x hours: of the key gpu, GPU-hours.
    """
    client = connection.connect()
    view = client.report(max(time.time() - since, 1.0))
    rows = [row for row in view.rows if key in (None, row.key) and pool in (None, row.pool)]
    if form == "json":
        output.data({"since": view.since, "until": view.until, "rows": [row.as_dict() for row in rows]}, form)
    elif form == "csv":
        _write_csv(rows)
    else:
        click.echo(f"from {_moment(view.since)} until {_moment(view.until)}, amounts x hours")
        columns: output.Columns[ReportRowView] = {
            "COMPONENT": lambda row: row.component,
            "POOL": lambda row: row.pool,
            "KEY": lambda row: row.key,
            "RESERVED": lambda row: _hours(row.reserved),
            "USED": lambda row: _hours(row.used),
            "BORROWED": lambda row: _hours(row.borrowed),
            "LENT": lambda row: _hours(row.lent),
            "LOST": lambda row: _hours(row.lost),
            "WAITS": lambda row: row.waits,
            "P50": lambda row: _seconds(row.wait_p50_seconds),
            "P90": lambda row: _seconds(row.wait_p90_seconds),
            "MAX": lambda row: _seconds(row.wait_max_seconds),
            "WAITING": lambda row: row.waiting,
        }
        output.listing(rows, columns, form, _none(view.rows, pool, key))


def _none(rows: list[ReportRowView], pool: str | None, key: str | None) -> str:
    """Why there is no line: a misspelt name must not look like an idle pool."""
    if not rows:
        return "no pool was used"
    wanted = " of ".join(filter(None, [key and f"key '{key}'", pool and f"pool '{pool}'"]))
    known = ", ".join(sorted({f"{row.key} of '{row.pool}'" for row in rows}))
    return f"nothing is known of {wanted}; there is: {known}"


def _write_csv(rows: list[ReportRowView]) -> None:
    from raypool.view import ReportRowView

    names = [one.name for one in fields(ReportRowView)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)


def _hours(amount: float) -> str:
    return f"{amount:.2f}" if amount else "-"


def _seconds(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return f"{seconds:.1f} s" if seconds < 10 else about(seconds)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
