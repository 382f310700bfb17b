"""From a request to the bundles of its placement group.

A bundle is what one worker holds on one node, in Ray's names and units: GPU and CPU in pieces,
memory in bytes, custom resources as they are called. Pool keys that no Ray resource stands for
(licences, `step_run`) stay with the broker. Pure: the core needs bundles too, to know what no node
could ever hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal

from raypool.spec import GPU, MCPU, MEMORY_MB, SMALLEST_CPU, RequestSpec, ResourceSettings, parse_memory

Bundle = Mapping[str, float]


def bundles_of(spec: RequestSpec, ray_resources: Mapping[str, str]) -> tuple[dict[str, float], ...]:
    """One bundle per worker, in order.

    `ray_resources` maps pool keys to the Ray resources that stand for them.

    >>> bundles_of(RequestSpec(component="t", workers=2, resources=ResourceSettings(gpu_count=1)), {})
    ({'GPU': 1.0}, {'GPU': 1.0})
    """
    if spec.bundles is None:
        return (bundle_of(spec.resources or ResourceSettings(), ray_resources),) * spec.workers
    return tuple(bundle_of(settings, ray_resources) for settings in spec.bundles)


def bundle_of(settings: ResourceSettings, ray_resources: Mapping[str, str]) -> dict[str, float]:
    """What one worker holds. A bundle that would be empty gets the smallest CPU amount Ray can hold."""
    demand = settings.demand()
    bundle: dict[str, float] = {}
    if demand.get(GPU):
        bundle["GPU"] = float(demand[GPU])
    if settings.cpu_count is not None:
        bundle["CPU"] = _in_ten_thousandths(settings.cpu_count)
    elif demand.get(MCPU):
        bundle["CPU"] = demand[MCPU] / 1000
    if settings.memory is not None:
        bundle["memory"] = float(parse_memory(settings.memory))
    elif demand.get(MEMORY_MB):
        bundle["memory"] = float(demand[MEMORY_MB] * 10**6)
    for key, resource in sorted(ray_resources.items()):
        if demand.get(key):
            bundle[resource] = bundle.get(resource, 0.0) + float(demand[key])
    return bundle or {"CPU": SMALLEST_CPU}


def _in_ten_thousandths(cpus: float) -> float:
    return float(Decimal(repr(cpus)).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def describe_bundle(bundle: Bundle) -> str:
    """ "2 GPU, 4 CPU, 16 GB memory": for people."""
    parts = []
    for resource in sorted(bundle, key=lambda name: (name != "GPU", name != "CPU", name)):
        parts.append(describe_amount(resource, bundle[resource]))
    return ", ".join(parts)


def describe_amount(resource: str, amount: float) -> str:
    if resource == "memory":
        return f"{amount / 10**9:g} GB memory"
    return f"{amount:g} {resource}"
