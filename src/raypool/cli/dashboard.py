"""`raypool dashboard`: the page that shows who holds what, who waits and why."""

from __future__ import annotations

import click

from raypool.cli import connection

HOST, PORT = "127.0.0.1", 8266
"""One above the port of Ray's own dashboard."""


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any that is free.")
@click.option("--host", default=HOST, show_default=True, help="Where it listens.")
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Also cancel requests and change policies. Needs a token where others than this machine reach it.",
)
@click.option(
    "--token",
    envvar="RAYPOOL_DASHBOARD_TOKEN",
    show_envvar=True,
    default="",
    help="Only who has it sees anything. Better given in the variable: a command line can be read by others.",
)
@connection.address_option()
def dashboard(port: int, host: str, allow_actions: bool, token: str) -> None:
    """Show pools, queue and allocations in a browser, live. Ctrl-C ends it."""
    from raypool.dashboard.guards import Guard, is_loopback, is_token
    from raypool.dashboard.serving import serve

    if allow_actions and not token and not is_loopback(host):
        raise click.UsageError(
            f"--allow-actions on '{host}', which others reach, needs a token: set RAYPOOL_DASHBOARD_TOKEN"
        )
    if token and not is_token(token):
        raise click.UsageError("the token must be of ASCII letters, digits and signs, with no space around it")
    connection.connect()  # what is wrong shows here, and not on the page
    guard = Guard(host, token, allow_actions)

    def ready(url: str) -> None:
        what = "cancels and changes policies, too" if allow_actions else "read-only"
        click.echo(f"dashboard: {url} ({what}); Ctrl-C ends it")
        if not token and not is_loopback(host):
            click.echo("whoever reaches this port sees it: set RAYPOOL_DASHBOARD_TOKEN to ask for a token", err=True)

    from raypool.client import client

    serve(client.connect, guard, port, ready)
