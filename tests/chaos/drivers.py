"""The driver processes of a chaos run: each has its place, and another takes it when it has died."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.machines import REPOSITORY

COMPONENTS = ("red", "blue", "green", "grey")

FINISH_SECONDS = 120.0
"""From the word to stop until the last driver has to be gone."""

DUMP_SECONDS = 2.0
"""What a driver that hangs gets to write where its threads are."""


STUCK = 3
"""The exit code of a driver that was told to stop and could not: its journal says what it was at."""


@dataclass
class Driver:
    name: str
    process: subprocess.Popen[bytes]
    stderr: Path


class Drivers:
    """`places` of them, of the components in turn. `ended`: (driver, how it ended) of all that are gone."""

    def __init__(self, directory: Path, address: str, seed: int, places: int) -> None:
        self.directory = directory
        self.address = address
        self.seed = seed
        self.running: list[Driver] = []
        self.ended: list[tuple[Driver, int]] = []
        self.hung: list[str] = []
        self._born = 0
        self.killed: dict[str, float] = {}  # when, by name
        for place in range(places):
            self.running.append(self._start(COMPONENTS[place % len(COMPONENTS)]))

    def _start(self, component: str) -> Driver:
        self._born += 1
        name = f"{component}-{self._born}"
        stderr = self.directory / f"{name}.stderr"
        with stderr.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.driver", str(self.directory), name, str(self.seed), self.address],
                cwd=REPOSITORY,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C is for the run, which then ends them itself
            )
        return Driver(name, process, stderr)

    def replace_the_dead(self) -> None:
        for driver in self._take_the_dead():
            self.running.append(self._start(driver.name.split("-")[0]))

    def _take_the_dead(self) -> list[Driver]:
        dead = [driver for driver in self.running if driver.process.poll() is not None]
        for driver in dead:
            self.running.remove(driver)
            self.ended.append((driver, driver.process.returncode))
        return dead

    def kill_one(self, rng: random.Random) -> str:
        driver = rng.choice(self.running)
        self.killed[driver.name] = time.time()
        driver.process.kill()
        driver.process.wait(30)
        return driver.name

    def finish(self) -> None:
        """Tells all to stop and waits for them. Who is still there then hangs: it writes where, and is killed."""
        (self.directory / "stop").touch()
        deadline = time.monotonic() + FINISH_SECONDS
        while self.running and time.monotonic() < deadline:
            self._take_the_dead()
            time.sleep(0.1)
        for driver in self.running:
            driver.process.send_signal(signal.SIGUSR1)
            self.hung.append(f"driver {driver.name} did not end; its threads are in {driver.stderr}")
        if self.running:
            time.sleep(DUMP_SECONDS)
        self.kill_all()

    def kill_all(self) -> None:
        for driver in self.running:
            if driver.process.poll() is None:
                driver.process.kill()
                driver.process.wait(30)

    def strange_ends(self, gone: Mapping[str, float]) -> list[str]:
        """Drivers that ended and were not killed, did not mean to (`gone`), and do not hang."""
        told = []
        for driver, code in self.ended:
            meant = driver.name in self.killed or driver.name in gone
            if not meant and code != STUCK:
                tail = driver.stderr.read_text(errors="replace")[-2000:]
                told.append(f"driver {driver.name} ended with {code}: {tail}")
        return told
