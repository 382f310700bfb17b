"""Runs a command inside a lease: what `raypool run` does.

A small actor in bundle 0 starts the command as its child, so that the command sees the GPUs that Ray
gave the actor, and passes on its output and exit code. The child gets SIGTERM when the preemption
notice comes. It stays in the actor's session, so that it is gone when Ray removes the placement group.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import ray
import ray.exceptions

from raypool.client.current import GROUP_VARIABLE, CurrentLease, current_lease
from raypool.client.lease import Lease

REQUEST_VARIABLE = "RAYPOOL_REQUEST_ID"
"""In the command's environment: the request whose lease it runs in."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit codes of a command that could not be started, as a shell would give them."""

KILLED = 128 + signal.SIGKILL
"""The exit code of a command that was still there at its deadline, as a shell would give it."""


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
            child = subprocess.Popen(
                list(command),
                # What Ray set on this node (CUDA_VISIBLE_DEVICES above all) goes before the caller's.
                env={**environment, **os.environ, **self._variables(lease)},
                cwd=directory if os.path.isdir(directory) else None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            yield Output("stderr", f"raypool: cannot run '{command[0]}': {error.strerror}\n".encode())
            yield NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            return
        if lease is not None:
            lease.on_preemption(lambda notice: child.terminate())
        yield from _pieces(child)
        code = child.wait()
        yield code if code >= 0 else 128 - code

    def _variables(self, lease: CurrentLease | None) -> dict[str, str]:
        address = ray.get_runtime_context().gcs_address
        ours = {"RAY_ADDRESS": address, "PYTHONUNBUFFERED": "1"}
        if lease is None:
            return ours
        return {**ours, REQUEST_VARIABLE: lease.request_id, GROUP_VARIABLE: lease.placement_group.id.hex()}


def _pieces(child: subprocess.Popen[bytes]) -> Iterator[Output]:
    """What the child writes to both its streams, in the order in which it arrives."""
    arrived: queue.Queue[Output | None] = queue.Queue()

    def read(stream: str, pipe: IO[bytes]) -> None:
        while data := os.read(pipe.fileno(), 65536):
            arrived.put(Output(stream, data))
        arrived.put(None)

    assert child.stdout is not None and child.stderr is not None
    for stream, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
        threading.Thread(target=read, args=(stream, pipe), daemon=True).start()
    open_streams = 2
    while open_streams:
        piece = arrived.get()
        if piece is None:
            open_streams -= 1
        else:
            yield piece


def run_command(lease: Lease, command: Sequence[str], *, uses_ray: bool = False) -> Iterator[Output | int]:
    """Runs the command in bundle 0 of a lease that is held; yields its output and at last its exit code.

    uses_ray: the command is itself a Ray driver that puts work into the lease (with
    `raypool.current_lease()`); then the runner takes nothing of the bundle for itself, and the
    command sees no GPUs of its own.

    A command that is still there when its lease is taken away is killed; its exit code is 137.
    """
    nothing = {"num_gpus": 0, "num_cpus": 0, "memory": None, "resources": None}
    options = lease.actor_options(0, **(nothing if uses_ray else {}))
    runner = ray.remote(Runner).options(**options).remote()
    pieces = runner.run.options(num_returns="streaming").remote(list(command), dict(os.environ), os.getcwd())
    try:
        for ref in pieces:
            yield ray.get(ref)
    except ray.exceptions.RayActorError:
        if not lease.taken_away():
            raise
        yield KILLED
