"""Whether a change of pools and policies is allowed (semantics 9), judged on its final state.

Pure: takes the specs as they would be and what is charged, returns one sentence per fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raypool.spec import UNMETERED_UNLESS_LISTED, BrokerConfig, PolicySpec, PoolSpec

Owner = tuple[str, str]
Policies = dict[str, dict[Owner, PolicySpec]]


def merged(
    pools: Mapping[str, PoolSpec], policies: Mapping[str, Mapping[Owner, PolicySpec]], change: BrokerConfig
) -> tuple[dict[str, PoolSpec], Policies]:
    """Pools and policies as they would be: those that are named again are replaced whole."""
    new_pools = dict(pools) | {spec.name: spec for spec in change.pools}
    new_policies = {name: dict(policies.get(name, {})) for name in new_pools}
    for policy in change.policies:
        if policy.pool in new_policies:
            new_policies[policy.pool][policy.owner] = policy
    return new_pools, new_policies


def faults_of(
    change: BrokerConfig,
    pools: Mapping[str, PoolSpec],
    policies: Policies,
    in_use: Mapping[str, Iterable[str]],
) -> list[str]:
    """What forbids the change. `pools` and `policies` are the final state; `in_use` has, per pool,
    the keys that charged requests use."""
    faults = []
    for policy in change.policies:
        if policy.pool not in pools:
            known = ", ".join(sorted(pools)) or "none"
            faults.append(f"policy of '{policy.component}': there is no pool '{policy.pool}' (pools: {known})")
        else:
            faults += _policy_faults(policy, pools[policy.pool])
    changed = dict.fromkeys([spec.name for spec in change.pools] + [policy.pool for policy in change.policies])
    for name in changed:
        if name in pools:
            faults += _pool_faults(pools[name], policies[name], in_use.get(name, ()))
    return list(dict.fromkeys(faults))


def _policy_faults(policy: PolicySpec, pool: PoolSpec) -> list[str]:
    who = f"policy of '{policy.component}' in pool '{pool.name}'"
    faults = []
    for field, figures in (("reserved", policy.reserved), ("limit", policy.limit)):
        for key, amount in figures.items():
            if key not in pool.capacity:
                faults.append(f"{who}: {field} names key '{key}', the pool has {', '.join(pool.capacity)}")
            elif amount > pool.capacity[key]:
                faults.append(f"{who}: {field} {amount} {key} is above the pool's capacity {pool.capacity[key]}")
    for key, amount in policy.reserved.items():
        if key in policy.limit and amount > policy.limit[key]:
            faults.append(f"{who}: reserved {amount} {key} is above its limit {policy.limit[key]}")
    return faults


def _pool_faults(pool: PoolSpec, policies: Mapping[Owner, PolicySpec], used_keys: Iterable[str]) -> list[str]:
    faults = []
    for key, most in pool.capacity.items():
        promised = {owner: policy.reserved.get(key, 0) for owner, policy in policies.items()}
        total = sum(promised.values())
        if total > most:
            shares = ", ".join(f"{owner[0]} {amount}" for owner, amount in sorted(promised.items()) if amount)
            faults.append(
                f"pool '{pool.name}': {total} {key} are reserved ({shares}), the capacity is {most}; "
                f"lower a reserve or raise the capacity"
            )
    for owner, policy in sorted(policies.items()):
        for key in sorted(set(policy.reserved) | set(policy.limit)):
            if key not in pool.capacity:
                faults.append(
                    f"pool '{pool.name}': the policy of '{owner[0]}' names key '{key}', which is not in its capacity"
                )
    for key in sorted(set(used_keys)):
        if key not in pool.capacity:
            faults.append(f"pool '{pool.name}': key '{key}' is in use and may not disappear")
    return faults


def warnings_of(pools: Mapping[str, PoolSpec], policies: Policies) -> list[str]:
    """What is allowed but rarely meant: a metered key that nobody's reserve covers makes borrowers."""
    warnings = []
    for name, pool in sorted(pools.items()):
        for owner, policy in sorted(policies[name].items()):
            for key in pool.capacity:
                if key in UNMETERED_UNLESS_LISTED and policy.reserved and not policy.reserved.get(key):
                    warnings.append(
                        f"policy of '{owner[0]}' in pool '{name}' reserves no {key}, which the pool meters: "
                        f"every request that uses {key} counts as a borrower and none can be non-preemptible"
                    )
    return warnings
