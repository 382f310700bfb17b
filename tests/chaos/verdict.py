"""Whether a chaos run has kept its promises: nothing lost, doubled or leaked, and nobody waits for ever.

Pure: from what the clients were told (ledger.py), what the broker said when it was asked about everything (the
audits), and what Ray shows at the end. Every fault is a sentence; there is no number without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from raypool.core.status import Status
from raypool.view import PoolView, RequestView
from tests.chaos.ledger import Ledger, Told

WITHDRAWN_SECONDS = 75.0
"""Whoever stopped waiting says so without waiting for an answer, and a kill may swallow that; who was killed says
nothing. Then the broker finds out by itself, at the latest when it was up and nobody has asked for
owner_timeout_seconds (60)."""


CLOCK_SECONDS = 1.0
"""By so much the broker's clock and that of the run may differ, and the writing down of a death may be late."""


@dataclass(frozen=True)
class Seen:
    """A request in an audit. An audit has thousands of them: this is what of a view is judged."""

    id: str
    status: Status
    number: int
    reason: str
    nodes: tuple[str, ...]
    group_id: str | None
    pool: str | None
    demand: Mapping[str, int]
    placing: bool
    job: str | None
    lifetime: str | None
    ended_at: float | None

    @classmethod
    def of(cls, view: RequestView) -> Seen:
        return cls(
            id=view.id,
            status=Status(view.status),
            number=view.number,
            reason=view.reason or "",
            nodes=tuple(view.nodes),
            group_id=view.group_id,
            pool=view.pool,
            demand=view.demand,
            placing=view.placing,
            job=view.job,
            lifetime=view.lifetime,
            ended_at=view.ended_at,
        )


Audit = Mapping[str, Seen]
"""All requests that the broker knew at one moment, by id."""


@dataclass
class World:
    """What is outside the broker when all is over.

    audits: in order; the last is the final one. ended_kept: how many ended requests a broker remembers.
    glimpses: what was doubled at moments between the audits. broker_kills: when. jobs_gone, pids_killed: when the
    driver of a job, and a process, ended. nodes_lost: ids of nodes that were killed. groups: Ray's placement groups
    of ours that are not removed, by id, with their names. groups_on_nodes: the ids that nodes' figures show.
    gpus_taken: on all nodes. gpus_of: by group id, what its bundles hold.
    """

    audits: list[Audit]
    pools: list[PoolView] = field(default_factory=list)
    glimpses: list[str] = field(default_factory=list)
    broker_kills: list[float] = field(default_factory=list)
    jobs_gone: Mapping[str, float] = field(default_factory=dict)
    pids_killed: Mapping[int, float] = field(default_factory=dict)
    nodes_lost: set[str] = field(default_factory=set)
    groups: dict[str, str] = field(default_factory=dict)
    groups_on_nodes: set[str] = field(default_factory=set)
    gpus_taken: float = 0.0
    gpus_of: dict[str, float] = field(default_factory=dict)
    ended_kept: int = 10_000

    def longest_life(self, since: float, until: float) -> float:
        """The longest time without a kill of the broker: silence counts only while one and the same was up."""
        kills = [at for at in sorted(self.broker_kills) if since < at < until]
        return max(after - before for before, after in pairwise([since, *kills, until]))

    @property
    def phantom_gpus(self) -> int:
        """What Ray does not give back, by the broker's word."""
        return sum(pool.phantom.get("gpu", 0) for pool in self.pools)

    @cached_property
    def forgets(self) -> bool:
        """Whether the broker has ended more than it keeps."""
        return sum(one.status.terminal for one in self.audits[-1].values()) >= self.ended_kept


@dataclass
class Verdict:
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not (self.lost or self.doubled or self.leaked or self.hung or self.unexpected)


def judge(ledger: Ledger, world: World) -> Verdict:
    verdict = Verdict(hung=list(ledger.hung), unexpected=list(ledger.unexpected))
    final = world.audits[-1]
    for told in ledger.requests.values():
        if told.acknowledged:
            verdict.lost += _lost(told, world)
        verdict.leaked += _outlived(told, final.get(told.id), world)
    for audit in world.audits:
        verdict.doubled += doubles(audit.values())
    verdict.doubled += world.glimpses + doubled_groups(world.groups)
    verdict.lost += _changed_its_mind(world.audits)
    verdict.leaked += _without_owner(final, world) + _figures(final, world)
    return verdict


# --- lost -------------------------------------------------------------------------------------


def _lost(told: Told, world: World) -> list[str]:
    """At most one sentence for a request: one fault has many consequences."""
    seen = next((audit[told.id] for audit in reversed(world.audits) if told.id in audit), None)
    if seen is None:
        return [f"{told.id} was acknowledged as {_last(told)}, and no audit has found it"]
    if told.id not in world.audits[-1] and not (seen.status.terminal and world.forgets):
        return [f"{told.id} was {seen.status.value} in an earlier audit, and is not known any more"]
    if told.unknown:
        return [f"{told.id} was acknowledged, and then there was no such request: {told.unknown[0]['message']}"]
    return (_numbers(told, seen) or _moves(told, seen) or _unasked_end(told, seen, world))[:1]


def _last(told: Told) -> str:
    return str(max(told.answers, key=lambda entry: entry["at"])["status"])


def _numbers(told: Told, seen: Seen) -> list[str]:
    numbers = {entry["number"] for entry in told.answers} | {seen.number}
    return [f"{told.id} had the submission numbers {sorted(numbers)}"] if len(numbers) > 1 else []


def _moves(told: Told, seen: Seen) -> list[str]:
    """What each process has heard, and what is true at the end, is a way through the table of moves."""
    faults = []
    for entries in told.heard.values():
        statuses = [Status(entry["status"]) for entry in entries] + [seen.status]
        for before, after in pairwise(statuses):
            if before is not after and not can_become(before, after):
                faults.append(f"{told.id} was told to be {before.value}, and then it was {after.value}")
    if told.given_back_at is not None and not seen.status.terminal and seen.status is not Status.PREEMPTING:
        faults.append(f"{told.id} was given back, which was acknowledged, and is {seen.status.value}")
    return faults


def can_become(before: Status, after: Status) -> bool:
    """In one legal move or several."""
    reached, new = {before}, {before}
    while new:
        new = {to for one in new for to in Status if to in one.moves} - reached
        reached |= new
    return after in reached


def _unasked_end(told: Told, seen: Seen, world: World) -> list[str]:
    """An end that nobody outside has caused: neither its owner, nor the owner's death, nor a node's."""
    if not seen.status.terminal or seen.status is Status.PREEMPTED or told.given_back:
        return []
    if seen.status is Status.REJECTED and _asked_too_much(told):
        return []
    owner_gone = _was_gone(told, seen, world)
    node_gone = bool((told.nodes | set(seen.nodes)) & world.nodes_lost) or _names_one(seen.reason, world.nodes_lost)
    if seen.status is Status.CANCELLED and (owner_gone or node_gone):
        return []
    return [f"{told.id} is {seen.status.value}, which nobody has asked for: {seen.reason}"]


def _asked_too_much(told: Told) -> bool:
    """It was rejected when it was submitted, for its size; not later, and not because there was no pool."""
    return all(entry["status"] == "rejected" and "asks for" in entry["reason"] for entry in told.answers)


def _was_gone(told: Told, seen: Seen, world: World) -> bool:
    """Whether its job was over, or a process that had asked for it was killed, when the request ended."""
    ends = [world.jobs_gone.get(seen.job or "")] + [world.pids_killed.get(pid) for pid in told.pids]
    ended_at = seen.ended_at or 0.0
    return any(at is not None and at <= ended_at + CLOCK_SECONDS for at in ends)


def _names_one(sentence: str, nodes: Iterable[str]) -> bool:
    """Sentences may shorten a node's id."""
    return any(node[:8] in sentence for node in nodes)


def _changed_its_mind(audits: list[Audit]) -> list[str]:
    faults = []
    for earlier, later in pairwise(audits):
        for id, before in earlier.items():
            after = later.get(id)
            if after is None or after.status is before.status:
                continue
            if not can_become(before.status, after.status):
                faults.append(f"{id} was {before.status.value} in an audit, and {after.status.value} in the next")
    return faults


# --- doubled ----------------------------------------------------------------------------------


def doubles(requests: Iterable[Seen]) -> list[str]:
    """Among requests that live at one moment: a number, or a placement group, that stands for two."""
    living = [one for one in requests if not one.status.terminal]
    faults = []
    for what, values in (
        ("submission number", [one.number for one in living]),
        ("placement group", [one.group_id for one in living if one.group_id and one.status.running]),
    ):
        for value, times in Counter(values).items():
            if times > 1:
                faults.append(f"{what} {value} stands for {times} living requests")
    return faults


def doubled_groups(groups: Mapping[str, str]) -> list[str]:
    """Placement groups by id, with their names, which end with the request: one for each request."""
    times = Counter(groups.values())
    return [f"there are {count} placement groups {name}" for name, count in times.items() if count > 1]


# --- leaked -----------------------------------------------------------------------------------


def _outlived(told: Told, seen: Seen | None, world: World) -> list[str]:
    """Its owner stopped waiting, or was killed, and it lived on."""
    if seen is None or seen.ended_at is None:
        return []  # one that still lives is judged by whether it has an owner at all
    killed = [world.pids_killed[pid] for pid in told.askers if pid in world.pids_killed]
    if told.withdrawn_at is not None:
        since, what = told.withdrawn_at, "stopped waiting"
    elif killed and len(killed) == len(told.askers) and seen.lifetime != "detached":
        since, what = max(killed), "was killed"
    else:
        return []
    if world.longest_life(since, seen.ended_at) <= WITHDRAWN_SECONDS:
        return []
    return [f"{told.id}: its owner {what}, and {seen.ended_at - since:.0f} s later it was still there"]


def _without_owner(final: Audit, world: World) -> list[str]:
    return [
        f"{one.id} is {one.status.value}, and its job {one.job} is over"
        for one in final.values()
        if not one.status.terminal and one.lifetime != "detached" and (one.job is None or one.job in world.jobs_gone)
    ]


def _figures(final: Audit, world: World) -> list[str]:
    """What the broker counts as used, what its living requests hold, and what Ray shows: all the same."""
    faults = []
    running = {one.group_id: one for one in final.values() if one.status.running and one.group_id}
    for group_id, name in sorted(world.groups.items()):
        if group_id not in running:
            faults.append(f"placement group {name} ({group_id}) belongs to no living request")
    for group_id, one in running.items():
        if group_id not in world.groups and not set(one.nodes) & world.nodes_lost:
            faults.append(f"{one.id} is {one.status.value} in placement group {group_id}, which Ray does not have")
    held = sum(world.gpus_of.get(group_id, 0.0) for group_id in world.groups)
    # What Ray itself leaks (docs/explanation/ray-facts.md) is no fault of the broker's if he says it, and how much.
    told = bool(world.phantom_gpus) and held + world.phantom_gpus == world.gpus_taken
    if not told:
        for group_id in sorted(world.groups_on_nodes - set(world.groups)):
            faults.append(f"nodes still give room to placement group {group_id}, which is gone")
    if held + world.phantom_gpus != world.gpus_taken:
        faults.append(
            f"{world.gpus_taken:g} GPUs are taken on the nodes, our placement groups hold {held:g}, and "
            f"{world.phantom_gpus} are told as phantom"
        )
    return faults + _used(final, world)


def _used(final: Audit, world: World) -> list[str]:
    faults = []
    for pool in world.pools:
        charged = [one for one in final.values() if one.pool == pool.name and (one.status.running or one.placing)]
        for key, used in pool.used.items():
            live = sum(one.demand.get(key, 0) for one in charged)
            by_policy = sum(policy.used.get(key, 0) for policy in pool.policies)
            phantom = pool.phantom.get(key, 0)
            if not used == live == by_policy or used + phantom + pool.free[key] != pool.capacity[key]:
                faults.append(
                    f"pool {pool.name}: {used} {key} used, by its policies {by_policy}, by living requests {live}, "
                    f"phantom {phantom}, free {pool.free[key]} of {pool.capacity[key]}"
                )
    return faults
