"""The chaos run: a real cluster, drivers that come and go, a monkey that kills, and the verdict.

    python -m tests.chaos.real            # make chaos
    SEED=7 KILLS=5 GCS_RESTARTS=1 python -m tests.chaos.real

Prints what was killed, how requests ended, how long the system was away; and as the last line
`kills=N gcs_restarts=N requests=N lost=N doubled=N leaked=N hung=N`, where kills are those of the broker's process.
Exit code 0: the last four are 0, nothing unexpected was seen, and as much was killed as was asked for. All that was
written stays in a temporary directory, which is deleted only then.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import machines
from tests.chaos.drivers import COMPONENTS, Drivers
from tests.chaos.ledger import Ledger
from tests.chaos.verdict import Audit, Seen, Verdict, World, doubles, judge

END_SECONDS = 900.0
"""After the storm's time and this, whatever it hangs in, the run ends itself, and tells where it was."""

SETTLE_SECONDS = 60.0
"""How long what dead owners held may take to be given back, at the end."""

AUDIT_SECONDS = 45.0
"""Between two audits in which the broker is asked for every request that it knows."""

MOST_FAULTS = 20
"""So many faults of a kind are printed; all are in the directory."""

CONFIG = {
    "pools": [
        {"name": "strict", "capacity": {"gpu": 7}, "placement_timeout_seconds": 5},
        {
            "name": "backfill",
            "capacity": {"gpu": 5},
            "queueing": "backfill",
            "grace_seconds": 0.3,
            "placement_timeout_seconds": 5,
        },
        # These two live on the node that is never killed: what is held there has no reason ever to end.
        {"name": "steady", "capacity": {"seats": 1000}, "node_labels": {"chaos": "steady"}},
        {"name": "line", "capacity": {"seats": 1}, "node_labels": {"chaos": "steady"}},
    ],
    "policies": [
        {"pool": "strict", "component": "red", "priority": 30, "reserved": {"gpu": 3}},
        {"pool": "strict", "component": "blue", "priority": 20, "reserved": {"gpu": 2}},
        {"pool": "strict", "component": "green", "priority": 10, "reserved": {"gpu": 1}},
        {"pool": "strict", "component": "grey", "priority": 10, "limit": {"gpu": 4}},
        {"pool": "backfill", "component": "red", "priority": 10},
        {"pool": "backfill", "component": "blue", "priority": 20, "reserved": {"gpu": 1}},
        {"pool": "backfill", "component": "green", "priority": 20, "reserved": {"gpu": 3}},
        {"pool": "backfill", "component": "grey", "priority": 30, "limit": {"gpu": 4}},
        *({"pool": "steady", "component": name, "priority": 1} for name in (*COMPONENTS, "probe")),
        {"pool": "line", "component": "anchor", "priority": 1},
    ],
}


@dataclass(frozen=True)
class Options:
    seed: int
    kills: int
    gcs_restarts: int
    minutes: float
    drivers: int


def options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.real", description="Kills, and looks what is left.")
    for name, kind, default, what in (
        ("seed", int, 1, "of the drivers' choices and the monkey's"),
        ("kills", int, 200, "how often the broker's process is killed"),
        ("gcs-restarts", int, 20, "how often the GCS is killed and started again"),
        ("minutes", float, 60, "the storm is over after this, and has failed if it was not through"),
        ("drivers", int, 4, "driver processes at a time"),
    ):
        variable = name.upper().replace("-", "_")
        default = os.environ.get(variable, default)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{what}; or the variable {variable}")
    return Options(**vars(parser.parse_args(arguments)))


def main(arguments: list[str] | None = None) -> int:
    chosen = options(arguments)
    faulthandler.dump_traceback_later(chosen.minutes * 60 + END_SECONDS, exit=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is ended, too
    directory = Path(tempfile.mkdtemp(prefix="chaos", dir="/tmp"))
    print(f"{chosen}\neverything is written to {directory}", flush=True)
    machines.prepare(directory)
    with _run(directory, chosen) as run:
        run.storm()
        run.stop()
        verdict = run.verdict()
        report(run, verdict)
    reached = run.monkey.done["broker"] >= chosen.kills and run.monkey.done["gcs"] >= chosen.gcs_restarts
    good = verdict.kept and reached
    if good and not run.machines.gcs_crashes:
        shutil.rmtree(directory, ignore_errors=True)
    print(last_line(run, verdict), flush=True)
    return 0 if good else 1


@contextmanager
def _run(directory: Path, chosen: Options) -> Iterator[Run]:
    """Whatever happens, no process of it is left."""
    import ray

    made = machines.Machines()
    drivers = None
    try:
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        run = Run(directory, chosen, made)
        drivers = run.drivers
        yield run
    finally:
        if drivers is not None:
            drivers.kill_all()
        ray.shutdown()
        made.stop()


class Run:
    """One run on a cluster that stands. The run itself is a client as well: its anchors are held, and wait in line,
    all the time; its probes are granted after each kill."""

    def __init__(self, directory: Path, chosen: Options, made: machines.Machines) -> None:
        import raypool
        from tests.chaos.journal import Journal, listen
        from tests.chaos.monkey import Monkey

        self.directory = directory
        self.options = chosen
        self.machines = made
        listen(Journal(directory / "run.jsonl", driver="the run", role="run"))
        self.client = raypool.start(CONFIG)
        self.anchors = self._drop_anchors()
        self.drivers = Drivers(directory, made.address, chosen.seed, chosen.drivers)
        self.monkey = Monkey(
            made, self.drivers, self.client, random.Random(chosen.seed), chosen.kills, chosen.gcs_restarts
        )
        self.audits: list[Audit] = []
        self.faults: list[str] = []  # what was lost, seen while it happened
        self.glimpses: list[str] = []
        self._audited_at = self._said_at = self.began_at = time.monotonic()

    # --- the storm ----------------------------------------------------------------------------

    def storm(self) -> None:
        self.monkey.storm(self.began_at + self.options.minutes * 60, self._look)

    def _look(self) -> None:
        """After each act: the dead are replaced, and what may be seen from outside is looked at."""
        self.drivers.replace_the_dead()
        self._patiently(self._glimpse)
        if time.monotonic() - self._audited_at > AUDIT_SECONDS:
            self._patiently(self._audit)
            self._audited_at = time.monotonic()
        if time.monotonic() - self._said_at > 15:
            self._said_at = time.monotonic()
            print(f"{self._said_at - self.began_at:6.0f} s: {dict(sorted(self.monkey.done.items()))}", flush=True)

    def _patiently(self, look: Callable[[], None]) -> None:
        import raypool

        try:
            look()
        except raypool.BrokerUnavailable as error:
            self.monkey.hung.append(f"the run itself was not answered: {error}")

    def _glimpse(self) -> None:
        self.glimpses += doubles(Seen.of(view) for view in self.client.requests(ended=False))
        for fault in self._anchors_lost():
            if fault not in self.faults:
                self.faults.append(fault)

    def _audit(self) -> None:
        self.audits.append(self._all())

    def _all(self) -> Audit:
        """What has not changed since the audit before is the same value, so that many audits take little room."""
        before = self.audits[-1] if self.audits else {}
        seen = (Seen.of(view) for view in self.client.requests())
        return {one.id: before[one.id] if before.get(one.id) == one else one for one in seen}

    # --- anchors: held, and waiting, from the beginning to the end ------------------------------

    def _drop_anchors(self) -> dict[str, tuple[Any, ...]]:
        import raypool

        seat = raypool.ResourceSettings(pool_resources={"seats": 1})
        for number in range(4):
            self.client.submit(id=f"anchor-{number}", component="anchor", pool="line", resources=seat)
        self.client.submit(id="anchor-detached", component="probe", pool="steady", lifetime="detached")
        for id in ("anchor-0", "anchor-detached"):
            view = self.client.wait(id, 60)
            assert view.running, view
        return self._standing()

    def _standing(self) -> dict[str, tuple[Any, ...]]:
        found = [view for view in self.client.requests(ended=False) if view.id.startswith("anchor")]
        return {view.id: (view.status, view.number, view.group_id, view.position) for view in found}

    def _anchors_lost(self) -> list[str]:
        """Nobody touches them, so each must stand as it stood: as held, or at its place in the line."""
        now = self._standing()
        return [
            f"{id} stood as {stood}, and now as {now.get(id, 'unknown or ended')}"
            for id, stood in self.anchors.items()
            if now.get(id) != stood
        ]

    # --- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Drivers end, and what they leave is given back; then everything is looked at; then the run gives back
        what it held itself, and nothing may be left at all."""
        self.drivers.finish()
        self.ledger = Ledger.of(self._journals())
        self.world = World(self.audits or [{}])  # all that there is to judge, should the broker not answer any more
        self._patiently(self._look_at_the_end)

    def _look_at_the_end(self) -> None:
        self._settle(lambda: self._living() <= set(self.anchors) | self._detached(), "what dead drivers held")
        self._glimpse()
        self._audit()
        self.world = self._world()
        self.ledger = Ledger.of(self._journals())
        for id in sorted(self._living()):
            self.client.cancel(id, "the run is over")
        self._settle(lambda: not self._groups(), "what the run held")

    def _settle(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            if true():
                return
            time.sleep(0.25)
        self.monkey.hung.append(f"not given back within {SETTLE_SECONDS:g} s: {what}")

    def _living(self) -> set[str]:
        return {view.id for view in self.client.requests(ended=False)}

    def _detached(self) -> set[str]:
        return {view.id for view in self.client.requests(ended=False) if view.lifetime == "detached"}

    def _world(self) -> World:
        """Ray's figures and the broker's, once they have had time to agree: reports come a moment late."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            world = self._world_now()
            if not judge(Ledger(), world).leaked or time.monotonic() > deadline:
                return world
            time.sleep(0.5)

    def _world_now(self) -> World:
        from ray._private import state

        groups = self._groups()
        rooms = state.available_resources_per_node()
        shown = {name.removeprefix("bundle_group_") for room in rooms.values() for name in room}
        self.audits[-1] = self._all()
        return World(
            audits=self.audits,
            pools=self.client.pools(),
            glimpses=self.glimpses,
            broker_kills=self.monkey.broker_kills,
            pids_killed=self.machines.killed,
            nodes_lost=self.machines.lost,
            groups={id: row["name"] for id, row in groups.items()},
            groups_on_nodes={name for name in shown if len(name) == GROUP_ID_LENGTH},
            gpus_taken=_gpus(state.total_resources_per_node()) - _gpus(rooms),
            gpus_of={
                id: sum(bundle.get("GPU", 0.0) for bundle in row["bundles"].values()) for id, row in groups.items()
            },
        )

    def _groups(self) -> dict[str, dict[str, Any]]:
        """Ray's placement groups of ours that are not removed, by id. A list of all is slow, and only for the end."""
        from ray.util.placement_group import placement_group_table

        return {
            id: row
            for id, row in placement_group_table().items()
            if row["name"].startswith("raypool/") and row["state"] != "REMOVED"
        }

    def verdict(self) -> Verdict:
        gone = self.ledger.gone | self.drivers.killed
        self.world.jobs_gone = {job: gone[name] for name, job in self.ledger.jobs.items() if name in gone}
        verdict = judge(self.ledger, self.world)
        verdict.lost += self.faults
        verdict.hung += self.monkey.hung + self.drivers.hung
        verdict.unexpected += self.drivers.strange_ends(self.ledger.gone)
        return verdict

    def _journals(self) -> Iterator[Any]:
        from tests.chaos.journal import read

        for path in sorted(self.directory.glob("*.jsonl")):
            yield read(path)


GROUP_ID_LENGTH = 36


def _gpus(rooms: dict[str, dict[str, float]]) -> float:
    return sum(room.get("GPU", 0.0) for room in rooms.values())


# --- the report -------------------------------------------------------------------------------


def report(run: Run, verdict: Verdict) -> None:
    seconds = time.monotonic() - run.began_at
    print(f"\nseed {run.options.seed}, {seconds:.0f} s, {run.options.drivers} drivers at a time")
    print("\nkilled")
    for what, times in sorted(run.monkey.done.items()):
        print(f"  {what:<12}{times:>6}")
    if run.machines.gcs_crashes:
        print(f"  the GCS ended by itself {run.machines.gcs_crashes} times: a fault of Ray's, see its logs")
    if run.world.phantom_gpus:
        print(f"  Ray leaked room, and the broker says so: {run.world.phantom_gpus} phantom gpu")
    print(f"\n{len(run.drivers.ended)} drivers were born")
    ends = Counter(one.status.value for one in run.world.audits[-1].values())
    print("\nrequests at the end, by the broker's word")
    for status, times in sorted(ends.items()):
        print(f"  {status:<12}{times:>6}")
    print("\nwhat clients were told")
    for kind, times in sorted(run.ledger.counts.items()):
        print(f"  {kind:<40}{times:>6}")
    print("\nseconds after a kill, until                    p50    p90    max  times")
    for what, seconds in (
        ("the broker answers (broker killed)", run.monkey.seconds["broker"]),
        ("a client's call is answered (broker killed)", run.monkey.call_seconds["broker"]),
        ("something is granted (broker killed)", run.monkey.grant_seconds["broker"]),
        ("something is granted (GCS started again)", run.monkey.grant_seconds["gcs"]),
    ):
        if seconds:
            ranks = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
            print(f"  {what:<44}{ranks[4]:>5.2f}  {ranks[8]:>5.2f}  {max(seconds):>5.2f}  {len(seconds):>5}")
    for kind in ("lost", "doubled", "leaked", "hung", "unexpected"):
        faults = getattr(verdict, kind)
        (run.directory / f"{kind}.txt").write_text("\n".join(faults))
        if faults:
            print(f"\n{kind}: {len(faults)}")
            for fault in faults[:MOST_FAULTS]:
                print(f"  {fault}")
    if not verdict.kept or run.machines.gcs_crashes:
        print(f"\nall of it is in {run.directory}")
    print()


def last_line(run: Run, verdict: Verdict) -> str:
    requests = sum(told.acknowledged for told in run.ledger.requests.values())
    figures = {
        "kills": run.monkey.done["broker"],
        "gcs_restarts": run.monkey.done["gcs"],
        "requests": requests,
        "lost": len(verdict.lost),
        "doubled": len(verdict.doubled),
        "leaked": len(verdict.leaked),
        "hung": len(verdict.hung),
    }
    return " ".join(f"{name}={value}" for name, value in figures.items())


if __name__ == "__main__":
    sys.exit(main())
