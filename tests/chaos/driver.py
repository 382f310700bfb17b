"""One driver of a chaos run: a job of one component that asks, holds, gives back, and crashes now and then.

    python -m tests.chaos.driver DIRECTORY NAME SEED ADDRESS

Some threads do one thing after the other, chosen by the seed, until the directory has a file `stop`. All that
the job is told goes into journals in that directory, one for each of its processes: whether it holds is judged
afterwards, from outside. SIGUSR1 makes it write where its threads are to stderr.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

import raypool
from raypool import RequestSpec, ResourceSettings
from raypool.client.broker import job_id
from tests.chaos.journal import Journal, listen

POOLS = ("strict", "backfill")
THREADS = 3

TASK_SECONDS = 90.0
"""Nothing that a driver waits for takes so long: waits for a grant end sooner, work takes two seconds."""

CRASHES = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ActorDiedError,
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
)
"""What Ray says when a process or node of the work itself was killed."""

END_SECONDS = 100.0
"""How long a driver that was told to stop waits for what it has begun."""


def main(directory: Path, name: str, seed: int, address: str) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    journal = Journal(directory / f"{name}.jsonl", driver=name, role="driver")
    listen(journal)
    ray.init(
        address=address,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={
            "worker_process_setup_hook": "tests.chaos.driver.listen_in_worker",
            "env_vars": {"CHAOS_DIRECTORY": str(directory), "CHAOS_DRIVER": name},
        },
    )
    journal.write("joined", job=job_id())
    threads = [Hand(directory, name, random.Random(f"{seed} {name} {i}"), journal) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    while not (directory / "stop").exists() and any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
    deadline = time.monotonic() + END_SECONDS
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    stuck = [thread.doing for thread in threads if thread.is_alive()]
    if stuck:
        journal.write("stuck", doing=stuck)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(3)
    journal.write("finished")
    return 0


def listen_in_worker() -> None:
    """Ray calls it in every worker of the job: the dispatcher's requests, and those of nested tasks, are the
    job's too."""
    directory, name = Path(os.environ["CHAOS_DIRECTORY"]), os.environ["CHAOS_DRIVER"]
    listen(Journal(directory / f"{name}.{os.getpid()}.jsonl", driver=name, role="worker"))


# --- what tasks do ----------------------------------------------------------------------------


def work(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


def nested(component: str, seconds: float) -> str:
    """Takes a second lease while it runs in the first."""
    with raypool.lease(ResourceSettings(gpu_count=1), component=component, wait_timeout_seconds=10):
        time.sleep(seconds)
    return "done"


class Hand(threading.Thread):
    """One thread of the driver. `doing` says what, for whoever finds it stuck."""

    def __init__(self, directory: Path, name: str, rng: random.Random, journal: Journal) -> None:
        super().__init__(name=f"hand of {name}", daemon=True)
        self.stop = directory / "stop"
        self.component = name.split("-")[0]
        self.random = rng
        self.journal = journal
        self.client = raypool.connect()
        self.doing = "nothing"
        self._choices: list[tuple[Callable[[], None], int]] = [
            (self.hold, 480),
            (self.give_back_by_id, 250),
            (self.flurry, 80),
            (self.run_task, 70),
            (self.run_nested, 40),
            (self.hold_detached, 50),
            (self.ask_too_much, 20),
            (self.die, 5),
        ]

    def run(self) -> None:
        actions, weights = zip(*self._choices, strict=True)
        while not self.stop.exists():
            action = self.random.choices(actions, weights)[0]
            self.doing = f"{action.__name__} since {time.time():.1f}"
            with self._told():
                action()
            self._pause(0.2)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Ends that a user must expect are noted; a wait that had no end, and anything else, is too."""
        try:
            yield
        except raypool.RaypoolError as error:  # Ray's copy of it, when a task raised it, is one as well
            told = getattr(error, "request_id", "")
            self.journal.write("ended", id=told, error=type(error).__name__, message=str(error)[:500])
        except ray.exceptions.GetTimeoutError:
            self.journal.write("hung", doing=self.doing)
        except CRASHES as error:
            self.journal.write("crashed", doing=self.doing, error=type(error).__name__)
        except Exception:  # noqa: BLE001 - whatever it is, it goes to the verdict, which it fails
            self.journal.write("unexpected", doing=self.doing, error=traceback.format_exc())

    def _pause(self, most: float) -> None:
        time.sleep(self.random.uniform(0.0, most))

    def _shape(self) -> dict[str, Any]:
        workers = self.random.choice((1, 1, 1, 2, 2, 3, 4))
        return {
            "component": self.component,
            "workers": workers,
            "strategy": self.random.choice(("PACK", "PACK", "SPREAD", "STRICT_PACK")) if workers <= 2 else "PACK",
            "pool": self.random.choice((None, None, *POOLS)),
            "resources": ResourceSettings(gpu_count=1),
        }

    # --- what it does -------------------------------------------------------------------------

    def hold(self) -> None:
        """A lease for a block of code, sometimes with a task in it."""
        lease = raypool.lease(
            **self._shape(),
            preemptible=None if self.random.random() < 0.9 else False,
            grace_seconds=self.random.choice((None, None, 0.1)),
            wait_timeout_seconds=self.random.choice((2, 10, 40)),
        )
        with lease:
            self.journal.write("held", id=lease.request_id)
            if self.random.random() < 0.1:
                # As a user waits: what Ray would let wait for ever, once the lease is gone, the library ends.
                ray.get(ray.remote(work).options(**lease.task_options(0)).remote(0.5), timeout=TASK_SECONDS)
            until = time.monotonic() + self.random.uniform(0.05, 2.0)
            while time.monotonic() < until and not lease.ended:
                time.sleep(0.05)

    def give_back_by_id(self) -> None:
        """A request by its id: asked once or twice, waited for or not, released or cancelled, once or twice."""
        spec = RequestSpec(**{name: value for name, value in self._shape().items() if value is not None})
        for _ in range(self.random.choice((1, 1, 2))):
            view = self.client.submit(spec)
        if self.random.random() < 0.7:
            view = self.client.wait(spec.id, self.random.uniform(0.1, 10.0))
            if view.running:
                self._pause(1.5)
        give_back = self.client.release if self.random.random() < 0.7 else self.client.cancel
        for _ in range(self.random.choice((1, 1, 2))):
            give_back(spec.id)

    def flurry(self) -> None:
        """Many short ones: a kill is likely to find one of them between the question and the answer."""
        for _ in range(30):
            if self.stop.exists():
                return
            view = self.client.submit(component=self.component, resources=ResourceSettings(gpu_count=1))
            if self.random.random() < 0.5:
                self.client.wait(view.id, 0.2)
            self.client.release(view.id)

    def run_task(self) -> None:
        self._call(raypool.remote(component=self.component, resources=ResourceSettings(gpu_count=1))(work), 0.3)

    def run_nested(self) -> None:
        outer = raypool.remote(component=self.component, resources=ResourceSettings(gpu_count=1))(nested)
        self._call(outer, self.component, 0.3)

    def _call(self, function: Any, *args: Any) -> None:
        ref = function.options(wait_timeout_seconds=30).remote(*args)
        try:
            ray.get(ref, timeout=TASK_SECONDS)
        except ray.exceptions.GetTimeoutError:
            ray.cancel(ref)
            raise

    def hold_detached(self) -> None:
        """A lease that outlives this job; one in three is left to whoever cleans up."""
        lease = raypool.lease(component=self.component, pool="steady", lifetime="detached", wait_timeout_seconds=30)
        lease.acquire()
        self.journal.write("held", id=lease.request_id, detached=True)
        self._pause(1.0)
        if self.random.random() < 0.67:
            lease.release()

    def ask_too_much(self) -> None:
        """More than any pool has: rejected, and that is all."""
        self.client.submit(component=self.component, workers=50, resources=ResourceSettings(gpu_count=1))

    def die(self) -> None:
        """Leaves with work queued: by SIGKILL, or by an exit that gives nothing back."""
        for _ in range(2):
            shape = {name: value for name, value in self._shape().items() if value is not None}
            self.client.submit(RequestSpec(**shape))
        how = self.random.choice(("killed", "exited"))
        self.journal.write("dying", how=how)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
