"""The broker: an event goes in, instructions come out. It decides; the server does.

`handle` is the only door and the only writer. It applies the event and then runs the cycle
(cycle.py, semantics 5). There is no clock here: `now` comes with each event, in seconds, and never
runs backwards. The rule that must not break: the same events give the same decisions, so nothing
here may iterate over a set, read a clock, or draw a number.

What the world confirms and what is instant is told by `World`: on Ray a grant is only allocated once
its placement group is ready, and charged until the group is gone; in the simulator one or both happen
in the same instant.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from raypool.core import events as ev
from raypool.core.asks import Ask, Asks, Memo
from raypool.core.bundles import Bundle, bundles_of
from raypool.core.config import Policies, faults_of, merged
from raypool.core.cycle import Cycle, best_that_grants
from raypool.core.history import History
from raypool.core.instructions import (
    ChangeStatus,
    CreatePlacementGroup,
    HandOverPlacementGroup,
    Instruction,
    RemovePlacementGroup,
    WarnHolder,
)
from raypool.core.laws import check
from raypool.core.ledger import Account
from raypool.core.lifetimes import ALL_OF_IT, Kind, Lifetimes, share_class
from raypool.core.moves import (
    CHARGED,
    FREED,
    FREED_AT_ONCE,
    GIVEN_BACK_AFTER_ALL,
    LEAVES,
    NEVER_GIVEN_BACK,
    NEVER_MADE,
    Change,
    Move,
    PoolMove,
    figures_of,
    level_of,
)
from raypool.core.nodes import Misfit, Node, find_nodes
from raypool.core.pool import Owner, Pool, link
from raypool.core.reasons import (
    EarlierGroupLeaving,
    Evicted,
    GroupLost,
    Infeasible,
    NodeLost,
    NoPolicy,
    NoPolicyInPool,
    NoPoolTakesIt,
    PlacementBackOff,
    RanTooLong,
    Reason,
    Told,
)
from raypool.core.request import NONE, Allocation, Need, Request
from raypool.core.status import ALLOCATED, CANCELLED, PENDING, PREEMPTED, PREEMPTING, REJECTED, RELEASED, Status
from raypool.core.victims import Shortage, Victim
from raypool.errors import Refused
from raypool.spec import OWNER_TIMEOUT_SECONDS, BrokerConfig, PolicySpec, PoolSpec, RequestSpec

ENDED_KEPT = 10_000
"""How many ended requests are remembered; the oldest ended one is forgotten first."""

TAKE_UP_SECONDS = 5.0
"""How long the room of a request that lost a node is kept for who takes it up: he needs a moment to ask, and
without it somebody behind him would have the room by then."""

BACK_OFF_SECONDS = 1.0
BACK_OFF_MOST_SECONDS = 60.0
"""After the n-th failed placement a request stands aside in that pool for 2**(n-1) s, at most this."""


GIVEN_BACK = Told("given back by its owner")


@dataclass(frozen=True)
class World:
    """What the outside confirms. confirms_placement: PlacementReady makes a grant an allocation;
    confirms_removal: PlacementRemoved ends a charge. False: it is so in the same instant."""

    confirms_placement: bool = True
    confirms_removal: bool = True


class Chances(NamedTuple):
    """Where those who ask for the same may stand in line, while pools, policies and nodes are what they are.

    pools: that can ever take it, most preferred first, with who asks and what for in each. lines: those of them in
    whose queue it stands, by name; first: the same, most preferred first. aside: in one of them it would stand aside
    at first; held_out: where it does so for as long as it has to, and why.
    """

    pools: tuple[tuple[Pool, Account, Need], ...]
    lines: tuple[Pool, ...]
    first: tuple[Pool, ...]
    aside: bool
    held_out: Mapping[str, Reason]

    def at_once(self, preemptible: bool) -> tuple[Pool, Account, Need] | None:
        """The one in which a newcomer is granted without standing in line. That is so only where nobody waits in
        any of its pools: each walk would begin and end with it."""
        if self.aside:
            return None
        for pool, _, _ in self.pools:
            if pool.queue.groups:
                return None
        for chance in self.pools:
            pool, account, need = chance
            if pool.grants_at_once(account, need, preemptible):
                return chance
        return None


class Broker:
    """All pools, all requests, every decision."""

    def __init__(self, world: World | None = None, ended_kept: int = ENDED_KEPT) -> None:
        self.world = world or World()
        self.ended_kept = ended_kept
        self.unmanaged = "reject"
        self.owner_timeout_seconds = OWNER_TIMEOUT_SECONDS
        self.pools: dict[str, Pool] = {}
        self.requests: dict[str, Request] = {}
        self.nodes: tuple[Node, ...] | None = None
        self.history = History()
        self.now = 0.0
        self._cycle = Cycle(self.pools, self)
        self.lifetimes: dict[Kind, Lifetimes] = {}
        self._unpooled: dict[int, Allocation] = {}  # granted to components without any policy
        self.handed_over: dict[str, Allocation] = {}  # by the request that the group was made for: who has it now
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._number = 0
        self._serial = 0
        self._deadlines: list[tuple[float, int, str, str]] = []
        self._instructions: list[Instruction] = []
        self.moves: list[Move | PoolMove] | None = None  # while somebody listens: see `take_moves`
        self._asks = Asks()
        self._chances: Memo[Ask, Chances] = Memo()
        self._misfits: Memo[tuple[str, Ask], Misfit | None] = Memo()
        self._first: Sequence[Pool] = ()
        self._appliers: dict[type, Callable[[Any], None]] = {
            ev.Submitted: self._submitted,
            ev.ManySubmitted: self._many_submitted,
            ev.Released: self._released,
            ev.BoundToActor: self._bound_to_actor,
            ev.Cancelled: self._cancelled,
            ev.Forgotten: self._forgotten,
            ev.ConfigApplied: self._config_applied,
            ev.PolicyDetached: self._policy_detached,
            ev.PoolDeleted: self._pool_deleted,
            ev.RolledBack: self._rolled_back,
            ev.PlacementWaits: self._placement_waits,
            ev.PlacementReady: self._placement_ready,
            ev.PlacementFailed: self._placement_failed,
            ev.PlacementRemoved: self._placement_removed,
            ev.PlacementStuck: self._placement_stuck,
            ev.PlacementLost: self._placement_lost,
            ev.NodesChanged: self._nodes_changed,
            ev.TimePassed: self._time_passed,
        }

    # --- the door -----------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Applies the event, runs the cycle, returns what is to be done, in order.

        Raises Refused, with nothing changed, for an event that the rules do not allow now.
        """
        assert now >= self.now, f"time ran backwards: {now} after {self.now}"
        self.now = now
        self._first = ()
        self._appliers[type(event)](event)
        if self._cycle.touched:
            self._cycle.run(self._first)
        done, self._instructions = self._instructions, []
        return done

    def listen(self) -> None:
        """From now on it tells what changes in the figures of its pools."""
        self.moves = []

    def take_moves(self) -> list[Move | PoolMove]:
        """What has changed since they were last taken, in order."""
        moves = self.moves
        if not moves:
            return []
        self.moves = []
        return moves

    def _moved(
        self,
        change: Change,
        allocation: Allocation,
        account: Account | None,
        need: Need,
        by: Request | None = None,
    ) -> None:
        """account: whose it was, also when it is charged no longer; None: nobody's, a phantom."""
        pool = allocation.pool
        if self.moves is not None and pool is not None:
            after = figures_of(pool, account, need)
            self.moves.append(Move(len(self._instructions), change, allocation, pool, account, need, after, by))

    @property
    def next_deadline(self) -> float | None:
        """When `TimePassed` is due next, in seconds; None if nothing is."""
        while self._deadlines and not self._still_due(self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def config(self) -> BrokerConfig:
        """The pools and policies as they stand, by name."""
        pools = [self.pools[name] for name in sorted(self.pools)]
        return BrokerConfig(
            pools=tuple(pool.spec for pool in pools),
            policies=tuple(pool.policies[owner] for pool in pools for owner in sorted(pool.policies)),
            unmanaged=self.unmanaged,  # type: ignore[arg-type]
            owner_timeout_seconds=self.owner_timeout_seconds,
        )

    def check(self) -> None:
        """Asserts the laws of semantics 7 on the present state. Looks at everything."""
        check(self)

    # --- requests -----------------------------------------------------------------------------

    def _submitted(self, event: ev.Submitted) -> None:
        spec = event.spec
        self.refuse_if_taken(spec.id)
        self._take(self._asks.of(spec), spec.id, spec.retry_of, event.job, event.holder)

    def _many_submitted(self, event: ev.ManySubmitted) -> None:
        if len(set(event.ids)) < len(event.ids):
            raise Refused("a request id is there twice: an id is used once")
        for request_id in event.ids:
            self.refuse_if_taken(request_id)
        kinds = [
            (self._asks.of(body), body.retry_of, None if body.lifetime == "detached" else event.job)
            for body in event.bodies
        ]
        for request_id, at in zip(event.ids, event.body_of, strict=True):
            ask, retry_of, job = kinds[at]
            self._first = ()
            self._take(ask, request_id, retry_of, job)
            if self._cycle.touched:
                self._cycle.run(self._first)

    def _take(
        self, ask: Ask, request_id: str, retry_of: str | None, job: str | None, holder: str | None = None
    ) -> None:
        """A new request: granted at once, in line, or rejected."""
        number = self._number_for(ask, retry_of)
        request = self.requests[request_id] = Request(ask, request_id, retry_of, number, self.now, job, holder)
        self._set_status(request, PENDING)
        chances = self._chances.get(ask)
        if chances is None:
            chances = self._work_out_chances(request)
        at_once = chances.at_once(ask.preemptible)
        if at_once is not None:
            pool, account, need = at_once
            request.accepted = True
            allocation = self._new_allocation(request, pool, opportunistic=False)
            pool.charge_at_once(allocation, account, need)
            self._moved(CHARGED, allocation, account, need)
            self._place(allocation)
        elif chances.lines or chances.held_out:
            request.held_out = chances.held_out
            for pool in chances.lines:
                if pool.enqueue(request):
                    self._cycle.touch(pool)
            request.accepted = True
            self._first = chances.first
        elif self.unmanaged == "allow" and ask.spec.pool is None and not self._pools_of(request.owner):
            self._grant_unpooled(request)
        else:
            self._end(request, REJECTED, self._rejection(request))
            request.accepted = True

    def _work_out_chances(self, request: Request) -> Chances:
        """Once for all that ask for the same; forgotten by `_judge_anew`."""
        pools = [
            pool
            for pool in self._pools_to_try(request, [])
            if pool.ineligible(request.owner, request.demand, request.preemptible) is None
        ]
        pools.sort(key=lambda pool: (-pool.priority(request), pool.name))
        lines: list[Pool] = []
        held_out: dict[str, Reason] = {}
        for pool in sorted(pools, key=lambda pool: pool.name):
            infeasible = self._infeasible(request, pool)
            if infeasible is None:
                lines.append(pool)
            elif pool.spec.infeasible == "wait":
                held_out[pool.name] = infeasible
        chances = Chances(
            tuple((pool, pool.ledger.accounts[request.owner], pool.need(request)) for pool in pools),
            tuple(lines),
            tuple(pool for pool in pools if pool in lines),
            len(lines) < len(pools),
            held_out or NONE,
        )
        return self._chances.keep(request.ask, chances)

    def _judge_anew(self) -> None:
        """Pools, policies or nodes are others: where anybody may stand in line has to be worked out again."""
        self._chances.clear()
        self._misfits.clear()

    def refuse_if_taken(self, request_id: str) -> None:
        if request_id in self.requests:
            raise Refused(f"request id '{request_id}' is taken: an id is used once; leave it out to get a new one")
        if request_id in self.handed_over:
            holder = self.handed_over[request_id].request
            raise Refused(
                f"request id '{request_id}' is taken: '{holder.id}' has the placement group that is named after it; "
                "leave it out to get a new one"
            )

    def _number_for(self, ask: Ask, retry_of: str | None) -> int:
        """A new one; or that of the request that it takes up, if that lost its group and nobody has yet."""
        lost = None if retry_of is None else self.requests.get(retry_of)
        if (
            lost is not None
            and isinstance(lost.reason, NodeLost | GroupLost)
            and lost.status is CANCELLED
            and lost.ask.spec.on_node_loss != "fail"
            and lost.owner == ask.owner
            and not lost.taken_up
        ):
            lost.taken_up = True
            self._keep_no_longer(lost)
            return lost.number
        self._number += 1
        return self._number

    def _pools_of(self, owner: Owner) -> list[Pool]:
        return [pool for _, pool in sorted(self.pools.items()) if owner in pool.policies]

    def _stand_in_line(self, request: Request, only: Iterable[str] | None = None) -> None:
        """Queues one that was accepted before in every pool (of `only`, if given) that can ever take it; rejects it
        if none can any more."""
        for pool in self._pools_to_try(request, []):
            if only is not None and pool.name not in only:
                continue
            if pool.ineligible(request.owner, request.demand, request.preemptible) is not None:
                continue
            aside = self._stands_aside(request, pool)
            if aside is None:
                if pool.enqueue(request):
                    self._cycle.touch(pool)
            else:
                request.held_out = {**request.held_out, pool.name: aside}
                if isinstance(aside, PlacementBackOff):
                    self._push_deadline(aside.until, request, "back-off")
        if not request.queued and not request.held_out:
            self._end(request, REJECTED, self._rejection(request))

    def _stands_aside(self, request: Request, pool: Pool) -> Reason | None:
        """Why it must not stand in this pool's queue now though it is eligible there."""
        allocation = request.allocation
        back_off = request.back_offs.get(pool.name)
        if back_off is not None and back_off.until > self.now:
            return back_off
        if allocation is not None and allocation.pool is not None and allocation.in_the_way:
            return EarlierGroupLeaving(allocation.pool.name)
        return self._infeasible(request, pool)

    def _rejoin(self, request: Request, over: type[Reason]) -> None:
        """What held it out somewhere may be over: it stands in line there again, if nothing else does."""
        names = [name for name, reason in request.held_out.items() if isinstance(reason, over)]
        if names:
            request.held_out = {name: reason for name, reason in request.held_out.items() if name not in names}
            self._stand_in_line(request, only=names)

    def _rejection(self, request: Request) -> Reason:
        """Each pool that was tried, with its reason."""
        tried: list[Reason] = []
        for pool in self._pools_to_try(request, tried):
            reason = pool.ineligible(request.owner, request.demand, request.preemptible)
            reason = reason or self._infeasible(request, pool)
            assert reason is not None, (request, pool.name)
            tried.append(reason)
        return tried[0] if len(tried) == 1 else NoPoolTakesIt(tuple(tried))

    def _pools_to_try(self, request: Request, tried: list[Reason]) -> list[Pool]:
        component, component_type = request.owner
        pin = request.ask.spec.pool
        if pin is not None:
            pool = self.pools.get(pin)
            if pool is not None and request.owner in pool.policies:
                return [pool]
            tried.append(NoPolicyInPool(pin, component, component_type, known=pool is not None))
            return []
        pools = self._pools_of(request.owner)
        if not pools:
            tried.append(NoPolicy(component, component_type))
        return pools

    def _leave_the_lines(self, request: Request) -> None:
        """Out of every queue, without a mark."""
        if request.mark is not None:
            del request.mark.marked[request]
            request.mark = None
        for pool in request.queued.values():
            pool.dequeue(request)
            self._cycle.touch(pool)
        request.held_out = NONE

    def _known(self, request_id: str) -> Request:
        request = self.requests.get(request_id)
        if request is None:
            raise Refused(f"there is no request '{request_id}'")
        return request

    def _released(self, event: ev.Released) -> None:
        request = self._known(event.request)
        if request.job is not None and not request.detached and event.job != request.job:
            raise Refused(
                f"request '{request.id}' belongs to job {request.job}, and only that job gives it back; "
                f"`raypool request cancel {request.id}` is the operator's way"
            )
        if not (event.clean and self._hand_over(request)):
            self._finish(request, RELEASED, GIVEN_BACK)

    def _bound_to_actor(self, event: ev.BoundToActor) -> None:
        self._known(event.request).actor = event.actor

    def _cancelled(self, event: ev.Cancelled) -> None:
        self._finish(self._known(event.request), CANCELLED, Told(event.reason))

    def _finish(self, request: Request, if_it_runs: Status, reason: Reason) -> None:
        """Ends it for somebody outside; an ended one stays as it is. if_it_runs: how one that runs ends."""
        if request.status is ALLOCATED:
            self._end(request, if_it_runs, reason)
        elif request.status is PENDING:
            self._end(request, CANCELLED, reason)
        elif request.status is PREEMPTING:
            self._end(request, _left_as(request), request.reason)  # why it had to go says more than who let go

    def _end(self, request: Request, to: Status, reason: Reason | None, take_back: bool = True) -> None:
        """A terminal status; what it holds begins to leave (unless somebody else is given it)."""
        current = request.current
        if current is not None and current.placed:
            self._note_lifetime(current, whole=request.status is ALLOCATED and isinstance(reason, Told))
        if request.queued or request.held_out:
            self._leave_the_lines(request)
        request.ended_at = self.now
        request.deadline = None
        self._set_status(request, to, reason)
        if current is not None and take_back:
            self._take_back(current)
        self._ended[request.id] = None
        if len(self._ended) > self.ended_kept:
            self._forget_the_oldest()

    def _note_lifetime(self, allocation: Allocation, whole: bool) -> None:
        """whole: it ended by itself, not for somebody else, a lost node, or its own limit."""
        request, pool = allocation.request, allocation.pool
        if pool is not None and pool.name in self.pools and request.granted_at is not None:
            ask, lasted = request.ask, self.now - request.granted_at
            self._lifetimes_of((pool.name, *ask.owner, ask.size_class)).add(lasted, whole)
            most = ask.spec.max_duration_seconds
            if most is not None:
                kind = (pool.name, *ask.owner, share_class(most))
                self._lifetimes_of(kind).add(lasted / most * ALL_OF_IT, whole)

    def _lifetimes_of(self, kind: Kind) -> Lifetimes:
        lifetimes = self.lifetimes.get(kind)
        if lifetimes is None:
            lifetimes = self.lifetimes[kind] = Lifetimes()
        return lifetimes

    def _forgotten(self, event: ev.Forgotten) -> None:
        request = self._known(event.request)
        if request.id not in self._ended:
            assert request.status is not None
            raise Refused(f"request '{request.id}' is {request.status.value}: cancel it before you delete it")
        allocation = request.allocation
        if allocation is not None and allocation.phantom:
            raise Refused(f"request '{request.id}' has ended, but Ray has not given its room back yet")
        if allocation is not None and allocation.leaving:
            raise Refused(f"request '{request.id}' has ended, but its placement group is still being removed")
        self._forget(request.id)

    def _forget_the_oldest(self) -> None:
        excess = len(self._ended) - self.ended_kept
        for request_id in list(islice(self._ended, excess)):
            allocation = self.requests[request_id].allocation
            if allocation is None or not allocation.in_the_way:
                self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        del self.requests[request_id]
        del self._ended[request_id]

    def _set_status(self, request: Request, to: Status, reason: Reason | None = None) -> None:
        """A move that semantics 8 does not list is our bug, told with the story."""
        old = request.status
        if old is not None and to not in old.moves:
            raise AssertionError(f"{request!r} may not become {to.value}")
        request.status = to
        request.reason = reason
        self._instructions.append(ChangeStatus(request.id, old, to, request.pool, reason))

    # --- grants and evictions: what the cycle asks for ----------------------------------------

    def grant(self, request: Request, pool: Pool, opportunistic: bool, former: Allocation | None = None) -> None:
        """Charges the request to the pool; it is allocated once its placement group is ready. former: whose group
        it is given as it is."""
        allocation = self._new_allocation(request, pool, opportunistic)
        pool.grant(allocation)
        self._moved(CHARGED, allocation, allocation.account, allocation.need)
        self._cycle.touch(pool)
        self._leave_the_lines(request)
        if former is None:
            self._place(allocation)
        else:
            self._take_over(allocation, former)

    def _grant_unpooled(self, request: Request) -> None:
        allocation = self._new_allocation(request, None, opportunistic=False)
        self._unpooled[allocation.serial] = allocation
        self._place(allocation)

    def _new_allocation(self, request: Request, pool: Pool | None, opportunistic: bool) -> Allocation:
        self._serial += 1
        request.grants += 1
        request.allocation = Allocation(request, pool, self._serial, opportunistic)
        return request.allocation

    def _place(self, allocation: Allocation) -> None:
        request = allocation.request
        if self.world.confirms_placement:
            pool = allocation.pool.name if allocation.pool else None
            self._instructions.append(CreatePlacementGroup(request.spec, allocation.attempt, pool))
        else:
            self._allocated(allocation)

    # --- the group of one that ended clean, for the next --------------------------------------

    def _hand_over(self, former: Request) -> bool:
        """Ends it, and gives its group as it is to who is granted next with its room, if he asks for the very same:
        in one event, so that the room is never anybody's in between. False, with nothing changed, if there is no
        such heir: the group is removed, as ever. In doubt it is so: nobody is overtaken, and nobody waits for a
        group.
        """
        allocation = former.current
        if allocation is None or former.status is not ALLOCATED or not self._is_well(allocation):
            return False
        pool, account = allocation.pool, allocation.account
        assert pool is not None
        pool.mark_leaving(allocation)
        pool.discharge(allocation)
        heir = self._granted_next(pool)
        if heir is None or not self._asks_for_the_same(heir, former, pool):
            allocation.leaving = False
            pool.charge(allocation)
            return False
        self._end(former, RELEASED, GIVEN_BACK, take_back=False)
        self._moved(FREED_AT_ONCE, allocation, account, allocation.need)
        self._gone(allocation)
        self.grant(heir, pool, opportunistic=False, former=allocation)
        return True

    def _is_well(self, allocation: Allocation) -> bool:
        """Whether its group is whole, as far as it is known here, and somebody waits who may ask for the same."""
        pool = allocation.pool
        if pool is None or not allocation.group_id or not self.world.confirms_removal:
            return False
        owner, need = allocation.request.owner, allocation.need
        alike = any((owner, need, preemptible) in pool.queue.groups for preemptible in (True, False))
        return alike and allocation.repair_until is None and self._lost_node(allocation) is None

    def _granted_next(self, pool: Pool) -> Request | None:
        """Whom the cycle would grant first, if it is in that pool."""
        request = pool.outcome().granted
        return request if request is not None and best_that_grants(request) is pool else None

    def _asks_for_the_same(self, heir: Request, former: Request, pool: Pool) -> bool:
        """The group that would be made for him is the group that is there."""
        one, other = heir.ask.spec, former.ask.spec
        return heir.ask is former.ask or (
            heir.owner == former.owner
            and one.strategy == other.strategy
            and self.bundles(one, pool) == self.bundles(other, pool)
        )

    def _take_over(self, allocation: Allocation, former: Allocation) -> None:
        allocation.group_id, allocation.nodes = former.group_id, former.nodes
        allocation.made_for = former.made_for or former.request.id
        self.handed_over[allocation.made_for] = allocation
        self._instructions.append(
            HandOverPlacementGroup(former.request.id, former.attempt, allocation.request.id, allocation.attempt)
        )
        self._allocated(allocation)

    def _allocated(self, allocation: Allocation) -> None:
        allocation.placed = True
        allocation.request.placement_failures = 0
        allocation.request.granted_at = self.now
        self._set_status(allocation.request, ALLOCATED)
        if allocation.request.ask.spec.max_duration_seconds is not None:
            self._push_duration(allocation.request)

    def evict(self, victims: list[Victim], request: Request, pool: Pool) -> None:
        """Asks each victim to leave for the request. One that is not placed yet just goes back."""
        outcome = pool.outcome()
        assert outcome.group is not None
        by_key = pool.ledger.by_key
        missing = by_key(tuple(Shortage.of(outcome).in_pool.items())) or by_key(outcome.group.need)
        for victim in victims:
            allocation = victim.allocation
            holder, account = allocation.request, allocation.account
            assert account is not None
            if not allocation.placed:
                self._back_to_its_place(allocation, request)
                continue
            reason = Evicted(
                pool=pool.name,
                by=request.id,
                by_component=request.owner[0],
                by_priority=pool.priority(request),
                component=holder.owner[0],
                priority=account.priority,
                why=victim.why,
                borrowed=pool.ledger.by_key(victim.borrowed),
                missing=missing,
                before=pool.ledger.by_key(tuple((key, account.staying[key]) for key, _ in allocation.need)),
                after=pool.ledger.by_key(tuple((key, account.staying[key] - held) for key, held in allocation.need)),
                reserved=pool.ledger.by_key(tuple((key, account.reserved[key]) for key, _ in allocation.need)),
            )
            holder.preempted_by = request.id
            self._ask_to_leave(allocation, reason)
        self._cycle.touch(pool)

    def _ask_to_leave(self, allocation: Allocation, reason: Reason) -> None:
        """From now on its charge counts as leaving; it has its grace, or goes at once."""
        holder, pool = allocation.request, allocation.pool
        self._set_status(holder, PREEMPTING, reason)
        if pool is not None:
            pool.mark_leaving(allocation)
            self._moved(LEAVES, allocation, allocation.account, allocation.need)
        allocation.leaving = True
        grace = self._grace_seconds(holder, pool)
        if grace > 0:
            holder.deadline = self.now + grace
            self._push_deadline(holder.deadline, holder, "grace")
            self._instructions.append(WarnHolder(holder.id, holder.deadline, reason))
        else:
            self._end(holder, _left_as(holder), reason)

    def _grace_seconds(self, request: Request, pool: Pool | None) -> float:
        """Where there is no pool, nobody waits for the room: its own word stands."""
        asked = request.ask.spec.grace_seconds
        if pool is None:
            return asked or 0.0
        return pool.spec.grace_seconds if asked is None else min(asked, pool.spec.grace_seconds)

    # --- what Ray says ------------------------------------------------------------------------

    def _take_back(self, allocation: Allocation, by: Request | None = None) -> None:
        """Its group shall go; it stays charged until that is confirmed."""
        pool = allocation.pool
        if pool is not None and not allocation.leaving:
            pool.mark_leaving(allocation)
            self._moved(LEAVES, allocation, allocation.account, allocation.need, by)
            self._cycle.touch(pool)
        allocation.leaving = True
        if self.world.confirms_removal:
            self._instructions.append(RemovePlacementGroup(allocation.request.id, allocation.attempt))
        else:
            self._gone(allocation)

    def _gone(self, allocation: Allocation) -> None:
        """The capacity is back."""
        if allocation.pool is not None:
            pool, account = allocation.pool, allocation.account
            if allocation.phantom:
                pool.free_phantom(allocation)
                self._moved(GIVEN_BACK_AFTER_ALL, allocation, None, allocation.need)
            elif account is not None:
                pool.discharge(allocation)
                self._moved(FREED, allocation, account, allocation.need)
            pool.lowered = pool.lowered and (bool(pool.ledger.phantoms) or any(pool.ledger.allocations()))
            self._cycle.touch(pool)
        else:
            del self._unpooled[allocation.serial]
        self.handed_over.pop(allocation.made_for, None)
        allocation.leaving = allocation.phantom = False
        allocation.gone = True
        request = allocation.request
        if request.held_out and request.waiting and allocation is request.allocation:
            self._rejoin(request, EarlierGroupLeaving)

    def _becomes_phantom(self, allocation: Allocation) -> None:
        """Ray does not give its room back, or may still make its group: the room is neither its policy's
        any more nor free, until PlacementRemoved says that it was seen free."""
        pool, account, need, left = allocation.pool, allocation.account, allocation.need, allocation.leaving
        if pool is not None:
            if not left:
                pool.mark_leaving(allocation)
            pool.hold_phantom(allocation)
            self._moved(NEVER_GIVEN_BACK if left else NEVER_MADE, allocation, account, allocation.need)
            kept = {key for key, _ in allocation.need}
            counted_here = tuple((key, amount) for key, amount in need if key not in kept)
            if counted_here:
                self._moved(FREED if left else FREED_AT_ONCE, allocation, account, counted_here)
            self._cycle.touch(pool)
        allocation.leaving, allocation.phantom = False, True

    def _back_to_its_place(self, allocation: Allocation, by: Request) -> None:
        """A grant that is not placed yet is given up; its request waits again, at its old number. by: for whom.

        It stands aside until the group of this grant is gone: a request is charged only once.
        """
        self._take_back(allocation, by)
        if not allocation.request.held_out:
            self._stand_in_line(allocation.request)

    def _of_grant(self, request_id: str, attempt: int) -> Allocation | None:
        """The allocation that Ray speaks of; None if it is unknown, or already gone."""
        request = self.requests.get(request_id)
        allocation = request.allocation if request else None
        if allocation is None or allocation.attempt != attempt or allocation.gone or allocation.confirmed:
            return None
        return allocation

    def _placement_waits(self, event: ev.PlacementWaits) -> None:
        allocation = self._of_grant(event.request, event.attempt)
        if allocation is not None and not allocation.placed:
            allocation.search = event.why

    def _placement_ready(self, event: ev.PlacementReady) -> None:
        allocation = self._of_grant(event.request, event.attempt)
        if allocation is None:
            return
        allocation.group_id, allocation.nodes = event.group_id, event.nodes
        request = allocation.request
        if allocation is not request.current:
            return
        if not allocation.placed:
            self._allocated(allocation)
        elif allocation.repair_until is not None:
            allocation.repair_until = None
            assert request.status is not None
            self._instructions.append(ChangeStatus(request.id, request.status, request.status, request.pool, None))

    def _placement_failed(self, event: ev.PlacementFailed) -> None:
        """The charge ends at once, and others pass until the back-off is over. Where Ray may still make the
        group (`group_pending`), its room is a phantom, and the request stands aside, until that is gone."""
        allocation = self._of_grant(event.request, event.attempt)
        if allocation is None:
            return
        if allocation.phantom:
            self._gone(allocation)  # the group that was given up will not come any more
            return
        request, pool = allocation.request, allocation.pool
        still_wanted = allocation is request.current
        if event.group_pending:
            self._becomes_phantom(allocation)
        else:
            if pool is not None and not allocation.leaving:
                pool.mark_leaving(allocation)
                self._moved(LEAVES, allocation, allocation.account, allocation.need)
            allocation.leaving = True
            self._gone(allocation)
        if still_wanted and pool is None:
            self._end(request, REJECTED, Told(f"not placed: {event.why}"))
        elif still_wanted and pool is not None:
            request.placement_failures += 1
            tries = request.placement_failures
            until = self.now + min(BACK_OFF_SECONDS * 2 ** (tries - 1), BACK_OFF_MOST_SECONDS)
            back_off = PlacementBackOff(pool.name, event.why, tries, until)
            request.back_offs = {**request.back_offs, pool.name: back_off}
            self._stand_in_line(request)

    def _placement_removed(self, event: ev.PlacementRemoved) -> None:
        allocation = self._of_grant(event.request, event.attempt)
        if allocation is None:
            return
        if not allocation.in_the_way:
            return
        if allocation.kept_until is not None and allocation.leaving:
            allocation.confirmed = True
            return
        if allocation.request.status is PREEMPTING:
            # Gone before its grace was over: somebody outside removed the group.
            self._end(allocation.request, _left_as(allocation.request), allocation.request.reason)
        self._gone(allocation)

    def _placement_stuck(self, event: ev.PlacementStuck) -> None:
        allocation = self._of_grant(event.request, event.attempt)
        if allocation is not None and allocation.leaving and allocation.request.status is not PREEMPTING:
            self._becomes_phantom(allocation)

    def _placement_lost(self, event: ev.PlacementLost) -> None:
        """Its group is gone already, so the charge ends with the request."""
        allocation = self._of_grant(event.request, event.attempt)
        if allocation is None:
            return
        if allocation is allocation.request.current:
            self._end_for(allocation.request, GroupLost(event.why))
        if not allocation.gone:
            self._gone(allocation)

    def _end_for(self, request: Request, reason: Reason) -> None:
        """What it held was lost. One that was leaving has left: why it had to says more."""
        if request.status is PREEMPTING:
            self._end(request, _left_as(request), request.reason)
        else:
            self._end(request, CANCELLED, reason)

    # --- nodes --------------------------------------------------------------------------------

    def _nodes_changed(self, event: ev.NodesChanged) -> None:
        """Who has lost a node ends whole: two gangs that lack members could wait for each other for ever.
        Who was infeasible may have a node now; who could run may have lost it."""
        self.nodes = event.nodes
        self._judge_anew()
        for request in sorted(self.requests.values(), key=lambda one: one.number):
            allocation = request.current
            if allocation is not None and allocation.placed and (node := self._lost_node(allocation)) is not None:
                self._node_lost(allocation, node)
        for request in self._waiting():
            self._rejoin(request, Infeasible)
            for pool in list(request.queued.values()):
                infeasible = self._infeasible(request, pool)
                if infeasible is not None:
                    self._hold_out(request, pool, infeasible)

    def _lost_node(self, allocation: Allocation) -> str | None:
        """The first of its nodes that does not live; None if all do, or nobody knows."""
        if self.nodes is None:
            return None
        live = {node.id for node in self.nodes}
        return next((node for node in allocation.nodes if node not in live), None)

    def _node_lost(self, allocation: Allocation, node: str) -> None:
        request = allocation.request
        if request.ask.spec.on_node_loss != "wait" or request.status is PREEMPTING:
            self._end_with_its_node(allocation, NodeLost(node))
        elif allocation.repair_until is None:
            allocation.repair_until = self.now + request.ask.spec.repair_seconds
            self._push_deadline(allocation.repair_until, request, "repair")

    def _repair_is_over(self, request: Request) -> None:
        allocation = request.allocation
        assert allocation is not None, request
        allocation.repair_until = None
        node = self._lost_node(allocation)
        if node is not None:
            self._end_with_its_node(allocation, NodeLost(node, request.ask.spec.repair_seconds))

    def _end_with_its_node(self, allocation: Allocation, reason: NodeLost) -> None:
        """Its room is kept for a moment, for the request that takes it up: the place in line alone would
        come too late."""
        request = allocation.request
        may_be_taken_up = request.status is ALLOCATED and request.ask.spec.on_node_loss != "fail"
        if may_be_taken_up and allocation.pool is not None and self.world.confirms_removal:
            allocation.kept_until = self.now + TAKE_UP_SECONDS
            self._push_deadline(allocation.kept_until, request, "take-up")
        self._end_for(request, reason)

    def _keep_no_longer(self, lost: Request) -> None:
        """It was taken up, or nobody came in time."""
        allocation = lost.allocation
        assert allocation is not None, lost
        allocation.kept_until = None
        if allocation.confirmed and allocation.leaving:
            self._gone(allocation)

    def _hold_out(self, request: Request, pool: Pool, reason: Reason) -> None:
        """It stands aside in that pool, without a mark there, and holds up nobody."""
        if request.mark is pool:
            self._cycle.unmark(request)
        pool.dequeue(request)
        self._cycle.touch(pool)
        request.held_out = {**request.held_out, pool.name: reason}

    def _waiting(self) -> list[Request]:
        return [request for request in self.requests.values() if request.waiting]

    def _infeasible(self, request: Request, pool: Pool) -> Infeasible | None:
        """Whether no present node could ever hold it, even when empty. Unknown nodes hold anything."""
        if self.nodes is None:
            return None
        spec, key = request.ask.spec, (pool.name, request.ask)
        if key not in self._misfits:
            rooms = {n.id: n.resources for n in self.nodes if n.has_labels(pool.spec.node_labels)}
            found = find_nodes(self.bundles(spec, pool), spec.strategy, rooms)
            self._misfits.keep(key, found if isinstance(found, Misfit) and found.certain else None)
        misfit = self._misfits[key]
        return Infeasible(pool.name, misfit.as_need) if misfit is not None else None

    def bundles(self, spec: RequestSpec, pool: Pool | None) -> tuple[Bundle, ...]:
        """The bundles of its placement group in that pool, in Ray's names."""
        return bundles_of(spec, pool.spec.ray_resources if pool else {})

    # --- time ---------------------------------------------------------------------------------

    def _push_deadline(self, when: float, request: Request, kind: str) -> None:
        heapq.heappush(self._deadlines, (when, request.number, kind, request.id))

    def _push_duration(self, request: Request) -> None:
        until = request.may_run_until
        if until is not None:
            self._push_deadline(until, request, "duration")

    def _duration_is_over(self, request: Request) -> None:
        """It leaves as a victim does, and nobody takes its room by right."""
        allocation, most = request.current, request.ask.spec.max_duration_seconds
        assert allocation is not None and most is not None, request
        self._ask_to_leave(allocation, RanTooLong(most))
        if allocation.pool is not None:
            self._cycle.touch(allocation.pool)

    def push_deadlines_of(self, request: Request) -> None:
        """All that is due for it: for a broker that was read back."""
        if request.status is PREEMPTING and request.deadline is not None:
            self._push_deadline(request.deadline, request, "grace")
        if request.status is ALLOCATED:
            self._push_duration(request)
        for reason in request.held_out.values():
            if isinstance(reason, PlacementBackOff):
                self._push_deadline(reason.until, request, "back-off")
        allocation = request.allocation
        if allocation is not None and allocation.repair_until is not None:
            self._push_deadline(allocation.repair_until, request, "repair")
        if allocation is not None and allocation.kept_until is not None:
            self._push_deadline(allocation.kept_until, request, "take-up")

    def _still_due(self, deadline: tuple[float, int, str, str]) -> bool:
        when, _, kind, request_id = deadline
        request = self.requests.get(request_id)
        if request is None:
            return False
        if kind == "grace":
            return request.status is PREEMPTING and request.deadline == when
        if kind == "duration":
            return request.status is ALLOCATED and request.may_run_until == when
        if kind == "take-up":
            return request.allocation is not None and request.allocation.kept_until == when
        if kind == "repair":
            allocation = request.current
            return request.status is ALLOCATED and allocation is not None and allocation.repair_until == when
        return any(isinstance(one, PlacementBackOff) and one.until == when for one in request.held_out.values())

    def _time_passed(self, event: ev.TimePassed) -> None:
        """Handles what is due, one by one, by due time and number, with a cycle after each."""
        while (due := self.next_deadline) is not None and due <= self.now:
            _, _, kind, request_id = heapq.heappop(self._deadlines)
            request = self.requests[request_id]
            if kind == "grace":
                self._end(request, _left_as(request), request.reason)
            elif kind == "duration":
                self._duration_is_over(request)
            elif kind == "repair":
                self._repair_is_over(request)
            elif kind == "take-up":
                self._keep_no_longer(request)
            else:
                self._rejoin(request, PlacementBackOff)
            self._cycle.run()

    # --- pools and policies (semantics 9) -----------------------------------------------------

    def _config_applied(self, event: ev.ConfigApplied) -> None:
        before = self.config
        self._put_in_force(event.config, *self.after(event.config))
        self.history.add(self.now, before, self.config, event.by, event.note)

    def _rolled_back(self, event: ev.RolledBack) -> None:
        before = self.config
        self._put_in_force(self.history.config_at(event.number), *self.after_rollback(event.number))
        self.history.add(self.now, before, self.config, event.by, event.note, back_to=event.number)

    def _put_in_force(self, change: BrokerConfig, new_specs: dict[str, PoolSpec], new_policies: Policies) -> None:
        specs, policies = self._specs()
        if "unmanaged" in change.model_fields_set:
            self.unmanaged = change.unmanaged
        if "owner_timeout_seconds" in change.model_fields_set:
            self.owner_timeout_seconds = change.owner_timeout_seconds
        changed = [
            name
            for name in sorted(new_specs)
            if specs.get(name) != new_specs[name] or policies.get(name) != new_policies[name]
        ]
        self._drop([name for name in specs if name not in new_specs])
        self._rebuild({name: (new_specs[name], new_policies[name]) for name in changed})

    def _drop(self, names: Iterable[str]) -> None:
        """Of pools that are not in use."""
        for name in names:
            gone = self.pools.pop(name)
            if self.moves is not None:
                self.moves.append(PoolMove(len(self._instructions), name, level_of(gone), None))
        link(self.pools)
        self._judge_anew()
        self._forget_lifetimes()

    def _forget_lifetimes(self) -> None:
        """Of policies that are no more."""
        self.lifetimes = {
            kind: one
            for kind, one in self.lifetimes.items()
            if kind[0] in self.pools and kind[1:3] in self.pools[kind[0]].policies
        }

    def after(self, change: BrokerConfig) -> tuple[dict[str, PoolSpec], Policies]:
        """Pools and policies as `change` would leave them. Changes nothing; raises Refused with every fault."""
        new_specs, new_policies = merged(*self._specs(), change)
        faults = faults_of(change, new_specs, new_policies, self._keys_in_use())
        if faults:
            raise Refused("nothing was changed: " + "; ".join(faults), tuple(faults))
        return new_specs, new_policies

    def after_rollback(self, number: int) -> tuple[dict[str, PoolSpec], Policies]:
        """Pools and policies as they were after the change of that number. Changes nothing; raises Refused with
        every fault, also what is in use and was not there then."""
        wanted = self.history.config_at(number)
        new_specs, new_policies = merged({}, {}, wanted)
        faults = [
            *faults_of(wanted, new_specs, new_policies, self._keys_in_use()),
            *self._uses_of_what_goes(new_specs, new_policies),
        ]
        if faults:
            raise Refused("nothing was changed: " + "; ".join(faults), tuple(faults))
        return new_specs, new_policies

    def _uses_of_what_goes(self, new_specs: Mapping[str, PoolSpec], new_policies: Policies) -> list[str]:
        uses = []
        for name, pool in sorted(self.pools.items()):
            if name not in new_specs:
                uses.append(self._use_of(pool, None))
            else:
                gone = sorted(owner for owner in pool.policies if owner not in new_policies[name])
                uses += [self._use_of(pool, owner) for owner in gone]
        return [use for use in uses if use]

    def _specs(self) -> tuple[dict[str, PoolSpec], Policies]:
        specs = {name: pool.spec for name, pool in self.pools.items()}
        return specs, {name: pool.policies for name, pool in self.pools.items()}

    def _keys_in_use(self) -> dict[str, set[str]]:
        return {
            name: {key for allocation in pool.ledger.allocations() for key in pool.ledger.by_key(allocation.need)}
            for name, pool in self.pools.items()
        }

    def _policy_detached(self, event: ev.PolicyDetached) -> None:
        owner = (event.component, event.component_type)
        pool = self.pools.get(event.pool)
        if pool is None or owner not in pool.policies:
            raise Refused(f"no policy attaches {event.component_type} '{event.component}' to pool '{event.pool}'")
        self._refuse_if_used(pool, owner)
        before = self.config
        left = {one: policy for one, policy in pool.policies.items() if one != owner}
        self._rebuild({pool.name: (pool.spec, left)})
        self._forget_lifetimes()
        self.history.add(self.now, before, self.config, event.by, event.note)

    def _pool_deleted(self, event: ev.PoolDeleted) -> None:
        pool = self.pools.get(event.pool)
        if pool is None:
            raise Refused(f"there is no pool '{event.pool}' (pools: {', '.join(sorted(self.pools)) or 'none'})")
        self._refuse_if_used(pool, None)
        before = self.config
        self._drop([pool.name])
        self.history.add(self.now, before, self.config, event.by, event.note)

    def _refuse_if_used(self, pool: Pool, owner: Owner | None) -> None:
        use = self._use_of(pool, owner)
        if use:
            raise Refused(use)

    def _use_of(self, pool: Pool, owner: Owner | None) -> str:
        """Why the pool, or one policy of it, cannot go now; "" if it can."""
        queued = sum(
            1
            for request in self._waiting()
            if (pool.name in request.queued or pool.name in request.held_out) and owner in (None, request.owner)
        )
        charged = sum(1 for one in pool.ledger.allocations() if owner in (None, one.request.owner))
        if not queued and not charged:
            return ""
        what = f"pool '{pool.name}'" if owner is None else f"the policy of '{owner[0]}' in pool '{pool.name}'"
        return f"{what} is in use: {queued} queued, {charged} charged; let them end or cancel them first"

    def _rebuild(self, changed: dict[str, tuple[PoolSpec, dict[Owner, PolicySpec]]]) -> None:
        """Puts new pools in the place of the changed ones, charges them again, judges who waits again."""
        if not changed:
            return
        for name, (spec, policies) in changed.items():
            old = self.pools.get(name)
            new = self.pools[name] = Pool(spec, policies)
            before = None if old is None or self.moves is None else level_of(old)
            if old is not None:
                self._charge_again(old, new)
            if self.moves is not None:
                self.moves.append(PoolMove(len(self._instructions), name, before, level_of(new)))
        link(self.pools)
        self._judge_anew()
        for name in changed:
            self._cycle.touch(self.pools[name])
        for request in self._waiting():
            self._judge_again(request, changed)

    def _charge_again(self, old: Pool, new: Pool) -> None:
        """Running work keeps what it has; keys that are newly listed are charged to it too."""
        for allocation in sorted(old.ledger.allocations(), key=lambda one: one.serial):
            new.charge(allocation)
        for phantom in old.ledger.phantoms.values():
            new.charge(phantom)
        holds = bool(new.ledger.phantoms) or any(new.ledger.allocations())
        new.lowered = holds and (old.lowered or _lowered(old, new))

    def _judge_again(self, request: Request, changed: Mapping[str, object]) -> None:
        """Eligible anew in the changed pools; where it stands in the others stays, its mark too."""
        request.queued = {name: pool for name, pool in request.queued.items() if name not in changed}
        request.held_out = {name: why for name, why in request.held_out.items() if name not in changed}
        marked_in = request.mark.name if request.mark is not None else None
        if marked_in in changed:
            request.mark = None
        self._stand_in_line(request, only=changed)
        if marked_in is not None and marked_in in changed:
            if marked_in in request.queued:
                self._cycle.mark(request, self.pools[marked_in])
            for pool in request.queued.values():
                pool.stale()
                self._cycle.touch(pool)


def _left_as(request: Request) -> Status:
    """How one ends that had to leave: preempted by somebody, or cancelled since its own time was over."""
    return CANCELLED if isinstance(request.reason, RanTooLong) else PREEMPTED


def _lowered(old: Pool, new: Pool) -> bool:
    """Whether something promised became less."""
    if any(new.spec.capacity.get(key, 0) < most for key, most in old.spec.capacity.items()):
        return True
    if any(key not in old.spec.capacity for key in new.spec.capacity):
        return True  # a newly listed key is charged to running work, which nobody judged by it
    for owner, account in old.ledger.accounts.items():
        after = new.ledger.accounts.get(owner)
        if after is None:
            continue  # detached: nothing was charged to it
        for key, name in enumerate(old.ledger.keys):
            at = new.ledger.index[name]
            if after.reserved[at] < account.reserved[key] or after.limit[at] < account.limit[key]:
                return True
    return False
