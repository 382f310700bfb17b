"""What requests ask for, kept once for all that ask for the same.

A cluster's queue is thousands of requests of a few kinds. What the rules look at (who asks, for how much, how) and
the spec behind it belong to the kind; a request adds its name and its story. So a waiting request costs some
hundred bytes, and what is worked out of a spec is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, TypeVar

from raypool.core.lifetimes import size_class
from raypool.spec import Demand, RequestSpec, ResourceSettings

KEPT = 10_000
"""So many kinds a `Memo` has at most."""

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """What was worked out of kinds of requests. When there are too many it begins anew; what is in use elsewhere
    stays as it is."""

    def keep(self, key: K, value: V) -> V:
        if len(self) >= KEPT:
            self.clear()
        self[key] = value
        return value


OWN = ("id", "retry_of")
"""The fields of a spec that are a request's own."""

_shared = itemgetter(*(name for name in RequestSpec.model_fields if name not in (*OWN, "resources", "bundles")))
_settings = itemgetter(*(name for name in ResourceSettings.model_fields if name != "pool_resources"))


class Ask:
    """One kind of request. spec: that of the first who asked so; its `OWN` fields are nobody's."""

    __slots__ = ("demand", "owner", "preemptible", "size_class", "spec")

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self.owner = spec.owner
        self.demand: Mapping[str, int] = spec.demand()
        self.preemptible = spec.is_preemptible
        self.size_class = size_class(self.demand)

    def spec_of(self, id: str, retry_of: str | None) -> RequestSpec:
        """The whole spec of a request that asks so."""
        if self.spec.id == id and self.spec.retry_of == retry_of:
            return self.spec
        return self.spec.model_copy(update={"id": id, "retry_of": retry_of})


class Asks:
    """The kinds that were asked for lately, by what they are."""

    def __init__(self) -> None:
        self._by_value: Memo[Any, Ask] = Memo()

    def of(self, spec: RequestSpec) -> Ask:
        key = self._key(spec)
        ask = self._by_value.get(key)
        return self._by_value.keep(key, Ask(spec)) if ask is None else ask

    @staticmethod
    def _key(spec: RequestSpec) -> Any:
        fields = spec.__dict__
        resources, bundles = fields["resources"], fields["bundles"]
        return (
            _shared(fields),
            None if resources is None else _value(resources),
            None if bundles is None else tuple(map(_value, bundles)),
        )


def _value(resources: ResourceSettings) -> Any:
    fields = resources.__dict__
    more: Demand = fields["pool_resources"]
    return (_settings(fields), tuple(more.items())) if more else _settings(fields)
