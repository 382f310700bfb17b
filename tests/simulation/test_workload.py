"""Replayed workloads: what is reported of small ones is counted by hand, and random ones keep the laws."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from raypool.core.broker import Broker
from raypool.core.status import Status
from raypool.errors import SpecError
from raypool.simulation.job import Job
from raypool.simulation.timeline import STEPS, Timeline
from raypool.simulation.traces import Counts
from raypool.simulation.workload import AfterPreemption, HeldUp, Workload, replay_workload
from raypool.simulation.workload_report import WorkloadReport, facts_of, lasted, report_of, tables_of, wait_of
from raypool.spec import BrokerConfig, RequestSpec, ResourceSettings

HISTORIES = int(os.environ.get("RAYPOOL_HISTORIES", "12"))


def config(grace: float = 0.0, queueing: str = "strict", **reserved: int) -> BrokerConfig:
    """Four GPUs; `low` has priority 1, `high` 2, `top` 3."""
    policies = [
        {"pool": "p", "component": name, "priority": priority, "reserved": {"gpu": reserved.get(name, 0)}}
        for priority, name in enumerate(["low", "high", "top"], 1)
    ]
    pool = {"name": "p", "capacity": {"gpu": 4}, "grace_seconds": grace, "queueing": queueing}
    loaded: BrokerConfig = BrokerConfig.load({"pools": [pool], "policies": policies})
    return loaded


def job(id: str, at: float, duration: float, component: str, gpus: int, preemptible: bool = True) -> Job:
    resources = ResourceSettings(gpu_count=gpus, preemptible=preemptible)
    return Job(at, duration, RequestSpec(id=id, component=component, resources=resources))


def run(*jobs: Job, after: AfterPreemption | None = None, **pools: Any) -> tuple[WorkloadReport, Workload]:
    workload = replay_workload(jobs, config(**pools), after)
    return report_of(workload, "trace", Counts(jobs=len(jobs)), "pools"), workload


def of(report: WorkloadReport, component: str) -> Any:
    return next(one for one in report.components if one.component == component)


def test_waits_use_and_makespan_of_two_jobs_in_turn() -> None:
    report, _ = run(job("a", 1000, 60, "low", 4), job("b", 1010, 30, "high", 4, preemptible=False), high=4)
    assert report.makespan_seconds == 100, "b took the room at 1010, so a ran again from 1040 for its 60 s"
    report, _ = run(job("a", 1000, 60, "low", 4), job("b", 1010, 30, "low", 2))
    low = of(report, "low")
    assert (low.wait.p50, low.wait.p90, low.wait.max) == (0, 50, 50)
    assert (low.jobs, low.finished, low.makespan_seconds) == (2, 2, 90)
    assert low.held_hours == {"p": {"gpu": round((4 * 60 + 2 * 30) / 3600, 6)}}
    assert low.utilisation == {"p": {"gpu": round(300 / (4 * 90), 6)}}
    assert report.pools[0].utilisation == low.utilisation["p"]


@pytest.mark.parametrize(
    ("after", "lost_seconds", "makespan"),
    [
        (AfterPreemption(), 40, 40 + 20 + 60),
        (AfterPreemption("resume"), 0, 20 + 60),
        (AfterPreemption("resume", 15), 15, 20 + 60 + 15),
        (AfterPreemption("resume", 100), 40, 40 + 20 + 60),
    ],
    ids=["restart", "resume", "resume at a price", "never more than was done"],
)
def test_what_preemption_costs(after: AfterPreemption, lost_seconds: float, makespan: float) -> None:
    report, workload = run(job("a", 0, 60, "low", 4), job("b", 40, 20, "high", 3), after=after)
    assert report.makespan_seconds == makespan
    assert [(one.at, one.victim, one.by, one.rule) for one in workload.evictions] == [(40, "low", "high", "preempt")]
    (loss,) = report.losses
    assert (loss.victim, loss.by, loss.rule, loss.preemptions) == ("low", "high", "preempt", 1)
    assert loss.lost_hours == {"gpu": round(4 * lost_seconds / 3600, 6)}
    assert of(report, "low").lost_hours == loss.lost_hours and of(report, "high").lost_hours == {}
    assert of(report, "low").finished == 1


def test_a_job_runs_on_in_its_grace_and_may_come_to_its_end_there() -> None:
    report, _ = run(job("a", 0, 50, "low", 4), job("b", 40, 20, "high", 3), grace=30)
    assert of(report, "low").preemptions == 1 and of(report, "low").lost_hours == {"gpu": 0}
    assert of(report, "high").wait.max == 10 and report.makespan_seconds == 70
    report, _ = run(job("a", 0, 100, "low", 4), job("b", 40, 20, "high", 3), grace=30)
    assert of(report, "low").lost_hours == {"gpu": round(4 * 70 / 3600, 6)}
    assert of(report, "high").wait.max == 30 and report.makespan_seconds == 90 + 100


def test_at_one_instant_jobs_end_in_the_order_in_which_they_were_asked() -> None:
    """Also the ninth and the tenth, which begin in the same instant, when the eighth ends."""
    short = [job("short", 0, 0, "low", 1)] * 7
    blocks, ninth, tenth = job("blocks", 0, 20, "low", 4), job("a", 1, 10, "low", 1), job("b", 1, 10, "low", 1)
    ended: list[str] = []

    def watch(broker: Broker) -> None:
        now_ended = [id for id, one in broker.requests.items() if one.status is Status.RELEASED]
        ended.extend(id for id in now_ended if id not in ended)

    replay_workload([*short, blocks, ninth, tenth], config(), watch=watch)
    assert ended == [str(number) for number in range(1, 11)]


def test_a_component_without_a_policy_is_rejected_and_counted_with_the_reason() -> None:
    report, _ = run(job("a", 0, 5, "guest", 1), job("b", 1, 5, "guest", 1), job("c", 2, 5, "low", 9))
    assert of(report, "guest").refused[0].jobs == 2
    assert "no policy attaches team 'guest' to any pool" in of(report, "guest").refused[0].reason
    assert of(report, "guest").wait.max is None and of(report, "guest").makespan_seconds is None
    assert of(report, "low").refused[0].reason == "asks for 9 gpu, pool 'p' has 4"
    assert [row[:2] for row in {title: rows for title, _, rows in tables_of([report])}["Did not run"]] == [
        ["guest", "2"], ["low", "1"],
    ]  # fmt: skip


def test_pools_that_are_refused_are_a_fault_of_the_file() -> None:
    with pytest.raises(SpecError, match="5 gpu is above"):
        run(job("a", 0, 1, "low", 1), low=5)


def test_hundreds_may_be_evicted_in_one_instant() -> None:
    pools = config().model_copy(update={"pools": (config().pools[0].model_copy(update={"capacity": {"gpu": 600}}),)})
    low = [job("small", 0, 50, "low", 1)] * 600
    workload = replay_workload([*low, job("large", 10, 20, "high", 600)], pools)
    assert len(workload.evictions) == 600 and workload.components["low"].finished == 600
    assert workload.ended_at == 10 + 20 + 50


def test_a_limit_on_the_duration_is_in_the_trace_already() -> None:
    """A request of a journal that had to leave after its 2 s, and took another second of its grace to do so."""
    resources = ResourceSettings(gpu_count=4)
    limited = RequestSpec(id="a", component="low", resources=resources, max_duration_seconds=2, retry_of="1")
    report, workload = run(Job(0, 3, limited), Job(5, 3, limited), grace=30)
    assert of(report, "low").finished == 2 and report.makespan_seconds == 8 and workload.evictions == []


def test_an_id_may_be_there_twice() -> None:
    report, _ = run(job("a", 0, 5, "low", 4), job("a", 1, 5, "low", 4), job("b", 2, 5, "high", 4))
    assert [one.finished for one in report.components] == [1, 2]


def test_an_empty_trace_has_a_report() -> None:
    report, _ = run()
    assert report.makespan_seconds == 0 and report.pools[0].utilisation == {"gpu": 0}
    assert [title for title, _, _ in tables_of([report])] == ["Pools"]


# --- random workloads -------------------------------------------------------------------------


def random_jobs(seed: int, count: int = 120) -> Iterator[Job]:
    luck = random.Random(seed)
    at = luck.random() * 1e6
    for number in range(count):
        at += luck.choice([0, 1, 5, 40])
        firm = luck.random() < 0.2
        yield job(
            f"j{number}", at, luck.choice([0, 0.5, 3, 30, 200]), luck.choice(["low", "high", "top", "guest"]),
            luck.choice([1, 1, 2, 4]), preemptible=not firm,
        )  # fmt: skip


class Ledger:
    """Adds up, after every event, what the core has charged: by its own figures, not by the replay's."""

    def __init__(self) -> None:
        self.events = 0
        self.before = 0.0
        self.charged: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def __call__(self, broker: Broker) -> None:
        for component, amount in self.charged.items():
            self.seconds[component] = self.seconds.get(component, 0.0) + amount * (broker.now - self.before)
        self.before = broker.now
        self.charged = {owner[0]: one.used[0] for owner, one in broker.pools["p"].ledger.accounts.items()}
        self.events += 1
        if self.events % 7 == 0:
            broker.check()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_random_workloads_keep_the_laws_and_their_figures_add_up(seed: int) -> None:
    luck = random.Random(seed)
    pools = config(
        grace=luck.choice([0, 2, 50]),
        queueing=luck.choice(["strict", "backfill"]),
        high=luck.choice([0, 1, 2]),
        low=1,
    )
    after = luck.choice([AfterPreemption(), AfterPreemption("resume"), AfterPreemption("resume", 5)])
    ledger = Ledger()
    workload = replay_workload(random_jobs(seed), pools, after, watch=ledger)
    report = report_of(workload, "trace", Counts(), "pools")

    assert all(one.known_gap for one in workload.held_up) and ledger.events == workload.events > 120
    for one in report.components:
        assert one.finished + one.never_began + sum(refusal.jobs for refusal in one.refused) == one.jobs
        assert one.never_began == 0
        tally = workload.components[one.component]
        held = tally.held.get(("p", "gpu"), 0.0)
        assert held == pytest.approx(ledger.seconds.get(one.component, 0.0))
        line = workload.usage.get(("p", one.component, "gpu"))
        assert held == pytest.approx(line.total if line is not None else 0.0)
        done = sum(
            each.duration_seconds * each.spec.demand()["gpu"]
            for each in random_jobs(seed)
            if each.spec.component == one.component and one.component != "guest" and fits(each, pools)
        )
        assert held == pytest.approx(
            done + sum(e.lost["gpu"] for e in workload.evictions if e.victim == one.component)
        )
    assert report.pools[0].utilisation["gpu"] == pytest.approx(
        sum(one.utilisation.get("p", {}).get("gpu", 0.0) for one in report.components), abs=1e-5
    )
    assert report.pools[0].utilisation["gpu"] <= 1


def test_who_is_held_up_inside_his_reserve_is_seen() -> None:
    """By the known gap of law 4, which these jobs happen to meet: the figure is not 0 because nobody looks."""
    policies = [
        {"pool": "p", "component": name, "priority": 1, "reserved": {"gpu": reserved}}
        for name, reserved in [("a", 8), ("b", 4), ("c", 4), ("d", 0)]
    ]
    pools = BrokerConfig.load({"pools": [{"name": "p", "capacity": {"gpu": 16}}], "policies": policies})
    luck, jobs, at = random.Random(84), [], 0
    for number in range(60):
        at += luck.choice([0, 1, 2, 5])
        duration, component = luck.choice([3, 30, 200]), luck.choice("abcd")
        jobs.append(job(f"j{number}", at, duration, component, luck.choice([1, 2, 3, 5, 8])))
    workload = replay_workload(jobs, pools)
    report = report_of(workload, "trace", Counts(), "pools")
    assert (report.known_gap, report.reserve_violations) == (1, 0)
    assert facts_of([report])["reserved guarantee"] == "0 violations (and 1 by the known gap of law 4)"


def test_violations_are_told_of_each_component_each_pool_and_each_of_two_policies() -> None:
    report, workload = run(job("a", 0, 5, "low", 4), job("b", 1, 5, "high", 4))
    workload.held_up |= {
        HeldUp("1", "low", "p", known_gap=False),
        HeldUp("1", "low", "q", known_gap=False),
        HeldUp("2", "high", "p", known_gap=True),
    }
    broken = report_of(workload, "trace", Counts(), "other")
    assert [one.reserve_violations for one in (broken, of(broken, "low"), of(broken, "high"))] == [1, 1, 0]
    assert broken.pools[0].reserve_violations == 1
    assert facts_of([report, report])["reserved guarantee"] == "0 violations"
    assert facts_of([report, broken])["reserved guarantee"] == (
        "pools: 0 violations; other: 1 violation (low 1) (and 1 by the known gap of law 4)"
    )


def fits(each: Job, pools: BrokerConfig) -> bool:
    """Not rejected: one that is not preemptible needs its reserve."""
    reserved = {one.component: one.reserved.get("gpu", 0) for one in pools.policies}
    return each.spec.is_preemptible or each.spec.demand()["gpu"] <= reserved[each.spec.component]


def test_the_same_trace_gives_the_same_report() -> None:
    def once() -> WorkloadReport:
        return report_of(replay_workload(random_jobs(5), config(high=2)), "trace", Counts(), "pools")

    assert once() == once() and once().losses


# --- figures ----------------------------------------------------------------------------------


def test_a_timeline_keeps_the_sum_however_long_it_gets() -> None:
    luck = random.Random(1)
    line, total = Timeline(), 0.0
    for _ in range(500):
        start = luck.random() * 10 ** luck.randrange(6)
        end = start + luck.random() * 10 ** luck.randrange(6)
        line.add(start, end, 3)
        total += (end - start) * 3
    assert line.total == pytest.approx(total) and len(line.sums) == STEPS
    line = Timeline()
    line.add(1.5, 4, 2)
    assert line.levels()[:5] == [0, 1, 2, 2, 0]
    line.reach(STEPS + 1)
    assert line.width == 2 and line.levels()[:3] == [0.5, 2, 0]


def test_percentiles_are_the_nearest_rank() -> None:
    waits = wait_of([float(n) for n in range(10, 0, -1)])
    assert (waits.p50, waits.p90, waits.max) == (5, 9, 10)
    assert wait_of([7.0]).p50 == wait_of([7.0]).p90 == 7 and wait_of([]).max is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0, "0 s"), (1.25, "1.2 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2.0 h"), (172800, "2.0 d")],
)
def test_times_in_words(seconds: float | None, words: str) -> None:
    assert lasted(seconds) == words
