"""Runs the dashboard's server in this process until it is told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from aiohttp import web

from raypool.client.client import Client
from raypool.dashboard.guards import Guard
from raypool.dashboard.server import Dashboard
from raypool.errors import Refused

LEAVE_SECONDS = 1.0
"""Open pages are told that it ends for so long."""


def serve(
    connect: Callable[[], Client], guard: Guard, port: int, ready: Callable[[str], None], by: str = "dashboard"
) -> None:
    """Returns after SIGINT or SIGTERM, or ends the process then, with exit code 0, if the broker owes an answer: a
    thread that waits for it would hold up the end for up to a minute. ready: called with the page's address once it
    is there. Raises Refused where it cannot listen, and a bug of ours that it stumbles over."""
    dashboard = Dashboard(connect, guard, by)
    asyncio.run(_serve(dashboard, guard.host, port, ready))
    if dashboard.feed.broker.is_asked:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _serve(dashboard: Dashboard, host: str, port: int, ready: Callable[[str], None]) -> None:
    over = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, over.set)
    runner = web.AppRunner(dashboard.application(), access_log=None, shutdown_timeout=LEAVE_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            number = error.errno or 0  # that of a name that is not known is below 0
            why = os.strerror(number) if number > 0 else error.strerror
            raise Refused(
                f"cannot listen on {host} port {port} ({why}); give another --port, or a --host of this machine"
            ) from None
        ready(f"http://{_named(host)}:{runner.addresses[0][1]}")
        told = asyncio.create_task(over.wait())
        await asyncio.wait({told, dashboard.asking}, return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            dashboard.asking.result()  # raises what ended it
    finally:
        await runner.cleanup()


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host
