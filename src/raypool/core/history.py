"""What pools and policies were: every change of them has a number, and can be gone back to.

A version keeps what it changed and not a whole config, since a hundred large ones would make every snapshot
large. What leaves everything as it was is no change and has no number. The rule that must not break: the
versions, one upon the other, lead to the config that is in force.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from raypool.errors import Refused
from raypool.spec import BROKER_WIDE, BrokerConfig, PolicySpec, PoolSpec

KEPT = 100
"""So many versions are kept; the oldest fall off."""

SPECS_KEPT = 20_000
"""So many pools and policies they may have changed in all, and the last may always."""

MOST_NAMED = 8
"""So many pools and policies are named in `Version.what`."""

Detached = tuple[str, str, str]
"""A policy by its pool, component and component type."""


@dataclass(frozen=True, slots=True)
class Version:
    """One change, and who made it.

    put: the pools and policies that were new or other than before, and the settings that changed.
    deleted: names of pools, whose policies went with them. detached: policies of pools that stayed.
    back_to: the version that it went back to, if it did. what: all that in short. by, note: what was told.
    """

    number: int
    at: float
    put: BrokerConfig
    deleted: tuple[str, ...] = ()
    detached: tuple[Detached, ...] = ()
    back_to: int | None = None
    what: str = ""
    by: str = ""
    note: str = ""


class History:
    """before: the config as it stood before the oldest version that is kept."""

    def __init__(self, before: BrokerConfig | None = None, versions: Iterable[Version] = ()) -> None:
        self.before = before if before is not None else BrokerConfig()
        self.versions = deque(versions)

    def copy(self) -> History:
        return History(self.before, self.versions)

    @property
    def number(self) -> int:
        """Of the config that is in force; 0 when nothing was ever applied."""
        return self.versions[-1].number if self.versions else 0

    def add(
        self,
        at: float,
        before: BrokerConfig,
        after: BrokerConfig,
        by: str = "",
        note: str = "",
        back_to: int | None = None,
    ) -> None:
        """The config was `before` and is `after`. Does nothing if that is the same."""
        put, deleted, detached = _difference(before, after)
        if not (put.pools or put.policies or put.model_fields_set & set(BROKER_WIDE) or deleted or detached):
            return
        what = _in_short(before, put, deleted, detached)
        if back_to is not None:
            what = f"back to {back_to}: {what}"
        self.versions.append(Version(self.number + 1, at, put, deleted, detached, back_to, what, by, note))
        self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        specs = sum(_size(version) for version in self.versions)
        while len(self.versions) > KEPT or (specs > SPECS_KEPT and len(self.versions) > 1):
            oldest = self.versions.popleft()
            specs -= _size(oldest)
            self.before = _put_together(self.before, [oldest])

    def config_at(self, number: int) -> BrokerConfig:
        """The config as it stood after that change. Raises Refused if it is not known, or not any more."""
        if not self.versions:
            raise Refused(f"there is no version {number}: nothing was applied yet")
        oldest = self.versions[0].number
        if not oldest <= number <= self.number:
            raise Refused(f"there is no version {number}: those from {oldest} to {self.number} are kept")
        return _put_together(self.before, islice(self.versions, number - oldest + 1))


def _size(version: Version) -> int:
    return len(version.put.pools) + len(version.put.policies) + len(version.deleted) + len(version.detached)


def _put_together(config: BrokerConfig, versions: Iterable[Version]) -> BrokerConfig:
    pools = {pool.name: pool for pool in config.pools}
    policies = _policies(config)
    settings = {name: getattr(config, name) for name in BROKER_WIDE}
    for version in versions:
        for name in version.deleted:
            del pools[name]
        if version.deleted or version.detached:
            policies = {key: one for key, one in policies.items() if key[0] in pools and key not in version.detached}
        pools |= {pool.name: pool for pool in version.put.pools}
        policies |= _policies(version.put)
        settings |= _settings(version.put)
    return BrokerConfig(
        pools=tuple(pool for _, pool in sorted(pools.items())),
        policies=tuple(policy for _, policy in sorted(policies.items())),
        **settings,
    )


def _difference(now: BrokerConfig, then: BrokerConfig) -> tuple[BrokerConfig, tuple[str, ...], tuple[Detached, ...]]:
    """What has to be put, deleted and detached to make `then` of `now`."""
    pools, policies = {pool.name: pool for pool in now.pools}, _policies(now)
    put = BrokerConfig(
        pools=tuple(pool for pool in then.pools if pools.get(pool.name) != pool),
        policies=tuple(policy for key, policy in _policies(then).items() if policies.get(key) != policy),
        **{name: getattr(then, name) for name in BROKER_WIDE if getattr(now, name) != getattr(then, name)},
    )
    stay, stays = {pool.name for pool in then.pools}, _policies(then)
    deleted = tuple(name for name in pools if name not in stay)
    return put, deleted, tuple(key for key in policies if key[0] in stay and key not in stays)


def _policies(config: BrokerConfig) -> dict[Detached, PolicySpec]:
    return {(policy.pool, *policy.owner): policy for policy in config.policies}


def _settings(config: BrokerConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in BROKER_WIDE if name in config.model_fields_set}


# --- in words ---------------------------------------------------------------------------------


def _in_short(
    before: BrokerConfig, put: BrokerConfig, deleted: tuple[str, ...], detached: tuple[Detached, ...]
) -> str:
    """ "pool 'a' added, policy of 'red' in pool 'a' changed: reserved"."""
    words = list(_words(before, put, deleted, detached))
    named = words[:MOST_NAMED]
    if len(words) > MOST_NAMED:
        named.append(f"{len(words) - MOST_NAMED} more")
    return "; ".join(named)


def _words(
    before: BrokerConfig, put: BrokerConfig, deleted: tuple[str, ...], detached: tuple[Detached, ...]
) -> Iterator[str]:
    pools, policies = {pool.name: pool for pool in before.pools}, _policies(before)
    for pool in put.pools:
        yield f"pool '{pool.name}' {_fields(pools.get(pool.name), pool)}"
    for key, policy in _policies(put).items():
        yield f"{_named(key)} {_fields(policies.get(key), policy)}"
    for name in deleted:
        yield f"pool '{name}' deleted"
    for key in detached:
        yield f"{_named(key)} detached"
    for name, value in _settings(put).items():
        yield f"{name} {value}"


def _named(policy: Detached) -> str:
    pool, component, component_type = policy
    whose = f"'{component}'" if component_type == "team" else f"{component_type} '{component}'"
    return f"policy of {whose} in pool '{pool}'"


def _fields(old: PoolSpec | PolicySpec | None, new: PoolSpec | PolicySpec) -> str:
    if old is None:
        return "added"
    fields = (name for name in type(new).model_fields if getattr(old, name) != getattr(new, name))
    return f"changed: {', '.join(fields)}"
