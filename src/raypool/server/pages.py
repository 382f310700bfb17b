"""A few of many requests at a time, for people who look on: who waits in the order of the line, who holds something,
who has ended. All are counted, which is quick; what takes time to tell is told of those on the page only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, zip_longest
from typing import Any

from raypool.core.broker import Broker
from raypool.core.explain import explanation_of
from raypool.core.pool import by_preference
from raypool.core.request import Request
from raypool.server.views import UNKNOWN, Eta, view_request
from raypool.view import PageView


def page_of(
    broker: Broker, kind: str, pool: str | None, component: str | None, first: int, count: int
) -> tuple[list[Request], int]:
    """The requests of a page, and how many there are in all. A pool that is not there has none.

    waiting: of one pool: in the order of its line, then who stands aside there. Of all pools: the first of each
    line, by the pool's name, then the second of each; one that waits in several pools counts in its most preferred;
    then who stands aside everywhere. `places_of` tells the places by which they are ordered.
    running: what holds room, also what is being placed: those who have to leave, who leaves soonest first, then the
    others in order of submission.
    ended: who ended last comes first.
    """

    def asked_for(request: Request) -> bool:
        return component is None or request.owner[0] == component

    if kind == "waiting":
        everybody = [one for one in broker.requests.values() if one.waiting and asked_for(one)]
        if pool is not None:
            everybody = [one for one in everybody if pool in one.queued or pool in one.held_out]
        in_line = _lines(broker, [pool] if pool is not None else sorted(broker.pools), pool is None)
        aside = (one for one in everybody if (not one.queued if pool is None else pool not in one.queued))
        chosen = chain(filter(asked_for, in_line), aside)
        return list(islice(chosen, first, first + count)), len(everybody)
    if kind == "running":
        everybody = [
            one
            for one in broker.requests.values()
            if one.current is not None and asked_for(one) and pool in (None, _pool_of(one))
        ]
        everybody.sort(key=lambda one: (one.deadline is None, one.deadline or 0.0, one.number))
        return everybody[first : first + count], len(everybody)
    everybody = [
        one
        for one in broker.requests.values()
        if one.status is not None and one.status.terminal and asked_for(one) and pool in (None, _pool_of(one))
    ]
    last = heapq.nlargest(first + count, everybody, key=lambda one: (one.ended_at or 0.0, one.number))
    return last[first:], len(everybody)


def view_page(
    broker: Broker, requests: list[Request], in_all: int, first: int, etas: Mapping[str, Eta], pool: str | None = None
) -> PageView:
    """pool: of whose requests it is a page, if of one's only."""
    borrowed = _borrowed_by(requests)
    views = [view_request(broker, one, borrowed.get(one.id, {}), etas.get(one.id, UNKNOWN)) for one in requests]
    return PageView(views, in_all, first, places_of(requests, pool))


def places_of(requests: Iterable[Request], pool: str | None) -> dict[str, list[Any]]:
    """By id: [a pool, the place in its line, from 1], of those that stand in that pool's line; pool=None: of each in
    its most preferred."""
    found: dict[str, list[Any]] = {}
    for one in requests:
        if one.waiting and one.queued and (pool is None or pool in one.queued):
            where = by_preference(one)[0] if pool is None else one.queued[pool]
            found[one.id] = [where.name, explanation_of(where).position(one)]
    return found


def _borrowed_by(requests: Iterable[Request]) -> dict[str, dict[str, int]]:
    """What of each lies above its policy's reserve, by id: the line of a policy is read once, and only if one of
    these stands in it."""
    found: dict[str, dict[str, int]] = {}
    held = [one.allocation for one in requests if one.allocation is not None]
    pools = {one.account: one.pool for one in held if one.account is not None and one.pool is not None}
    for account, pool in pools.items():
        found.update((one.request.id, pool.ledger.by_key(above)) for one, above in account.line())
    return found


def _lines(broker: Broker, names: Iterable[str], once: bool) -> Iterator[Request]:
    """Who stands in these lines, the first of each before the second of any. once: only in his preferred pool."""
    pools = [broker.pools[name] for name in names if name in broker.pools]
    for abreast in zip_longest(*(explanation_of(pool).in_line() for pool in pools)):
        for pool, request in zip(pools, abreast, strict=True):
            if request is not None and not (once and by_preference(request)[0] is not pool):
                yield request


def _pool_of(request: Request) -> str | None:
    allocation = request.allocation
    return allocation.pool.name if allocation is not None and allocation.pool is not None else None
