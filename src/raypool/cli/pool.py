"""`raypool pool`: pools, and the policies that say who may use how much of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raypool.cli import connection, output
from raypool.cli.request import print_requests
from raypool.cli.values import AMOUNTS, COMPONENT_TYPE, PAIR
from raypool.errors import Refused

if TYPE_CHECKING:
    from raypool.view import PolicyView, PoolView

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def pool() -> None:
    """Pools and policies: create, change, list, delete."""


# --- pools ------------------------------------------------------------------------------------


def pool_options(capacity_required: bool) -> Callable[[F], F]:
    """One option per field of a pool. A field that is not named is None, or ()."""
    options = [
        click.option(
            "-c", "--capacity", type=AMOUNTS, required=capacity_required,
            help="All of its capacity, whole numbers: '{gpu: 8}'.",
        ),
        click.option("-d", "--description", help="For people."),
        click.option("--queueing", type=click.Choice(["strict", "backfill"]),
                     help="Whether those behind one who has no room may run meanwhile."),
        click.option("--grace-seconds", type=float, help="From a preemption's notice to the removal."),
        click.option("--placement-timeout-seconds", type=float, help="How long a grant may look for its nodes."),
        click.option("--infeasible", type=click.Choice(["wait", "reject"]),
                     help="What becomes of a request that no present node could hold."),
        click.option("--node-label", type=PAIR, multiple=True, metavar="K=V",
                     help="Only nodes with this label; 'K=' takes it away. Repeatable."),
        click.option("--ray-resource", type=PAIR, multiple=True, metavar="KEY=NAME",
                     help="A pool key that is a Ray resource; 'KEY=' takes it away. Repeatable."),
    ]  # fmt: skip

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


@pool.command()
@click.argument("name")
@pool_options(capacity_required=True)
@connection.address_option()
def create(name: str, **fields: Any) -> None:
    """Create a pool.

    raypool pool create gpus -c '{gpu: 8}'
    """
    from raypool.spec import BrokerConfig, PoolSpec

    spec = PoolSpec.load({"name": name, **_changed({}, fields)})
    client = connection.connect()
    if any(known.name == name for known in client.config().pools):
        raise Refused(f"pool '{name}' exists already; `raypool pool update {name}` changes it")
    warn(client.apply(BrokerConfig(pools=(spec,))))
    click.echo(f"pool '{name}' is created: {output.amounts(spec.capacity)}")


@pool.command()
@click.argument("name")
@pool_options(capacity_required=False)
@connection.address_option()
def update(name: str, **fields: Any) -> None:
    """Change the named fields of a pool; the others stay as they are.

    raypool pool update gpus -c '{gpu: 16}' --grace-seconds 30
    """
    named = [field for field, value in fields.items() if value not in (None, ())]
    if not named:
        raise click.UsageError(
            "name at least one field to change, like -c '{gpu: 8}'", ctx=click.get_current_context()
        )
    from raypool.spec import BrokerConfig, PoolSpec

    client = connection.connect()
    pools = {known.name: known for known in client.config().pools}
    if name not in pools:
        raise Refused(
            f"there is no pool '{name}' (pools: {', '.join(pools) or 'none'}); `raypool pool create {name}` makes it"
        )
    old = pools[name].dump()
    spec = PoolSpec.load({**old, **_changed(old, fields)})
    warn(client.apply(BrokerConfig(pools=(spec,))))
    click.echo(f"pool '{name}' is updated: {', '.join(one.replace('_', ' ') for one in named)}")


_FIELD_OF = {"node_label": "node_labels", "ray_resource": "ray_resources"}


def _changed(old: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The fields that the options name, as a spec has them; labels and resources are added to `old`'s."""
    changed = {}
    for option, value in options.items():
        if value in (None, ()):
            continue
        field = _FIELD_OF.get(option)
        if field is None:
            changed[option] = value
        else:
            after = {**old.get(field, {}), **dict(value)}
            changed[field] = {key: text for key, text in after.items() if text}
    return changed


@pool.command("list")
@output.output_option
@connection.address_option()
def list_(form: str) -> None:
    """List pools and what is left in them."""
    views = connection.connect().pools()
    phantom = {"PHANTOM": lambda view: output.amounts(view.phantom)} if _any_phantom(views) else {}
    output.listing(
        views,
        {
            "NAME": lambda view: view.name,
            "CAPACITY": lambda view: output.amounts(view.capacity),
            "FREE": lambda view: _all_amounts(view.free),
            **phantom,
            "BORROWED": lambda view: output.amounts(view.borrowed),
            "POLICIES": lambda view: len(view.policies),
            "QUEUED": lambda view: view.queued,
            "ACTIVE": lambda view: view.active,
            "QUEUEING": lambda view: view.queueing,
        },
        form,
        "no pools; `raypool pool create NAME -c '{gpu: 8}'` makes one",
    )


@pool.command()
@click.argument("name")
@output.output_option
@connection.address_option()
def describe(name: str, form: str) -> None:
    """Show one pool with its figures and policies."""
    view = connection.connect().pool(name)
    if form != "table":
        output.data(view.as_dict(), form)
        return
    output.facts(
        {
            "name": view.name,
            "description": view.description,
            "queueing": view.queueing,
            "grace": f"{view.grace_seconds:g} s",
            "placement timeout": f"{view.placement_timeout_seconds:g} s",
            "infeasible requests": view.infeasible,
            "node labels": _pairs(view.node_labels),
            "ray resources": _pairs(view.ray_resources),
            "queued": view.queued,
            "active": view.active,
        }
    )
    click.echo()
    print_figures([view])
    click.echo()
    _print_policies(view.policies, form)


@pool.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connection.address_option()
def delete(name: str, yes: bool) -> None:
    """Delete a pool and its policies. Refused while it is in use."""
    client = connection.connect()
    view = client.pool(name)
    policies = f"{len(view.policies)} {'policy' if len(view.policies) == 1 else 'policies'}"
    if not yes:
        click.confirm(f"Delete pool '{name}' and its {policies}?", abort=True, err=True)
    client.delete_pool(name)
    click.echo(f"pool '{name}' and its {policies} are deleted")


@pool.command()
@click.argument("pool")
@click.option("--view", type=click.Choice(["queued", "active", "all"]), default="all", show_default=True,
              help="Those that wait, those that are charged, or all.")  # fmt: skip
@output.output_option
@connection.address_option()
def requests(pool: str, view: str, form: str) -> None:
    """List the requests that wait or run in a pool."""
    client = connection.connect()
    client.pool(pool)  # a pool that does not exist is an error, not an empty list
    with output.progress("asking for the requests"):
        found = client.requests(pool=pool, ended=view == "all")
    if view == "queued":
        found = [one for one in found if one.status == "pending"]
    elif view == "active":
        found = [one for one in found if one.running]
    print_requests(found, form)


# --- policies ---------------------------------------------------------------------------------


def component_type_option(function: F) -> F:
    return click.option(
        "-t", "--component-type", type=COMPONENT_TYPE, default="team", show_default=True,
        help="What the component is.",
    )(function)  # fmt: skip


@pool.command("attach-policy")
@click.argument("pool")
@click.argument("component")
@click.option("-p", "--priority", type=int, required=True, help="Higher goes first and may preempt borrowers.")
@click.option("-r", "--reserved", type=AMOUNTS, help="What it can always have back: '{gpu: 4}'. Default: nothing.")
@click.option("-l", "--limit", type=AMOUNTS, help="What it may never exceed: '{gpu: 8}'. Default: the capacity.")
@component_type_option
@connection.address_option()
def attach_policy(pool: str, component: str, priority: int, reserved: Any, limit: Any, component_type: str) -> None:
    """Let a component use a pool, or replace the policy it has there."""
    from raypool.spec import BrokerConfig, PolicySpec

    policy = PolicySpec.load(
        {
            "pool": pool,
            "component": component,
            "component_type": component_type,
            "priority": priority,
            "reserved": reserved or {},
            "limit": limit or {},
        }
    )
    warn(connection.connect().apply(BrokerConfig(policies=(policy,))))
    click.echo(
        f"{component_type} '{component}' may use pool '{pool}': priority {priority}, "
        f"reserved {output.amounts(policy.reserved)}, "
        f"limit {_all_amounts(policy.limit) if policy.limit else 'the capacity'}"
    )


@pool.command("detach-policy")
@click.argument("pool")
@click.argument("component")
@component_type_option
@connection.address_option()
def detach_policy(pool: str, component: str, component_type: str) -> None:
    """Take a component's policy away. Refused while it has requests there."""
    connection.connect().detach_policy(pool, component, component_type)
    click.echo(f"{component_type} '{component}' may not use pool '{pool}' any more")


@pool.command("list-policies")
@click.argument("pool", required=False)
@click.option("--component", help="Only those of this component.")
@output.output_option
@connection.address_option()
def list_policies(pool: str | None, component: str | None, form: str) -> None:
    """List the policies of one pool, or of all."""
    _print_policies(connection.connect().policies(pool, component), form)


def _print_policies(views: list[PolicyView], form: str) -> None:
    output.listing(
        views,
        {
            "COMPONENT": lambda view: view.component,
            "TYPE": lambda view: view.component_type,
            "POOL": lambda view: view.pool,
            "PRIORITY": lambda view: view.priority,
            "RESERVED": lambda view: output.amounts(view.reserved),
            "LIMIT": lambda view: _all_amounts(view.limit),
            "USED": lambda view: output.amounts(view.used),
            "BORROWED": lambda view: output.amounts(view.borrowed),
            "QUEUED": lambda view: view.queued,
            "ACTIVE": lambda view: view.active,
        },
        form,
        "no policies",
    )


# --- figures ----------------------------------------------------------------------------------


def print_figures(views: list[PoolView]) -> None:
    """A row for each key of each pool. What is phantom has a column where there is any."""
    phantom = _any_phantom(views)
    output.table(
        ["POOL", "KEY", "CAPACITY", "USED", *phantom, "FREE", "BORROWED", "LEAVING", "QUEUED", "ACTIVE"],
        [
            [
                view.name if first else "",
                key,
                most,
                view.used.get(key, 0),
                *(view.phantom.get(key, 0) for _ in phantom),
                view.free.get(key, 0),
                view.borrowed.get(key, 0),
                view.leaving.get(key, 0),
                view.queued if first else "",
                view.active if first else "",
            ]
            for view in views
            for first, (key, most) in zip(chain([True], repeat(False)), view.capacity.items(), strict=False)
        ],
    )


def _any_phantom(views: list[PoolView]) -> list[str]:
    """The heading of that column, if there is any."""
    return ["PHANTOM"] if any(amount for view in views for amount in view.phantom.values()) else []


def _all_amounts(figures: dict[str, int]) -> str:
    """As `output.amounts`, and zeros too: "0 gpu" left is worth saying."""
    return ", ".join(f"{amount} {key}" for key, amount in figures.items()) or "-"


def _pairs(texts: dict[str, str]) -> str:
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def warn(warnings: list[str]) -> None:
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
