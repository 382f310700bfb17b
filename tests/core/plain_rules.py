"""The decision rules of raypool written down as plainly as they can be: an oracle for tests.

It holds pools, policies and requests as lists and dicts, and computes every figure anew from
them each time it is asked: no index, no cache, no incremental state but statuses and marks.
It knows nothing of time or Ray; grace deadlines and removals are told to it.
The rule here: each piece stands in the order of semantics.md and names its section, and where
speed and likeness to the page conflict, likeness wins.
"""

from raypool.errors import Refused

UNMETERED_UNLESS_LISTED = ("mcpu", "memory_mb", "step_run")
COMPONENT_TYPES = ("team", "orchestrator", "step_operator")
TERMINAL = ("released", "preempted", "cancelled", "rejected")

# Section 8: which status may follow which.
TRANSITIONS = {
    None: ("pending",),
    "pending": ("allocated", "rejected", "cancelled"),
    "allocated": ("released", "preempting", "cancelled"),
    "preempting": ("preempted",),
    "released": (),
    "preempted": (),
    "cancelled": (),
    "rejected": (),
}


class PlainRules:
    """One scheduler: feed it events, read `states()`.

    grace=False: victims have left in the same instant (preempting, preempted, then step 1 again).
    removal=False: an ended request's capacity is back in the same instant.

    `log` lists every transition in order as (event, from, to, id, pool): event is the name of the
    call that was being worked on ("submit", "apply", ...), from is None for a new request, pool is
    None unless the request has been granted.
    """

    def __init__(self, grace=False, removal=False):
        self.grace = grace
        self.removal = removal
        self.pools = []  # {name, capacity, queueing}
        self.policies = []  # {pool, component, component_type, priority, reserved, limit}
        self.requests = []  # in order of submission, never removed; see submit()
        self.grants = 0
        self.log = []
        self.event = None
        self.overtaken = 0  # for check_laws: how often law 4 was found broken, see _overtaken
        self.excess = {}  # for check_laws: what was already too much when something was lowered

    # ------------------------------------------------------------------ what callers tell us

    def submit(self, id, component, demand, preemptible=True, pool=None, component_type="team"):
        """Section 2: reject at once, or queue and run the cycle. A known id raises Refused."""
        if any(r["id"] == id for r in self.requests):
            raise Refused(f"request id {id!r} is taken")
        if component_type not in COMPONENT_TYPES:
            raise Refused(f"component_type {component_type!r} is none of {COMPONENT_TYPES}")
        self.event = "submit"
        request = {
            "id": id,
            "number": len(self.requests),  # number: the order of submission
            "component": component,
            "component_type": component_type,
            "demand": dict(demand),
            "preemptible": preemptible,
            "pin": pool,
            "status": None,
            "pool": None,
            "granted": None,  # the order of grant
            "opportunistic": False,  # granted by step 4 of the cycle
            "charged": False,
            "leaving": False,  # preempting, or ended and not yet confirmed gone
            "mark": None,  # name of the pool where room is being made
            "preempted_by": None,
        }
        self.requests.append(request)
        self._move(request, "pending")
        self._rejudge()
        own = self.pools_by_preference(request)
        others = [p for p in self.pools_by_name() if p not in own]
        self._cycle(own + others)

    def release(self, id):
        """Section 8, by its owner."""
        self.event = "release"
        request = self.request(id)
        if request["status"] == "pending":
            self._move(request, "cancelled")
        elif request["status"] == "allocated":
            self._end(request, "released")
        elif request["status"] == "preempting":
            self._end(request, "preempted")
        self._cycle(self.pools_by_name())

    def cancel(self, id):
        """Section 8, by its owner or an operator."""
        self.event = "cancel"
        request = self.request(id)
        if request["status"] == "pending":
            self._move(request, "cancelled")
        elif request["status"] == "allocated":
            self._end(request, "cancelled")
        elif request["status"] == "preempting":
            self._end(request, "preempted")
        self._cycle(self.pools_by_name())

    def grace_over(self, id):
        """Section 8: the grace of a preempting one is over. Otherwise nothing happens."""
        self.event = "grace_over"
        request = self.request(id)
        if request["status"] == "preempting":
            self._end(request, "preempted")
        self._cycle(self.pools_by_name())

    def removed(self, id):
        """The placement group of one that has ended is gone. Otherwise nothing happens."""
        self.event = "removed"
        request = self.request(id)
        if request["charged"] and request["status"] in TERMINAL:
            self._uncharge(request)
        self._cycle(self.pools_by_name())

    def apply(self, pools=(), policies=()):
        """Section 9: add or replace pools and policies, all or nothing."""
        pools = [_complete_pool(p) for p in pools]
        policies = [_complete_policy(p) for p in policies]
        new_pools = [p for p in self.pools if p["name"] not in [n["name"] for n in pools]] + pools
        new_policies = [p for p in self.policies if _key(p) not in [_key(n) for n in policies]] + policies
        faults = self._faults(pools, policies, new_pools, new_policies)
        if faults:
            raise Refused("; ".join(faults))
        self.event = "apply"
        self.pools = new_pools
        self.policies = new_policies
        self._note_excess()
        self._rejudge()
        self._cycle(self.pools_by_name())

    def detach_policy(self, pool, component, component_type="team"):
        """Section 9: refused while its component has requests queued or charged in that pool."""
        policy = self.policy(pool, (component, component_type))
        if policy is None:
            raise Refused(f"no policy of {component_type} {component!r} in pool {pool!r}")
        self._refuse_in_use(pool, [r for r in self.requests if _owner(r) == (component, component_type)])
        self.event = "detach_policy"
        self.policies = [p for p in self.policies if p is not policy]
        self._note_excess()
        self._rejudge()
        self._cycle(self.pools_by_name())

    def delete_pool(self, name):
        """Section 9: refused while anything is queued or charged in it; its policies go with it."""
        if self.pool(name) is None:
            raise Refused(f"no pool {name!r}")
        self._refuse_in_use(name, self.requests)
        self.event = "delete_pool"
        self.pools = [p for p in self.pools if p["name"] != name]
        self.policies = [p for p in self.policies if p["pool"] != name]
        self._note_excess()
        self._rejudge()
        self._cycle(self.pools_by_name())

    # ------------------------------------------------------------------ what callers ask us

    def states(self):
        """{id: (status, pool)}; pool is None for a request that was never granted."""
        return {r["id"]: (r["status"], r["pool"]) for r in self.requests}

    def borrowed(self, id):
        """Section 3: what of this allocation lies above its policy's reserve; positive amounts only."""
        request = self.request(id)
        if not request["charged"]:
            return {}
        return self._borrowed(request["pool"], self._figures(request["pool"]), request)

    def preempted_by(self, id):
        return self.request(id)["preempted_by"]

    def preempting(self):
        return [r["id"] for r in self.requests if r["status"] == "preempting"]

    def leaving(self):
        """Ended, still charged, awaiting removed(id)."""
        return [r["id"] for r in self.requests if r["charged"] and r["status"] in TERMINAL]

    # ------------------------------------------------------------------ section 2: eligibility

    def metered(self, pool, demand):
        """The keys of a demand that count in a pool."""
        listed = self.pool(pool)["capacity"]
        return [k for k in demand if k in listed or k not in UNMETERED_UNLESS_LISTED]

    def limit(self, policy, key):
        """A missing key is the pool's capacity; never above capacity."""
        capacity = self.capacity(policy["pool"], key)
        return min(policy["limit"].get(key, capacity), capacity)

    def eligible(self, request, pool):
        if request["pin"] is not None and request["pin"] != pool:
            return False
        policy = self.policy(pool, _owner(request))
        if policy is None:
            return False
        for key in self.metered(pool, request["demand"]):
            amount = request["demand"][key]
            if amount > self.capacity(pool, key):
                return False
            if amount > self.limit(policy, key):
                return False
            if not request["preemptible"] and amount > policy["reserved"].get(key, 0):
                return False
        return True

    def pools_by_preference(self, request):
        """The pools a request is eligible in: policy priority descending, then name."""
        eligible = [p for p in self.pools_by_name() if self.eligible(request, p)]
        return sorted(eligible, key=lambda p: (-self.policy(p, _owner(request))["priority"], p))

    def pools_by_name(self):
        return sorted(p["name"] for p in self.pools)

    # ------------------------------------------------------------------ section 3: accounting

    # "Figures" of a pool are a list of [request, leaving] in order of grant. A walk works on its own
    # list, to which it appends those it sets aside: they have no grant yet, so they stand last.

    def _figures(self, pool):
        charged = [r for r in self.requests if r["charged"] and r["pool"] == pool]
        return [[r, r["leaving"]] for r in sorted(charged, key=lambda r: r["granted"])]

    def _holding(self, pool, request):
        return {k: request["demand"][k] for k in self.metered(pool, request["demand"])}

    def _charged(self, pool, figures, key):
        return sum(self._holding(pool, r).get(key, 0) for r, leaving in figures)

    def _leaving(self, pool, figures, key):
        return sum(self._holding(pool, r).get(key, 0) for r, leaving in figures if leaving)

    def _free(self, pool, figures, key):
        """May be negative: the pool was made smaller while in use."""
        return self.capacity(pool, key) - self._charged(pool, figures, key)

    def _used(self, pool, figures, owner, key):
        """What a component uses, leaving ones included."""
        return self._charged(pool, [f for f in figures if _owner(f[0]) == owner], key)

    def _used_leaving_apart(self, pool, figures, owner, key):
        return self._used(pool, [f for f in figures if not f[1]], owner, key)

    def _borrowed(self, pool, figures, request):
        """Line up: non-preemptible, then preemptible, then those leaving, each in order of grant."""
        line = [f for f in figures if _owner(f[0]) == _owner(request)]
        line = (
            [r for r, leaving in line if not leaving and not r["preemptible"]]
            + [r for r, leaving in line if not leaving and r["preemptible"]]
            + [r for r, leaving in line if leaving]
        )
        reserved = self.policy(pool, _owner(request))["reserved"]
        borrowed = {}
        for key in self.metered(pool, request["demand"]):
            below = 0
            for other in line:
                top = below + self._holding(pool, other).get(key, 0)
                if other is request:
                    above_reserve = top - max(below, reserved.get(key, 0))
                    if above_reserve > 0:
                        borrowed[key] = above_reserve
                below = top
        return borrowed

    def _inside_reserve(self, pool, figures, request):
        """For every metered key, used, those leaving apart, + amount <= reserved."""
        if not request["preemptible"]:
            figures = [f for f in figures if not f[0]["preemptible"]]
        reserved = self.policy(pool, _owner(request))["reserved"]
        return all(
            self._used_leaving_apart(pool, figures, _owner(request), key) + request["demand"][key]
            <= reserved.get(key, 0)
            for key in self.metered(pool, request["demand"])
        )

    # ------------------------------------------------------------------ section 4: the walk

    def _walk(self, pool, figures=None, grant_and_go_on=False):
        """Walk one pool's queue; nothing but the walk's own figures changes.

        The answer: `end` is "grant", "blocked" or "exhausted"; `request` the one it ended at;
        `figures` the walk's copy; `steps` what became of each taken request, in order, as
        (request, was it inside its reserve, outcome); `held_back` the owners held back;
        `rest` those not taken. With grant_and_go_on (the look-ahead of section 6) a grant
        is charged to the copy and the walk continues.
        """
        figures = [list(f) for f in (self._figures(pool) if figures is None else figures)]
        waiting = [r for r in self.requests if r["status"] == "pending" and self.eligible(r, pool)]
        steps = []
        held_back = []

        def answer(end, request):
            return {
                "pool": pool,
                "end": end,
                "request": request,
                "figures": figures,
                "steps": steps,
                "held_back": held_back,
                "rest": waiting,
            }

        while waiting:
            request = min(waiting, key=lambda r: self._rank(pool, figures, r))
            waiting.remove(request)
            inside = self._inside_reserve(pool, figures, request)

            if not request["preemptible"] and not inside:
                steps.append((request, inside, "over reserve"))
            elif request["preemptible"] and self._over_limit(pool, figures, request):
                steps.append((request, inside, "over limit"))
                held_back.append(_owner(request))
            elif _owner(request) in held_back and not inside:
                steps.append((request, inside, "held back"))
            elif self._fits(pool, figures, request):
                steps.append((request, inside, "grant"))
                if not grant_and_go_on:
                    return answer("grant", request)
                figures.append([request, False])
            elif request["mark"] is not None and request["mark"] != pool:
                steps.append((request, inside, "room elsewhere"))
            elif self._covered(pool, figures, request):
                steps.append((request, inside, "set aside"))
                figures.append([request, False])
            else:
                steps.append((request, inside, "blocked"))
                return answer("blocked", request)
        return answer("exhausted", None)

    def _rank(self, pool, figures, request):
        """1. inside its reserve, non-preemptible first; 2. policy priority; 3. submission."""
        if self._inside_reserve(pool, figures, request):
            kind = 1 if request["preemptible"] else 0
        else:
            kind = 2
        return (kind, -self.policy(pool, _owner(request))["priority"], request["number"])

    def _over_limit(self, pool, figures, request):
        policy = self.policy(pool, _owner(request))
        return any(
            self._used_leaving_apart(pool, figures, _owner(request), key) + request["demand"][key]
            > self.limit(policy, key)
            for key in self.metered(pool, request["demand"])
        )

    def _fits(self, pool, figures, request):
        policy = self.policy(pool, _owner(request))
        return all(
            request["demand"][key] <= self._free(pool, figures, key)
            and self._used(pool, figures, _owner(request), key) + request["demand"][key] <= self.limit(policy, key)
            for key in self.metered(pool, request["demand"])
        )

    def _covered(self, pool, figures, request):
        """Would fit if those leaving had left."""
        return self._fits(pool, [f for f in figures if not f[1]], request)

    # ------------------------------------------------------------------ section 5: the cycle

    def _cycle(self, order):
        """The first of the four that changes something, and again, until none does."""
        rounds = 0
        while (
            self._step_1_grant(order)
            or self._step_2_mark(order)
            or self._step_3_evict(order)
            or self._step_4_backfill(order)
        ):
            rounds += 1
            assert rounds < 1000 + 100 * len(self.requests), "the cycle does not end"

    def _step_1_grant(self, order):
        changed = False
        for pool in order:
            walk = self._walk(pool)
            while walk["end"] == "grant":
                request = walk["request"]
                for preferred in self.pools_by_preference(request):
                    there = self._walk(preferred)
                    if there["end"] == "grant" and there["request"] is request:
                        self._grant(request, preferred)
                        break
                changed = True
                walk = self._walk(pool)
        return changed

    def _step_2_mark(self, order):
        changed = False
        for pool in order:
            walk = self._walk(pool)
            for request, _, outcome in walk["steps"]:
                if outcome == "set aside" and request["mark"] is None:
                    request["mark"] = pool
                    changed = True
            if walk["end"] == "grant":
                continue  # not run to its end: no mark ends
            waited_for = [r for r, _, outcome in walk["steps"] if outcome in ("set aside", "blocked")]
            for request in self.requests:
                if request["mark"] == pool and request not in waited_for:
                    request["mark"] = None
                    changed = True
        return changed

    def _step_3_evict(self, order):
        for pool in order:
            walk = self._walk(pool)
            if walk["end"] != "blocked":
                continue
            blocked = walk["request"]
            for other in self.pools_by_preference(blocked):
                if self._step_4_choice(other) is blocked:
                    self._grant(blocked, other, opportunistic=True)
                    return True
            for other in self.pools_by_preference(blocked):
                if blocked["mark"] is not None and blocked["mark"] != other:
                    continue
                there = self._walk(other)
                if there["end"] == "blocked" and there["request"] is blocked:
                    victims = self._victims(there)
                    if victims:
                        blocked["mark"] = other
                        self._evict(victims, blocked)
                        return True
            if blocked["mark"] is not None:
                blocked["mark"] = None
                return True
        return False

    def _step_4_backfill(self, order):
        for pool in order:
            chosen = self._step_4_choice(pool)
            if chosen is not None:
                self._grant(chosen, pool, opportunistic=True)
                return True
        return False

    def _step_4_choice(self, pool):
        """Whom backfill would grant in this pool as things stand, or None."""
        if self.pool(pool)["queueing"] != "backfill":
            return None
        walk = self._walk(pool)
        if walk["end"] != "blocked":
            return None
        figures = walk["figures"]
        for request in sorted(walk["rest"], key=lambda r: self._rank(pool, figures, r)):
            held_back = _owner(request) in walk["held_back"] and not self._inside_reserve(pool, figures, request)
            if (
                request["preemptible"]
                and self._fits(pool, figures, request)
                and not self._over_limit(pool, figures, request)
                and not held_back
            ):
                return request
        return None

    # ------------------------------------------------------------------ section 6: victims

    def _victims(self, walk):
        """Who has to leave for the request that this walk found blocked; [] if it is no use."""
        chosen = self._chosen(walk)
        if not chosen:
            return []
        # When all who are leaving and the victims have left, is h granted?
        ahead = self._look_ahead(walk["pool"], chosen)
        if not any(r is walk["request"] and outcome == "grant" for r, _, outcome in ahead["steps"]):
            return []
        return chosen

    def _look_ahead(self, pool, victims):
        left = [f for f in self._figures(pool) if not f[1] and f[0] not in victims]
        return self._walk(pool, left, grant_and_go_on=True)

    def _chosen(self, walk):
        """The victims as far as figures go, before looking ahead."""
        pool, h, figures = walk["pool"], walk["request"], walk["figures"]
        missing = self._missing(pool, figures, h)
        inside = self._inside_reserve(pool, figures, h)
        priority = self.policy(pool, _owner(h))["priority"]
        lines = figures + [[h, False]]

        def policy_priority(v):
            return self.policy(pool, _owner(v))["priority"]

        def may_be_taken(v):
            if v["status"] != "allocated" or not v["preemptible"]:
                return False
            borrowed = self._borrowed(pool, lines, v)
            if not any(
                self._counts_for(kind, v, h) and borrowed.get(key, 0) > 0
                for (kind, key), amount in missing.items()
                if amount > 0
            ):
                return False
            preempt = policy_priority(v) < priority
            reclaim = inside
            backfilled = v["opportunistic"] and policy_priority(v) == priority and v["number"] > h["number"]
            return preempt or reclaim or backfilled

        holders = [r for r, _ in figures if r["charged"]]
        holders.sort(key=lambda v: (policy_priority(v), -v["granted"]))
        chosen = []
        for v in holders:
            if may_be_taken(v):
                chosen.append(v)
                self._subtract(pool, missing, v, h)
        if any(amount > 0 for amount in missing.values()):
            return []

        for v in reversed(list(chosen)):
            others = [c for c in chosen if c is not v]
            missing = self._missing(pool, figures, h)
            for c in others:
                self._subtract(pool, missing, c, h)
            if not any(amount > 0 for amount in missing.values()):
                chosen = others
        return chosen

    def _missing(self, pool, figures, h):
        """{("pool" or "limit", key): amount that is missing, not positive if none is}."""
        policy = self.policy(pool, _owner(h))
        missing = {}
        for key in self.metered(pool, h["demand"]):
            amount = h["demand"][key]
            missing["pool", key] = amount - self._free(pool, figures, key) - self._leaving(pool, figures, key)
            own_leaving = self._leaving(pool, [f for f in figures if _owner(f[0]) == _owner(h)], key)
            missing["limit", key] = (
                self._used(pool, figures, _owner(h), key) + amount - own_leaving - self.limit(policy, key)
            )
        return missing

    def _counts_for(self, kind, v, h):
        """For a key missing under the limit only the own team's work counts."""
        return kind == "pool" or _owner(v) == _owner(h)

    def _subtract(self, pool, missing, v, h):
        """The victim's whole holding."""
        for key, amount in self._holding(pool, v).items():
            for kind in ("pool", "limit"):
                if (kind, key) in missing and self._counts_for(kind, v, h):
                    missing[kind, key] -= amount

    # ------------------------------------------------------------------ section 8: status

    def _grant(self, request, pool, opportunistic=False):
        self.grants += 1
        request.update(pool=pool, granted=self.grants, charged=True, mark=None, opportunistic=opportunistic)
        self._move(request, "allocated")
        self._check_grant(request)

    def _evict(self, victims, waiter):
        for v in victims:
            v["preempted_by"] = waiter["id"]
            v["leaving"] = True
            self._move(v, "preempting")
        if not self.grace:
            for v in victims:
                self._end(v, "preempted")

    def _end(self, request, status):
        """A charged one ends. Its capacity returns when its placement group is gone."""
        self._move(request, status)
        request["leaving"] = True
        if not self.removal:
            self._uncharge(request)

    def _uncharge(self, request):
        request["charged"] = False
        request["leaving"] = False

    def _move(self, request, status):
        assert status in TRANSITIONS[request["status"]], (request["id"], request["status"], status)
        self.log.append((self.event, request["status"], status, request["id"], request["pool"]))
        request["status"] = status
        if status != "pending":
            request["mark"] = None

    # ------------------------------------------------------------------ section 9: changes

    def _rejudge(self):
        """Sections 2 and 9: pending and eligible nowhere -> rejected."""
        for request in self.requests:
            if request["status"] == "pending" and not self.pools_by_preference(request):
                self._move(request, "rejected")

    def _faults(self, pools, policies, new_pools, new_policies):
        """What is wrong with a change, judged on its final state."""
        faults = []
        for name in sorted({p["name"] for p in pools}):
            if [p["name"] for p in pools].count(name) > 1:
                faults.append(f"pool {name!r} is given twice")
        for key in sorted({_key(p) for p in policies}):
            if [_key(p) for p in policies].count(key) > 1:
                faults.append(f"policy {key} is given twice")
        capacities = {p["name"]: p["capacity"] for p in new_pools}

        for policy in new_policies:
            if policy["pool"] not in capacities:
                faults.append(f"policy {_key(policy)}: no such pool")
                continue
            capacity = capacities[policy["pool"]]
            for key in sorted(set(policy["reserved"]) | set(policy["limit"])):
                if key not in capacity:
                    faults.append(f"policy {_key(policy)}: {key} is not a key of the pool")
        for policy in policies:
            capacity = capacities.get(policy["pool"], {})
            for key in sorted(set(policy["reserved"]) | set(policy["limit"])):
                reserved = policy["reserved"].get(key, 0)
                limit = policy["limit"].get(key, capacity.get(key, 0))
                if reserved > limit:
                    faults.append(f"policy {_key(policy)}: reserved {reserved} {key} > limit {limit}")
                if limit > capacity.get(key, 0):
                    # Only of policies in this change: an older limit is clamped instead.
                    faults.append(f"policy {_key(policy)}: limit {limit} {key} > capacity")
        for pool in new_pools:
            for key, capacity in pool["capacity"].items():
                promised = sum(p["reserved"].get(key, 0) for p in new_policies if p["pool"] == pool["name"])
                if promised > capacity:
                    faults.append(f"pool {pool['name']!r}: {promised} {key} reserved > capacity {capacity}")
        for pool in pools:
            old = self.pool(pool["name"])
            for key in old["capacity"] if old else []:
                in_use = self._charged(pool["name"], self._figures(pool["name"]), key)
                if key not in pool["capacity"] and in_use > 0:
                    faults.append(f"pool {pool['name']!r}: {key} disappears while {in_use} are in use")
        return faults

    def _refuse_in_use(self, pool, requests):
        queued = [r for r in requests if r["status"] == "pending" and self.eligible(r, pool)]
        charged = [r for r in requests if r["charged"] and r["pool"] == pool]
        if queued or charged:
            raise Refused(f"{len(queued)} queued and {len(charged)} charged in pool {pool!r}")

    # ------------------------------------------------------------------ section 7: laws

    def check_laws(self):
        """Assert laws 1, 2, 3, 4 and 7 on the state after an event."""
        tracked = {}
        for what, (used, allowed) in self._law_figures().items():
            # Laws 1-3: too much only where it already was when something was lowered under
            # running work (or a key newly listed, which is the same), and then never more.
            assert used <= max(allowed, self.excess.get(what, allowed)), (what, used, allowed)
            if used > allowed:
                tracked[what] = used
        self.excess = tracked

        for pool in self.pools_by_name():
            walk = self._walk(pool)
            assert walk["end"] != "grant", (pool, walk["request"]["id"], "not granted at once")
            lowered = any(what[1] == pool for what in self.excess if what[0] in ("law 1", "law 3"))
            elsewhere = False
            for request, inside, outcome in walk["steps"]:
                if inside and not lowered:
                    # Law 4. "room elsewhere": then it is set aside there, asserted below.
                    assert outcome in ("set aside", "room elsewhere") or (
                        outcome == "blocked" and (elsewhere or self._overtaken(walk))
                    ), ("law 4", pool, request["id"], outcome)
                elsewhere = elsewhere or outcome == "room elsewhere"
            if not (walk["request"] and walk["steps"][-1][1]):
                assert not any(self._inside_reserve(pool, walk["figures"], r) for r in walk["rest"])

        for request in self.requests:
            if request["mark"] is not None:
                assert request["status"] == "pending", request
                assert any(
                    r is request and outcome == "set aside" for r, _, outcome in self._walk(request["mark"])["steps"]
                ), request
            # Law 7: one pool, known to hold it; terminal statuses are kept by TRANSITIONS in _move.
            if request["charged"]:
                assert self.policy(request["pool"], _owner(request)) is not None, request
                assert request["leaving"] == (request["status"] != "allocated"), request
            assert request["charged"] or request["status"] not in ("allocated", "preempting"), request
        moved = {}
        for _, before, after, id, pool in self.log:
            assert moved.get(id, (None, None))[0] == before
            assert moved.get(id, (None, None))[1] in (None, pool)
            moved[id] = (after, pool)
        assert moved == self.states()

    def _overtaken(self, walk):
        """Where the rules as written break law 4, and nowhere else.

        There are victims for the blocked request, but when the straddling one among them has left,
        a waiting request of the victim's own team comes inside its reserve, goes first and takes
        the room; the look-ahead then forbids the eviction, though more victims would do.
        Asserted narrowly: somebody who does not stand ahead now is granted first in the look-ahead.
        """
        chosen, h = self._chosen(walk), walk["request"]
        now_ahead = [r for r, _, _ in walk["steps"]]
        before = []
        for r, _, outcome in self._look_ahead(walk["pool"], chosen)["steps"]:
            if r is h:
                break
            if outcome == "grant":
                before.append(r)
        overtaken = bool(chosen) and any(r not in now_ahead for r in before)
        self.overtaken += overtaken
        return overtaken

    def _law_figures(self):
        """{(law, pool, ...): (used, allowed)} of laws 1 to 3."""
        table = {}
        for pool in self.pools:
            name, figures = pool["name"], self._figures(pool["name"])
            for key in pool["capacity"]:
                table["law 1", name, key] = (self._charged(name, figures, key), pool["capacity"][key])
                for policy in [p for p in self.policies if p["pool"] == name]:
                    owner = _owner(policy)
                    table["law 2", name, owner, key] = (
                        self._used(name, figures, owner, key),
                        self.limit(policy, key),
                    )
                    firm = [f for f in figures if not f[0]["preemptible"]]
                    table["law 3", name, owner, key] = (
                        self._used_leaving_apart(name, firm, owner, key),
                        policy["reserved"].get(key, 0),
                    )
        return table

    def _note_excess(self):
        """A change was made: what is too much now is too much because of it, or was before."""
        self.excess = {what: used for what, (used, allowed) in self._law_figures().items() if used > allowed}

    def _check_grant(self, request):
        """Laws 1 to 3 at the moment of a grant, for the keys it uses: no exceptions here."""
        pool, owner = request["pool"], _owner(request)
        table = self._law_figures()
        for key in self.metered(pool, request["demand"]):
            checks = [("law 1", pool, key), ("law 2", pool, owner, key)]
            if not request["preemptible"]:
                checks.append(("law 3", pool, owner, key))
            for what in checks:
                used, allowed = table[what]
                assert used <= allowed, (what, request["id"], used, allowed)

    # ------------------------------------------------------------------ looking things up

    def pool(self, name):
        return next((p for p in self.pools if p["name"] == name), None)

    def policy(self, pool, owner):
        return next((p for p in self.policies if p["pool"] == pool and _owner(p) == owner), None)

    def capacity(self, pool, key):
        return self.pool(pool)["capacity"].get(key, 0)

    def request(self, id):
        """Raises KeyError for an id that was never submitted."""
        for r in self.requests:
            if r["id"] == id:
                return r
        raise KeyError(id)


def _owner(thing):
    """Whose a request or a policy is: a component is its name and its type."""
    return (thing["component"], thing["component_type"])


def _key(policy):
    return (policy["pool"], policy["component"], policy["component_type"])


def _complete_pool(pool):
    pool = {"queueing": "strict", **pool}
    if set(pool) != {"name", "capacity", "queueing"} or pool["queueing"] not in ("strict", "backfill"):
        raise Refused(f"not a pool: {pool}")
    _check_amounts(pool["capacity"], 1, f"capacity of pool {pool['name']!r}")
    return {**pool, "capacity": dict(pool["capacity"])}


def _complete_policy(policy):
    policy = {"component_type": "team", "reserved": {}, "limit": {}, **policy}
    if (
        set(policy) != {"pool", "component", "component_type", "priority", "reserved", "limit"}
        or policy["component_type"] not in COMPONENT_TYPES
    ):
        raise Refused(f"not a policy: {policy}")
    _check_amounts({"priority": policy["priority"]}, 0, f"policy {_key(policy)}")
    _check_amounts(policy["reserved"], 0, f"reserved of policy {_key(policy)}")
    _check_amounts(policy["limit"], 0, f"limit of policy {_key(policy)}")
    return {**policy, "reserved": dict(policy["reserved"]), "limit": dict(policy["limit"])}


def _check_amounts(amounts, least, where):
    for key, amount in amounts.items():
        if type(amount) is not int or amount < least:
            raise Refused(f"{where}: {key} is {amount!r}, not an int >= {least}")
