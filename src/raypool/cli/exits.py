"""The exit codes of all commands, in one table. (`raypool run` has that of its command.)"""

DONE = 0
REFUSED = 1
"""By the rules, or rejected; an expectation that fails."""
NOT_WRITTEN = 2
"""An option, a file or an amount that is not written correctly."""
NO_BROKER = 3
"""Or no cluster."""
PREEMPTED = 4
CANCELLED = 5
"""By somebody, by its own time limit, or with a node that died."""
STOPPED = 130
"""Somebody pressed Ctrl-C, and what was followed goes on."""

OF_END = {"released": DONE, "rejected": REFUSED, "preempted": PREEMPTED, "cancelled": CANCELLED}
"""Of a command that follows a request, by how that ended."""
