"""Who waits in one pool, so ordered that a walk costs by groups and not by heads.

Requests of the same policy that ask for the same and are equally preemptible are alike to every rule
of the walk, but for the marks that a few of them carry. They form a group: one verdict for all, and
the first of them by number stands for the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile

from raypool.core.ledger import Account, Standing
from raypool.core.request import Need, Request

GroupKey = tuple[tuple[str, str], Need, bool]

REST = 2
"""The third class of the walk's order: not inside its reserve."""

Rank = tuple[int, int, int]
Entry = tuple[int, int, int, Request, "Group"]


class Group:
    """Waiting requests that are alike, ascending by submission number. Never empty while it is queued.

    What a walk asks of it first (`entry`) is kept until its policy's figures or its first member change.
    """

    __slots__ = ("_entry", "_judged_at", "account", "key", "members", "need", "preemptible")

    def __init__(self, key: GroupKey, account: Account) -> None:
        self.key = key
        self.account = account
        self.need: Need = key[1]
        self.preemptible = key[2]
        self.members: OrderedDict[int, Request] = OrderedDict()
        self._entry: Entry | None = None
        self._judged_at = -1

    def place(self, standing: Standing) -> int:
        """The first criterion of the walk's order: 0 not preemptible and inside its reserve, 1 preemptible
        and inside, 2 the rest."""
        return int(self.preemptible) if standing.inside_reserve(self.need, self.preemptible) else REST

    def entry(self) -> Entry:
        """Where its first member stands, on the ledger's own figures, with the member and the group."""
        account = self.account
        if self._entry is None or self._judged_at != account.changes:
            request = self.first
            self._entry = (self.place(account), -account.priority, request.number, request, self)
            self._judged_at = account.changes
        return self._entry

    @property
    def first(self) -> Request:
        return next(iter(self.members.values()))

    def before(self, number: int) -> int:
        """How many members have a smaller number. Free for the newest, who are asked for most."""
        last = next(reversed(self.members))
        if last <= number:
            return len(self.members) - (last == number)
        return sum(1 for _ in takewhile(number.__gt__, self.members))

    def add(self, request: Request) -> None:
        last = next(reversed(self.members), -1)
        self.members[request.number] = request
        if request.number < last:
            # Somebody went back to his place. Rare, so it may cost the length of the group.
            self.members = OrderedDict(sorted(self.members.items()))
            self._entry = None

    def remove(self, request: Request) -> None:
        del self.members[request.number]
        self._entry = None


class Queue:
    """The groups of one pool."""

    def __init__(self) -> None:
        self.groups: dict[GroupKey, Group] = {}

    def add(self, request: Request, need: Need, account: Account) -> Group:
        key = (account.owner, need, request.preemptible)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key, account)
        group.add(request)
        return group

    def remove(self, request: Request, need: Need) -> None:
        key = (request.owner, need, request.preemptible)
        group = self.groups[key]
        group.remove(request)
        if not group.members:
            del self.groups[key]

    def __iter__(self) -> Iterator[Request]:
        """All who wait, by group; not in the order of the walk."""
        for group in self.groups.values():
            yield from group.members.values()

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups.values())
