"""Random, nasty histories as plain data, and what it takes to play them.

A history knows nothing of an implementation: where an event needs a current state it carries an
index, ("grace_over", 7) being the one at 7 % len among the ids that are preempting just then, in
sorted order, and nothing if there is none. So two implementations can play the same history
(`trace`) and be compared line by line. In some histories the next event is the most eventful of a few,
as the oracle sees it: where histories are only thrown, few evict.
"""

import copy
import random

from raypool.errors import Refused

from .plain_rules import PlainRules

LIVE = ("pending", "allocated", "preempting")


# ---------------------------------------------------------------------- playing


def trace(history, make_rules):
    """Everything to be seen after each event, for comparing two implementations line by line."""
    setup, events = history
    rules = make_rules(grace=setup["grace"], removal=setup["removal"])
    rules.apply(setup["pools"], setup["policies"])
    lines = []
    for event in events:
        outcome = feed(rules, event)
        states = rules.states()
        lines.append(
            {
                "event": event,
                "outcome": outcome,
                "states": states,
                "borrowed": {id: rules.borrowed(id) for id in states},
                "preempted_by": {id: rules.preempted_by(id) for id in states},
                "preempting": sorted(rules.preempting()),
                "leaving": sorted(rules.leaving()),
            }
        )
    return lines


def feed(rules, event):
    """Feed one event; "done", "refused", or "nobody" when its index met an empty list."""
    kind, *rest = event
    if kind in ("release", "cancel", "grace_over", "removed"):
        states = rules.states()
        among = {
            "live": [id for id in states if states[id][0] in LIVE],
            "pending": [id for id in states if states[id][0] == "pending"],
            "running": [id for id in states if states[id][0] == "allocated"],
            "any": list(states),
            "preempting": rules.preempting(),
            "leaving": rules.leaving(),
        }
        index, group = {"grace_over": rest + ["preempting"], "removed": rest + ["leaving"]}.get(kind, rest)
        ids = sorted(among[group])
        if not ids:
            return "nobody"
        getattr(rules, kind)(ids[index % len(ids)])
        return "done"
    try:
        if kind == "submit":
            rules.submit(**rest[0])
        else:
            getattr(rules, kind)(*rest)
    except Refused:
        return "refused"
    return "done"


def evictions_stop(seed, make_rules, most=3000):
    """Law 6: with every evicted request resubmitted at once, as a new one, evictions stop.

    The history is played with resubmission all along, cut short; then nothing more is done to it
    but what grace and removals bring. Answers how many were resubmitted; a loop raises AssertionError.
    """
    setup, events = random_history(seed)
    chance = random.Random(seed)
    rules = make_rules(grace=setup["grace"], removal=setup["removal"])
    rules.apply(setup["pools"], setup["policies"])
    when = chance.choice(("preempting", "preempted"))  # at once: when asked to leave, or when gone
    seen = 0  # how much of rules.log was read
    resubmitted = 0

    def resubmit():
        nonlocal seen, resubmitted
        again = [id for _, _, status, id, _ in rules.log[seen:] if status == when]
        seen = len(rules.log)
        for id in again:
            old = rules.request(id)
            resubmitted += 1
            rules.submit(
                f"z{resubmitted:05d}",
                old["component"],
                old["demand"],
                old["preemptible"],
                old["pin"],
                old["component_type"],
            )
            rules.check_laws()
        return bool(again)

    for event in events[: chance.randrange(20, 60)]:
        before = resubmitted
        feed(rules, event)
        while resubmit():
            assert resubmitted < before + most, "law 6: evictions do not stop"
    before = resubmitted
    while True:
        if resubmit():
            pass
        elif rules.leaving() and chance.random() < 0.5:
            rules.removed(chance.choice(rules.leaving()))
        elif rules.preempting():
            rules.grace_over(chance.choice(rules.preempting()))
        elif rules.leaving():
            rules.removed(chance.choice(rules.leaving()))
        else:
            return resubmitted
        rules.check_laws()
        assert resubmitted < before + most, "law 6: evictions do not stop"


# ---------------------------------------------------------------------- making them up


def random_history(seed):
    """(setup, events): setup {grace, removal, pools, policies}, events a list of lists."""
    return _History(random.Random(seed)).make()


class _History:
    """What was applied last is remembered as if nothing were ever refused, so some changes are wild."""

    KEYS = ("gpu", "mcpu", "step_run", "lic")

    def __init__(self, chance):
        self.chance = chance
        self.pools = {}
        self.policies = {}
        self.submitted = 0

    def make(self):
        chance = self.chance
        self.components = [
            (f"c{n}", "orchestrator" if chance.random() < 0.1 else "team") for n in range(chance.randint(2, 6))
        ]
        self.grace, self.removal = chance.random() < 0.6, chance.random() < 0.4
        self.priorities = chance.choice(([1], [1, 5], [1, 5, 5, 10], [0, 1, 2, 3]))
        self.promises = chance.choice((0.2, 0.5, 0.8))  # how much is reserved
        self.firm = chance.choice((0.05, 0.1, 0.3))  # how much is not preemptible
        self.pinned = chance.choice((0.0, 0.1, 0.4))
        self.sizes = {
            c: chance.choice(((1,), (1, 2), (1, 2, 3), (3, 4), (2, 3, 5), (4, 6))) for c in self.components
        }  # small victims, large waiters
        self.limits = chance.choice((0.1, 0.2, 0.5))
        backfill = chance.choice((0.0, 0.5, 1.0))
        for name in chance.sample(("a", "b", "c"), chance.choice((1, 2, 2, 2, 3))):
            self.pools[name] = self.random_pool(name, backfill)
        for component in self.components:
            names = chance.sample(
                sorted(self.pools), max(chance.randint(1, len(self.pools)), chance.randint(1, len(self.pools)))
            )
            for name in names:
                policy = self.random_policy(name, component)
                self.policies[name, component] = policy
        setup = {
            "grace": self.grace,
            "removal": self.removal,
            "pools": [dict(p) for p in self.pools.values()],
            "policies": [dict(p) for p in self.policies.values()],
        }
        changes = chance.choice((0.03, 0.1, 0.25))  # how often the setup changes
        submits = chance.choice((0.4, 0.5, 0.6))
        steered = chance.choice((0.0, 0.0, 0.6))  # how often the most eventful of some is taken
        rules = PlainRules(self.grace, self.removal)
        rules.apply(setup["pools"], setup["policies"])
        events = []
        self.active = self.components  # who asks at present: tides, so that the late are often
        # not those who hold the pool, and evictions are common
        for _ in range(chance.choice((25, 40, 70))):
            if chance.random() < 0.2:
                self.active = chance.sample(self.components, chance.choice((1, 1, 2)))
            if chance.random() < changes:
                events.append(self.change())
            elif chance.random() < steered:
                events.append(self.eventful(rules, submits))
            else:
                events.append(self.life(submits))
            feed(rules, events[-1])
        return setup, events

    def eventful(self, rules, submits):
        """Of some events the one that most happens at. Where histories are only thrown, few evict."""
        best = None
        submitted = self.submitted
        for _ in range(4):
            self.submitted = submitted
            event = self.life(submits)
            after = copy.copy(rules)
            after.requests = [dict(r) for r in rules.requests]
            after.log = list(rules.log)
            feed(after, event)
            new = after.log[len(rules.log) :]
            marks = [r["mark"] for r in rules.requests]
            interest = (
                6 * sum(status == "preempting" for _, _, status, _, _ in new)
                + 6
                * (sum(r["opportunistic"] for r in after.requests) - sum(r["opportunistic"] for r in rules.requests))
                + 5
                * sum(
                    before is not None and before != now["mark"] and now["status"] == "pending"
                    for before, now in zip(marks, after.requests, strict=False)
                )
                + 2 * sum(status in ("allocated", "preempted") for _, _, status, _, _ in new)
                + self.chance.random()
            )
            if best is None or interest > best[0]:
                best = (interest, event, self.submitted)
        self.submitted = best[2]
        return best[1]

    def life(self, submits):
        chance = self.chance
        index = chance.randrange(1000)
        if chance.random() < submits:
            return ["submit", self.random_request()]
        kind = chance.choice(
            ["release"] * 5 + ["cancel"] * 5 + ["grace_over"] * 5 * self.grace + ["removed"] * 6 * self.removal
        )
        if kind in ("release", "cancel"):
            # Long queues hand the pool to the highest, who are never evicted: keep them short.
            return [
                kind,
                index,
                chance.choice(("running", "running", "pending", "pending", "pending", "live", "any")),
            ]
        return [kind, index]

    def change(self):
        chance = self.chance
        kind = chance.choice(
            (
                "capacity",
                "capacity",
                "policy",
                "policy",
                "policy",
                "priority",
                "priority",
                "queueing",
                "both",
                "all pools",
                "all pools",
                "attach",
                "detach",
                "delete",
                "new pool",
            )
        )
        if kind == "detach" and self.policies:
            name, component = chance.choice(sorted(self.policies))
            if chance.random() < 0.3:
                self.policies.pop((name, component))
            return ["detach_policy", name, *component]
        if kind == "delete" and chance.random() < 0.5:
            return ["delete_pool", chance.choice(sorted(self.pools) + ["nowhere"])]
        if kind == "new pool":
            name = chance.choice(("a", "b", "c"))
            self.pools.setdefault(name, self.random_pool(name, 0.5))
            return ["apply", [dict(self.pools[name])], []]
        if kind == "attach":
            return [
                "apply",
                [],
                [self.replace_policy(chance.choice(sorted(self.pools)), chance.choice(self.components))],
            ]
        if kind in ("policy", "priority") and self.policies:
            changed = []
            for name, component in chance.sample(
                sorted(self.policies), min(len(self.policies), chance.choice((1, 1, 2)))
            ):
                if kind == "policy":
                    changed.append(self.replace_policy(name, component))
                else:
                    old = self.policies[name, component]
                    self.policies[name, component] = {**old, "priority": chance.choice(self.priorities)}
                    changed.append(dict(self.policies[name, component]))
            return ["apply", [], changed]
        if kind == "all pools":  # one event that frees room, or takes it, in several places
            more = chance.choice((-2, -1, 1, 2, 3))
            for name, pool in self.pools.items():
                capacity = {key: max(1, amount + more) for key, amount in pool["capacity"].items()}
                self.pools[name] = {**pool, "capacity": capacity}
            return ["apply", [dict(pool) for pool in self.pools.values()], []]
        name = chance.choice(sorted(self.pools))
        pool = self.pools[name]
        if kind == "queueing":
            pool = {**pool, "queueing": chance.choice(("strict", "backfill"))}
        else:
            capacity = dict(pool["capacity"])
            key = chance.choice(sorted(capacity))
            capacity[key] = max(1, capacity[key] + chance.choice((-4, -2, -1, 1, 2, 4)))
            if chance.random() < 0.2:
                capacity.pop(key)
            if chance.random() < 0.2:
                capacity[chance.choice(self.KEYS)] = chance.randint(1, 6)
            pool = {**pool, "capacity": capacity or {"gpu": 4}}
        self.pools[name] = pool
        policies = []
        if kind == "both":  # everybody's reserves are drawn anew for the new capacity
            for n, component in sorted(self.policies):
                if n == name:
                    self.policies[n, component] = {**self.policies[n, component], "reserved": {}}
            for n, component in sorted(self.policies):
                if n == name:
                    policies.append(self.replace_policy(n, component))
        return ["apply", [dict(pool)], policies]

    def replace_policy(self, name, component):
        self.policies.pop((name, component), None)
        policy = self.random_policy(name, component)
        if self.chance.random() < 0.1:  # as likely as not promises too much
            policy["reserved"] = {"gpu": self.chance.randint(1, 9)}
        self.policies[name, component] = policy
        return dict(policy)

    def random_pool(self, name, backfill):
        chance = self.chance
        keys = ["gpu"] + chance.sample(("mcpu", "mcpu", "step_run", "lic"), chance.choice((0, 0, 1, 1, 2)))
        return {
            "name": name,
            "capacity": {k: chance.randint(2, 8) + 4 * (k == "step_run") for k in keys},
            "queueing": "backfill" if chance.random() < backfill else "strict",
        }

    def random_policy(self, name, component):
        chance = self.chance
        capacity = self.pools[name]["capacity"]
        others = [p for (n, _), p in self.policies.items() if n == name]
        reserved, limit = {}, {}
        for key in capacity:
            left = capacity[key] - sum(p["reserved"].get(key, 0) for p in others)
            if left > 0 and chance.random() < self.promises + 0.3 * (key == "step_run"):
                reserved[key] = chance.randint(1, min(left, 5))
            if chance.random() < self.limits:
                limit[key] = chance.randint(
                    max(reserved.get(key, 0), chance.choice((0, 1, 2))), max(capacity[key], 2)
                )
                limit[key] = min(limit[key], capacity[key])
        return {
            "pool": name,
            "component": component[0],
            "component_type": component[1],
            "priority": chance.choice(self.priorities),
            "reserved": reserved,
            "limit": limit,
        }

    def random_request(self):
        chance = self.chance
        if chance.random() < 0.02 and self.submitted:
            number = chance.randrange(self.submitted)  # an id is taken once
        else:
            number, self.submitted = self.submitted, self.submitted + 1
        if self.policies and chance.random() < 0.97:
            active = [p for p in sorted(self.policies) if p[1] in self.active]
            name, component = chance.choice(active or sorted(self.policies))
        else:
            name, component = chance.choice(sorted(self.pools)), chance.choice(self.components)
        demand = {}
        if chance.random() < 0.9:
            demand["gpu"] = chance.choice(self.sizes[component])
        if chance.random() < 0.5:
            demand["mcpu"] = chance.choice(self.sizes[component])
        if "lic" in self.pools[name]["capacity"] and chance.random() < 0.5:
            demand["lic"] = chance.choice((1, 1, 2))
        demand["step_run"] = 1
        if chance.random() < 0.8 and self.policies.get((name, component)):
            # Mostly what this policy could ever be given, so that little is rejected at once.
            policy, capacity = self.policies[name, component], self.pools[name]["capacity"]
            for key in sorted(demand):
                most = min(capacity.get(key, 9), policy["limit"].get(key, 9))
                if key in capacity and demand[key] > most:
                    demand[key] = max(1, most)
        firm = chance.random() < self.firm
        if firm and chance.random() < 0.8 and self.policies.get((name, component)):
            reserved = self.policies[name, component]["reserved"]
            demand = {
                k: min(amount, max(1, reserved.get(k, 0)))
                for k, amount in demand.items()
                if k == "step_run" or reserved.get(k, 0) > 0
            }
        return {
            "id": f"r{number:04d}",
            "component": component[0],
            "component_type": component[1],
            "demand": demand,
            "preemptible": not firm,
            "pool": name if chance.random() < self.pinned else None,
        }
