"""Whether the nodes of a lease still answer: for the time in which Ray itself does not know yet.

Who waits for a worker misses it at once when its node dies; Ray strikes the node off its list only after some
missed health checks, 20 s later by default. Who sees Ray's error in between cannot tell a dead node from a
worker that crashed alone, unless he asks the node: its raylet takes a connection, or it does not.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

import ray

ANSWER_SECONDS = 2.0
"""How long a raylet may take to accept a connection."""

NODE_DEATH_SECONDS = 60.0
"""How long Ray and the broker may take to notice the death of a node that does not answer."""


def any_is_silent(nodes: Iterable[str]) -> bool:
    """Whether one of these nodes (by id) is dead, as far as Ray knows or its raylet shows. Blocks."""
    rows = {row["NodeID"]: row for row in ray.nodes()}
    asked = [rows.get(node) for node in dict.fromkeys(nodes)]
    if not all(row is not None and row["Alive"] for row in asked):
        return True
    return not all(_answers(row["NodeManagerAddress"], row["NodeManagerPort"]) for row in asked if row)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
