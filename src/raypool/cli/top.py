"""`raypool top`: who holds what, who waits and why, again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from raypool.cli import connection, output
from raypool.cli.screen import Line, Room, Sight, busiest_first, painted, plain, screen
from raypool.errors import BrokerUnavailable, Refused

if TYPE_CHECKING:
    from raypool.cli.terminal import Screen
    from raypool.client.client import Client

SILENT_SECONDS = 3.0
"""After so long without an answer the screen says so."""

_AT_ONCE = 3
"""So many pools are shown in full where there is no screen to turn over."""

_TROUBLE_COLUMNS = 160

_ONCE = Room()


@click.command()
@click.option("--pool", help="Show this pool in full. Default: the busiest.")
@click.option("--key", help="What is shown by component. Default: gpu, or else the pool's first key.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds from one look to the next.",
)
@click.option("--once", is_flag=True, help="Print it once. So it is also where stdout is no terminal.")
@connection.address_option()
def top(pool: str | None, key: str | None, interval: float, once: bool) -> None:
    """Show who holds what, who waits and why, and keep it up to date.

    Pools as bars of their capacity, the queue in order with the first one's whole reason, and what runs, with notices
    counting down. Keys: n and p turn to the next and the previous pool, q or Ctrl-C ends.
    """
    client = connection.connect()
    if pool is not None:
        client.pool(pool)  # a pool that does not exist is an error
    if not once:
        from raypool.cli.terminal import is_screen

        once = not is_screen()
    if once:
        shown = look(client, [pool] if pool is not None else None, key, _ONCE.waiting, _AT_ONCE)
        _print(screen(shown, output.columns(), time.time(), room=_ONCE))
    else:
        _follow(Looks(pool, key, interval))


def look(client: Client, names: list[str] | None, key: str | None, first: int, most: int = 1) -> Sight:
    """One look.

    names: the pools that are shown in full; None: the busiest, at most so many. first: so many of those that wait and
    of those that run.
    """
    broker = client.status()
    if names is None:
        names = [one.name for one in busiest_first(broker.pools, key)[:most]]
    there = {one.name for one in broker.pools}
    fronts = [client.front(name, first) for name in names if name in there]
    return Sight(broker, fronts, time.time(), key)


def _print(lines: list[Line]) -> None:
    import sys

    if not sys.stdout.isatty():
        click.echo("\n".join(plain(line) for line in lines))
        return
    from raypool.cli.terminal import has_colours

    click.echo("\n".join(painted(line, has_colours()) for line in lines))


# --- live -------------------------------------------------------------------------------------


class Looks(threading.Thread):
    """Looks every so many seconds, in a thread of its own: a broker that is away keeps nobody from pressing a key.

    `latest` is what was seen last, and `trouble` why there is nothing newer. Each look finds the broker anew: it may
    have been stopped and started again.
    """

    def __init__(self, pool: str | None, key: str | None, interval: float) -> None:
        super().__init__(name="raypool-top", daemon=True)
        self.latest: Sight | None = None
        self.failure: BaseException | None = None
        self.news: Callable[[], None] = lambda: None
        self.first = 20
        self._pool, self._key, self._interval = pool, key, interval
        self._asked_at: float | None = None
        self._trouble = ""
        self._due = threading.Event()
        self._over = False
        self._context = click.get_current_context()

    @property
    def trouble(self) -> str:
        asked = self._asked_at
        silent = time.monotonic() - asked if asked is not None else 0.0
        if silent > SILENT_SECONDS and not self._trouble:
            return f"the broker has not answered for {output.duration(silent)}; still asking"
        return self._trouble

    def turn(self, steps: int) -> None:
        """To another pool, so many further on in the order of the list."""
        if self.latest is None or not self.latest.broker.pools:
            return
        names = [pool.name for pool in busiest_first(self.latest.broker.pools, self._key)]
        at = names.index(self._pool) if self._pool in names else 0
        self._pool = names[(at + steps) % len(names)]
        self._due.set()

    def end(self) -> None:
        self._over = True
        self._due.set()

    def run(self) -> None:
        try:
            with self._context.scope(cleanup=False):
                while not self._over:
                    self._due.clear()
                    self._look()
                    self.news()
                    self._due.wait(self._interval)
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            self.failure = error
            self.news()

    def _look(self) -> None:
        self._asked_at = time.monotonic()
        try:
            pool = self._pool
            seen = look(connection.connect(), None if pool is None else [pool], self._key, self.first)
        except (BrokerUnavailable, Refused) as error:  # refused: the pool went away between two questions
            self._trouble = output.cut(" ".join(str(error).split()), _TROUBLE_COLUMNS) + "; asking again"
            return
        if seen.fronts:
            self._pool = self._pool or seen.fronts[0].pool.name
        elif seen.broker.pools:
            self._pool = None  # it was deleted: the busiest is shown from now on
            self._due.set()
        self._trouble, self._asked_at, self.latest = "", None, seen


def _follow(looks: Looks) -> None:
    """Until somebody ends it."""
    from raypool.cli.terminal import Screen, has_colours

    colours = has_colours()
    try:
        with Screen() as terminal:
            looks.news = terminal.wake
            looks.start()
            while True:
                _draw(terminal, looks, colours)
                pressed = terminal.key(1.0)
                if pressed == "q":
                    return
                if pressed in ("n", "p"):
                    looks.turn(1 if pressed == "n" else -1)
                if looks.failure is not None:
                    raise looks.failure
    except KeyboardInterrupt:
        pass
    finally:
        looks.news = lambda: None
        looks.end()


def _draw(terminal: Screen, looks: Looks, colours: bool) -> None:
    width, height = terminal.size()
    looks.first = max(height, 20)
    if looks.latest is None:
        terminal.show([output.cut(looks.trouble or "asking the broker", width)])
        return
    seen = replace(looks.latest, trouble=looks.trouble)
    lines = [painted(line, colours) for line in screen(seen, width, time.time(), height - 1)]
    keys = "q quit" + ("  n next pool  p previous pool" if len(seen.broker.pools) > 1 else "")
    lines += [""] * (height - 1 - len(lines))
    terminal.show([*lines, painted(((output.cut(keys, width), "dim"),), colours)])
