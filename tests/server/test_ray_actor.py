"""The actor's class: it has the broker's calls, all of them, and costs nothing to import."""

import inspect
import subprocess
import sys

from raypool.server.actor import PoolBroker
from raypool.server.ray_actor import CALLS, BrokerActor


def test_every_call_of_the_broker_is_passed_on_and_no_other():
    calls = {
        name
        for name, method in inspect.getmembers(PoolBroker, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "begin"
    }
    assert set(CALLS) == calls
    assert all(inspect.iscoroutinefunction(getattr(BrokerActor, name)) for name in CALLS)


def test_a_query_does_not_load_the_specs_nor_the_core():
    code = (
        "import sys, raypool.client.client, raypool.server.ray_actor\n"
        "print([name for name in sys.modules if name in ('raypool.spec', 'raypool.core.broker')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
