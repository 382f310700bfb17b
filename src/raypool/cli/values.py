"""What is written behind an option and is more than a word: amounts, pairs like KEY=VALUE, a pools file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raypool.errors import SpecError

if TYPE_CHECKING:
    from raypool.spec import BrokerConfig

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic before click 8.4


class Amounts(_ParamType):
    """JSON or YAML like '{gpu: 8, mcpu: 64000}'. Amounts are whole numbers; which are allowed, the spec says."""

    name = "amounts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[Any, Any]:
        if isinstance(value, dict):
            return value
        import yaml

        try:
            loaded = yaml.safe_load(value)
        except yaml.YAMLError:
            self.fail(f"{value!r} is neither JSON nor YAML; write '{{gpu: 8}}'", param, ctx)
        if not isinstance(loaded, dict):
            self.fail(f"must be a mapping like '{{gpu: 8}}', got {value!r}", param, ctx)
        for key, amount in loaded.items():
            if not isinstance(amount, int) or isinstance(amount, bool):
                self.fail(f"{key}: must be a whole number, got {amount!r}", param, ctx)
        return loaded


class Pair(_ParamType):
    """KEY=VALUE; an empty value takes the key away."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not equals or not key:
            self.fail(f"must be KEY=VALUE, got {value!r}", param, ctx)
        return key, rest


_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class Since(_ParamType):
    """How long ago ("90s", "30min", "2h", "7d", "2w"), or a time as ISO 8601 has it, of this machine's time zone if
    it says none. Seconds since the epoch."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        import re
        import time
        from datetime import datetime

        ago = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d|w)", str(value).strip())
        if ago:
            return max(time.time() - float(ago[1]) * _UNITS[ago[2]], 0.0)
        try:
            return max(datetime.fromisoformat(str(value)).timestamp(), 0.0)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is neither like 30min, 2h or 7d nor a time like 2026-11-30T12:00", param, ctx)


AMOUNTS = Amounts()
SINCE = Since()
PAIR = Pair()
COMPONENT_TYPE = click.Choice(["team", "orchestrator", "step_operator"])


def config_in(file: Path) -> BrokerConfig:
    """The pools and policies of a file. Raises SpecError, naming it."""
    from raypool.spec import BrokerConfig

    try:
        return BrokerConfig.from_yaml(file)
    except SpecError as error:
        raise SpecError(f"{file}: {error}", error.problems) from None
