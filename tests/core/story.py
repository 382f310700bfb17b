"""A broker in a world that confirms placements and removals, told in short sentences.

Checks the laws after every event. Time is `story.now` and moves only by `story.pass_seconds`.
"""

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.instructions import (
    ChangeStatus,
    CreatePlacementGroup,
    HandOverPlacementGroup,
    RemovePlacementGroup,
    WarnHolder,
)
from raypool.core.nodes import Node
from raypool.server.views import view_request
from raypool.spec import BrokerConfig, RequestSpec
from raypool.view import RequestView


def pool(name="p", gpu=8, **fields):
    return {"name": name, "capacity": {"gpu": gpu}, **fields}


def policy(component="red", pool="p", priority=1, **fields):
    """`reserved` and `limit` may be given as a number of gpus."""
    for field in ("reserved", "limit"):
        if isinstance(fields.get(field), int):
            fields[field] = {"gpu": fields[field]}
    return {"pool": pool, "component": component, "priority": priority, **fields}


def node(id, gpu, **labels):
    return Node(id, {"GPU": float(gpu), "CPU": 64.0}, labels)


class Story:
    def __init__(self, pools=None, policies=None, world=None, **config):
        self.broker = Broker(world or World())
        self.now = 0.0
        self.done = []  # what came of the last event
        self.apply(pools or [pool()], policies or [policy()], **config)

    # --- what happens -------------------------------------------------------------------------

    def feed(self, event):
        self.done = self.broker.handle(event, self.now)
        self.broker.check()
        return self.done

    def apply(self, pools=(), policies=(), **config):
        self.feed(ev.ConfigApplied(BrokerConfig.load({"pools": list(pools), "policies": list(policies), **config})))

    def submit(self, id, component="red", gpu=1, preemptible=True, job=None, **fields):
        resources = {"gpu_count": gpu, "preemptible": preemptible}
        spec = RequestSpec.load({"id": id, "component": component, "resources": resources, **fields})
        return self.feed(ev.Submitted(spec, job))

    def ready(self, id, attempt=None, nodes=("n1",)):
        return self.feed(ev.PlacementReady(id, self._attempt(id, attempt), f"group-of-{id}", tuple(nodes)))

    def failed(self, id, attempt=None, why="no node", pending=False):
        return self.feed(ev.PlacementFailed(id, self._attempt(id, attempt), why, pending))

    def removed(self, id, attempt=None):
        return self.feed(ev.PlacementRemoved(id, self._attempt(id, attempt)))

    def stuck(self, id, attempt=None):
        return self.feed(ev.PlacementStuck(id, self._attempt(id, attempt)))

    def lost(self, id, why="somebody removed it", attempt=None):
        return self.feed(ev.PlacementLost(id, self._attempt(id, attempt), why))

    def waits(self, id, why):
        return self.feed(ev.PlacementWaits(id, self._attempt(id, None), why))

    def release(self, id, clean=False):
        return self.feed(ev.Released(id, clean=clean))

    def cancel(self, id, reason="cancelled by its owner"):
        return self.feed(ev.Cancelled(id, reason))

    def nodes(self, *nodes):
        return self.feed(ev.NodesChanged(nodes))

    def pass_seconds(self, seconds):
        self.now += seconds
        return self.feed(ev.TimePassed())

    def run(self, id, component="red", gpu=1, on=("n1",), **fields):
        """Submitted and placed at once, on those nodes."""
        self.submit(id, component, gpu, **fields)
        self.ready(id, nodes=on)

    def _attempt(self, id, attempt):
        request = self.broker.requests.get(id)
        return attempt if attempt is not None else request.grants if request else 1

    # --- how it stands ------------------------------------------------------------------------

    def view(self, id) -> RequestView:
        return view_request(self.broker, self.broker.requests[id])

    def status(self, id):
        return self.view(id).status

    def statuses(self):
        return {id: self.status(id) for id in self.broker.requests}

    def rule(self, id):
        return self.view(id).rule

    def free(self, pool="p", key="gpu"):
        ledger = self.broker.pools[pool].ledger
        return ledger.free[ledger.index[key]]

    def leaving(self, pool="p", key="gpu"):
        ledger = self.broker.pools[pool].ledger
        return ledger.leaving[ledger.index[key]]

    def phantom(self, pool="p", key="gpu"):
        ledger = self.broker.pools[pool].ledger
        return ledger.phantom[ledger.index[key]]

    def created(self):
        """The grants of the last event: (request, attempt, pool)."""
        return [(one.spec.id, one.attempt, one.pool) for one in self.done if isinstance(one, CreatePlacementGroup)]

    def taken_back(self):
        """The removals asked for in the last event: (request, attempt)."""
        return [(one.request, one.attempt) for one in self.done if isinstance(one, RemovePlacementGroup)]

    def handed_over(self):
        """The groups that changed hands in the last event: (request, its heir)."""
        return [(one.request, one.to) for one in self.done if isinstance(one, HandOverPlacementGroup)]

    def warned(self):
        return [(one.request, one.deadline) for one in self.done if isinstance(one, WarnHolder)]

    def changes(self):
        return [(one.request, one.to.value) for one in self.done if isinstance(one, ChangeStatus)]

    def figures(self):
        """Every number that the broker keeps, to show that nothing has changed."""
        return {
            name: (one.ledger.free[:], one.ledger.leaving[:], len(one.queue))
            for name, one in self.broker.pools.items()
        }, self.statuses()
