"""What applying a config would add and change, and what going back to one: a difference of two configs, as
plain values.

Nothing is ever removed by applying: pools and policies that the new config does not name stay. Going back
removes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raypool.spec import BrokerConfig, PolicySpec, Spec


@dataclass(frozen=True)
class Change:
    """One pool, one policy, or the broker's own settings.

    kind: "added", "changed", "unchanged" or "removed". fields: field -> (now, then), those that differ; of what
    is added, those that are not at their default, with None for now.
    """

    kind: str
    what: str
    fields: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "fields": {name: {"now": now, "then": then} for name, (now, then) in self.fields.items()},
        }


def changes_of(now: BrokerConfig, wanted: BrokerConfig) -> list[Change]:
    """A Change for each pool and policy that `wanted` names, in its order."""
    from raypool.spec import BROKER_WIDE

    changes = []
    pools = {pool.name: pool for pool in now.pools}
    policies = {(policy.pool, policy.owner): policy for policy in now.policies}
    for pool in wanted.pools:
        changes.append(_change(f"pool '{pool.name}'", pools.get(pool.name), pool))
    for policy in wanted.policies:
        changes.append(_change(_named(policy), policies.get((policy.pool, policy.owner)), policy))
    fields = {
        name: (getattr(now, name), getattr(wanted, name))
        for name in BROKER_WIDE
        if name in wanted.model_fields_set and getattr(wanted, name) != getattr(now, name)
    }
    if fields:
        changes.append(Change("changed", "the broker", fields))
    return changes


def changes_back_to(now: BrokerConfig, wanted: BrokerConfig) -> list[Change]:
    """As `changes_of`, with those pools and policies that `wanted` does not name as removed."""
    pools = {pool.name for pool in wanted.pools}
    policies = {(policy.pool, policy.owner) for policy in wanted.policies}
    return [
        *changes_of(now, wanted),
        *(Change("removed", f"pool '{pool.name}'") for pool in now.pools if pool.name not in pools),
        *(Change("removed", _named(one)) for one in now.policies if (one.pool, one.owner) not in policies),
    ]


def _named(policy: PolicySpec) -> str:
    return f"policy of {policy.component_type} '{policy.component}' in pool '{policy.pool}'"


_NAMES = ("name", "pool", "component", "component_type")


def _change(what: str, now: Spec | None, then: Spec) -> Change:
    if now is None:
        return Change(
            "added", what, {name: (None, value) for name, value in then.dump().items() if name not in _NAMES}
        )
    fields = {
        name: (getattr(now, name), getattr(then, name))
        for name in type(then).model_fields
        if getattr(now, name) != getattr(then, name)
    }
    return Change("changed" if fields else "unchanged", what, fields)


def by_kind(changes: Iterable[Change]) -> dict[str, list[Change]]:
    """The changes under "added", "changed", "unchanged" and "removed"."""
    found: dict[str, list[Change]] = {"added": [], "changed": [], "unchanged": [], "removed": []}
    for change in changes:
        found[change.kind].append(change)
    return found
