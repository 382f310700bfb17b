"""What `raypool top` shows: who holds what, who waits and why, as lines for a terminal of any size.

Made from views alone; knows no terminal and no broker. Every sign is a character: a colour only repeats it. What must
not be lost on a small screen: the bar, the largest holders, the first of the queue with its whole reason, and every
notice. `Room` says what gives way first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any, TypeVar

import click

from raypool.cli import output
from raypool.cli.request import demand_of, starts_in
from raypool.view import BrokerView, FrontView, PolicyView, PoolView, RequestView

T = TypeVar("T")

Span = tuple[str, str]
"""Text, and its style: a word of `_STYLES`."""

Line = tuple[Span, ...]

_STYLES: dict[str, dict[str, bool]] = {"": {}, "bold": {"bold": True}, "dim": {"dim": True}}
_COLOURS = {"notice": "red", "leaving": "yellow", "phantom": "magenta", "first": "yellow"}
_OF_COMPONENTS = ("green", "cyan", "blue", "bright_green", "bright_cyan", "bright_blue")

LEGEND = "A in its reserve  a borrowed  ~ leaving  # phantom  . free"
TRACKS = "= in its reserve  - reserved, idle  + borrowed  ~ leaving  | reserve  ] limit"

_WIDE = 120
"""Columns from which on there is room for every key of a request."""

_NARROWEST_BAR = 10

_NODE = 8
"""So much of a node's id tells it from the others."""


@dataclass(frozen=True)
class Sight:
    """What was seen of a broker.

    fronts: the pools that are shown in full, in this order. at: when it was seen. key: what is shown by component;
    None, or a key that a pool has not got: gpu, else its first. trouble: why nothing newer was seen; "" if it is new.
    """

    broker: BrokerView
    fronts: Sequence[FrontView]
    at: float
    key: str | None = None
    trouble: str = ""


@dataclass(frozen=True)
class Room:
    """How much of each is shown at most.

    sentences: so many of those that wait have their whole reason, and of the notices one less. legends: whether signs
    are explained. gaps: whether blank lines part what is shown.
    """

    pools: int = 10
    keys: int = 6
    components: int = 12
    waiting: int = 20
    running: int = 20
    sentences: int = 20
    legends: bool = True
    gaps: bool = True

    @property
    def smaller(self) -> Room | None:
        """With less of what can give way first; None when nothing can."""
        if self.sentences > 1:
            return replace(self, sentences=self.sentences // 2)
        return (
            self._with_less(pools=4, keys=2, components=4, waiting=3, running=3)
            or (replace(self, legends=False) if self.legends else None)
            or self._with_less(pools=0, keys=1, components=2, waiting=1, running=1)
            or (replace(self, gaps=False) if self.gaps else None)
        )

    def _with_less(self, **least: int) -> Room | None:
        """One less of what has the most to spare."""
        spare = {name: getattr(self, name) - most for name, most in least.items()}
        name = max(spare, key=lambda one: spare[one])
        return replace(self, **{name: getattr(self, name) - 1}) if spare[name] > 0 else None


def _first(values: Sequence[T], most: int) -> Sequence[T]:
    """So many of them; and one more where that is the last, whose line would only say so."""
    return values if len(values) <= most + 1 and most else values[:most]


def screen(sight: Sight, width: int, now: float, height: int | None = None, room: Room | None = None) -> list[Line]:
    """The lines, none wider than `width`, no more than `height`. now: the time of the clock at the top, and that from
    which ages and countdowns are told."""
    left: Room | None = Room() if room is None else room
    lines: list[Line] = []
    while left is not None:
        lines = list(_lines(sight, width, now, left))
        if height is None or len(lines) <= height:
            return lines
        left = left.smaller
    return lines[:height]


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def painted(line: Line, colours: bool) -> str:
    """With the escape sequences of a terminal."""
    return "".join(click.style(text, **_look(style, colours)) if style else text for text, style in line)


def _look(style: str, colours: bool) -> dict[str, Any]:
    if style in _STYLES:
        return dict(_STYLES[style])
    found: dict[str, Any] = {"bold": True} if style in ("notice", "first") else {}
    if colours:
        found["fg"] = _COLOURS[style] if style in _COLOURS else _OF_COMPONENTS[int(style)]
    return found


def busiest_first(pools: Iterable[PoolView], key: str | None = None) -> list[PoolView]:
    """1. Where most wait. 2. Where the greatest part is in use. 3. By name."""

    def part(pool: PoolView) -> float:
        at = main_key(pool, key)
        return pool.used.get(at, 0) / max(pool.capacity.get(at, 0), 1)

    return sorted(pools, key=lambda pool: (-pool.queued, -part(pool), pool.name))


def main_key(pool: PoolView, key: str | None = None) -> str:
    return next((one for one in (key, "gpu") if one in pool.capacity), next(iter(pool.capacity), "gpu"))


# --- the whole --------------------------------------------------------------------------------


def _lines(sight: Sight, width: int, now: float, room: Room) -> Iterable[Line]:
    broker = sight.broker
    yield _head(broker, width, now)
    if sight.trouble:
        seen = time.strftime("%H:%M:%S", time.localtime(sight.at))
        yield from _wrapped(f"! {sight.trouble}; what stands below is of {seen}", width, 0, "notice")
    if broker.degraded:
        yield from _wrapped(f"! {broker.degraded}", width, 0, "notice")
    if broker.warnings:
        more = len(broker.warnings) - 1
        told = f" (and {more} more: raypool status)" if more else ""
        warning = output.printable(broker.warnings[0]).replace("\n", " ")
        yield ((output.cut(f"! {warning}", width - len(told)) + told, "first"),)
    if not broker.pools:
        yield ()
        yield (("no pools; `raypool apply -f pools.yaml` or `raypool pool create` makes some", ""),)
    if len(broker.pools) > 1 and room.pools:
        yield from _gap(room)
        yield from _pools(sight, width, room)
    names = [pool.name for pool in busiest_first(broker.pools, sight.key)]
    for front in sight.fronts:
        yield from _gap(room)
        place = names.index(front.pool.name) + 1 if front.pool.name in names else 0
        yield from _front(front, sight.key, f"pool {place} of {len(names)}" if place else "", width, now, room)


def _gap(room: Room) -> Iterable[Line]:
    if room.gaps:
        yield ()


def _head(broker: BrokerView, width: int, now: float) -> Line:
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    what = output.cut(
        f"raypool {broker.version}, up {output.duration(now - broker.started_at)}", width - len(clock) - 1
    )
    return ((what, "bold"), (" " * (width - len(what) - len(clock)) + clock, ""))


def _pools(sight: Sight, width: int, room: Room) -> Iterable[Line]:
    """A row for each pool, the busiest first; those that are shown in full are among them."""
    shown = {front.pool.name for front in sight.fronts}
    order = busiest_first(sight.broker.pools, sight.key)
    rows = list(_first(order, room.pools))
    rows += [pool for pool in order[len(rows) :] if pool.name in shown]
    names = _name_width([pool.name for pool in rows], width)
    keys = [main_key(pool, sight.key) for pool in rows]
    columns: list[tuple[str, list[str]]] = [
        ("KEY", [output.cut(output.printable(key), 12) for key in keys]),
        ("USED", [str(pool.used.get(key, 0)) for pool, key in zip(rows, keys, strict=True)]),
        ("OF", [str(pool.capacity.get(key, 0)) for pool, key in zip(rows, keys, strict=True)]),
        ("WAIT", [str(pool.queued) for pool in rows]),
        ("RUN", [str(pool.active) for pool in rows]),
    ]
    widths = [max(5, *map(len, [heading, *texts])) + 2 for heading, texts in columns]
    while names + 4 + sum(widths) > width:
        columns, widths = columns[1:], widths[1:]
    bar = width - names - 4 - sum(widths)
    titles = "".join(f"{heading:>{wide}}" for (heading, _), wide in zip(columns, widths, strict=True))
    yield ((f"  {'POOL':<{names}}  {'':<{bar}}{titles}", "bold"),)
    for at, pool in enumerate(rows):
        figures = "".join(f"{texts[at]:>{wide}}" for (_, texts), wide in zip(columns, widths, strict=True))
        drawn = _framed(_parts_of(pool, keys[at]), bar - 2) if bar >= _NARROWEST_BAR else [(" " * bar, "")]
        mark, style = ("> ", "bold") if pool.name in shown else ("  ", "")
        yield ((mark + _padded(pool.name, names) + "  ", style), *drawn, (figures, ""))
    if len(order) > len(rows):
        yield ((f"  and {len(order) - len(rows)} more pools", "dim"),)


def _front(front: FrontView, key: str | None, place: str, width: int, now: float, room: Room) -> Iterable[Line]:
    pool, main = front.pool, main_key(front.pool, key)
    head = f"{pool.name}: {front.running_in_all} running, {pool.queued + front.aside_in_all} waiting, {pool.queueing}"
    head = output.cut(output.printable(head), width - len(place) - 1)
    yield ((head, "bold"), (" " * (width - output.width_of(head) - len(place)) + place, ""))
    holders = sorted(
        pool.policies, key=lambda one: (-one.used.get(main, 0), -one.queued, -one.priority, one.component)
    )
    letters = {
        _owner(one): letter for one, letter in zip(holders, ascii_uppercase, strict=False) if any(one.used.values())
    }
    keys = [main, *(one for one in pool.capacity if one != main)]
    drawn = _first(keys, room.keys)
    labels = min(max(len(one) for one in drawn), 12)
    for one in drawn:
        yield _bar(pool, one, holders, letters, labels, width)
    if len(keys) > len(drawn):
        told = f"and {len(keys) - len(drawn)} more keys: {', '.join(keys[len(drawn) :])}"
        yield ((output.cut(told, width), "dim"),)
    if room.legends:
        yield (("  " + output.cut(LEGEND, width - 2), "dim"),)
    yield from _components(pool, main, holders, letters, width, room)
    yield from _waiting(front, main, width, now, room)
    yield from _running(front, main, width, now, room)


# --- bars -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A piece of a bar: so much of an amount, drawn with that character."""

    amount: int
    sign: str
    style: str = ""


def cells(amounts: Sequence[int], width: int) -> list[int]:
    """How many of `width` cells each of the amounts gets: in proportion, what is there at least one."""
    if not sum(amounts):
        return [0] * len(amounts)
    whole = sum(amounts)
    found = [max(amount * width // whole, 1) if amount > 0 else 0 for amount in amounts]
    while sum(found) < width:
        at = max(range(len(found)), key=lambda i: amounts[i] * width / whole - found[i])
        found[at] += 1
    while sum(found) > width:
        at = max(range(len(found)), key=lambda i: (found[i] > 1, found[i] - amounts[i] * width / whole, found[i]))
        found[at] -= 1
    return found


def _split(policy: PolicyView, key: str) -> tuple[int, int, int]:
    """What of its use is in its reserve, borrowed, and leaving: the leaving are the last in a component's line."""
    used, borrowed, leaving = (getattr(policy, name).get(key, 0) for name in ("used", "borrowed", "leaving"))
    return used - max(borrowed, leaving), max(borrowed - leaving, 0), leaving


def _bar(
    pool: PoolView,
    key: str,
    holders: Sequence[PolicyView],
    letters: dict[tuple[str, str], str],
    labels: int,
    width: int,
) -> Line:
    """A key of the pool, split by component."""
    parts = []
    for at, policy in enumerate(holders):
        letter, style = letters.get(_owner(policy), "*"), str(at % len(_OF_COMPONENTS))
        kept, borrowed, leaving = _split(policy, key)
        parts += [_Part(kept, letter, style), _Part(borrowed, letter.lower(), style), _Part(leaving, "~", "leaving")]
    used, capacity, free = pool.used.get(key, 0), pool.capacity.get(key, 0), pool.free.get(key, 0)
    phantom = pool.phantom.get(key, 0)
    parts += [_Part(phantom, "#", "phantom"), _Part(max(free, 0), ".", "dim")]
    over = f", {-free} too many" if free < 0 else ""
    lost = f", {phantom} phantom" if phantom else ""
    figures = f" {used} of {capacity} used{lost}{over}"
    room = max(width - labels - 3 - max(len(figures), 18), 8)
    name = output.cut(key, labels)
    return (
        (f"{name:<{labels}} ", "bold"),
        *_framed(parts, room),
        (output.cut(figures, width - labels - 3 - room), ""),
    )


def _framed(parts: Sequence[_Part], room: int) -> list[Span]:
    return [("[", ""), *_spans(parts, room), ("]", "")]


def _spans(parts: Sequence[_Part], room: int) -> list[Span]:
    counts = cells([part.amount for part in parts], room)
    spans = [(part.sign * count, part.style) for part, count in zip(parts, counts, strict=True) if count]
    return spans or [(" " * room, "")]


def _parts_of(pool: PoolView, key: str) -> list[_Part]:
    """All components together."""
    split = [_split(policy, key) for policy in pool.policies]
    kept, borrowed, leaving = (sum(one[at] for one in split) for at in range(3))
    return [
        _Part(kept, "=", "0"),
        _Part(borrowed, "+", "1"),
        _Part(leaving, "~", "leaving"),
        _Part(pool.phantom.get(key, 0), "#", "phantom"),
        _Part(max(pool.free.get(key, 0), 0), ".", "dim"),
    ]


def _track(policy: PolicyView, key: str, scale: int, room: int) -> str:
    """One component's use against its reserve and its limit, on the scale of the pool."""

    def cell(amount: int) -> int:
        return min(-(-amount * room // max(scale, 1)), room)

    kept, borrowed, leaving = _split(policy, key)
    reserved, limit = policy.reserved.get(key, 0), policy.limit.get(key, 0)
    signs = [" "] * (room + 1)
    for sign, start, end in (
        ("-", 0, reserved),
        ("=", 0, kept),
        ("+", kept, kept + borrowed),
        ("~", kept + borrowed, kept + borrowed + leaving),
    ):
        signs[cell(start) : cell(end)] = sign * (cell(end) - cell(start))
    for mark, at in (("|", reserved), ("]", limit)):
        if at:
            place = cell(at)
            signs.insert(place + (mark == "]" and bool(reserved) and limit >= reserved), mark)
    return "".join(signs)[: room + 2]


# --- tables -----------------------------------------------------------------------------------


def _owner(policy: PolicyView) -> tuple[str, str]:
    return policy.component, policy.component_type


def _components(
    pool: PoolView,
    key: str,
    holders: Sequence[PolicyView],
    letters: dict[tuple[str, str], str],
    width: int,
    room: Room,
) -> Iterable[Line]:
    rows = _first(holders, room.components)
    names = _name_width([one.component for one in rows], width)
    headings = ("USED", "BORROWED", "LEAVING", "RESERVE", "LIMIT", "WAIT", "RUN")
    figures = [
        [
            str(value or "-")
            for value in (
                *(getattr(one, name).get(key, 0) for name in ("used", "borrowed", "leaving", "reserved", "limit")),
                one.queued,
                one.active,
            )
        ]
        for one in rows
    ]
    widths = [max([len(heading) + 1, *(len(row[at]) + 1 for row in figures)]) for at, heading in enumerate(headings)]
    while names + 3 + sum(widths) > width:
        widths.pop()
    track = width - names - 3 - sum(widths)
    with_track = track >= _NARROWEST_BAR
    blank = " " * track if with_track else ""
    titles = "".join(f"{heading:>{wide}}" for heading, wide in zip(headings, widths, strict=False))
    yield ((output.cut(_padded(f"  {key}", names + 3) + blank + titles, width), "bold"),)
    scale = max(pool.capacity.get(key, 0), pool.used.get(key, 0))
    for at, (one, row) in enumerate(zip(rows, figures, strict=True)):
        letter = letters.get(_owner(one), "*" if any(one.used.values()) else " ")
        style = str(at % len(_OF_COMPONENTS)) if any(one.used.values()) else ""
        drawn = _track(one, key, scale, track - 3) if with_track else ""
        told = "".join(f"{text:>{wide}}" for text, wide in zip(row, widths, strict=False))
        yield (
            (f"{letter} " + _padded(one.component, names) + " ", style),
            (f"{drawn:<{len(blank)}}", style),
            (told, ""),
        )
    others = holders[len(rows) :]
    if others:
        used = sum(one.used.get(key, 0) for one in others)
        queued = sum(one.queued for one in others)
        yield ((output.cut(f"* and {len(others)} more components: {used} used, {queued} waiting", width), "dim"),)
    if with_track and room.legends:
        yield (("  " + output.cut(TRACKS, width - 2), "dim"),)


def _waiting(front: FrontView, key: str, width: int, now: float, room: Room) -> Iterable[Line]:
    pool = front.pool
    waiting = _first([*front.waiting, *front.aside], room.waiting)
    in_line = len(front.waiting)
    starts = any(starts_in(one) for one in waiting)
    whole = room.sentences >= len(waiting)
    headings = ["WAITS", "COMPONENT", "ASKS FOR", "SINCE", *(["STARTS IN"] if starts else [])]
    headings += [] if whole else ["RULE"]
    rows = [
        [
            f"{at + 1 if at < in_line else '-':>2} {one.id}",
            one.component,
            _short(demand_of(one), key, width),
            output.duration(now - one.submitted_at),
            *([starts_in(one)] if starts else []),
            *([] if whole else ["" if at < room.sentences else one.rule]),
        ]
        for at, one in enumerate(waiting)
    ]
    yield from _gap(room)
    if not rows:
        yield (("nobody waits", "dim"),)
        return
    head, found = output.laid_out(headings, rows, width)
    yield from (((line, "bold"),) for line in head)
    for at, (one, lines) in enumerate(zip(waiting, found, strict=True)):
        yield from (((line, "first" if at == 0 else ""),) for line in lines)
        why = _why(one, pool.name)
        if at < room.sentences:
            for sentence in why:
                yield from _wrapped(sentence, width, 3, "first" if at == 0 else "dim")
    more = pool.queued + front.aside_in_all - len(waiting)
    if more > 0:
        yield ((f"   and {more} more wait", "dim"),)


def _running(front: FrontView, key: str, width: int, now: float, room: Room) -> Iterable[Line]:
    running = _first(front.running, room.running)
    yield from _gap(room)
    if not running:
        yield (("nothing runs", "dim"),)
        return
    headings = ["RUNS", "COMPONENT", "HOLDS", "BORROWED", "FOR", "NODES"]
    rows = [
        [
            one.id,
            one.component,
            _short(demand_of(one), key, width),
            _short(output.amounts(one.borrowed), key, width),
            "placing" if one.granted_at is None or one.placing else output.duration(now - one.granted_at),
            _nodes(one),
        ]
        for one in running
    ]
    head, found = output.laid_out(headings, rows, width)
    yield from (((line, "bold"),) for line in head)
    for at, (one, lines) in enumerate(zip(running, found, strict=True)):
        notice = _notice(one, now)
        yield from (((line, "leaving" if notice else ""),) for line in lines)
        told, style = (notice, "notice") if notice else (one.reason if one.placing else "", "dim")
        if told and at < room.sentences - 1:
            yield from _wrapped(told, width, 2, style)
        elif told:
            yield (("  " + output.cut(output.printable(told), width - 2), style),)
    if front.running_in_all > len(running):
        yield ((f"  and {front.running_in_all - len(running)} more run", "dim"),)


def _notice(view: RequestView, now: float) -> str:
    """What a running one has been told, with the time that is left; of one that is over, what it waits for."""
    if view.ended:
        return f"! is {view.status}; its placement group is being removed"
    if view.status != "preempting":
        return ""
    left = "now" if view.deadline is None else f"in {output.duration(view.deadline - now)}"
    return f"! leaves {left}: {view.reason or 'it was told to'}"


def _why(view: RequestView, pool: str) -> list[str]:
    """Its reason in this pool first, then in its others."""
    here = [view.reasons[pool]] if pool in view.reasons else []
    there = [f"{name}: {why}" for name, why in view.reasons.items() if name != pool]
    return here + there or [view.reason or "it is being decided"]


def _short(amounts: str, key: str, width: int) -> str:
    """The key that is shown by component first; where there is little room, alone."""
    parts = sorted(amounts.split(", "), key=lambda one: one.partition(" ")[2] != key)
    return ", ".join(parts if width >= _WIDE else [*parts[:1], *(["…"] if len(parts) > 1 else [])])


def _nodes(view: RequestView) -> str:
    nodes = list(dict.fromkeys(node[:_NODE] for node in view.nodes))
    return ", ".join(nodes[:2]) + (f" +{len(nodes) - 2}" if len(nodes) > 2 else "") or "-"


# --- widths -----------------------------------------------------------------------------------


def _name_width(names: Sequence[str], width: int) -> int:
    return min(max([9, *(output.width_of(name) for name in names)]), max(14, width // 6))


def _padded(text: str, width: int) -> str:
    text = output.cut(output.printable(text), width)
    return text + " " * (width - output.width_of(text))


def _wrapped(text: str, width: int, indent: int, style: str) -> Iterable[Line]:
    for line in output.folded(output.printable(text), width - indent):
        yield ((" " * indent + line, style),)
