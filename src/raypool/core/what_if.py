"""What would start a waiting request now: the smallest single changes that do, each seen to do it on a copy.

A change is a value that says which events make it (`events`), so what was tried is what is done when somebody
follows it. "Starts" means granted, as soon as those have left who would be asked to leave for it; whoever is
leaving already is not waited for. Whether there is room on nodes is for the caller to say (`Places`).

The changes, in the order in which they are told; of each kind the smallest that is enough:
    1. what costs the request nothing: any pool instead of the pinned one
    2. what makes it less safe: preemptible
    3. what makes it smaller: less of a key (those that are short first), fewer workers
    4. what an operator may change: its component's limit, then its reserve, in its most preferred pool first
    5. what somebody else may do: the end of one request that runs, the smallest and newest first

Amounts are searched by halving on short copies, and each answer is seen once more on a whole one. The work is
bounded by `MOST_COPIED`; what was not looked at by then is not told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.core.copy import copy_of
from raypool.core.explain import wait_reasons
from raypool.core.instructions import ChangeStatus, Instruction, RemovePlacementGroup, WarnHolder
from raypool.core.ledger import Account
from raypool.core.pool import Pool, borrowed_by, by_preference
from raypool.core.reasons import Infeasible, amounts, names_of
from raypool.core.request import Allocation, Request
from raypool.core.status import Status
from raypool.errors import Refused
from raypool.spec import GPU, MCPU, MEMORY_MB, STEP_RUN, BrokerConfig, PolicySpec, RequestSpec

MOST_COPIED = 40_000
"""So many requests and groups are copied for one answer at most: about 0.2 s."""

MOST_REQUESTS = 20_000
"""Where more than so many wait and run, a copy alone would take too long."""

MOST_KEYS = 3
MOST_ENDS = 8
"""Of so many keys less is tried, and so many ends of others."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change. leaving: who would be asked to leave for the request then; it starts when they have."""

    rule: ClassVar[str] = ""

    request: str
    leaving: tuple[str, ...]

    def events(self, broker: Broker) -> list[ev.Event]:
        """What makes the change. A request that is asked again has the id of the first with a "+" behind."""
        raise NotImplementedError(type(self).__name__)

    @property
    def change(self) -> str:
        raise NotImplementedError(type(self).__name__)

    @property
    def starts(self) -> str:
        """The id of the request that starts then."""
        return self.request

    def as_seen(self, started: Request, leaving: tuple[str, ...]) -> Suggestion:
        """With what was seen on a copy where it was made, and the request started."""
        return replace(self, leaving=leaving)

    @property
    def sentence(self) -> str:
        if not self.leaving:
            return f"{self.change}, it would start now"
        return f"{self.change}, it would start once {_quoted(self.leaving)} had left, evicted for it"


@dataclass(frozen=True, slots=True)
class _AskAgain(Suggestion):
    """It is cancelled, and asked for again otherwise."""

    @property
    def starts(self) -> str:
        return self.request[:127] + "+"

    def events(self, broker: Broker) -> list[ev.Event]:
        spec = broker.requests[self.request].spec
        again = RequestSpec.load({**self.changed(spec), "id": self.starts})
        return [ev.Cancelled(self.request), ev.Submitted(again)]

    def changed(self, spec: RequestSpec) -> dict[str, Any]:
        """The request to ask for instead, as plain data."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, slots=True)
class AnyPool(_AskAgain):
    rule: ClassVar[str] = "any-pool"
    pool: str

    def changed(self, spec: RequestSpec) -> dict[str, Any]:
        return {name: value for name, value in spec.dump().items() if name != "pool"}

    @property
    def change(self) -> str:
        return f"asked again without the pin to pool '{self.pool}'"


@dataclass(frozen=True, slots=True)
class Preemptible(_AskAgain):
    """borrowed: what of it may be taken back then."""

    rule: ClassVar[str] = "preemptible"
    borrowed: tuple[tuple[str, int], ...] = ()

    def as_seen(self, started: Request, leaving: tuple[str, ...]) -> Suggestion:
        return replace(self, leaving=leaving, borrowed=tuple(borrowed_by(started).items()))

    def changed(self, spec: RequestSpec) -> dict[str, Any]:
        data = spec.dump()
        data.pop("preemptible", None)
        data["resources"] = {one: value for one, value in data.get("resources", {}).items() if one != "preemptible"}
        return data if spec.bundles is None else {**spec.dump(), "preemptible": True}

    @property
    def change(self) -> str:
        return "asked again as preemptible" + (
            f" ({amounts(dict(self.borrowed))} of it borrowed)" * bool(self.borrowed)
        )


@dataclass(frozen=True, slots=True)
class AskLess(_AskAgain):
    """amount, instead_of: of each worker."""

    rule: ClassVar[str] = "ask-less"
    key: str
    amount: int
    instead_of: int
    workers: int

    def changed(self, spec: RequestSpec) -> dict[str, Any]:
        data = spec.dump()
        return {**data, "resources": _with_amount(data.get("resources", {}), self.key, self.amount)}

    @property
    def change(self) -> str:
        each = f" for each of its {self.workers} workers" if self.workers > 1 else ""
        return f"asked again with {self.amount} {self.key} instead of {self.instead_of}{each}"


@dataclass(frozen=True, slots=True)
class FewerWorkers(_AskAgain):
    rule: ClassVar[str] = "fewer-workers"
    workers: int
    instead_of: int

    def changed(self, spec: RequestSpec) -> dict[str, Any]:
        return {**spec.dump(), "workers": self.workers}

    @property
    def change(self) -> str:
        return f"asked again with {self.workers} instead of {self.instead_of} workers"


@dataclass(frozen=True, slots=True)
class _Raise(Suggestion):
    """`more` of some keys for its component in a pool."""

    field: ClassVar[str]
    pool: str
    component: str
    component_type: str
    more: tuple[tuple[str, int], ...]
    to: tuple[tuple[str, int], ...]

    def events(self, broker: Broker) -> list[ev.Event]:
        policy = broker.pools[self.pool].policies[self.component, self.component_type]
        figures = {**getattr(policy, self.field), **dict(self.to)}
        changed = PolicySpec.load({**policy.dump(), self.field: figures})
        return [ev.ConfigApplied(BrokerConfig(policies=(changed,)))]


@dataclass(frozen=True, slots=True)
class RaiseLimit(_Raise):
    rule: ClassVar[str] = "raise-limit"
    field: ClassVar[str] = "limit"

    @property
    def change(self) -> str:
        return (
            f"with the limit of '{self.component}' in pool '{self.pool}' raised by {amounts(dict(self.more))} "
            f"to {amounts(dict(self.to))}"
        )


@dataclass(frozen=True, slots=True)
class RaiseReserved(_Raise):
    rule: ClassVar[str] = "raise-reserved"
    field: ClassVar[str] = "reserved"

    @property
    def change(self) -> str:
        return (
            f"with {amounts(dict(self.more))} more reserved for '{self.component}' in pool '{self.pool}' "
            f"({amounts(dict(self.to))} in all)"
        )


@dataclass(frozen=True, slots=True)
class OtherEnds(Suggestion):
    rule: ClassVar[str] = "other-ends"
    other: str
    component: str
    pool: str
    held: tuple[tuple[str, int], ...]
    running_seconds: float

    def events(self, broker: Broker) -> list[ev.Event]:
        return [ev.Cancelled(self.other)]

    @property
    def change(self) -> str:
        return (
            f"if '{self.other}' ended ({amounts(dict(self.held))} of '{self.component}' in pool '{self.pool}', "
            f"running for {_duration(self.running_seconds)})"
        )


# --- the search -------------------------------------------------------------------------------

Places = Callable[[Request, list[tuple[str, int]]], bool]
"""Whether a granted request would find nodes, when the groups of those grants (request, attempt) are gone."""


def suggestions(broker: Broker, request: Request, now: float, places: Places | None = None) -> list[Suggestion]:
    """All at once; empty for a request that does not wait in line."""
    return [one for one in search(broker, request, now, places) if one is not None]


def search(broker: Broker, request: Request, now: float, places: Places | None = None) -> Iterator[Suggestion | None]:
    """Each suggestion as it is found, and None after each copy, for who has other things to do meanwhile. What
    becomes of the broker meanwhile is not seen: the search works on the state in which it began. Nothing is
    searched for a request that waits only for nodes or for its own earlier group, nor among `MOST_REQUESTS`."""
    in_line = request.queued or all(isinstance(one, Infeasible) for one in request.held_out.values())
    if request.waiting and in_line and len(broker.requests) - len(broker._ended) <= MOST_REQUESTS:
        yield from _Search(broker, request, now, places).run()


class _Search:
    """whole: the state in which it began; short: a short copy of it."""

    def __init__(self, broker: Broker, request: Request, now: float, places: Places | None) -> None:
        self.places = places
        self.whole = copy_of(broker)
        self.now = now
        self.request = self.whole.requests[request.id]
        self.left = MOST_COPIED
        self.found: Suggestion | None = None

    def run(self) -> Iterator[Suggestion | None]:
        yield None
        self.short = copy_of(self.whole, short_for=self.request.id)
        yield None
        for kind in (self._any_pool, self._preemptible, self._less, self._fewer_workers, self._limit, self._reserved,
                     self._ends):  # fmt: skip
            yield from kind()

    # Each of these yields None after each copy, and a suggestion that was seen to start it on a whole copy.

    def _any_pool(self) -> Iterator[Suggestion | None]:
        if self.request.spec.pool is not None:
            yield from self._seen(AnyPool(self.request.id, (), self.request.spec.pool))

    def _preemptible(self) -> Iterator[Suggestion | None]:
        if not self.request.preemptible:
            yield from self._seen(Preemptible(self.request.id, ()))

    def _less(self) -> Iterator[Suggestion | None]:
        spec = self.request.spec
        if spec.bundles is not None or spec.resources is None:
            return
        each = spec.resources.demand()
        for key in self._keys()[:MOST_KEYS]:
            asked, unit = each[key], _unit(key, each[key])

            def less(steps: int, key: str = key, asked: int = asked, unit: int = unit) -> Suggestion:
                return AskLess(self.request.id, (), key, steps * unit, asked, spec.workers)

            yield from self._largest(less, (asked - 1) // unit)

    def _fewer_workers(self) -> Iterator[Suggestion | None]:
        workers = self.request.spec.workers
        yield from self._largest(lambda n: FewerWorkers(self.request.id, (), n, workers), workers - 1)

    def _limit(self) -> Iterator[Suggestion | None]:
        """For what it would be over the limit by."""
        for pool, account in self._pools():
            standing = account.staying
            lacking = {
                key: standing[key] + amount - account.limit[key]
                for key, amount in pool.need(self.request)
                if standing[key] + amount > account.limit[key] and pool.ledger.keys[key] in account.policy.limit
            }
            yield from self._raised(RaiseLimit, pool, account, lacking, account.limit)

    def _reserved(self) -> Iterator[Suggestion | None]:
        """For what it would be outside its reserve by."""
        for pool, account in self._pools():
            level = account.staying if self.request.preemptible else account.firm
            lacking = {
                key: level[key] + amount - account.reserved[key]
                for key, amount in pool.need(self.request)
                if level[key] + amount > account.reserved[key]
            }
            yield from self._raised(RaiseReserved, pool, account, lacking, account.reserved)

    def _raised(
        self, kind: type[_Raise], pool: Pool, account: Account, lacking: dict[int, int], figures: list[int]
    ) -> Iterator[Suggestion | None]:
        """By what it lacks; where one key is lacking and less is enough, by less; where others of its component
        go first, by more."""
        if not lacking:
            return
        names = pool.ledger.keys

        def raised(by: int) -> Suggestion:
            only = len(lacking) == 1
            more = {names[key]: by if only else lack for key, lack in lacking.items()}
            to = {names[key]: figures[key] + more[names[key]] for key in lacking}
            owner = account.owner
            return kind(self.request.id, (), pool.name, *owner, tuple(more.items()), tuple(to.items()))

        if len(lacking) > 1:
            yield from self._seen(raised(0))
            return
        ((key, lack),) = lacking.items()
        yield from self._smallest(raised, lack, self._allowed(kind, pool, account, key))

    def _allowed(self, kind: type[_Raise], pool: Pool, account: Account, key: int) -> int:
        """By how much it could be raised, with the others as they are."""
        most = pool.ledger.capacity[key]
        if kind is RaiseLimit:
            return most - account.limit[key]
        promised = sum(one.reserved[key] for one in pool.ledger.accounts.values())
        return min(most - promised, account.limit[key] - account.reserved[key])

    def _ends(self) -> Iterator[Suggestion | None]:
        for allocation in self._who_could_end()[:MOST_ENDS]:
            other, pool = allocation.request, allocation.pool
            assert pool is not None
            held = tuple(pool.ledger.by_key(allocation.need).items())
            since = other.granted_at if other.granted_at is not None else self.now
            ends = OtherEnds(self.request.id, (), other.id, other.owner[0], pool.name, held, self.now - since)
            for seen in self._seen(ends):
                yield seen
                if seen is not None:
                    return

    # --- what to look at ----------------------------------------------------------------------

    def _pools(self) -> list[tuple[Pool, Account]]:
        return [(pool, pool.ledger.accounts[self.request.owner]) for pool in by_preference(self.request)]

    def _keys(self) -> list[str]:
        """Keys that some pool of its counts: those first of which a reason says that they are short."""
        ledgers = [self.whole.pools[name].ledger for name in (*self.request.queued, *self.request.held_out)]
        short = [getattr(reason, "key", "") for reason in wait_reasons(self.whole, self.request).values()]
        keys = [key for key in self.request.demand if key != STEP_RUN and any(one.meters(key) for one in ledgers)]
        return sorted(keys, key=lambda key: (key not in short, key))

    def _who_could_end(self) -> list[Allocation]:
        """Those first whose room covers what is missing, and its own component's; of them the smallest, the newest
        of those that are alike."""
        found: list[tuple[bool, int, int, Allocation]] = []
        for pool, _ in self._pools():
            free = pool.ledger.free
            short = [(key, amount - free[key]) for key, amount in pool.need(self.request) if amount > free[key]]
            for allocation in pool.ledger.allocations():
                if allocation.request.status is not Status.ALLOCATED or allocation.leaving:
                    continue
                held = dict(allocation.need)
                covers = all(held.get(key, 0) >= lack for key, lack in short)
                helps = covers or allocation.request.owner == self.request.owner
                size = sum(held.get(key, 0) for key, _ in short) or sum(held.values())
                found.append((not helps, size, -allocation.serial, allocation))
        return [one[3] for one in sorted(found, key=lambda one: one[:3])]

    # --- trying -------------------------------------------------------------------------------

    def _largest(self, change: Callable[[int], Suggestion], most: int) -> Iterator[Suggestion | None]:
        """The largest step of 1..most with which it starts, if there is one."""
        if most < 1:
            return
        yield None
        if not self._starts(self.short, change(1)):
            return
        good, bad = 1, most + 1
        while bad - good > 1 and self.left > 0:
            middle = (good + bad) // 2
            if self._starts(self.short, change(middle)):
                good = middle
            else:
                bad = middle
            yield None
        yield from self._seen(change(good))

    def _smallest(self, change: Callable[[int], Suggestion], guess: int, most: int) -> Iterator[Suggestion | None]:
        """The smallest step of 1..most with which it starts, if it does with the largest."""
        if most < 1:
            return
        yield None
        if not self._starts(self.short, change(most)):
            return
        bad, good = 0, most
        middle = min(guess, most)
        while good - bad > 1 and self.left > 0:
            if self._starts(self.short, change(middle)):
                good = middle
            else:
                bad = middle
            yield None
            middle = good - 1 if good == guess else (good + bad) // 2
        yield from self._seen(change(good))

    def _seen(self, change: Suggestion) -> Iterator[Suggestion | None]:
        """The suggestion, if it starts the request on a whole copy, too."""
        if self._starts(self.short, change) and self._starts(self.whole, change):
            yield self.found
        yield None

    def _starts(self, state: Broker, change: Suggestion) -> bool:
        self.left -= len(state.requests) + 2 * sum(len(pool.queue.groups) for pool in state.pools.values())
        if self.left < 0:
            return False
        twin = copy_of(state)
        try:
            evicted, removed = play(twin, change.events(twin), self.now)
        except Refused:
            return False  # it would not be allowed
        request = twin.requests.get(change.starts)
        if request is None or request.current is None:
            return False
        if self.places is not None and not self.places(request, removed):
            return False
        self.found = change.as_seen(request, tuple(evicted))
        return True


def play(broker: Broker, events: Iterable[ev.Event], now: float) -> tuple[list[str], list[tuple[str, int]]]:
    """Feeds the events, and has the world do what comes of them: who is warned leaves, and what shall be
    removed is gone. Returns who was evicted, and the grants whose groups were removed. Raises Refused."""
    evicted: dict[str, None] = {}
    removed: list[tuple[str, int]] = []
    waiting: deque[ev.Event] = deque(events)
    while waiting:
        for instruction in broker.handle(waiting.popleft(), now):
            if isinstance(instruction, ChangeStatus) and instruction.to is Status.PREEMPTING:
                evicted[instruction.request] = None
            if isinstance(instruction, RemovePlacementGroup):
                removed.append((instruction.request, instruction.attempt))
            answer = _answer(instruction)
            if answer is not None:
                waiting.append(answer)
    return list(evicted), removed


def _answer(instruction: Instruction) -> ev.Event | None:
    if isinstance(instruction, WarnHolder):
        return ev.Cancelled(instruction.request)
    if isinstance(instruction, RemovePlacementGroup):
        return ev.PlacementRemoved(instruction.request, instruction.attempt)
    return None


# --- amounts and words ------------------------------------------------------------------------


def _unit(key: str, asked: int) -> int:
    """Less of a key is tried in whole CPUs and GB, where there are that many."""
    return 1000 if key in (MCPU, MEMORY_MB) and asked > 1000 else 1


def _with_amount(settings: dict[str, Any], key: str, amount: int) -> dict[str, Any]:
    """The settings with another amount of a pool key, where the first stood."""
    if key == GPU and settings.get("gpu_count") is not None:
        return {**settings, "gpu_count": amount}
    if key == MCPU and settings.get("cpu_count") is not None:
        return {**settings, "cpu_count": amount / 1000}
    if key == MEMORY_MB and settings.get("memory") is not None:
        return {**settings, "memory": f"{amount}MB"}
    return {**settings, "pool_resources": {**settings.get("pool_resources", {}), key: amount}}


def _quoted(names: Iterable[str]) -> str:
    return names_of([f"'{name}'" for name in names])


def _duration(seconds: float) -> str:
    """ "45 s", "3 min", "4 h", "2 d": about how long."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(seconds, 0))} s"
