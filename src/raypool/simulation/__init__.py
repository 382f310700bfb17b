"""Scenario files run on the real decision core, in virtual time.

A policy change can be tested like code: write what happens and what is expected, and run it
(`raypool.simulate`, `raypool simulate`). The format is described in docs/scenarios.md.
"""

from raypool.simulation.journal import ReplayStep, replay_journal
from raypool.simulation.report import SimulationReport, Step, Transition
from raypool.simulation.run import simulate
from raypool.simulation.scenario import Scenario, read_scenarios

__all__ = [
    "ReplayStep", "Scenario", "SimulationReport", "Step", "Transition",
    "read_scenarios", "replay_journal", "simulate",
]  # fmt: skip
