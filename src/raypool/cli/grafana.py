"""`raypool grafana install`, `show`, `rules`: the dashboard and the alert rules of the metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import click

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group()
def grafana() -> None:
    """The dashboard and the alert rules of the broker's metrics."""


@grafana.command()
@click.option(
    "--folder", type=_FOLDER, help="Where Grafana reads dashboards. Default: beside those of Ray's session."
)
def install(folder: Path | None) -> None:
    """Write the dashboard into the folder from which Grafana reads Ray's.

    On the head node, once Ray runs: the start of Ray's dashboard empties that folder. Safe to repeat.
    """
    from raypool.monitoring.dashboard import FILE, grafana_folder

    place = grafana_folder() if folder is None else folder
    if not place.is_dir():
        raise click.ClickException(
            f"there is no folder {place}: Ray makes it on the head node when its dashboard starts; name another with "
            "--folder, or print the dashboard with `raypool grafana show`"
        )
    file, text = place / FILE, _dashboard()
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        click.echo(f"{file} is up to date")
        return
    file.write_text(text, encoding="utf-8")
    click.echo(f"wrote {file}")


@grafana.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
def show(file: IO[str]) -> None:
    """Write the dashboard to FILE (default: stdout) as JSON."""
    file.write(_dashboard())


@grafana.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
def rules(file: IO[str]) -> None:
    """Write the alert rules for Prometheus to FILE (default: stdout) as YAML."""
    from raypool.monitoring.alerts import RULES

    file.write(RULES.read_text(encoding="utf-8"))


def _dashboard() -> str:
    from raypool.monitoring.dashboard import dashboard

    return json.dumps(dashboard(), indent=2) + "\n"
