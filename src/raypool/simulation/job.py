"""A job of a workload trace, and the request that it makes of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from raypool.errors import SpecError
from raypool.spec import RequestSpec, ResourceSettings


@dataclass(frozen=True, slots=True)
class Job:
    """submitted_at: seconds, on the trace's own clock. duration_seconds: how long it ran. spec: what was asked;
    its id says nothing, since jobs that are alike share it."""

    submitted_at: float
    duration_seconds: float
    spec: RequestSpec


@lru_cache(maxsize=10_000)
def request_of(
    component: str, gpus: int, cpus: float | None, memory_mb: int, workers: int, preemptible: bool, pool: str | None
) -> RequestSpec | str:
    """The request of all jobs that are alike, or the sentence that says what is wrong with it: checked once.

    gpus, cpus and memory_mb are those of one worker; 0 and None ask for none.
    """
    try:
        resources = ResourceSettings(
            gpu_count=gpus or None,
            cpu_count=cpus or None,
            memory=f"{memory_mb}MB" if memory_mb else None,
            preemptible=preemptible,
        )
        return RequestSpec(id="job", component=component, resources=resources, workers=workers, pool=pool)
    except SpecError as error:
        return "; ".join(error.problems)
