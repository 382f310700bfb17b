"""`raypool run`: a command inside a lease."""

from __future__ import annotations

import sys

import click

from raypool.cli.asking import asking_options
from raypool.cli.connection import address_option, connect


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a command inside a lease.",
)
@asking_options
@click.option("--wait-timeout", type=float, help="Give up when not granted within this many seconds.")
@click.option(
    "--uses-ray",
    is_flag=True,
    help="The command is a Ray driver that puts its own work into the lease; it gets no GPUs itself.",
)
@address_option()
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    component: str | None,
    component_type: str | None,
    gpus: int | None,
    cpus: float | None,
    memory: str | None,
    workers: int,
    strategy: str,
    pool: str | None,
    wait_timeout: float | None,
    grace_seconds: float | None,
    non_preemptible: bool,
    on_node_loss: str,
    repair_seconds: float | None,
    max_duration: float | None,
    uses_ray: bool,
    command: tuple[str, ...],
) -> None:
    """Take a lease, run COMMAND inside its first bundle with its GPUs visible, and give it back.

    Output and exit code are the command's. It and what it has started get SIGTERM when the lease is asked
    back, and are gone at the deadline (exit code 137).

      ray job submit -- raypool run --component team-ml --gpus 2 -- python train.py
    """
    from raypool.client.lease import lease
    from raypool.client.runner import Output, run_command
    from raypool.spec import ResourceSettings

    settings = ResourceSettings(gpu_count=gpus, cpu_count=cpus, memory=memory, preemptible=not non_preemptible)
    connect()
    asked = lease(
        settings,
        component=component,
        component_type=component_type,
        workers=workers,
        strategy=strategy,
        pool=pool,
        wait_timeout_seconds=wait_timeout,
        grace_seconds=grace_seconds,
        on_node_loss=on_node_loss,
        repair_seconds=repair_seconds,
        max_duration_seconds=max_duration,
        description=" ".join(command)[:200],
    )
    code = 0
    with asked as held:
        for piece in run_command(held, command, uses_ray=uses_ray):
            if isinstance(piece, Output):
                stream = sys.stdout if piece.stream == "stdout" else sys.stderr
                stream.buffer.write(piece.data)
                stream.flush()
            else:
                code = piece
        ending, notice = held.ending, held.preemption_notice
    if ending is not None:
        click.echo(f"raypool: {ending}", err=True)
    elif notice is not None:
        click.echo(f"raypool: the command {notice.reason}", err=True)
    sys.exit(code)
