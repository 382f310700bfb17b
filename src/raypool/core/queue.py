"""Who waits in one pool, so ordered that a walk costs by groups and not by heads.

Requests of the same policy that ask for the same and are equally preemptible are alike to every rule
of the walk, but for the marks that a few of them carry. They form a group: one verdict for all, and
the first of them by number stands for the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from raypool.core.ledger import Account
from raypool.core.request import Need, Request

GroupKey = tuple[tuple[str, str], Need, bool]


class Group:
    """Waiting requests that are alike, ascending by submission number."""

    __slots__ = ("_inside", "_judged_at", "account", "key", "members", "need", "preemptible")

    def __init__(self, key: GroupKey, account: Account) -> None:
        self.key = key
        self.account = account
        self.need: Need = key[1]
        self.preemptible = key[2]
        self.members: OrderedDict[int, Request] = OrderedDict()
        self._judged_at = -1
        self._inside = False

    @property
    def inside_reserve(self) -> bool:
        """Whether its next member is inside its policy's reserve, on the figures as they stand."""
        account = self.account
        if self._judged_at != account.changes:
            self._judged_at = account.changes
            self._inside = account.inside_reserve(self.need, self.preemptible)
        return self._inside

    def add(self, request: Request) -> None:
        last = next(reversed(self.members), -1)
        self.members[request.number] = request
        if request.number < last:
            # Somebody went back to his place. Rare, so it may cost the length of the group.
            self.members = OrderedDict(sorted(self.members.items()))


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
        del group.members[request.number]
        if not group.members:
            del self.groups[key]

    def __iter__(self) -> Iterator[Request]:
        """All who wait, by group; not in the order of the walk."""
        for group in self.groups.values():
            yield from group.members.values()

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups.values())
