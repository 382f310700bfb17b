"""The decision core in virtual time, without Ray: scenario files, workload traces, exported journals.

A policy change can be tested like code: write what happens and what is expected, and run it
(`raypool.simulate`, `raypool simulate`; docs/reference/scenarios.md). What it would have done to the work of last
month is asked with a trace (`raypool replay`; docs/how-to/replay.md): traces.py reads it, workload.py replays it.
That a journal comes out as it did then is seen with `raypool journal replay` (journal.py).
"""

from raypool.simulation.journal import ReplayStep, replay_journal
from raypool.simulation.report import SimulationReport, Step, Transition
from raypool.simulation.run import simulate
from raypool.simulation.scenario import Scenario, read_scenarios

__all__ = [
    "ReplayStep", "Scenario", "SimulationReport", "Step", "Transition",
    "read_scenarios", "replay_journal", "simulate",
]  # fmt: skip
