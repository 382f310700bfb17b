"""Who has to leave for a blocked request (semantics 6).

`may_take` is the one predicate that says whether an allocation may be taken for a request; the
choice, explanations and tests all use it. `choose` is the one place with the order of victims:
policy priority ascending, then newest grant first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from raypool.core.ledger import Account, Ledger
from raypool.core.pool import Pool
from raypool.core.queue import Group
from raypool.core.request import Allocation, Need, Request
from raypool.core.resumable import ResumableWalk
from raypool.core.walk import Figures, Outcome, walk


class Victim(NamedTuple):
    """An allocation that would leave: under which rule, and what of it is borrowed."""

    allocation: Allocation
    why: str
    borrowed: Need


@dataclass(slots=True)
class Shortage:
    """What a blocked request lacks, by key index; amounts > 0.

    in_pool: amount - free - leaving, on the walk's copy. under_limit: how far it would exceed its own
    policy's limit when its own leaving work has left; only its own team can help there.
    """

    in_pool: dict[int, int]
    under_limit: dict[int, int]

    @classmethod
    def of(cls, outcome: Outcome) -> Shortage:
        """Of the request that a walk ended with."""
        group, figures = outcome.group, outcome.figures
        assert group is not None
        standing = figures.standing(group.account)
        free, leaving, staying, limit = figures.free, figures.leaving, standing.staying, standing.limit
        in_pool, under_limit = {}, {}
        for key, amount in group.need:
            lacking = amount - free[key] - leaving[key]
            if lacking > 0:
                in_pool[key] = lacking
            lacking = staying[key] + amount - limit[key]
            if lacking > 0:
                under_limit[key] = lacking
        return cls(in_pool, under_limit)

    @property
    def only_key(self) -> int | None:
        """The key that is missing in the pool, if nothing else is missing."""
        return next(iter(self.in_pool)) if len(self.in_pool) == 1 and not self.under_limit else None

    def __bool__(self) -> bool:
        for left in self.in_pool.values():
            if left > 0:
                return True
        for left in self.under_limit.values():
            if left > 0:
                return True
        return False

    def helped_by(self, borrowed: Need, own_team: bool) -> bool:
        """Whether something borrowed is of a key that is still missing."""
        for key, _ in borrowed:
            if self.in_pool.get(key, 0) > 0 or (own_team and self.under_limit.get(key, 0) > 0):
                return True
        return False

    def subtract(self, need: Need, own_team: bool, sign: int = 1) -> None:
        """Takes a whole holding off what is missing; with sign -1 puts it back."""
        for key, amount in need:
            if key in self.in_pool:
                self.in_pool[key] -= sign * amount
            if own_team and key in self.under_limit:
                self.under_limit[key] -= sign * amount


def may_take(victim: Allocation, request: Request, account: Account, inside: bool) -> str:
    """The rule under which a borrowing, preemptible, staying allocation may be taken; "" if none.

    `account` is the request's, `inside` whether the request is inside its reserve.
    """
    assert victim.account is not None
    if inside:
        return "reclaim"
    if victim.account.priority < account.priority:
        return "preempt"
    if (
        victim.opportunistic
        and victim.account.priority == account.priority
        and victim.request.number > request.number
    ):
        return "backfilled"
    return ""


@dataclass(frozen=True, slots=True)
class Taker:
    """A policy whose requests may take what an allocation borrows. why: the rule. unused: what is reserved for it
    and not in use, of the borrowed keys, under "reclaim"; firm_only: that is in use by its own preemptible work, so
    only its non-preemptible requests may."""

    account: Account
    why: str
    unused: Need = ()
    firm_only: bool = False


def takers(allocation: Allocation, borrowed: Need) -> list[Taker]:
    """Who could take it, whatever they ask for: highest priority first, then by name. Others may take only what
    borrows; its own team may with non-preemptible work, which pushes the preemptible above the reserve. Empty for
    what is leaving or not preemptible."""
    own, pool = allocation.account, allocation.pool
    if own is None or pool is None or allocation.leaving or not allocation.preemptible:
        return []
    found = []
    for account in sorted(pool.ledger.accounts.values(), key=lambda one: (-one.priority, one.owner)):
        room = [(key, account.reserved[key] - account.staying[key]) for key, _ in borrowed]
        unused = tuple((key, amount) for key, amount in room if amount > 0)
        firm_room = [(key, account.reserved[key] - account.firm[key]) for key, _ in allocation.need]
        left = tuple((key, amount) for key, amount in firm_room if amount > 0)
        if account is own:
            if left:
                found.append(Taker(account, "reclaim", left, firm_only=True))
        elif not borrowed:
            continue
        elif account.priority > own.priority:
            found.append(Taker(account, "preempt"))
        elif unused:
            found.append(Taker(account, "reclaim", unused))
        elif allocation.opportunistic and account.priority == own.priority:
            found.append(Taker(account, "backfilled"))
        elif left:
            found.append(Taker(account, "reclaim", left, firm_only=True))
    return found


def choose(pool: Pool, outcome: ResumableWalk) -> list[Victim]:
    """The victims for the request that blocks the pool's walk; empty if nobody is to be evicted for it.

    Where no set of victims is enough, and a single key is missing, that is `outcome.lacks`. Whatever is granted
    behind the blocked one then takes no less of it than it could give back: there is no such set until somebody
    leaves.
    """
    shortage = Shortage.of(outcome)
    key = shortage.only_key
    if key is not None and key == outcome.lacks:
        return []
    chosen = _enough(pool, outcome, shortage)
    if not chosen:
        outcome.lacks = key
        return []
    gone = [victim.allocation for victim in chosen]
    return chosen if outcome.first_when_gone(gone) or granted_when_gone(pool, outcome, gone) else []


def enough(pool: Pool, outcome: Outcome) -> list[Victim]:
    """Those whose leaving covers what is missing, before the look-ahead; empty if no set of them does."""
    return _enough(pool, outcome, Shortage.of(outcome))


def _enough(pool: Pool, outcome: Outcome, shortage: Shortage) -> list[Victim]:
    request, group, figures = outcome.request, outcome.group, outcome.figures
    assert request is not None and group is not None
    inside = figures.standing(group.account).inside_reserve(group.need, group.preemptible)
    if not _may_be_enough(pool.ledger, group, figures, shortage, inside):
        return []
    chosen: list[Victim] = []
    for victim in _candidates(pool, request, group, figures, inside):
        own = victim.allocation.account is group.account
        if shortage.helped_by(victim.borrowed, own):
            shortage.subtract(victim.allocation.need, own)
            chosen.append(victim)
            if not shortage:
                return _spare(chosen, shortage, group.account)
    return []


def _may_be_enough(ledger: Ledger, group: Group, figures: Figures, shortage: Shortage, inside: bool) -> bool:
    """False if it is plain that no set of victims is. It costs by policies and not by who runs: what a policy could
    give of a key is no more than its preemptible work, and no more than lies above its reserve, but for the one
    that lies above it in part."""
    own = group.account
    for key, missing in shortage.under_limit.items():
        if own.staying[key] - own.firm[key] < missing:
            return False
    only_key = shortage.only_key is not None
    for key, missing in shortage.in_pool.items():
        for priority, accounts in ledger.by_priority:
            if (priority > own.priority and not inside) or missing <= 0:
                break
            if not ledger.loose[priority][key]:
                continue
            only_backfilled = priority == own.priority and not inside
            for account in accounts:
                if only_backfilled and not account.opportunists:
                    continue
                could = account.staying[key] - account.firm[key]
                # Where more than one key is missing, whoever borrows one gives all of the others, too.
                if only_key and could and account is not own and figures.standing(account) is account:
                    above = account.staying[key] - account.reserved[key]
                    could = min(could, above + account.largest[key] - 1) if above > 0 else 0
                missing -= could
        if missing > 0:
            return False
    return True


def _spare(chosen: list[Victim], shortage: Shortage, account: Account) -> list[Victim]:
    """Goes back over the chosen, last chosen first, and spares each without whom nothing is missing."""
    needed = []
    for victim in reversed(chosen):
        own = victim.allocation.account is account
        shortage.subtract(victim.allocation.need, own, sign=-1)
        if shortage:
            shortage.subtract(victim.allocation.need, own)
            needed.append(victim)
    return needed[::-1]


def granted_when_gone(pool: Pool, outcome: Outcome, victims: list[Allocation]) -> bool:
    """Looks ahead: a walk over a copy in which all who are leaving, and the victims, have left."""
    figures = Figures.when_gone(pool.ledger, victims)
    return walk(pool, pool.queue, figures, until_granted=outcome.request).granted is outcome.request


def _candidates(pool: Pool, request: Request, group: Group, figures: Figures, inside: bool) -> Iterator[Victim]:
    """Borrowers that may be taken, policy priority ascending, newest grant first."""
    account = group.account
    for priority, accounts in pool.ledger.by_priority:
        if not inside and priority > account.priority:
            return
        lines = [
            _borrowers(one, request, group, figures, inside)
            for one in accounts
            if one.loose_grants and (inside or priority < account.priority or one.opportunists)
        ]
        if len(lines) == 1:
            yield from lines[0]
        else:
            yield from heapq.merge(*lines, key=_newest_first)


def _newest_first(victim: Victim) -> int:
    return -victim.allocation.serial


def _borrowers(account: Account, request: Request, group: Group, figures: Figures, inside: bool) -> Iterator[Victim]:
    """One policy's borrowers, newest first, read off the far end of its line."""
    level = _level(account, group, figures)
    reserved = account.reserved
    for allocation in reversed(account.loose_grants.values()):
        borrowed = []
        for key, amount in allocation.need:
            above = min(amount, level[key] - reserved[key])
            if above > 0:
                borrowed.append((key, above))
            level[key] -= amount
        if borrowed:
            why = may_take(allocation, request, group.account, inside)
            if why:
                yield Victim(allocation, why, tuple(borrowed))
        elif all(here <= below for here, below in zip(level, reserved, strict=True)):
            return  # the rest of the line lies inside the reserve


def _level(account: Account, group: Group, figures: Figures) -> list[int]:
    """How far a policy's line reaches, leavers left out. It is taken with the request and every set-aside one in
    its own team's place: those that are not preemptible stand before the preemptible and push them up; those that
    are stand behind."""
    standing, own = figures.standing(account), account is group.account and not group.preemptible
    if standing is account and not own:
        return account.staying[:]
    level = [
        staying + firm - was for staying, firm, was in zip(account.staying, standing.firm, account.firm, strict=True)
    ]
    if own:
        for key, amount in group.need:
            level[key] += amount
    return level
