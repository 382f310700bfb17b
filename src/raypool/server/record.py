"""A record: one decision, or one change that somebody made, with who, what, why and the figures before and after.

What happened in one event is kept as it was handed over (`Turn`), which costs next to nothing; records, and the
sentences in them, are made of it when somebody reads or writes them. So this file reads only what never changes of
requests and pools. It decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from raypool.core import events as ev
from raypool.core import moves as mv
from raypool.core.history import Version
from raypool.core.instructions import (
    ChangeStatus,
    CreatePlacementGroup,
    HandOverPlacementGroup,
    Instruction,
    WarnHolder,
)
from raypool.core.moves import Level, Move, PoolMove
from raypool.core.reasons import Evicted
from raypool.core.records import quoted
from raypool.core.request import Request
from raypool.core.status import Status

KINDS: dict[str, str] = {
    "started": "the broker's process began; which journal it speaks of",
    "submitted": "somebody asked",
    "rejected": "no pool can ever take it",
    "granted": "charged to a pool; its placement group is made",
    "handed-over": "it has the placement group of one that ended, as it is",
    "ready": "its placement group is there: it runs",
    "not-placed": "its grant found no nodes in time",
    "returned": "its grant, not placed yet, was given up for somebody else; it waits again",
    "evicted": "asked to leave for somebody else",
    "expired": "asked to leave, since it ran longer than it asked for",
    "notice": "its holder is told when it has to be gone",
    "preempted": "it has left for somebody else",
    "released": "given back by its owner",
    "cancelled": "ended by its owner, an operator, or a loss",
    "freed": "its charge is over: Ray has confirmed that its placement group is gone",
    "phantom": "Ray does not give its room back, or may still take it: nobody's, and not free",
    "repaired": "Ray has repaired its placement group",
    "bound": "it lives as long as that actor from now on",
    "forgotten": "dropped from the broker's memory",
    "config-applied": "pools and policies were applied",
    "rolled-back": "pools and policies are as after an earlier change",
    "policy-detached": "a component may not use a pool any more",
    "pool-deleted": "a pool and its policies are gone",
    "pool-changed": "what a change of the config did to the figures of one pool",
    "nodes-changed": "the cluster's live nodes are others",
}
"""Every kind of record, and what it says. Closed: readers may rely on there being no others."""

_ENDS = {
    Status.PENDING: "submitted",
    Status.REJECTED: "rejected",
    Status.ALLOCATED: "ready",
    Status.PREEMPTED: "preempted",
    Status.RELEASED: "released",
    Status.CANCELLED: "cancelled",
}

_CHANGES: dict[type, str] = {
    ev.ConfigApplied: "config-applied",
    ev.RolledBack: "rolled-back",
    ev.PolicyDetached: "policy-detached",
    ev.PoolDeleted: "pool-deleted",
}

_OWN = ("event", "index", "at", "kind", "request", "number")
"""What no two submissions share."""

_LEAVING = ("evicted", "expired", "released", "preempted", "cancelled", "rejected", "not-placed")
"""After a record of these the same request may begin to leave: one decision, one record."""

Record = dict[str, Any]

text_of = json.JSONEncoder(separators=(",", ":")).encode


class Turn(NamedTuple):
    """One event that was handled. requests: for each instruction whom it is about, if that is known. told: the
    version that a change of the config made; a sentence about nodes."""

    number: int
    at: float
    event: ev.Event
    instructions: Sequence[Instruction]
    moves: Sequence[Move | PoolMove]
    requests: Sequence[Request | None]
    told: Version | str | None = None


def records_of(turn: Turn) -> list[Record]:
    """In the order in which it was decided."""
    return [record for record in _Writer(turn).records if isinstance(record, dict)]


def lines_of(turn: Turn) -> list[str]:
    """The same as lines of JSON."""
    records = _Writer(turn, as_text=True).records
    return [record if isinstance(record, str) else text_of(record) for record in records]


def started(number: int, at: float, journal: str, version: str, continues: bool = False) -> Record:
    """The broker's process has begun, with all that happened until event `number`. continues: only a file begins."""
    if continues:
        facts = {"journal": journal, "continues": True}
        return _record(number, None, at, "started", why="the file before is full", facts=facts)
    why = f"raypool {version} takes up its journal after event {number}" if number else f"raypool {version} begins"
    return _record(number, None, at, "started", why=why, facts={"journal": journal})


def _record(
    event: int,
    index: int | None,
    at: float,
    kind: str,
    request: Request | str | None = None,
    pool: str | None = None,
    by: dict[str, Any] | None = None,
    rule: str | None = None,
    why: str = "",
    figures: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
) -> Record:
    component, component_type = request.owner if isinstance(request, Request) else (None, None)
    return {
        "event": event,
        "index": index,
        "at": at,
        "kind": kind,
        "request": request.id if isinstance(request, Request) else request,
        "number": request.number if isinstance(request, Request) else None,
        "component": component,
        "component_type": component_type,
        "pool": pool,
        "by": by or {},
        "rule": rule,
        "why": why,
        "figures": figures or {},
        "facts": facts or {},
    }


class _Writer:
    """Goes through one turn. as_text: submissions, which come by the thousand, are text at once: what those for the
    same share is written out once."""

    def __init__(self, turn: Turn, as_text: bool = False) -> None:
        self.turn = turn
        self.records: list[Record | str] = []
        self._shared: dict[Any, str] | None = {} if as_text else None
        moves = iter(turn.moves)
        move = next(moves, None)
        self._begin()
        for place, (instruction, request) in enumerate(zip(turn.instructions, turn.requests, strict=True)):
            while move is not None and move.place <= place:
                self._move(move)
                move = next(moves, None)
            self._instruction(instruction, request)
        while move is not None:
            self._move(move)
            move = next(moves, None)

    def _add(self, kind: str, request: Request | str | None = None, **more: Any) -> None:
        self.records.append(_record(self.turn.number, len(self.records), self.turn.at, kind, request, **more))

    # --- what the event itself says -----------------------------------------------------------

    def _begin(self) -> None:
        event, told = self.turn.event, self.turn.told
        if isinstance(event, ev.ConfigApplied | ev.RolledBack | ev.PolicyDetached | ev.PoolDeleted):
            self._config(event, told if isinstance(told, Version) else None)
        elif isinstance(event, ev.NodesChanged):
            self._add("nodes-changed", why=str(told))
        elif isinstance(event, ev.Forgotten):
            self._add("forgotten", event.request)
        elif isinstance(event, ev.BoundToActor):
            self._add("bound", event.request, by={"actor": event.actor})
        elif isinstance(event, ev.PlacementFailed):
            move = next((one for one in self.turn.moves if isinstance(one, Move)), None)
            if move is not None and move.change != mv.GIVEN_BACK_AFTER_ALL:
                self._add("not-placed", move.allocation.request, pool=move.pool.name, rule="placement", why=event.why)

    def _config(
        self, event: ev.ConfigApplied | ev.RolledBack | ev.PolicyDetached | ev.PoolDeleted, version: Version | None
    ) -> None:
        by = {"name": event.by, "note": event.note, "version": version.number if version is not None else None}
        self._add(
            _CHANGES[type(event)],
            pool=event.pool if isinstance(event, ev.PolicyDetached | ev.PoolDeleted) else None,
            by={name: value for name, value in by.items() if value not in ("", None)},
            why=version.what if version is not None else "nothing changed",
        )
        last = self.records[-1]
        if isinstance(event, ev.PolicyDetached) and isinstance(last, dict):
            last |= {"component": event.component, "component_type": event.component_type}

    # --- what was decided ---------------------------------------------------------------------

    def _instruction(self, one: Instruction, request: Request | None) -> None:
        if type(one) is ChangeStatus and one.old is None and self._shared is not None and request is not None:
            self._submission(request, self._shared)
        elif isinstance(one, CreatePlacementGroup):
            if one.pool is None:
                self._add("granted", request, rule="unmanaged", why="no policy is needed: it is charged to no pool",
                          facts={"demand": dict(request.demand)} if request is not None else {})  # fmt: skip
        elif isinstance(one, ChangeStatus):
            self._status(one, request if request is not None else one.request)
        elif isinstance(one, WarnHolder):
            self._add("notice", request if request is not None else one.request, pool=_pool_of(request),
                      rule=one.reason.rule, why=one.reason.sentence, facts={"deadline": one.deadline})  # fmt: skip
        elif isinstance(one, HandOverPlacementGroup):
            why = f"the placement group of '{one.request}' is what it asks for, and was left clean"
            whose = request if request is not None else one.to
            self._add("handed-over", whose, pool=_pool_of(request), by={"request": one.request}, why=why)

    def _submission(self, request: Request, shared: dict[Any, str]) -> None:
        kind = (request.ask, request.job, request.holder)
        rest = shared.get(kind)
        if rest is None:
            self._status(ChangeStatus(request.id, None, Status.PENDING, None, None), request)
            record = self.records.pop()
            assert isinstance(record, dict)
            rest = shared[kind] = text_of({name: one for name, one in record.items() if name not in _OWN})[1:]
        self.records.append(
            f'{{"event":{self.turn.number},"index":{len(self.records)},"at":{self.turn.at!r},"kind":"submitted",'
            f'"request":{quoted(request.id)},"number":{request.number},{rest}'
        )

    def _status(self, change: ChangeStatus, request: Request | str) -> None:
        reason, by = change.reason, dict[str, Any]()
        facts: dict[str, Any] = {}
        rule, why = (reason.rule, reason.sentence) if reason is not None else (None, "")
        if change.to is Status.PREEMPTING:
            kind = "expired"
            if isinstance(reason, Evicted):
                kind, rule, by = "evicted", reason.why, {"request": reason.by, "component": reason.by_component}
        elif change.old is change.to:
            kind, why = "repaired", "Ray has repaired its placement group"
        else:
            kind = _ENDS[change.to]
            if isinstance(reason, Evicted):
                by = {"request": reason.by, "component": reason.by_component}
        if isinstance(request, Request):
            if kind == "submitted":
                facts = {"demand": dict(request.demand)}
                by = {name: value for name, value in (("job", request.job), ("holder", request.holder)) if value}
            elif kind == "ready":
                facts["waited_seconds"] = self.turn.at - request.submitted_at
                why = "its placement group is there"
        event = self.turn.event
        if isinstance(event, ev.Released) and event.job and event.request == change.request:
            by = {**by, "job": event.job}
        self._add(kind, request, pool=change.pool, by=by, rule=rule, why=why, facts=facts)

    # --- what it did to the figures -----------------------------------------------------------

    def _move(self, move: Move | PoolMove) -> None:
        if isinstance(move, PoolMove):
            self._add(
                "pool-changed", pool=move.pool, why=_pool_change(move), figures=_levels(move.before, move.after)
            )
            return
        last = self.records[-1] if self.records else None
        request, figures = move.allocation.request, _figures(move)
        if (
            move.change in (mv.LEAVES, mv.FREED_AT_ONCE)
            and isinstance(last, dict)
            and last["request"] == request.id
            and last["kind"] in _LEAVING
            and not last["figures"]
        ):
            last["figures"] = figures
            last["pool"] = last["pool"] or move.pool.name
            return
        kind, rule, why, by = self._told_of(move)
        facts = {"demand": dict(request.demand)} if kind == "granted" else {}
        self._add(kind, request, pool=move.pool.name, by=by, rule=rule, why=why, figures=figures, facts=facts)

    def _told_of(self, move: Move) -> tuple[str, str | None, str, dict[str, Any]]:
        """Kind, rule, why, and by whom."""
        if move.change == mv.CHARGED:
            if move.allocation.opportunistic:
                return "granted", "backfill", "it fits, and the one before it in line does not yet", {}
            return "granted", "room", "there is room for it, and its turn has come", {}
        if move.change == mv.LEAVES:
            by = move.by
            who = {} if by is None else {"request": by.id, "component": by.owner[0]}
            made = "" if by is None else f" and gives its room to '{by.id}' of '{by.owner[0]}'"
            return "returned", None, f"it was not placed yet: it goes back to its place{made}", who
        if move.change == mv.NEVER_GIVEN_BACK:
            return "phantom", None, "Ray has not given its room back in time", {}
        if move.change == mv.NEVER_MADE:
            return "phantom", None, "Ray was asked for its placement group and may still make it", {}
        if move.change == mv.GIVEN_BACK_AFTER_ALL:
            return "freed", None, "the phantom room was seen free", {}
        last = self.records[-1] if self.records else None
        if isinstance(last, dict) and last["kind"] == "phantom":
            return "freed", None, "counted by the broker alone, and so free at once", {}
        return "freed", None, "its placement group is gone", {}


def _pool_of(request: Request | None) -> str | None:
    return request.pool if request is not None else None


def _figures(move: Move) -> dict[str, Any]:
    """By key: used, borrowed and leaving of the component, its reserve; free and phantom of the pool."""
    keys, account = move.pool.ledger.keys, move.account

    def told(figures: tuple[mv.Figures, ...]) -> dict[str, dict[str, int]]:
        rows: dict[str, dict[str, int]] = {}
        for (key, _), (used, leaving, free, phantom) in zip(move.need, figures, strict=True):
            row = rows[keys[key]] = {}
            if account is not None:
                reserved = account.reserved[key]
                row |= {
                    "used": used, "borrowed": max(used - reserved, 0), "reserved": reserved, "leaving": leaving,
                }  # fmt: skip
            row |= {"free": free, "phantom": phantom}
        return rows

    return {"before": told(mv.before(move)), "after": told(move.after)}


def _levels(before: Level | None, after: Level | None) -> dict[str, Any]:
    return {"before": _level(before), "after": _level(after)}


def _level(level: Level | None) -> dict[str, dict[str, int]]:
    if level is None:
        return {}
    rows = zip(level.keys, level.capacity, level.free, level.phantom, strict=True)
    return {
        key: {"capacity": capacity, "used": capacity - free - phantom, "free": free, "phantom": phantom}
        for key, capacity, free, phantom in rows
    }


def _pool_change(move: PoolMove) -> str:
    if move.before is None:
        return f"pool '{move.pool}' is new"
    return f"pool '{move.pool}' is gone" if move.after is None else f"pool '{move.pool}' is as its config says now"


def told_of_nodes(before: Sequence[Any] | None, after: Sequence[Any]) -> str:
    """ "n4 joined; n2 left"."""
    old, new = {one.id: one for one in before or ()}, {one.id: one for one in after}
    words = [f"{id} joined" for id in new if id not in old] + [f"{id} left" for id in old if id not in new]
    words += [f"{id} changed" for id, one in new.items() if id in old and old[id] != one]
    return "; ".join(words) or "the same nodes"


def matching(
    records: Iterable[Record],
    component: str | None = None,
    pool: str | None = None,
    request: str | None = None,
    kind: str | None = None,
) -> Iterator[Record]:
    """Those that are about all that is given. An eviction is also about the component that it was for."""
    for record in records:
        if component is not None and component not in (record["component"], record["by"].get("component")):
            continue
        if pool is not None and record["pool"] != pool:
            continue
        if request is not None and request not in (record["request"], record["by"].get("request")):
            continue
        if kind is None or record["kind"] == kind:
            yield record


def subject_of(instruction: Instruction) -> str:
    """The id of the request that it is about."""
    if isinstance(instruction, CreatePlacementGroup):
        return str(instruction.spec.id)
    return instruction.to if isinstance(instruction, HandOverPlacementGroup) else instruction.request
