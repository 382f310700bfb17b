"""raypool: resource pools for Ray. Quotas, priorities, borrowing and preemption inside one live cluster.

Everything that users import, and nothing else. Names are loaded when they are first used, so that
`import raypool` costs nothing and the simulator runs without Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raypool.client.client import Client, connect, start, stop
    from raypool.client.current import current_lease
    from raypool.client.decorators import remote
    from raypool.client.lease import Lease, PreemptionNotice, lease
    from raypool.errors import (
        BrokerDegraded,
        BrokerFault,
        BrokerUnavailable,
        DurationExceeded,
        GroupLost,
        LeaseEnded,
        NodeLost,
        Preempted,
        RaypoolError,
        Refused,
        RequestCancelled,
        RequestRejected,
        SpecError,
        WaitTimeout,
    )
    from raypool.simulation import SimulationReport, simulate
    from raypool.spec import BrokerConfig, PolicySpec, PoolSpec, RequestSpec, ResourceSettings
    from raypool.version import __version__
    from raypool.view import (
        BrokerView,
        ConsequenceView,
        DryRunView,
        EventView,
        ExplanationView,
        FrontView,
        PageView,
        PolicyView,
        PoolView,
        PreviewView,
        ReportRowView,
        ReportView,
        RequestView,
        SubmissionView,
        UsageView,
        VersionView,
        WaitView,
    )

_HOME = {
    "raypool.client.client": ("Client", "connect", "start", "stop"),
    "raypool.client.current": ("current_lease",),
    "raypool.client.decorators": ("remote",),
    "raypool.client.lease": ("Lease", "PreemptionNotice", "lease"),
    "raypool.errors": (
        "BrokerDegraded",
        "BrokerFault",
        "BrokerUnavailable",
        "DurationExceeded",
        "GroupLost",
        "LeaseEnded",
        "NodeLost",
        "Preempted",
        "RaypoolError",
        "Refused",
        "RequestCancelled",
        "RequestRejected",
        "SpecError",
        "WaitTimeout",
    ),
    "raypool.simulation": ("SimulationReport", "simulate"),
    "raypool.spec": ("BrokerConfig", "PolicySpec", "PoolSpec", "RequestSpec", "ResourceSettings"),
    "raypool.version": ("__version__",),
    "raypool.view": (
        "BrokerView",
        "ConsequenceView",
        "DryRunView",
        "EventView",
        "ExplanationView",
        "FrontView",
        "PageView",
        "PolicyView",
        "PoolView",
        "PreviewView",
        "ReportRowView",
        "ReportView",
        "RequestView",
        "SubmissionView",
        "UsageView",
        "VersionView",
        "WaitView",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    # what people write
    "ResourceSettings", "PoolSpec", "PolicySpec", "RequestSpec", "BrokerConfig",
    # the broker
    "start", "stop", "connect", "Client",
    # work in pools
    "remote", "lease", "Lease", "current_lease", "PreemptionNotice",
    # what people see
    "BrokerView", "PoolView", "PolicyView", "RequestView", "ExplanationView", "WaitView", "DryRunView",
    "SubmissionView", "PageView", "PreviewView", "ConsequenceView", "VersionView", "FrontView", "EventView",
    "UsageView", "ReportView", "ReportRowView",
    # policies tested like code
    "simulate", "SimulationReport",
    # errors
    "RaypoolError", "SpecError", "Refused", "RequestRejected", "RequestCancelled", "DurationExceeded", "GroupLost",
    "NodeLost", "WaitTimeout", "Preempted", "LeaseEnded", "BrokerUnavailable", "BrokerDegraded", "BrokerFault",
    "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'raypool' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
