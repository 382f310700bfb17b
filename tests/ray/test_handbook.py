"""Every worked example of the handbook, end to end: decorated tasks that really run on nodes.

The scenarios are tests/scenarios/seeds.yaml. A `submit` calls a decorated task that holds its room until
its file appears; a `release` makes the file; what is expected is waited for. The clock is the wall's, so
graces are cut to some seconds, and entries that only look between a notice and its deadline are left out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import ray

import raypool
from raypool.simulation import Scenario, read_scenarios

from .conftest import until

REGIONS = ("eu-west-gpu", "eu-north-gpu")
NODES = [{"num_cpus": 128, "num_gpus": 16, "memory": 200 * 10**9, "labels": {"region": one}} for one in REGIONS]
GRACE_SECONDS = 6.0

SCENARIOS = list(read_scenarios(Path(__file__).parents[1] / "scenarios" / "seeds.yaml"))


@raypool.remote(max_preemptions=0)
def hold(until_there: str) -> str:
    while not os.path.exists(until_there):
        time.sleep(0.02)
    return "done"


def region(pool: str) -> dict[str, Any]:
    """The example with two regions means two sets of nodes."""
    return {"node_labels": {"region": pool}} if pool in REGIONS else {}


class Story:
    """One scenario on a real cluster. A request's id in the file is its description on the broker."""

    def __init__(self, client: raypool.Client, scenario: Scenario, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.refs: dict[str, Any] = {}
        grace = min(scenario.grace_seconds, GRACE_SECONDS)
        pools = [{**pool.dump(), "grace_seconds": grace, **region(pool.name)} for pool in scenario.pools]
        client.apply({"pools": pools, "policies": [policy.dump() for policy in scenario.policies]})

    def view(self, name: str) -> raypool.RequestView | None:
        return next((one for one in self.client.requests() if one.description == name), None)

    def submit(self, submit: Any) -> None:
        task = hold.options(
            component=submit.component,
            component_type=submit.component_type,
            pool=submit.pool,
            resources=submit.resources,
            workers=submit.workers,
            description=submit.id,
        )
        self.refs[submit.id] = task.remote(str(self.directory / submit.id))
        until(lambda: self.view(submit.id), f"{submit.id} has reached the broker", 60)  # they come in order

    def release(self, name: str) -> None:
        (self.directory / name).touch()
        until(lambda: self.view(name).ended, f"{name} has ended", 60)

    def expect(self, name: str, expected: Any) -> None:
        fields = sorted(expected.model_fields_set)

        def found() -> dict[str, Any]:
            view = self.view(name)
            seen = {field: getattr(view, field) for field in fields if field != "preempted_by"}
            if "preempted_by" in fields:
                by = view.preempted_by
                seen["preempted_by"] = self.client.request(by).description if by else None
            return seen

        wanted = {field: getattr(expected, field) for field in fields}
        until(lambda: found() == wanted, f"{name} is {wanted}, it is {found()}", 60)

    def end(self) -> None:
        for name in self.refs:
            (self.directory / name).touch()
        for name, ref in self.refs.items():
            outcome = self.view(name).status
            if outcome == "rejected":
                with pytest.raises(raypool.RequestRejected):
                    ray.get(ref, timeout=60)
            elif outcome == "preempted":
                # Who returned within its grace has a result all the same.
                try:
                    assert ray.get(ref, timeout=60) == "done"
                except raypool.Preempted as error:
                    assert error.by
            else:
                assert ray.get(ref, timeout=90) == "done"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.name for one in SCENARIOS])
def test_a_handbook_example_runs_end_to_end(client: raypool.Client, scenario: Scenario, tmp_path: Path) -> None:
    for ended in client.requests():
        client.forget(ended.id)
    story = Story(client, scenario, tmp_path)
    for entry in scenario.timeline:
        if not entry.actions and any(one.status == "preempting" for one in entry.expect.values()):
            continue  # a look between notice and deadline
        if entry.submit is not None:
            story.submit(entry.submit)
        if entry.release is not None:
            story.release(entry.release)
        for name, expected in entry.expect.items():
            story.expect(name, expected)
    story.end()
