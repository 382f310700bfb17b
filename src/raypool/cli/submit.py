"""`raypool submit`: asks for a request without waiting for it, or says what would come of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from raypool.cli import connection, output
from raypool.cli.asking import asking_options
from raypool.cli.values import PAIR

if TYPE_CHECKING:
    from raypool.view import RequestView


@click.command(short_help="Ask for a request without waiting, or run it dry.")
@asking_options
@click.option(
    "-k", "--key", "keys", type=PAIR, multiple=True, metavar="KEY=AMOUNT",
    help="Any further key of a pool, for each worker; repeatable.",
)  # fmt: skip
@click.option("--id", "request_id", help="Its id; the same id with the same content asks once.")
@click.option("--description", help="For people.")
@click.option("--retry-of", help="The id of the request that this one takes up again.")
@click.option("--dry-run", is_flag=True, help="Say what would come of it now; ask for nothing.")
@output.output_option
@connection.address_option()
def submit(
    gpus: int | None,
    cpus: float | None,
    memory: str | None,
    non_preemptible: bool,
    max_duration: float | None,
    keys: tuple[tuple[str, str], ...],
    request_id: str | None,
    dry_run: bool,
    form: str,
    **fields: Any,
) -> None:
    """Ask for a request and print its id and status; exit code 1 if it is rejected.

    It is detached: this command is over at once, so nothing of its own could hold it. `raypool request
    cancel` ends it.
    """
    from raypool.spec import ResourceSettings

    settings = ResourceSettings(
        gpu_count=gpus,
        cpu_count=cpus,
        memory=memory,
        pool_resources={key: _whole(key, amount) for key, amount in keys},
        preemptible=not non_preemptible,
    )
    asked = {
        name: value for name, value in fields.items() if value is not None
    } | {"resources": settings, "lifetime": "detached"}  # fmt: skip
    if request_id is not None:
        asked["id"] = request_id
    if max_duration is not None:
        asked["max_duration_seconds"] = max_duration
    client = connection.connect()
    if dry_run:
        with output.progress("looking ahead on a copy of the broker"):
            answer = client.dry_run(**asked)
        view = answer.request
        output.data(answer.as_dict(), form) if form != "table" else output.lines(str(answer))
    else:
        view = client.submit(**asked)
        if view.status == "pending":
            with output.progress("working out when it may start"):  # a submission itself does not wait for that
                view = client.request(view.id)
        output.data(view.as_dict(), form) if form != "table" else output.lines(_sentence(view))
    if view.status == "rejected":
        sys.exit(1)


def _whole(key: str, amount: str) -> int:
    if not amount.isdecimal():
        raise click.UsageError(f"--key {key}: must be a whole number, got {amount!r}")
    return int(amount)


def _sentence(view: RequestView) -> str:
    return f"request {view.story}" if view.status != "pending" else f"request '{view.id}' is pending\n{view.story}"
