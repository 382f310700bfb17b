"""All the quota of one pool: what is there, who is charged for what, who borrows.

Figures are lists of integers, one per metered key of the pool. Equations that always hold:

    used + phantom + free  == capacity, for each key; used[k] is the sum of account.used[k] over all accounts
    phantom[k]             == sum of the needs of phantom allocations: room that Ray does not give back
    leaving[k]             == sum of the needs of leaving allocations
    account.staying[k]     == account.used[k] - what of it is leaving
    account.firm[k]        == what of account.staying[k] is not preemptible
    loose[priority][k]     == what of account.staying[k] is preemptible, over all accounts of that priority

A phantom is charged to no policy, so it eats nobody's limit or reserve, and nobody waits for it to leave.
`free` may be negative: the pool was made smaller while in use. The ledger counts; it does not decide.
The same questions (`inside_reserve`, `over_limit`) are asked of an `Account` and of the copy of its
figures that a walk makes (`Standing`). They are plain loops, since every step of a walk asks them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from raypool.core.request import Allocation, Need
from raypool.spec import UNMETERED_UNLESS_LISTED, PolicySpec, PoolSpec

_priority = attrgetter("priority")


def is_room(free: list[int], standing: Standing, need: Need) -> bool:
    """Room for it now in what is free, under its limit with those leaving counted."""
    used, limit = standing.used, standing.limit
    for key, amount in need:
        if amount > free[key] or used[key] + amount > limit[key]:
            return False
    return True


class Standing:
    """The figures of one policy that decide what it may still use. Used as a copy by walks."""

    __slots__ = ("firm", "limit", "reserved", "staying", "used")

    used: list[int]
    staying: list[int]
    firm: list[int]
    reserved: list[int]
    limit: list[int]

    def copy(self) -> Standing:
        twin = Standing()
        twin.used, twin.staying, twin.firm = self.used[:], self.staying[:], self.firm[:]
        twin.reserved, twin.limit = self.reserved, self.limit
        return twin

    def inside_reserve(self, need: Need, preemptible: bool) -> bool:
        """Whether all of it, on top of what stays, lies below `reserved` (semantics 3)."""
        level, reserved = (self.staying if preemptible else self.firm), self.reserved
        for key, amount in need:
            if level[key] + amount > reserved[key]:
                return False
        return True

    def over_limit(self, need: Need) -> bool:
        """Whether it would exceed the limit even when those leaving have left."""
        staying, limit = self.staying, self.limit
        for key, amount in need:
            if staying[key] + amount > limit[key]:
                return True
        return False

    def add(self, need: Need, preemptible: bool) -> None:
        for key, amount in need:
            self.used[key] += amount
            self.staying[key] += amount
            if not preemptible:
                self.firm[key] += amount


class Account(Standing):
    """A policy in its pool: its figures, and its charged allocations in order of grant.

    firm_grants, loose_grants, leavers: non-preemptible, preemptible and leaving allocations, each
    keyed by serial. Lined up in this order, what lies above `reserved` is borrowed. largest: what a single
    grant has ever had, by key.
    """

    __slots__ = ("firm_grants", "largest", "leavers", "loose_grants", "opportunists", "owner", "policy", "priority")

    def __init__(self, policy: PolicySpec, ledger: Ledger) -> None:
        size = len(ledger.keys)
        self.policy = policy
        self.owner = policy.owner
        self.priority = policy.priority
        self.used, self.staying, self.firm = [0] * size, [0] * size, [0] * size
        self.reserved = [policy.reserved.get(key, 0) for key in ledger.keys]
        # A limit is never above the capacity: it may have been valid before the pool was made smaller.
        self.limit = [
            min(policy.limit.get(key, most), most) for key, most in zip(ledger.keys, ledger.capacity, strict=True)
        ]
        self.firm_grants: dict[int, Allocation] = {}
        # Read from the newest end for victims, so an OrderedDict: both ends and any removal are O(1).
        self.loose_grants: OrderedDict[int, Allocation] = OrderedDict()
        self.leavers: dict[int, Allocation] = {}
        self.opportunists = 0
        self.largest = [0] * size

    def line(self) -> Iterator[tuple[Allocation, Need]]:
        """Each charged allocation with what of it is borrowed, in the order of the line (semantics 3)."""
        level = [0] * len(self.used)
        for group in (self.firm_grants, self.loose_grants, self.leavers):
            for _, allocation in sorted(group.items()):
                above = []
                for key, amount in allocation.need:
                    level[key] += amount
                    borrowed = min(amount, level[key] - self.reserved[key])
                    if borrowed > 0:
                        above.append((key, borrowed))
                yield allocation, tuple(above)


class Ledger:
    """The figures of one pool."""

    def __init__(self, spec: PoolSpec, policies: Mapping[tuple[str, str], PolicySpec]) -> None:
        self.keys = tuple(sorted(spec.capacity))
        self.index = {key: i for i, key in enumerate(self.keys)}
        self.capacity = [spec.capacity[key] for key in self.keys]
        self.free = self.capacity[:]
        self.leaving = [0] * len(self.keys)
        self.accounts = {owner: Account(policy, self) for owner, policy in sorted(policies.items())}
        self.by_priority = [
            (priority, list(accounts))
            for priority, accounts in groupby(sorted(self.accounts.values(), key=_priority), key=_priority)
        ]
        self.loose = {priority: [0] * len(self.keys) for priority, _ in self.by_priority}
        self.leavers: dict[int, Allocation] = {}
        self.phantom = [0] * len(self.keys)
        self.phantoms: dict[int, Allocation] = {}

    def meters(self, key: str) -> bool:
        """Whether the pool counts this key; one that it does not list has capacity 0 (semantics 2)."""
        return key in self.index or key not in UNMETERED_UNLESS_LISTED

    def is_free(self, need: Need) -> bool:
        """Room for it, whoever asks."""
        return all(amount <= self.free[key] for key, amount in need)

    def need(self, demand: Mapping[str, int]) -> Need:
        """The demand by key index. Keys that the pool does not list are left out: check them before."""
        index = self.index
        return tuple(sorted((index[key], amount) for key, amount in demand.items() if key in index))

    def by_key(self, need: Need) -> dict[str, int]:
        return {self.keys[key]: amount for key, amount in need}

    def charge(self, allocation: Allocation, account: Account) -> None:
        """Counts a grant, as staying."""
        allocation.account = account
        if allocation.preemptible:
            account.loose_grants[allocation.serial] = allocation
            account.opportunists += allocation.opportunistic
            kind = self.loose[account.priority]
        else:
            account.firm_grants[allocation.serial] = allocation
            kind = account.firm
        largest = account.largest
        free, used, staying = self.free, account.used, account.staying
        for key, amount in allocation.need:
            free[key] -= amount
            used[key] += amount
            staying[key] += amount
            kind[key] += amount
            if amount > largest[key]:
                largest[key] = amount

    def mark_leaving(self, allocation: Allocation) -> None:
        """It stays charged, but will go: it no longer counts as staying."""
        account = allocation.account
        assert account is not None and not allocation.leaving, allocation
        allocation.leaving = True
        if allocation.preemptible:
            del account.loose_grants[allocation.serial]
            account.opportunists -= allocation.opportunistic
            kind = self.loose[account.priority]
        else:
            del account.firm_grants[allocation.serial]
            kind = account.firm
        leaving, staying = self.leaving, account.staying
        for key, amount in allocation.need:
            leaving[key] += amount
            staying[key] -= amount
            kind[key] -= amount
        account.leavers[allocation.serial] = allocation
        self.leavers[allocation.serial] = allocation

    def discharge(self, allocation: Allocation) -> None:
        """What was leaving is gone: its capacity is free again."""
        account = allocation.account
        assert account is not None and allocation.leaving, allocation
        for key, amount in allocation.need:
            self.leaving[key] -= amount
            self.free[key] += amount
            account.used[key] -= amount
        del account.leavers[allocation.serial]
        del self.leavers[allocation.serial]
        allocation.account = None

    def hold_phantom(self, allocation: Allocation) -> None:
        """Takes what belongs to no policy out of what may be granted."""
        assert allocation.account is None, allocation
        self.phantoms[allocation.serial] = allocation
        for key, amount in allocation.need:
            self.phantom[key] += amount
            self.free[key] -= amount

    def free_phantom(self, allocation: Allocation) -> None:
        """The phantom's room was seen free."""
        del self.phantoms[allocation.serial]
        for key, amount in allocation.need:
            self.phantom[key] -= amount
            self.free[key] += amount

    def allocations(self) -> Iterator[Allocation]:
        """All that is charged here to a policy, by account, in the order of each line."""
        for account in self.accounts.values():
            for group in (account.firm_grants, account.loose_grants, account.leavers):
                yield from group.values()
