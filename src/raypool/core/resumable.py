"""The walk that a pool keeps: it goes on where it ended, as long as nothing has happened that it would have seen.

In its result it is `walk` (walk.py), which says what the rules are and which every test compares it with. It costs
by what it decides: a walk over a queue of which nothing can run looks at one group, and a burst of arrivals for each
of which room is being made takes one step for each, though all of them are set aside.

The steps of a walk are those that it took from the front of some line: set aside, or passed since room is made for
them elsewhere. `taken` counts them, `_steps` has their ranks, `_furthest` the largest. Whoever changes the pool tells
the walk what has happened (`arrived`, `left`, `granted_here`, `eased`, `freed`); the answer is whether the steps
that it took would be taken again, one by one. If not, the pool begins a new one. The arguments behind the answers:

    - Only what is taken of a policy's line changes that policy's figures on the copy, so the heads of all other
      lines are the ledger's (`Queue.order`); those of its own are in `_heads`.
    - A place in the reserve can only be lost by what is charged, so the rank of a waiting request never becomes
      smaller while a walk goes on. If it is the same at both ends of some steps, it was the same in between.
    - Who comes behind all steps that were taken was not looked at by any of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from raypool.core.ledger import Account, Ledger, Standing, is_room
from raypool.core.queue import REST, Entry, Group, Heads, Rank
from raypool.core.request import Allocation, Need, Request
from raypool.core.walk import Ending, Figures, Outcome

if TYPE_CHECKING:
    from raypool.core.pool import Pool

FIRST: Rank = (-1, 0, 0)
"""Before everybody."""


class Aside(Figures):
    """The ledger's figures less what was set aside, however the ledger changes meanwhile: `follow`."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._ledger = ledger
        self._aside = [0] * len(ledger.keys)
        self._of: dict[Account, tuple[list[int], list[int]]] = {}  # all of it, and what is not preemptible

    def follow(self) -> None:
        ledger = self._ledger
        if not self._of:
            self.free, self._standings, self._copied = ledger.free, {}, False
            return
        self.free = [free - aside for free, aside in zip(ledger.free, self._aside, strict=True)]
        self._copied = True
        self._standings = {account: _with(account, *amounts) for account, amounts in self._of.items()}

    def charge(self, account: Account, need: Need, preemptible: bool) -> None:
        super().charge(account, need, preemptible)
        self._count(account, need, preemptible, 1)

    def take_back(self, account: Account, need: Need, preemptible: bool) -> None:
        """What was set aside for one of them is set aside no more. Follow the ledger afterwards."""
        self._count(account, need, preemptible, -1)
        if not any(self._of[account][0]):
            del self._of[account]

    def _count(self, account: Account, need: Need, preemptible: bool, sign: int) -> None:
        amounts = self._of.get(account)
        if amounts is None:
            amounts = self._of[account] = [0] * len(self._aside), [0] * len(self._aside)
        for key, amount in need:
            self._aside[key] += sign * amount
            amounts[0][key] += sign * amount
            if not preemptible:
                amounts[1][key] += sign * amount


def _with(account: Account, all_of_it: list[int], firm: list[int]) -> Standing:
    standing = account.copy()
    for key, amount in enumerate(all_of_it):
        standing.used[key] += amount
        standing.staying[key] += amount
        standing.firm[key] += firm[key]
    return standing


class ResumableWalk(Outcome):
    """settled: it has ended as it would now. marks_done, eviction_tried: what the cycle has done about it since it
    ended. lacks: see `victims.choose`."""

    figures: Aside

    def __init__(self, pool: Pool) -> None:
        super().__init__(Aside(pool.ledger))
        self.pool = pool
        self.queue = pool.queue
        self.settled = self.marks_done = False
        self.eviction_tried: object = None
        self.lacks: int | None = None
        self.taken: dict[Group, int] = {}
        self.elsewhere: dict[Request, Group] = {}
        self._heads: dict[Account, Heads] = {}
        self._heap: list[Entry] = []  # of those heads; some may be outdated
        self._steps: list[Rank] = []
        self._forgotten_steps = 0
        self._furthest = FIRST
        self._used_up: dict[Group, tuple[int, int]] = {}  # all taken: at which step, and a follower's place then
        self._rank = FIRST  # of whom it ended with
        self._freed = False
        self._fill: Entry | None = None
        self._fill_known = False
        self._marks_whole = True
        self._new_aside: list[Request] = []
        self._were_blocked: list[Request] = []

    # --- walking ------------------------------------------------------------------------------

    def run(self) -> bool:
        """Goes on to its end; False if its steps would not be taken again, and a new walk has to begin."""
        self.settled = True
        self.queue.refresh()
        self.figures.follow()
        if self._freed and self.taken:
            ledger = self.pool.ledger
            first = next(iter(self.set_aside), None)
            if first is not None and not self.elsewhere:
                group = self.set_aside[first]
                if is_room(ledger.free, group.account, group.need):
                    self._end(Ending.GRANT, first, group, self._steps[0])
                    return True
            if any(ledger.is_free(group.need) for group in self.taken):
                return False
        self._freed = False
        self._walk()
        return True

    def _walk(self) -> None:
        figures, heads = self.figures, self._heads
        others = iter(self.queue.order)
        other = next((one for one in others if one[4].account not in heads), None)
        while True:
            own = self._first_own()
            entry = own if own is not None and (other is None or own < other) else other
            if entry is None:
                self._end(Ending.EXHAUSTED, None, None, FIRST)
                return
            request, group = entry[3], entry[4]
            standing = figures.standing(group.account)
            if figures.fits(standing, group.need):
                self._end(Ending.GRANT, request, group, entry[:3])
                return
            if request.mark is not None and request.mark is not self.pool:
                self.elsewhere[request] = group
            elif figures.covered(standing, group.need):
                self.set_aside[request] = group
                self._new_aside.append(request)
                figures.charge(group.account, group.need, group.preemptible)
            else:
                self._end(Ending.BLOCKED, request, group, entry[:3])
                return
            self._take(entry)
            if entry is other:
                other = next((one for one in others if one[4].account not in heads), None)

    def _end(self, ending: Ending, request: Request | None, group: Group | None, rank: Rank) -> None:
        self.ending, self.request, self.group, self._rank = ending, request, group, rank

    def _first_own(self) -> Entry | None:
        """The first of the lines of which something was taken."""
        while self._heap:
            entry = self._heap[0]
            heads = self._heads.get(entry[4].account)
            if heads is not None and entry in heads.entries:
                return entry
            heapq.heappop(self._heap)
        return None

    def _take(self, entry: Entry) -> None:
        group, rank = entry[4], entry[:3]
        taken = self.taken[group] = self.taken.get(group, 0) + 1
        self._steps.append(rank)
        self._furthest = max(self._furthest, rank)
        self._look_at(group.account)
        if taken == len(group.members):
            self._note_used_up(group)

    def _note_used_up(self, group: Group) -> None:
        last = self._forgotten_steps + len(self._steps) - 1
        self._used_up[group] = last, group.place(self.figures.standing(group.account))

    def _look_at(self, account: Account) -> None:
        """The heads of a line of which something was taken."""
        before = self._heads.get(account, Heads()).entries
        heads = self._heads[account] = self.queue.lines[account].heads_with(
            self.figures.standing(account), self.taken
        )
        for entry in heads.entries:
            if entry not in before:
                heapq.heappush(self._heap, entry)

    # --- what has happened --------------------------------------------------------------------

    def arrived(self, request: Request, group: Group, at: int) -> bool:
        """It joined the queue. at: how many of its group are before it."""
        if self.ending is Ending.GRANT:
            return False
        taken = self.taken.get(group, 0)
        if at != taken:
            return at > taken  # else one that is alike stands before it, and was not reached
        account = group.account
        if not self.settled:
            self.figures.follow()
        place = group.place(self.figures.standing(account))
        rank = group.rank(place, request.number)
        if place == REST and not group.preemptible:
            return True  # passed over, and holds up nobody
        if account in self._heads:
            if not self._comes_after(group, place, rank):
                return False
            self._look_at(account)
        elif rank <= self._furthest:
            return False
        if self.ending is not Ending.BLOCKED or rank < self._rank:
            self._go_on()
        elif self._fill_known:
            self._fill = self._earlier_fill(self._fill, group)
        return True

    def _comes_after(self, group: Group, place: int, rank: Rank) -> bool:
        """Whether one of that rank, next of its group now, was behind each step at which it could have been looked
        at. (Of its line something was taken.)"""
        last, then = self._used_up.pop(group, (self._forgotten_steps - 1, group.place(group.account)))
        later = self._steps[last + 1 - self._forgotten_steps :]
        return place == then and (not later or max(later) < rank)

    def left(self, request: Request, group: Group, at: int) -> bool:
        """It left the queue, and was not granted here. at: how many of its group were before it."""
        if request in self.set_aside or request in self.elsewhere or self.ending is Ending.GRANT:
            return False
        self._fill_known = False
        account = group.account
        if at > self.taken.get(group, 0):
            return True
        if account in self._heads:
            if request is not self.blocked:
                return False  # it may have held back others of its line
            if self.taken.get(group) == len(group.members):
                self._note_used_up(group)
            if not self.settled:
                self.figures.follow()
            self._look_at(account)
        elif not self._heads_come_after(account):
            return False
        self._go_on()
        return True

    def granted_here(self, request: Request, group: Group) -> bool:
        """It left the queue, and its grant was charged to the ledger."""
        account = group.account
        if request in self.set_aside:
            if self.elsewhere or request is not next(iter(self.set_aside)):
                return False
            self._forget_first_step(request, group)
            self._freed = True
            self._go_on()
        elif account in self._heads or request in self.elsewhere:
            return False
        elif self._stays_blocked(account):
            self._fill_known = False
            self.figures.follow()
        else:
            self._go_on()
        return True

    def _stays_blocked(self, account: Account) -> bool:
        """Something was granted to that policy behind the blocked one. There is less room now; and of the waiters,
        only that policy's may have moved, to the back."""
        if not self.settled or self.ending is not Ending.BLOCKED:
            return False
        assert self.group is not None
        return account is not self.group.account

    def _forget_first_step(self, request: Request, group: Group) -> None:
        """What was set aside for it is charged in earnest: for all who come after, nothing has changed."""
        del self.set_aside[request], self._steps[0]
        self._forgotten_steps += 1
        self.figures.take_back(group.account, group.need, group.preemptible)
        self.taken[group] -= 1
        if not self.taken[group]:
            del self.taken[group]
            self._used_up.pop(group, None)
            if not any(one.account is group.account for one in self.taken):
                del self._heads[group.account]

    def eased(self, account: Account) -> bool:
        """Something of that policy is leaving: less of it stays."""
        if self.ending is Ending.GRANT or account in self._heads or not self._heads_come_after(account):
            return False
        self._go_on()
        return True

    def _heads_come_after(self, account: Account) -> bool:
        """Whether no step would have looked at the present heads of a line of which nothing was taken."""
        line = self.queue.lines.get(account)
        if line is None or not self.taken:
            return True
        self.queue.refresh_line(line)
        return all(entry[:3] > self._furthest for entry in line.heads.entries)

    def freed(self) -> bool:
        """There is more room; some who were leaving may have left."""
        if self.ending is Ending.GRANT:
            return False
        self._freed = True
        self._go_on()
        return True

    def _go_on(self) -> None:
        if self.settled and self.blocked is not None:
            self._were_blocked.append(self.blocked)
        self.settled = self.marks_done = self._fill_known = False
        self.lacks = None
        self.ending, self.request, self.group = Ending.EXHAUSTED, None, None

    # --- what follows from it -----------------------------------------------------------------

    def doubtful_marks(self) -> Collection[Request]:
        """Marks here that may have to end: the walk may neither have set them aside nor be blocked by them."""
        if self._marks_whole:
            self._marks_whole, self._were_blocked = False, []
            return list(self.pool.marked)
        doubtful, self._were_blocked = self._were_blocked, []
        return [request for request in doubtful if request.mark is self.pool]

    def newly_aside(self) -> Collection[Request]:
        """Who was set aside since this was last asked."""
        new, self._new_aside = self._new_aside, []
        return [request for request in new if request in self.set_aside]

    def backfill(self) -> Request | None:
        """Of those behind the blocked one, who may run meanwhile (semantics 5, step 4)."""
        if not self._fill_known:
            self.queue.refresh()
            self._fill, self._fill_known = None, True
            for group in self.queue.shapes.fitting(self.figures.free):
                self._fill = self._earlier_fill(self._fill, group)
        return self._fill[3] if self._fill else None

    def may_fill(self, newcomer: Request) -> bool:
        """Whether that may be whom `backfill` names, as far as it is known."""
        return not self._fill_known or (self._fill is not None and self._fill[3] is newcomer)

    def _earlier_fill(self, fill: Entry | None, group: Group) -> Entry | None:
        """That one, or the next of the group if that may run meanwhile and comes first."""
        at = self.taken.get(group, 0)
        if group is self.group or at >= len(group.members) or not group.preemptible:
            return fill
        standing, request = self.figures.standing(group.account), group.member(at)
        place = group.place(standing)
        candidate = (*group.rank(place, request.number), request, group)
        if fill is not None and fill < candidate:
            return fill
        # Where there is room for it, it is not over its limit either: that counts what stays, and room counts those
        # leaving, too.
        may = self.figures.fits(standing, group.need) and not (place == REST and self._held_back(group.account))
        return candidate if may else fill

    def _held_back(self, account: Account) -> bool:
        """Whether the walk has passed over one of that line for its limit."""
        heads = self._heads.get(account) or self.queue.lines[account].heads
        return heads.over is not None and heads.over < self._rank

    def first_when_gone(self, victims: Iterable[Allocation]) -> bool:
        """Whether it is plain that the blocked one is granted when all who are leaving, and these, have left: what
        was set aside is granted before it, as planned, and nobody else. False: somebody has to look."""
        if self.elsewhere:
            return False
        left: dict[Account, Standing] = {}
        for victim in victims:
            account = victim.account
            assert account is not None, victim
            if account in self._heads:
                return False
            if account in self.queue.lines:
                standing = left.get(account)
                if standing is None:
                    standing = left[account] = account.copy()
                for key, amount in victim.need:
                    standing.staying[key] -= amount
        for account, standing in left.items():
            for group in self.queue.lines[account].groups.values():
                place = group.place(standing)
                if group is self.group or (place == REST and not group.preemptible):
                    continue
                if group.rank(place, group.first.number) < self._rank:
                    return False
        return True
