"""Who kills: a seeded list of acts, each followed by a look whether the system gets on.

After each kill of the broker or the GCS it is measured how long it takes until the broker answers again, until the
call of a client that was under way is answered, and until something new is granted. Each of these waits is bounded.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import ray
import ray.exceptions

import raypool
from raypool import RequestSpec
from tests.chaos.drivers import Drivers
from tests.chaos.machines import DISPATCHER, IN_LEASES, Machines, kill

ANSWER_SECONDS = 60.0
"""The system must get on within this: far more than it should need, for a machine that is busy."""

HOPELESS = 3
"""After so many times in which it did not, the storm is over."""

VICTIM_SECONDS = 3.0
"""How long a task in a lease is waited for, that may be killed: there is not always one."""


class NoBroker(Exception):
    """It has had no process for ANSWER_SECONDS: Ray does not start one any more."""


class Monkey:
    """kills: how often the broker is killed; gcs_restarts: how often the GCS. The others follow from these."""

    def __init__(
        self,
        machines: Machines,
        drivers: Drivers,
        client: raypool.Client,
        rng: random.Random,
        kills: int,
        restarts: int,
    ) -> None:
        self.machines = machines
        self.drivers = drivers
        self.client = client
        self.random = rng
        self.wanted = {"broker": kills, "gcs": restarts}
        self.done: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {"broker": [], "gcs": []}  # kill -> the broker answers
        self.call_seconds: dict[str, list[float]] = {"broker": [], "gcs": []}  # kill -> a call made then is answered
        self.grant_seconds: dict[str, list[float]] = {"broker": [], "gcs": []}  # kill -> something new is granted
        self.hung: list[str] = []
        self.broker_kills: list[float] = []  # seconds since the epoch
        self._probes = 0
        self.acts: dict[str, Callable[[], None]] = {
            "broker": self._kill_broker,
            "broker, while it recovers": self._kill_recovering_broker,
            "gcs": self._restart_gcs,
            "gcs and broker": self._restart_both,
            "driver": self._kill_driver,
            "driver, without gcs": lambda: self._kill_without_gcs(self._kill_driver),
            "raylet, without gcs": lambda: self._kill_without_gcs(self._kill_raylet),
            "worker": lambda: self._kill_worker("worker", IN_LEASES),
            "dispatcher": lambda: self._kill_worker("dispatcher", DISPATCHER),
            "raylet": self._kill_raylet,
        }

    def plan(self) -> list[str]:
        """The acts in order: as many kills of the broker and the GCS as were asked for, and others between."""
        kills, restarts = self.wanted["broker"], self.wanted["gcs"]
        both = min(restarts // 4, kills)
        twice = (kills - both) // 8
        times = {
            "broker": kills - both - 2 * twice,
            "broker, while it recovers": twice,
            "gcs": restarts - both - restarts // 5 - restarts // 10,
            "gcs and broker": both,
            "driver, without gcs": restarts // 5,
            "raylet, without gcs": restarts // 10,
            "driver": (kills + restarts) // 8,
            "worker": (kills + restarts) // 5,
            "raylet": (kills + restarts) // 10,
            "dispatcher": (kills + restarts) // 20,
        }
        acts = [act for act, number in times.items() for _ in range(number)]
        self.random.shuffle(acts)
        return acts

    def storm(self, deadline: float, between: Callable[[], None]) -> None:
        """Does all of it, or as much as fits before the deadline. `between` is called after each act."""
        for act in self._acts():
            time.sleep(self.random.uniform(0.1, 2.0))
            if time.monotonic() > deadline or len(self.hung) >= HOPELESS:
                return
            try:
                self.acts[act]()
            except NoBroker as error:
                self.hung.append(str(error))
                return
            self._add_raylets()
            between()

    def _acts(self) -> Iterator[str]:
        """The plan, and more of what has fallen short: a process may be gone a moment before it is killed."""
        yield from self.plan()
        for act, wanted in self.wanted.items():
            while self.done[act] < wanted:
                yield act

    def _add_raylets(self) -> None:
        if self.machines.missing:
            time.sleep(self.random.uniform(0.0, 4.0))
            self.machines.add_raylets()

    # --- acts ---------------------------------------------------------------------------------

    def _kill_broker(self) -> None:
        with self._measured("broker"):
            self._kill(self._living_broker())

    def _kill_recovering_broker(self) -> None:
        """Twice: the second time as soon as there is a new process, which then has hardly begun."""
        first = self._living_broker()
        with self._measured("broker"):
            self._kill(first)
            self._kill(self._living_broker(other_than=first), after=self.random.uniform(0.0, 0.3))

    def _restart_gcs(self) -> None:
        with self._measured("gcs"):
            self._gcs_away(lambda: None)

    def _restart_both(self) -> None:
        """The broker dies a moment before the GCS, or while it is away."""
        broker = self._living_broker()
        before = self.random.random() < 0.5
        with self._measured("gcs"):
            if before:
                self._kill(broker)
                time.sleep(self.random.uniform(0.0, 1.0))
            self._gcs_away(lambda: None if before else self._kill(broker))

    def _kill_without_gcs(self, kill: Callable[[], None]) -> None:
        """Nobody in the cluster is told of its end when it happens."""
        with self._measured("gcs"):
            self._gcs_away(kill)

    def _gcs_away(self, meanwhile: Callable[[], None]) -> None:
        self.machines.kill_gcs()
        time.sleep(self.random.uniform(0.0, 2.0))
        meanwhile()
        self.machines.start_gcs()
        self.done["gcs"] += 1

    def _kill_driver(self) -> None:
        self.drivers.kill_one(self.random)
        self.done["driver"] += 1

    def _kill_worker(self, kind: str, titles: tuple[str, ...]) -> None:
        deadline = time.monotonic() + VICTIM_SECONDS
        while time.monotonic() < deadline:
            found = self.machines.client_processes(titles)
            if found and self.machines.kill_worker(self.random.choice(found)):
                self.done[kind] += 1
                return
            time.sleep(0.05)

    def _kill_raylet(self) -> None:
        """Another takes its place after a while, before the next act."""
        self.machines.kill_raylet(self.random)
        self.done["raylet"] += 1

    def _living_broker(self, other_than: psutil.Process | None = None) -> psutil.Process:
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            process = self.machines.broker_process()
            if process is not None and process != other_than:
                return process
            time.sleep(0.005)
        raise NoBroker(f"the broker had no process for {ANSWER_SECONDS:g} s")

    def _kill(self, broker: psutil.Process, after: float = 0.0) -> None:
        time.sleep(after)
        if kill(broker):
            self.done["broker"] += 1
            self.broker_kills.append(time.time())

    # --- whether it gets on -------------------------------------------------------------------

    @contextlib.contextmanager
    def _measured(self, kind: str) -> Any:
        """Around a kill: measures from the moment of the last kill inside."""
        yield
        killed = time.monotonic()
        call = threading.Thread(target=self._call, args=(kind, killed), name="a call that is under way", daemon=True)
        call.start()
        self._note(self.seconds[kind], killed, self._answers(), f"the broker answers after a kill of the {kind}")
        self._note(self.grant_seconds[kind], killed, self._grants(), f"a grant after a kill of the {kind}")
        call.join(ANSWER_SECONDS)
        if call.is_alive():
            self.hung.append(f"a call that was made when the {kind} was killed was not answered")

    def _note(self, into: list[float], since: float, came: bool, what: str) -> None:
        if came:
            into.append(time.monotonic() - since)
        else:
            self.hung.append(f"not within {ANSWER_SECONDS:g} s: {what}")

    def _call(self, kind: str, killed: float) -> None:
        """What a client sees that asks just now, with all the library's patience."""
        try:
            self.client.status()
        except raypool.BrokerUnavailable as error:
            self.hung.append(f"a call made when the {kind} was killed was given up: {error}")
            return
        self.call_seconds[kind].append(time.monotonic() - killed)

    def _answers(self) -> bool:
        """Asks again and again, not waiting for calls that a dead process has swallowed."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            try:
                ray.get(self.client._line.send("overview"), timeout=0.1)
                return True
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                time.sleep(0.02)
        return False

    def _grants(self) -> bool:
        self._probes += 1
        spec = RequestSpec(id=f"probe-{self._probes}", component="probe", pool="steady")
        try:
            self.client.submit(spec)
            view = self.client.wait(spec.id, ANSWER_SECONDS)
            self.client.release(spec.id)
        except raypool.RaypoolError as error:  # the journal has the call; what it means is the verdict's
            self.hung.append(f"{spec.id}: {type(error).__name__}: {error}")
            return False
        return view.running
