"""`raypool`: the command group, and the one place where errors become sentences and exit codes.

The exit codes are in exits.py. The rule that must not break: nothing that takes time to import (ray, pydantic, yaml,
rich) is imported at the top of a module of this package; commands import it when they run, so that help and
completion answer at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from raypool.cli import exits
from raypool.cli.connection import address_option
from raypool.errors import BrokerUnavailable, RaypoolError, SpecError

_MODULE_OF = {
    "start": "broker",
    "stop": "broker",
    "status": "broker",
    "top": "top",
    "apply": "broker",
    "export": "config",
    "history": "config",
    "rollback": "config",
    "dashboard": "dashboard",
    "pool": "pool",
    "request": "request",
    "why": "request",
    "watch": "watch",
    "submit": "submit",
    "run": "run",
    "simulate": "simulate",
    "replay": "replay",
    "journal": "journal",
    "grafana": "grafana",
    "events": "events",
    "report": "report",
}
"""Where each command lives: a module of this package, and in it a command of that name."""


class LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, and ends the process."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULE_OF:
            return None
        command: click.Command = getattr(importlib.import_module(f"raypool.cli.{_MODULE_OF[cmd_name]}"), cmd_name)
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, but every error that we raise on purpose is one sentence on stderr."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            done = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            code = done if isinstance(done, int) else 0
        except SystemExit as leaving:  # click's own: completion, or a reader of our output that went away
            code = leaving.code if isinstance(leaving.code, int) else 1
        except (click.ClickException, click.Abort, RaypoolError) as error:
            code = _tell(error)
        if args is None:
            _leave(code)
        sys.exit(code)


def _tell(error: click.ClickException | click.Abort | RaypoolError) -> int:
    """Prints the error on stderr. Returns the exit code."""
    if isinstance(error, click.Abort):
        sentence, code = "stopped; nothing more was done", exits.REFUSED
    elif isinstance(error, click.ClickException):
        if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2; its message is the help
            error.show()
            return error.exit_code
        sentence, code = error.format_message(), error.exit_code
        if isinstance(error, click.UsageError) and error.ctx is not None:
            sentence = f"{sentence.rstrip('.')}; see `{error.ctx.command_path} --help`"
    else:
        sentence, code = str(error), _exit_code(error)
    click.echo(f"Error: {' '.join(sentence.split())}", err=True)
    return code


def _exit_code(error: RaypoolError) -> int:
    if isinstance(error, BrokerUnavailable):
        return exits.NO_BROKER
    return exits.NOT_WRITTEN if isinstance(error, SpecError) else exits.REFUSED


def _leave(code: int) -> NoReturn:
    """Ends the process. Ray's own farewell takes most of a second, and a driver that is simply gone is
    found dead by the cluster just as well: after Ray was used, leave without it."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or 1
    os._exit(code)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@address_option(envvar="RAY_ADDRESS", show_envvar=True)
@click.version_option(package_name="raypool", prog_name="raypool")  # looked up when asked for: it is slow
def main() -> None:
    """Resource pools for Ray: quotas, priorities, borrowing and preemption inside one live cluster.

    Exit codes: 0 done, 1 refused or rejected, 2 not written correctly, 3 no broker; of `watch` also 4 preempted, 5
    cancelled.
    """
