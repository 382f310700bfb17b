"""Who waits in one pool, so ordered that a walk costs by what it decides and not by who waits.

Requests of the same policy that ask for the same and are equally preemptible are alike to every rule
of the walk, but for the marks that a few of them carry. They form a *group*: one verdict for all, and
the first of them by number stands for the rest. The groups of one policy form its *line*. Of a line the walk
looks at no more than three, its *heads*: the first of those that are not preemptible and inside the reserve, the
first of the preemptible inside, and the first of the rest, unless that is over the policy's limit, for then it is
passed over and holds back the others. The heads of all lines stand in the order of the walk (`Queue.order`), and
are worked out again only for a line whose policy's figures or whose first members have changed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from sortedcontainers import SortedKeyList, SortedList

from raypool.core.ledger import Account, Standing
from raypool.core.request import Need, Request

GroupKey = tuple[tuple[str, str], Need, bool]

REST = 2
"""The third class of the walk's order: not inside its reserve."""

Rank = tuple[int, int, int]
"""Class, minus priority, number: where a request stands in the walk; smaller is earlier."""

Entry = tuple[int, int, int, Request, "Group"]
"""A rank, with whose it is. (Flat: a walk makes one at every step. No two have the same number.)"""

_number = attrgetter("number")


class Group:
    """Waiting requests that are alike, ascending by submission number. Never empty while it is queued.

    first: of its members. reservable: it could be inside its policy's reserve, if nothing else were.
    """

    __slots__ = ("account", "first", "key", "members", "need", "preemptible", "reservable")

    first: Request

    def __init__(self, key: GroupKey, account: Account) -> None:
        self.key = key
        self.account = account
        self.need: Need = key[1]
        self.preemptible = key[2]
        self.reservable = all(amount <= account.reserved[at] for at, amount in self.need)
        self.members: SortedKeyList = SortedKeyList(key=_number)

    def add(self, request: Request) -> int:
        """How many members have a smaller number. Newcomers come last, but for who takes up an earlier request."""
        members, number = self.members, request.number
        at = self.before(number) if members and number < members[-1].number else len(members)
        members.add(request)
        if at == 0:
            self.first = request
        return at

    def remove(self, request: Request) -> int:
        """How many members have a smaller number."""
        members = self.members
        if request is not self.first:
            at = self.before(request.number)
            del members[at]
            return at
        members.pop(0)
        if members:
            self.first = members[0]
        return 0

    def member(self, at: int) -> Request:
        return self.first if at == 0 else self.members[at]

    def place(self, standing: Standing) -> int:
        """The first criterion of the walk's order: 0 not preemptible and inside its reserve, 1 preemptible
        and inside, 2 the rest."""
        if self.reservable and standing.inside_reserve(self.need, self.preemptible):
            return int(self.preemptible)
        return REST

    def rank(self, place: int, number: int) -> Rank:
        """Where its member of that number stands in the walk, when the group has that place: the order of waiters."""
        return place, -self.account.priority, number

    @property
    def first_rank(self) -> Rank:
        """Where its first member stands when a walk begins."""
        return self.rank(self.place(self.account), self.first.number)

    def before(self, number: int) -> int:
        """How many members have a smaller number."""
        count: int = self.members.bisect_key_left(number)
        return count


class Heads(NamedTuple):
    """entries: those of a line that a walk may look at next, at most three. over: the rank of the first of the rest,
    if that is over the limit: from there on the walk passes over the rest of the line."""

    entries: tuple[Entry, ...] = ()
    over: Rank | None = None


class Line:
    """The groups of one policy. heads: as the ledger's own figures have it, when they were last worked out."""

    __slots__ = ("account", "groups", "heads", "reservable", "rest")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.groups: dict[GroupKey, Group] = {}
        self.heads = Heads()
        self.reservable: dict[GroupKey, Group] = {}
        self.rest: SortedList = SortedList()  # (number of the first member, group): preemptible, never in the reserve

    def heads_now(self) -> Heads:
        """On the ledger's own figures, with nobody taken."""
        groups = list(self.reservable.values())
        if self.rest:
            groups.append(self.rest[0][1])
        return self._heads_of(groups, self.account, {})

    def heads_with(self, standing: Standing, taken: Mapping[Group, int]) -> Heads:
        """On those figures, when so many of each group were taken from its front."""
        return self._heads_of(self.groups.values(), standing, taken)

    def _heads_of(self, groups: Iterable[Group], standing: Standing, taken: Mapping[Group, int]) -> Heads:
        found: list[Entry | None] = [None, None, None]
        for group in groups:
            at = taken.get(group, 0) if taken else 0
            if at >= len(group.members):
                continue
            place = group.place(standing)
            if place == REST and not group.preemptible:
                continue  # passed over, and holds up nobody
            request = group.member(at)
            best = found[place]
            if best is None or request.number < best[2]:
                found[place] = (*group.rank(place, request.number), request, group)
        last, over = found[REST], None
        if last is not None and standing.over_limit(last[4].need):
            found[REST], over = None, last[:3]
        return Heads(tuple(one for one in found if one is not None), over)


class Queue:
    """The groups of one pool, and the order in which a walk looks at them.

    order: the heads of all lines, sorted. Lines in `_stale` have to be worked out again first: `refresh`.
    """

    def __init__(self) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self.lines: dict[Account, Line] = {}
        self.order: list[Entry] = []
        self.shapes = Shapes()
        self._stale: dict[Line, None] = {}

    def add(self, request: Request, need: Need, account: Account) -> tuple[Group, int]:
        """Its group, and how many of that are before it."""
        key = (account.owner, need, request.preemptible)
        group = self.groups.get(key)
        if group is None:
            group = self._new_group(key, account)
        if not group.members or request.number < group.first.number:
            self._out_of_rest(group)
            at = group.add(request)
            self._into_rest(group)
            self._stale[self.lines[account]] = None
        else:
            at = group.add(request)
        return group, at

    def add_group(self, key: GroupKey, account: Account, members: Iterable[Request]) -> None:
        """A whole group that is not there yet, of at least one."""
        group = self._new_group(key, account)
        group.members.update(members)
        group.first = group.members[0]
        self._into_rest(group)
        self._stale[self.lines[account]] = None

    def remove(self, request: Request, need: Need) -> tuple[Group, int]:
        """Its group, and how many of that are before it."""
        group = self.groups[request.owner, need, request.preemptible]
        if group.first is not request:
            return group, group.remove(request)
        self._out_of_rest(group)
        group.remove(request)
        self._stale[self.lines[group.account]] = None
        if group.members:
            self._into_rest(group)
        else:
            self._drop(group)
        return group, 0

    def _new_group(self, key: GroupKey, account: Account) -> Group:
        group = self.groups[key] = Group(key, account)
        line = self.lines.get(account)
        if line is None:
            line = self.lines[account] = Line(account)
        line.groups[key] = group
        if group.reservable:
            line.reservable[key] = group
        if group.preemptible:
            self.shapes.add(group)
        return group

    def _drop(self, group: Group) -> None:
        """Nobody is left in it."""
        del self.groups[group.key]
        line = self.lines[group.account]
        del line.groups[group.key]
        line.reservable.pop(group.key, None)
        if group.preemptible:
            self.shapes.remove(group)

    def _into_rest(self, group: Group) -> None:
        if group.preemptible and not group.reservable:
            self.lines[group.account].rest.add((group.first.number, group))

    def _out_of_rest(self, group: Group) -> None:
        if group.preemptible and not group.reservable and group.members:
            self.lines[group.account].rest.remove((group.first.number, group))

    # --- the order ----------------------------------------------------------------------------

    def account_changed(self, account: Account) -> None:
        """What its policy uses is other than before."""
        line = self.lines.get(account)
        if line is not None:
            self._stale[line] = None

    def refresh(self) -> None:
        """Brings `order` up to date."""
        while self._stale:
            self.refresh_line(next(iter(self._stale)))

    def refresh_line(self, line: Line) -> None:
        self._stale.pop(line, None)
        before, line.heads = line.heads, line.heads_now()
        after = line.heads.entries
        for entry in before.entries:
            if entry not in after:
                del self.order[bisect_left(self.order, entry)]
        for entry in after:
            if entry not in before.entries:
                insort(self.order, entry)
        if not line.groups:
            del self.lines[line.account]

    def __iter__(self) -> Iterator[Request]:
        """All who wait, by group; not in the order of the walk."""
        for group in self.groups.values():
            yield from group.members

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups.values())


class Shapes:
    """Preemptible groups by what they need, so that those that fit into little room are found without the others."""

    def __init__(self) -> None:
        self._groups: dict[Need, dict[GroupKey, Group]] = {}
        # By the keys that are needed: for each key the needs, smallest amount first, as (amount, need).
        self._sorted: dict[tuple[int, ...], tuple[SortedList, ...]] = {}

    def add(self, group: Group) -> None:
        alike = self._groups.get(group.need)
        if alike is None:
            alike = self._groups[group.need] = {}
            for column, (_, amount) in zip(self._columns(group.need), group.need, strict=True):
                column.add((amount, group.need))
        alike[group.key] = group

    def remove(self, group: Group) -> None:
        alike = self._groups[group.need]
        del alike[group.key]
        if not alike:
            del self._groups[group.need]
            for column, (_, amount) in zip(self._columns(group.need), group.need, strict=True):
                column.remove((amount, group.need))

    def _columns(self, need: Need) -> tuple[SortedList, ...]:
        keys = tuple(key for key, _ in need)
        columns = self._sorted.get(keys)
        if columns is None:
            columns = self._sorted[keys] = tuple(SortedList() for _ in keys)
        return columns

    def fitting(self, free: list[int]) -> Iterator[Group]:
        """All that need no more than is free; of each set of keys only the needs are looked at that the scarcest
        one lets pass."""
        for keys, columns in self._sorted.items():
            if not keys:
                yield from self._groups.get((), {}).values()
                continue
            best, count = columns[0], columns[0].bisect_left((free[keys[0]] + 1,))
            for key, column in zip(keys[1:], columns[1:], strict=True):
                fewer = column.bisect_left((free[key] + 1,))
                if fewer < count:
                    best, count = column, fewer
            if count:
                for _, need in best.islice(0, count):
                    if len(keys) == 1 or all(amount <= free[key] for key, amount in need):
                        yield from self._groups[need].values()
