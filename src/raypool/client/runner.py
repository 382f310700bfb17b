"""Runs a command inside a lease: what `raypool run` does.

A small actor in bundle 0 starts the command as its child, so that the command sees the GPUs that Ray
gave the actor, and passes on its output and exit code. The child and what it has started get SIGTERM
when the preemption notice comes. They stay in the actor's session, so that they are gone when Ray removes
the placement group.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import ray
import ray.exceptions
from ray._private.accelerators import get_all_accelerator_managers

from raypool.client.current import GROUP_VARIABLE, CurrentLease, current_lease
from raypool.client.lease import Lease
from raypool.errors import RaypoolError

import psutil  # type: ignore[import-untyped]  # isort: skip - Ray's own copy, found once ray is imported

REQUEST_VARIABLE = "RAYPOOL_REQUEST_ID"
"""In the command's environment: the request whose lease it runs in."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit codes of a command that could not be started, as a shell would give them."""

KILLED = 128 + signal.SIGKILL
"""The exit code of a command that was still there at its deadline, as a shell would give it."""

DRAIN_SECONDS = 1.0
"""How long output is still read after the command has ended."""

_RUNNER_IS_GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorPlacementGroupRemoved,
    ray.exceptions.ActorUnschedulableError,
)


@dataclass(frozen=True)
class Output:
    """A piece of what the command wrote; `stream` is "stdout" or "stderr"."""

    stream: str
    data: bytes


class Runner:
    """Lives in bundle 0. Plain Python; `run_command` makes a Ray actor of it."""

    def run(self, command: Sequence[str], environment: Mapping[str, str], directory: str) -> Iterator[Output | int]:
        """Yields the command's output as it comes, and at last its exit code."""
        lease = current_lease()
        try:
            child = Child(command, environment_of(environment, os.environ, self._variables(lease)), directory)
        except OSError as error:
            yield Output("stderr", f"raypool: cannot run '{command[0]}': {error.strerror}\n".encode())
            yield NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            return
        if lease is not None:
            lease.on_preemption(lambda notice: child.terminate())
        yield from child.output()
        yield child.exit_code()

    def _variables(self, lease: CurrentLease | None) -> dict[str, str]:
        address = ray.get_runtime_context().gcs_address
        ours = {"RAY_ADDRESS": address, "PYTHONUNBUFFERED": "1"}
        if lease is None:
            return ours
        return {**ours, REQUEST_VARIABLE: lease.request_id, GROUP_VARIABLE: lease.placement_group.id.hex()}


def environment_of(caller: Mapping[str, str], node: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: the caller's, as if it ran where he is; over it what Ray set for the actor
    on this node (its accelerators, RAY_*); over that what `raypool run` sets.

    An accelerator variable that Ray did not set here is left out: the caller's speaks of other devices.
    """
    accelerators = {manager.get_visible_accelerator_ids_env_var() for manager in get_all_accelerator_managers()}
    theirs = {name: value for name, value in caller.items() if name not in accelerators}
    rays = {name: value for name, value in node.items() if name in accelerators or name.startswith("RAY_")}
    return {**theirs, **rays, **ours}


class Child:
    """The command as a child process, with what it starts itself. Raises OSError if it cannot be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: str) -> None:
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=directory if os.path.isdir(directory) else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._told_to_leave: list[psutil.Process] = []
        self._telling = threading.Lock()

    def terminate(self) -> None:
        """SIGTERM to the command and to what it has started: under a shell it is a grandchild that has a
        checkpoint to write. Parents hear of it first, so that a shell does not go on to its next line."""
        with self._telling, contextlib.suppress(psutil.NoSuchProcess):
            child = psutil.Process(self._process.pid)
            self._told_to_leave = [child, *child.children(recursive=True)]
            for process in self._told_to_leave:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.terminate()

    def output(self) -> Iterator[Output]:
        """What it writes to both its streams, in the order in which it arrives, until it has ended, and what
        still arrives in `DRAIN_SECONDS` then: something in the background may hold the streams open for ever."""
        arrived: queue.Queue[Output | None] = queue.Queue()
        reads = [self._reading(arrived, "stdout"), self._reading(arrived, "stderr")]
        waiting = threading.Thread(target=self._wait, args=(arrived,), daemon=True)
        for thread in (*reads, waiting):
            thread.start()
        while (piece := arrived.get()) is not None:
            yield piece
        until = time.monotonic() + DRAIN_SECONDS
        for thread in reads:
            thread.join(max(until - time.monotonic(), 0.0))
        for _ in range(arrived.qsize()):
            yield cast(Output, arrived.get())

    def exit_code(self) -> int:
        """As a shell would give it. Once `output` has come to its end."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _reading(self, arrived: queue.Queue[Output | None], stream: str) -> threading.Thread:
        pipe = self._process.stdout if stream == "stdout" else self._process.stderr
        assert pipe is not None

        def read() -> None:
            while data := os.read(pipe.fileno(), 65536):
                arrived.put(Output(stream, data))

        return threading.Thread(target=read, daemon=True)

    def _wait(self, arrived: queue.Queue[Output | None]) -> None:
        """Until the command has ended. If SIGTERM ended it, until what was told to leave with it has, too: a
        shell dies of it at once, and its program would be killed with the lease while it writes its
        checkpoint. A command that chose to exit has seen to its own children."""
        code = self._process.wait()
        with self._telling:
            leaving = self._told_to_leave if code == -signal.SIGTERM else []
        while any(map(_runs, leaving)):
            time.sleep(0.05)
        arrived.put(None)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def run_command(lease: Lease, command: Sequence[str], *, uses_ray: bool = False) -> Iterator[Output | int]:
    """Runs the command in bundle 0 of a lease that is held; yields its output and at last its exit code.

    uses_ray: the command is itself a Ray driver that puts work into the lease (with
    `raypool.current_lease()`); then the runner takes nothing of the bundle for itself, and the
    command sees no GPUs of its own.

    A command that is still there when its lease is taken away is killed; its exit code is 137, and
    `lease.ending` says how. Raises RaypoolError when it was lost for another reason.
    """
    nothing = {"num_gpus": 0, "num_cpus": 0, "memory": None, "resources": None}
    options = lease.actor_options(0, **(nothing if uses_ray else {}))
    runner = ray.remote(Runner).options(**options).remote()
    pieces = runner.run.options(num_returns="streaming").remote(list(command), dict(os.environ), os.getcwd())
    try:
        for ref in pieces:
            yield ray.get(ref)
    except _RUNNER_IS_GONE as error:
        if not lease.taken_away():
            raise RaypoolError(
                f"the command was lost: its runner in lease '{lease.request_id}' died, though the lease was not "
                "taken away; its node may have failed or run out of memory. Ray says: " + " ".join(str(error).split())
            ) from error
        yield KILLED
