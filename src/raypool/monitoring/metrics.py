"""The table of metrics: every name, with its type, unit, labels and meaning.

Names follow Prometheus: base units, the unit last, `_total` for counters. Ray puts `ray_` before each, and adds
labels of its own (`SessionName`, `WorkerId`, ...). How many series there may be is bounded: see `MOST_SERIES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "ray_"
"""What Ray puts before each name."""

MOST_SERIES = 1_500
"""So many sets of labels of one metric are told apart in the life of a broker's process. Ray folds those above 2,000
into one without any labels, and forgets none."""

OTHERS = "(others)"
"""The component of those that have no series of their own, for there are too many. Their figures are summed."""

NO_POOL = "-"
"""The pool of what runs in none: work of components without a policy, where that is allowed."""

Kind = Literal["gauge", "counter", "histogram"]
GAUGE: Kind = "gauge"
COUNTER: Kind = "counter"
HISTOGRAM: Kind = "histogram"

WAITS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, eq=False)  # each is its own: they are looked up by the thousand
class Metric:
    """bounds: where the buckets of a histogram end, ascending; the last one is open."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    bounds: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """Its name in Prometheus; a histogram's has `_bucket`, `_count` or `_sum` behind it."""
        return PREFIX + self.name


CAPACITY = Metric("raypool_capacity", GAUGE, "the key's", ("pool", "key"), "What the pool has.")
RESERVED = Metric(
    "raypool_reserved", GAUGE, "the key's", ("pool", "key"), "The reserves of all its policies, in sum."
)
FREE = Metric(
    "raypool_free", GAUGE, "the key's", ("pool", "key"), "Charged to nobody; below 0 in a pool made smaller in use."
)
PHANTOM = Metric(
    "raypool_phantom",
    GAUGE,
    "the key's",
    ("pool", "key"),
    "Room that Ray has not given back: nobody's, and not free.",
)
SHORTFALL = Metric(
    "raypool_shortfall",
    GAUGE,
    "the key's",
    ("pool", "key"),
    "How much the pool promises, alone or with others on the same nodes, beyond what these nodes have.",
)
USED = Metric(
    "raypool_used",
    GAUGE,
    "the key's",
    ("pool", "key", "component"),
    "Charged to the component, what is leaving included.",
)
BORROWED = Metric(
    "raypool_borrowed", GAUGE, "the key's", ("pool", "key", "component"), "What of that lies above its reserve."
)
WAITING = Metric(
    "raypool_waiting_requests",
    GAUGE,
    "requests",
    ("pool", "component"),
    "Who stands in line there. One that stands in several lines counts in each.",
)
HEAD_AGE = Metric(
    "raypool_head_of_queue_age_seconds",
    GAUGE,
    "seconds",
    ("pool",),
    "For how long the first in line has waited, those apart whom a limit below the capacity stops.",
)
RESERVE_WAIT = Metric(
    "raypool_reserve_wait_seconds",
    GAUGE,
    "seconds",
    ("pool",),
    "For how long a request in line has been seen to fit into its component's unused reserve; the longest.",
)
GRACE = Metric(
    "raypool_grace_seconds", GAUGE, "seconds", ("pool",), "The notice that the pool gives before it evicts."
)
DEGRADED = Metric(
    "raypool_degraded", GAUGE, "0 or 1", (), "1: the broker answers questions only, and changes nothing."
)
JOURNAL_PENDING = Metric(
    "raypool_journal_pending_events",
    GAUGE,
    "events",
    (),
    "Decided, and not yet in the journal: nothing came of them yet.",
)
JOURNAL_LAG = Metric(
    "raypool_journal_lag_seconds",
    GAUGE,
    "seconds",
    (),
    "How old the oldest event is that was decided and is not in the journal yet; 0 if all are.",
)
EVICTIONS = Metric(
    "raypool_evictions_total",
    COUNTER,
    "allocations",
    ("pool", "cause"),
    "Asked to leave for somebody else: `preempt`, `reclaim` or `backfilled`.",
)
LOST_GPU_SECONDS = Metric(
    "raypool_lost_gpu_seconds_total",
    COUNTER,
    "GPU-seconds",
    ("pool", "cause"),
    "GPUs times run time of what was evicted (`preempt`, `reclaim`, `backfilled`) or lost its node or its placement "
    "group (`node-lost`, `group-lost`). Less is lost where work was saved.",
)
PLACEMENT_FAILURES = Metric(
    "raypool_placement_failures_total", COUNTER, "grants", ("pool",), "Granted, and no nodes were found in time."
)
WAIT = Metric(
    "raypool_wait_seconds",
    HISTOGRAM,
    "seconds",
    ("pool",),
    "From the submission until the placement group could be used, of those that got one.",
    WAITS,
)
GRANT_LATENCY = Metric(
    "raypool_grant_latency_seconds",
    HISTOGRAM,
    "seconds",
    ("pool",),
    "From the decision to grant until the placement group could be used.",
    LATENCIES,
)
LOOP_LAG = Metric(
    "raypool_loop_lag_seconds",
    HISTOGRAM,
    "seconds",
    (),
    "How much later than asked for the broker's loop comes back to a timer, measured every second.",
    LAGS,
)

METRICS = (
    CAPACITY, RESERVED, FREE, PHANTOM, SHORTFALL, USED, BORROWED, WAITING, HEAD_AGE, RESERVE_WAIT, GRACE, EVICTIONS,
    LOST_GPU_SECONDS, PLACEMENT_FAILURES, WAIT, GRANT_LATENCY, LOOP_LAG, JOURNAL_LAG, JOURNAL_PENDING, DEGRADED,
)  # fmt: skip
"""All there are."""
