"""The real core behind the same plain calls as `PlainRules`, so that both can play one history."""

from __future__ import annotations

from typing import Any

from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.instructions import ChangeStatus
from raypool.core.pool import borrowed_by
from raypool.core.victims import Shortage, enough
from raypool.core.walk import Figures, walk
from raypool.errors import Refused, SpecError
from raypool.spec import BrokerConfig, PolicySpec, PoolSpec, RequestSpec, ResourceSettings


def walks_agree(broker: Broker) -> None:
    """The walk that a pool keeps ends as one that begins anew, written plainly, does; what it remembers of victims is
    so; and the cycle has left nothing to do."""
    for pool in broker.pools.values():
        kept, plain = pool.outcome(), walk(pool, pool.queue, Figures(pool.ledger))
        assert (kept.ending, kept.request, kept.group) == (plain.ending, plain.request, plain.group), pool.name
        assert list(kept.set_aside.items()) == list(plain.set_aside.items()), pool.name
        assert kept.figures.free == plain.figures.free, pool.name
        assert plain.granted is None and pool.backfill() is None, pool.name
        if kept.blocked is not None:
            remembered = kept.lacks is not None and kept.lacks == Shortage.of(plain).only_key
            assert not (remembered and enough(pool, plain)), pool.name
            assert kept.backfill() is plain.backfill(), pool.name


class CoreRules:
    """What is instant and what is confirmed, as in `PlainRules`. Checks the laws after every event."""

    def __init__(self, grace: bool = False, removal: bool = False) -> None:
        self.grace = grace
        self.broker = Broker(World(confirms_placement=False, confirms_removal=removal), ended_kept=10**9)
        self.changes: list[ChangeStatus] = []

    def feed(self, event: ev.Event) -> None:
        done = self.broker.handle(event, self.broker.now)
        self.changes += [one for one in done if isinstance(one, ChangeStatus)]
        self.broker.check()
        walks_agree(self.broker)

    def apply(self, pools: list[dict[str, Any]], policies: list[dict[str, Any]]) -> None:
        grace = 1000.0 if self.grace else 0.0
        try:
            config = BrokerConfig(
                pools=tuple(PoolSpec(**pool, grace_seconds=grace) for pool in pools),
                policies=tuple(PolicySpec(**policy) for policy in policies),
            )
        except SpecError as error:
            raise Refused(str(error)) from None
        self.feed(ev.ConfigApplied(config))

    def detach_policy(self, pool: str, component: str, component_type: str = "team") -> None:
        self.feed(ev.PolicyDetached(pool, component, component_type))

    def delete_pool(self, name: str) -> None:
        self.feed(ev.PoolDeleted(name))

    def submit(
        self,
        id: str,
        component: str,
        demand: dict[str, int],
        preemptible: bool = True,
        pool: str | None = None,
        component_type: str = "team",
    ) -> None:
        amounts = {key: amount for key, amount in demand.items() if key != "step_run"}
        spec = RequestSpec(
            id=id,
            component=component,
            component_type=component_type,
            pool=pool,
            resources=ResourceSettings(pool_resources=amounts, preemptible=preemptible),
        )
        assert spec.demand() == demand
        self.feed(ev.Submitted(spec))

    def release(self, id: str) -> None:
        self.feed(ev.Released(id))

    def cancel(self, id: str) -> None:
        self.feed(ev.Cancelled(id))

    def grace_over(self, id: str) -> None:
        # A holder that lets go while it is preempting ends exactly as one whose grace is over.
        self.feed(ev.Released(id))

    def removed(self, id: str) -> None:
        self.feed(ev.PlacementRemoved(id, self.broker.requests[id].grants))

    def check_laws(self) -> None:
        """Done after every event already."""

    @property
    def log(self) -> list[tuple[str, str | None, str, str, str | None]]:
        return [("", one.old and one.old.value, one.to.value, one.request, one.pool) for one in self.changes]

    def request(self, id: str) -> dict[str, Any]:
        request = self.broker.requests[id]
        return {
            "component": request.owner[0],
            "component_type": request.owner[1],
            "demand": request.demand,
            "preemptible": request.preemptible,
            "pin": request.spec.pool,
        }

    def states(self) -> dict[str, tuple[str, str | None]]:
        return {one.id: (one.status.value, one.pool) for one in self.broker.requests.values()}

    def borrowed(self, id: str) -> dict[str, int]:
        return borrowed_by(self.broker.requests[id])

    def preempted_by(self, id: str) -> str | None:
        return self.broker.requests[id].preempted_by

    def preempting(self) -> list[str]:
        return [id for id, (status, _) in self.states().items() if status == "preempting"]

    def leaving(self) -> list[str]:
        return [
            one.id
            for one in self.broker.requests.values()
            if one.status.terminal and one.allocation is not None and one.allocation.leaving
        ]
