"""All of raypool on this machine, in about a minute: `make demo`.

A local Ray cluster of three nodes with four fake GPUs each, the broker, and two teams that submit real
jobs with `ray job submit`. The sandbox borrows what nobody uses. Production arrives and takes back its
reserve: the sandbox is warned, writes its checkpoint, leaves, waits, comes back and finishes.

A live table shows it (plain lines where there is no terminal). At the end every claim is checked
against what the broker, the checkpoint file and Ray's job list say. Exit code 0: all of it happened.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_cluster import LocalCluster, exit_on_sigterm, local_cluster
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

import raypool
from raypool import BrokerConfig, PolicySpec, PoolSpec, PoolView, RequestView

if TYPE_CHECKING:
    from raypool import Client  # it imports Ray, which must wait for local_cluster()

JOBS = Path(__file__).with_name("demo_jobs")
GRACE_SECONDS = 10.0
STEPS = 130  # of 0.2 s
LOOK_SECONDS = 0.2

CONFIG = BrokerConfig(
    pools=(PoolSpec(name="gpus", capacity={"gpu": 12}, grace_seconds=GRACE_SECONDS),),
    policies=(
        PolicySpec(pool="gpus", component="production", priority=100, reserved={"gpu": 8}),
        PolicySpec(pool="gpus", component="sandbox", priority=10, reserved={"gpu": 4}),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Two teams share a small local Ray cluster, in about a minute.")
    parser.add_argument("--timeout-seconds", type=float, default=240.0, help="give up after this (default: 240)")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live table")
    asked = parser.parse_args()
    console = Console(highlight=False)
    try:
        return run(console, live=console.is_terminal and not asked.plain, timeout_seconds=asked.timeout_seconds)
    except KeyboardInterrupt:
        console.print("\nstopped; everything that the demo started is gone")
        return 130


def run(console: Console, live: bool, timeout_seconds: float) -> int:
    began = time.monotonic()
    console.print("starting a Ray head and three nodes with four fake GPUs each ...")
    with tempfile.TemporaryDirectory(prefix="raypool-demo-") as directory, local_cluster() as cluster:
        client = start_broker(cluster)
        console.print(f"{time.monotonic() - began:5.1f} s  cluster and broker are up: {cluster.dashboard}")
        with Jobs(cluster, Path(directory)) as jobs, Screen(console, live) as screen:
            story = Story(client, screen, began, began + timeout_seconds)
            trouble = play(story, jobs)
        good = print_checks(console, story, jobs, trouble)
        if not good:
            jobs.print_logs(console)
        console.print(f"{time.monotonic() - began:5.1f} s  cleaning up ...")
    console.print(
        f"{time.monotonic() - began:5.1f} s  done: " + ("all of it happened" if good else "something is missing")
    )
    return 0 if good else 1


def play(story: Story, jobs: Jobs) -> str | None:
    """The story. Returns what it waited for in vain, if it did."""
    try:
        checkpoints = str(jobs.directory)
        jobs.submit("sandbox", "--checkpoints", checkpoints, "--steps", str(STEPS))
        story.tell("sandbox: ray job submit (two trials, 4 gpu each; its reserve is 4)")
        story.watch_until(
            lambda: story.borrowed_at_most("sandbox") > 0 or jobs.ended("sandbox"), "the sandbox to borrow"
        )
        jobs.submit("production")
        story.tell("production: ray job submit (8 gpu; its reserve is 8)")
        story.watch_until(lambda: jobs.ended("production"), "production to finish")
        story.watch_until(lambda: jobs.ended("sandbox"), "the sandbox to come back and finish")
    except TimeoutError as error:
        return str(error)
    return None


def start_broker(cluster: LocalCluster) -> Client:
    import ray

    ray.init(address=cluster.address, namespace="raypool", log_to_driver=False, logging_level=logging.ERROR)
    exit_on_sigterm()
    return raypool.start(CONFIG)


# --- jobs -------------------------------------------------------------------------------------


class Jobs:
    """Jobs submitted with Ray's own command, each in a process of its own that follows the job."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, team: str, *arguments: str) -> None:
        ray = shutil.which("ray", path=str(Path(sys.executable).parent)) or "ray"
        metadata = json.dumps({"raypool.component": team})
        command = [ray, "job", "submit", "--address", self.cluster.dashboard, "--submission-id", team]
        command += ["--metadata-json", metadata, "--", sys.executable, str(JOBS / f"{team}.py"), *arguments]
        with self._log(team).open("wb") as log:  # its own session: Ctrl-C is for the demo, which then ends it
            self._processes[team] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def ended(self, team: str) -> bool:
        return self._processes[team].poll() is not None

    def status(self, team: str) -> str:
        """What Ray says of the job: SUCCEEDED, FAILED, ..."""
        from ray.job_submission import JobSubmissionClient

        try:
            return str(JobSubmissionClient(self.cluster.dashboard).get_job_status(team).value)
        except RuntimeError as error:
            return f"unknown ({error})"

    def checkpoint(self, name: str) -> dict[str, Any]:
        file = self.directory / f"{name}.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def print_logs(self, console: Console) -> None:
        for team in self._processes:
            console.rule(f"ray job submit, {team}")
            console.print(self._log(team).read_text(errors="replace")[-4000:], markup=False)

    def _log(self, team: str) -> Path:
        return self.directory / f"{team}.log"

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        """The jobs themselves end with their cluster. Ray is not asked to stop them: Ctrl-C also reaches the
        processes of its dashboard, and then it does not answer any more."""
        for process in self._processes.values():
            process.kill()
            process.wait()


# --- what is seen -----------------------------------------------------------------------------


@dataclass
class Story:
    """Looks at the broker until something has happened, and remembers every state that it saw."""

    client: Client
    screen: Screen
    began: float
    give_up_at: float
    seen: dict[str, list[RequestView]] = field(default_factory=dict)

    def watch_until(self, happened: Callable[[], bool], what: str) -> None:
        while not happened():
            if time.monotonic() > self.give_up_at:
                raise TimeoutError(f"waited in vain for {what}")
            self.look()
            time.sleep(LOOK_SECONDS)
        self.look()

    def look(self) -> None:
        requests = self.client.requests()
        for request in requests:
            states = self.seen.setdefault(request.id, [])
            if not states or _told(states[-1]) != _told(request):
                states.append(request)
                self.tell(_sentence(request))
        self.screen.show(self.client.pools(), requests)

    def tell(self, line: str) -> None:
        self.screen.tell(f"{time.monotonic() - self.began:5.1f} s  {line}")

    def latest(self, component: str) -> list[RequestView]:
        """The team's requests, in order of submission."""
        last = [states[-1] for states in self.seen.values()]
        return sorted((one for one in last if one.component == component), key=lambda one: one.number)

    def borrowed_at_most(self, component: str) -> int:
        """The most GPUs that one of the team's requests was seen to borrow."""
        states = [one for states in self.seen.values() for one in states if one.component == component]
        return max((one.borrowed.get("gpu", 0) for one in states if one.status == "allocated"), default=0)

    def path(self, request: RequestView) -> str:
        """The statuses that it went through, as they were seen."""
        statuses = dict.fromkeys(one.status for one in self.seen[request.id])
        return " -> ".join(statuses)


def _told(request: RequestView) -> tuple[str, bool, int]:
    return request.status, request.placing, request.borrowed.get("gpu", 0)


def _sentence(request: RequestView) -> str:
    borrowed = request.borrowed.get("gpu", 0)
    what = f"{request.demand.get('gpu', 0)} gpu" + (f", {borrowed} borrowed" if borrowed else "")
    again = " (queued again)" if request.retry_of else ""
    why = f": {request.reason}" if request.reason else ""
    return f"{request.component}: {request.description}{again} is {request.status}, {what}{why}"


class Screen:
    """Lines, and under them, on a terminal, the pools and requests as they stand."""

    def __init__(self, console: Console, live: bool) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False) if live else None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=self._live is None)

    def show(self, pools: list[PoolView], requests: list[RequestView]) -> None:
        if self._live is not None:
            self._live.update(Group(pools_table(pools), requests_table(requests)), refresh=True)


def pools_table(pools: list[PoolView]) -> Table:
    table = Table("pool", "team", "priority", "gpu used", "reserved", "borrowed", "queued", title="pools")
    for pool in pools:
        used = f"{pool.used['gpu']} of {pool.capacity['gpu']}"
        table.add_row(pool.name, "", "", used, "", str(pool.borrowed["gpu"]), str(pool.queued))
        for policy in pool.policies:
            numbers = (policy.priority, policy.used["gpu"], policy.reserved.get("gpu", 0))
            table.add_row(
                "", policy.component, *map(str, numbers), str(policy.borrowed.get("gpu", 0)), str(policy.queued)
            )
    return table


COLOUR = {"pending": "yellow", "allocated": "green", "preempting": "red", "preempted": "magenta", "released": "dim"}


def requests_table(requests: list[RequestView]) -> Table:
    table = Table("team", "what", "status", "gpu", "borrowed", "why", title="requests")
    for one in requests:
        colour = COLOUR.get(one.status, "white")
        left = (
            f", {max(one.deadline - time.time(), 0):.0f} s left"
            if one.status == "preempting" and one.deadline
            else ""
        )
        what = one.description + (", again" if one.retry_of else "")
        gpus = str(one.demand.get("gpu", 0)), str(one.borrowed.get("gpu", 0) or "")
        table.add_row(one.component, what, f"[{colour}]{one.status}{left}[/]", *gpus, one.reason or "")
    return table


# --- what must have happened ------------------------------------------------------------------


def print_checks(console: Console, story: Story, jobs: Jobs, trouble: str | None) -> bool:
    """Prints each claim with its proof; returns whether all of them hold."""
    found = [("the story came to its end", False, trouble)] if trouble is not None else []
    found += checks(story, jobs)
    console.print()
    for claim, holds, proof in found:
        console.print(f"[green]✓[/] {claim}" if holds else f"[red]✗[/] MISSING: {claim}", end="")
        console.print(f" ({proof})", style="dim", markup=False, soft_wrap=True)
    console.print()
    return all(holds for _, holds, _ in found)


def checks(story: Story, jobs: Jobs) -> Iterator[tuple[str, bool, str]]:
    """(claim, whether it holds, what proves it), from the broker's history, the checkpoint and Ray's job list."""
    sandbox, production = story.latest("sandbox"), story.latest("production")
    borrowed = story.borrowed_at_most("sandbox")
    yield "the sandbox borrowed", borrowed > 0, f"{borrowed} gpu above its reserve of 4"

    victims = [one for one in sandbox if one.preempted_by is not None]
    if not victims or not production:
        yield "production came and one trial had to leave", False, f"{len(victims)} of {len(sandbox)} had to leave"
        return
    victim, taker = victims[0], production[0]
    yield "one trial had to leave, the other ran on", len(victims) == 1, f"{victim.description} left"
    warning = next((one for one in story.seen[victim.id] if one.status == "preempting"), None)
    deadline = warning.deadline or 0.0 if warning else 0.0
    yield "it was warned first", warning is not None and victim.preempted_by == taker.id, f"it {victim.reason}"

    runs = jobs.checkpoint(victim.description).get("runs", [])
    first = runs[0] if runs else {}
    spare = deadline - first.get("written_at", float("inf"))
    in_time = spare > 0 and first.get("asked_by") == "production"
    proof = f"step {first.get('to')}, {spare:.1f} s to spare" if in_time else "there is none in time"
    yield "it wrote its checkpoint before the deadline", in_time, proof
    yield "it left", victim.status == "preempted", story.path(victim)

    ran = taker.granted_at is not None and taker.status == "released"
    yield "production ran inside its reserve", ran, f"{taker.demand.get('gpu')} gpu, {story.path(taker)}"

    back = next((one for one in sandbox if one.retry_of == victim.id and one.granted_at is not None), None)
    proof = story.path(back) if back else "no"
    yield "the sandbox was queued again and came back", back is not None and back.status == "released", proof

    steps = [(one["from"], one["to"]) for one in runs]
    whole = len(steps) == 2 and steps[0][0] == 0 and 0 < steps[0][1] == steps[1][0] < steps[1][1] == STEPS
    yield "it went on from its checkpoint and finished", whole, ", then ".join(f"steps {a} to {b}" for a, b in steps)

    statuses = {team: jobs.status(team) for team in ("sandbox", "production")}
    succeeded = all(status == "SUCCEEDED" for status in statuses.values())
    yield "both jobs succeeded", succeeded, ", ".join(f"{team}: {status}" for team, status in statuses.items())


if __name__ == "__main__":
    sys.exit(main())
