"""How a command reaches the broker: which cluster, and without Ray's own talk on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from raypool.client.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_ADDRESS = "raypool.address"  # in click's `Context.meta`, which a group shares with its commands


def address_option(**more: Any) -> Callable[[F], F]:
    """`--address`, on the group and on every command that talks to the broker; the command's wins."""
    return click.option(
        "--address",
        metavar="ADDRESS",
        expose_value=False,
        callback=_remember,
        help="The Ray cluster. Default: $RAY_ADDRESS, else the cluster on this machine.",
        **more,
    )


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_ADDRESS] = value


def connect() -> Client:
    """A client of the broker. Raises BrokerUnavailable."""
    _join()
    from raypool.client import client

    return client.connect()


def start(config: Any = None, journal: str | None = None) -> Client:
    """Starts the broker, or finds the one that runs. Raises BrokerUnavailable if there is no cluster."""
    _join()
    from raypool.client import client

    return client.start(config, journal=journal)


def stop(discard_journal: bool = False) -> None:
    """Ends the broker and all that runs in its pools. Raises BrokerUnavailable if none runs."""
    _join()
    from raypool.client import client

    client.stop(discard_journal=discard_journal)


def _join() -> None:
    """Connects this process to the cluster, quietly: a command's output is its own."""
    import logging

    from raypool.client import client

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    client.join(click.get_current_context().meta.get(_ADDRESS), log_to_driver=False)
