"""What changed in the figures of pools, as it changed: for whoever keeps account of it.

A broker tells its moves while somebody listens (`Broker.moves`). Each has the figures as they are after it; those
before follow from its `change`. The rule that must not break: one after the other, the moves of a pool account for
every change of its figures; tests/server/test_trail.py sees it in random stories.
"""

from __future__ import annotations

from typing import NamedTuple

from raypool.core.ledger import Account
from raypool.core.pool import Owner, Pool
from raypool.core.request import Allocation, Need, Request

Change = tuple[int, int, int, int]
"""What each amount of the need is added to: used and leaving (of the policy), free and phantom (of the pool)."""

CHARGED: Change = (1, 0, -1, 0)
LEAVES: Change = (0, 1, 0, 0)
FREED: Change = (-1, -1, 1, 0)
FREED_AT_ONCE: Change = (-1, 0, 1, 0)
NEVER_GIVEN_BACK: Change = (-1, -1, 0, 1)
NEVER_MADE: Change = (-1, 0, 0, 1)
GIVEN_BACK_AFTER_ALL: Change = (0, 0, 1, -1)

Figures = tuple[int, int, int, int]
"""used and leaving of the policy (0 where there is none), free and phantom of the pool."""


class Move(NamedTuple):
    """One allocation's. account: None for a phantom, which is nobody's. after: for each key of the need. place: how
    many instructions were decided before it. by: the request that a grant went back for, if it did."""

    place: int
    change: Change
    allocation: Allocation
    pool: Pool
    account: Account | None
    need: Need
    after: tuple[Figures, ...]
    by: Request | None = None


class Level(NamedTuple):
    """A pool as a whole. accounts: used and reserved, by key, of each policy."""

    keys: tuple[str, ...]
    capacity: tuple[int, ...]
    free: tuple[int, ...]
    phantom: tuple[int, ...]
    accounts: dict[Owner, tuple[tuple[int, ...], tuple[int, ...]]]


class PoolMove(NamedTuple):
    """A pool was added, changed or deleted. None: there was, or is, no such pool."""

    place: int
    pool: str
    before: Level | None
    after: Level | None


def figures_of(pool: Pool, account: Account | None, need: Need) -> tuple[Figures, ...]:
    free, phantom = pool.ledger.free, pool.ledger.phantom
    if account is None:
        return tuple([(0, 0, free[key], phantom[key]) for key, _ in need])
    used, staying = account.used, account.staying
    if len(need) == 1:
        key = need[0][0]
        return ((used[key], used[key] - staying[key], free[key], phantom[key]),)
    return tuple([(used[key], used[key] - staying[key], free[key], phantom[key]) for key, _ in need])


def before(move: Move) -> tuple[Figures, ...]:
    """The figures as they were before it."""
    used, leaving, free, phantom = move.change
    return tuple(
        [
            (
                after[0] - used * amount,
                after[1] - leaving * amount,
                after[2] - free * amount,
                after[3] - phantom * amount,
            )
            for (_, amount), after in zip(move.need, move.after, strict=True)
        ]
    )


def level_of(pool: Pool) -> Level:
    ledger = pool.ledger
    return Level(
        ledger.keys,
        tuple(ledger.capacity),
        tuple(ledger.free),
        tuple(ledger.phantom),
        {owner: (tuple(one.used), tuple(one.reserved)) for owner, one in ledger.accounts.items()},
    )
