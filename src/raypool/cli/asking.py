"""The options with which a command says what it asks for: one worker's resources, how many, and how they are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from raypool.cli.values import COMPONENT_TYPE

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--component", help="Who asks; else RAYPOOL_COMPONENT, else the job's metadata."),
    click.option("--component-type", "-t", type=COMPONENT_TYPE, help="What --component is. Default: team."),
    click.option("--gpus", type=click.IntRange(min=0), help="GPUs of each worker."),
    click.option("--cpus", type=float, help="CPUs of each worker; fractions allowed."),
    click.option("--memory", help="Memory of each worker, like 16GiB."),
    click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="How many bundles."),
    click.option(
        "--strategy",
        type=click.Choice(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
        default="PACK",
        show_default=True,
        help="How the bundles lie on nodes: Ray's words. STRICT_: all on one node, or each on its own.",
    ),
    click.option("--pool", help="Take it from this pool only."),
    click.option("--grace-seconds", type=float, help="Leave this soon after a notice; at most the pool's grace."),
    click.option("--non-preemptible", is_flag=True, help="Never to be evicted; runs only inside the reserve."),
    click.option(
        "--on-node-loss",
        type=click.Choice(["requeue", "fail", "wait"]),
        default="requeue",
        show_default=True,
        help="When a node under it dies: end it, or let Ray repair it first.",
    ),
    click.option(
        "--repair-seconds", type=float, help="How long Ray may repair it, with --on-node-loss wait. Default: 60."
    ),
    click.option("--max-duration", type=float, help="End it after so many seconds, with a notice before."),
)


def asking_options(function: F) -> F:
    """Each is passed under its own name."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
