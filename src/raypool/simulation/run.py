"""Runs a scenario: a world of plain Python around the real core, in virtual time.

The world confirms what Ray would: a grant is placed at once, a removal takes `removal_seconds`. All
that is due up to an entry's time happens first, in order of due time; at one instant removals, then
deadlines (of a grace, of `max_duration_seconds`), then durations, each by order of submission, with the cycle after
each.
"""

from __future__ import annotations

import heapq
from typing import Any

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.explain import wait_reasons
from raypool.core.instructions import ChangeStatus, Instruction, RemovePlacementGroup
from raypool.core.pool import borrowed_by
from raypool.core.status import Status
from raypool.errors import Refused, SpecError
from raypool.simulation.report import SimulationReport, Step, Transition
from raypool.simulation.scenario import Entry, Expectation, Scenario
from raypool.spec import BrokerConfig, PoolSpec

_REMOVAL, _DEADLINE, _DURATION = 0, 1, 2


def simulate(scenario: dict[str, Any] | Scenario) -> SimulationReport:
    """Runs one scenario on the decision core.

    Raises SpecError if it is not a scenario. Pools or policies that are refused at the start are a
    SpecError too: there is nothing to run.

    >>> simulate({"name": "one", "pools": [{"name": "p", "capacity": {"gpu": 1}}],
    ...           "policies": [{"pool": "p", "component": "c", "priority": 1}],
    ...           "timeline": [{"submit": {"id": "a", "component": "c", "resources": {"gpu_count": 1}},
    ...                         "expect": {"a": "allocated"}}]}).passed
    True
    """
    loaded: Scenario = scenario if isinstance(scenario, Scenario) else Scenario.load(scenario)
    return _Run(loaded).report()


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.removal = _milliseconds(scenario.removal_seconds)
        world = World(confirms_placement=False, confirms_removal=self.removal > 0)
        self.broker = Broker(world, ended_kept=10**9)
        self.clock = 0  # milliseconds, so that times are exact
        self.due: list[tuple[int, int, int, str, int]] = []
        self.durations: dict[str, int] = {}
        self.transitions: list[Transition] = []

    def report(self) -> SimulationReport:
        failures: list[str] = []
        steps = []
        try:
            self._feed(ev.ConfigApplied(self._config(self.scenario.pools, self.scenario.policies)))
        except Refused as refused:
            raise SpecError(f"pools, policies: {refused}", refused.faults) from None
        for index, entry in enumerate(self.scenario.timeline):
            if entry.at is not None:
                self._run_until(_milliseconds(entry.at))
            refusal = self._act(entry)
            where = f"entry {index + 1} (at {self.clock / 1000:g} s)"
            failures += [f"{where}: {failure}" for failure in self._compare(entry, refusal)]
            steps.append(Step(self.clock / 1000, refusal, self._states(), tuple(self.transitions)))
            self.transitions = []
        return SimulationReport(self.scenario.name, not failures, tuple(failures), tuple(steps))

    def _config(self, pools: tuple[PoolSpec, ...], policies: Any) -> BrokerConfig:
        """The scenario's grace goes for every pool that names none of its own."""
        grace = self.scenario.grace_seconds
        with_grace = tuple(
            pool
            if "grace_seconds" in pool.model_fields_set
            else PoolSpec(**{**{name: getattr(pool, name) for name in pool.model_fields_set}, "grace_seconds": grace})
            for pool in pools
        )
        return BrokerConfig(pools=with_grace, policies=policies)

    # --- the clock ----------------------------------------------------------------------------

    def _run_until(self, end: int) -> None:
        while (when := self._next_due()) is not None and when[0] <= end:
            self.clock = max(self.clock, when[0])
            if when[1] == _DEADLINE:
                self._feed(ev.TimePassed())
                continue
            _, kind, _, request_id, attempt = heapq.heappop(self.due)
            if kind == _REMOVAL:
                self._feed(ev.PlacementRemoved(request_id, attempt))
            else:
                self._feed(ev.Released(request_id))
        self.clock = end

    def _next_due(self) -> tuple[int, int] | None:
        candidates = [self.due[0][:2]] if self.due else []
        deadline = self.broker.next_deadline
        if deadline is not None:
            candidates.append((round(deadline * 1000), _DEADLINE))
        return min(candidates, default=None)

    def _feed(self, event: ev.Event) -> None:
        for instruction in self.broker.handle(event, self.clock / 1000):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, RemovePlacementGroup):
            self._later(self.removal, _REMOVAL, instruction.request, instruction.attempt)
        elif isinstance(instruction, ChangeStatus):
            self._note(instruction)
            if instruction.to is Status.ALLOCATED and instruction.request in self.durations:
                self._later(self.durations[instruction.request], _DURATION, instruction.request, 0)

    def _later(self, delay: int, kind: int, request_id: str, attempt: int) -> None:
        number = self.broker.requests[request_id].number
        heapq.heappush(self.due, (self.clock + delay, kind, number, request_id, attempt))

    def _note(self, change: ChangeStatus) -> None:
        self.transitions.append(
            Transition(
                change.request,
                change.old.value if change.old else None,
                change.to.value,
                change.pool,
                change.reason.sentence if change.reason else None,
                self.clock / 1000,
            )
        )

    # --- one entry ----------------------------------------------------------------------------

    def _act(self, entry: Entry) -> str | None:
        """Does what the entry says. Returns the sentence if it was refused."""
        event = self._event(entry)
        if event is None:
            return None
        try:
            self._feed(event)
        except Refused as refused:
            return str(refused)
        return None

    def _event(self, entry: Entry) -> ev.Event | None:
        if entry.submit is not None:
            submit = entry.submit
            if submit.duration is not None and submit.id not in self.broker.requests:
                self.durations[submit.id] = _milliseconds(submit.duration)
            return ev.Submitted(submit.request())
        if entry.release is not None:
            return ev.Released(entry.release)
        if entry.cancel is not None:
            return ev.Cancelled(entry.cancel)
        if entry.apply is not None:
            return ev.ConfigApplied(self._config(entry.apply.pools, entry.apply.policies))
        if entry.detach_policy is not None:
            detach = entry.detach_policy
            return ev.PolicyDetached(detach.pool, detach.component, detach.component_type)
        if entry.delete_pool is not None:
            return ev.PoolDeleted(entry.delete_pool)
        return None

    def _states(self) -> dict[str, dict[str, str | None]]:
        return {
            request.id: {"status": request.status.value if request.status else None, "pool": request.pool}
            for request in self.broker.requests.values()
        }

    # --- what was wanted, what came -----------------------------------------------------------

    def _compare(self, entry: Entry, refused: str | None) -> list[str]:
        failures = []
        if entry.refused and refused is None:
            failures.append(f"{entry.actions[0]} was to be refused, it was done")
        if refused is not None and not entry.refused:
            failures.append(f"{entry.actions[0]} was refused: {refused}")
        for request_id, expected in entry.expect.items():
            failures += self._compare_request(request_id, expected)
        return failures

    def _compare_request(self, request_id: str, expected: Expectation) -> list[str]:
        request = self.broker.requests.get(request_id)
        if request is None or request.status is None:
            return [f"'{request_id}' was never submitted"]
        reason = next(iter(wait_reasons(self.broker, request).values()), None) or request.reason
        found = {
            "status": request.status.value,
            "rule": reason.rule if reason else None,
            "pool": request.pool,
            "preempted_by": request.preempted_by,
            "demand": request.demand,
            "borrowed": borrowed_by(request),
        }
        failures = []
        for name in sorted(expected.model_fields_set):
            wanted, came = getattr(expected, name), found[name]
            if wanted != came:
                why = f" ({request.reason.sentence})" if name == "status" and request.reason else ""
                failures.append(f"'{request_id}': wanted {name} {_show(wanted)}, came {_show(came)}{why}")
        return failures


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {amount}" for key, amount in value.items()) + "}"
    return "none" if value is None else str(value)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
