"""`raypool request`: what was asked for, why it waits, and how to end it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from raypool.cli import connection, output
from raypool.view import about

if TYPE_CHECKING:
    from raypool.view import RequestView

STATUSES = ("pending", "allocated", "preempting", "released", "preempted", "cancelled", "rejected")


@click.group()
def request() -> None:
    """Requests: list, describe, why, cancel, delete.

    An ID may be shortened to a beginning that no other id shares, or be that of a placement group, or its name.
    """


@request.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only those in this status.")
@click.option("--component", help="Only those of this component.")
@click.option("--pool", help="Only those granted in this pool, or waiting in it.")
@output.output_option
@connection.address_option()
def list_(status: str | None, component: str | None, pool: str | None, form: str) -> None:
    """List requests in order of submission."""
    client = connection.connect()
    if pool is not None:
        client.pool(pool)  # a pool that does not exist is an error, not an empty list
    with output.progress("asking for the requests"):
        found = client.requests(status=status, component=component, pool=pool)
    print_requests(found, form)


@request.command()
@click.argument("id")
@output.output_option
@connection.address_option()
def describe(id: str, form: str) -> None:
    """Show one request with all that is known of it."""
    view = connection.connect().request(id)
    if form != "table":
        output.data(view.as_dict(), form)
    else:
        output.facts(_facts(view))


@request.command()
@click.argument("id")
@output.output_option
@connection.address_option()
def why(id: str, form: str) -> None:
    """Say why a request waits and what would start it, why it was refused, or had to leave.

    `raypool why ID` and `raypool request why ID` are the same.
    """
    client = connection.connect()
    with output.progress("looking for what would start it"):
        explained = client.why(id)
    output.data(explained.as_dict(), form) if form != "table" else output.lines(str(explained))


@request.command()
@click.argument("id")
@click.option("--reason", help="What its owner is told. Default: cancelled by an operator.")
@connection.address_option()
def cancel(id: str, reason: str | None) -> None:
    """End a request, whether it waits or runs."""
    client = connection.connect()
    whole = client.request(id).id
    view = client.cancel(whole) if reason is None else client.cancel(whole, reason)
    click.echo(f"request '{view.id}' is {view.status}" + (f": {view.reason}" if view.reason else ""))


@request.command()
@click.argument("id")
@connection.address_option()
def delete(id: str) -> None:
    """Drop an ended request from the broker's memory."""
    client = connection.connect()
    view = client.request(id)
    client.forget(view.id)
    click.echo(f"request '{view.id}' is deleted")


def print_requests(views: list[RequestView], form: str) -> None:
    now = time.time()
    starts = {"STARTS IN": lambda view: starts_in(view)} if any(view.eta for view in views) else {}
    output.listing(
        views,
        {
            "ID": lambda view: view.id,
            "STATUS": lambda view: view.status,
            "COMPONENT": lambda view: view.component,
            "POOL": lambda view: view.pool or ", ".join(view.reasons) or None,
            "LINE": lambda view: "placing" if view.placing else view.position,
            "DEMAND": lambda view: demand_of(view),
            "BORROWED": lambda view: output.amounts(view.borrowed),
            "SINCE": lambda view: output.duration(now - _since(view)),
            **starts,
        },
        form,
        "no requests",
    )


def demand_of(view: RequestView) -> str:
    """Without `step_run`, which is 1 for every request."""
    return output.amounts({key: amount for key, amount in view.demand.items() if key != "step_run"})


def starts_in(view: RequestView) -> str | None:
    """p50 and p90."""
    beyond = "" if view.eta_beyond_seconds is None else f"> {about(view.eta_beyond_seconds)}"
    if view.eta_p50_seconds is None:
        return beyond or None
    last = beyond or "?" if view.eta_p90_seconds is None else about(view.eta_p90_seconds)
    return f"{about(view.eta_p50_seconds)} .. {last}"


def _since(view: RequestView) -> float:
    """When its status began."""
    if view.running:
        return view.granted_at or view.submitted_at
    return view.ended_at or view.submitted_at


def _facts(view: RequestView) -> dict[str, object]:
    return {
        "id": view.id,
        "description": view.description,
        "component": f"{view.component} ({view.component_type})",
        "status": view.status + (" (being placed)" if view.placing else ""),
        "pool": view.pool,
        "pinned to": view.pinned,
        "reason": view.reason if not view.reasons else None,
        "waits": "\n".join(f"{pool}: {why}" for pool, why in view.reasons.items()),
        "place in line": view.position,
        "starts": view.eta,
        "demand": output.amounts(view.demand),
        "borrowed": output.amounts(view.borrowed),
        "workers": f"{view.workers}, {view.strategy}",
        "preemptible": "yes" if view.preemptible else "no",
        "submitted": _moment(view.submitted_at),
        "granted": _moment(view.granted_at),
        "runs until": _moment(view.runs_until),
        "may run for": None if view.max_duration_seconds is None else output.duration(view.max_duration_seconds),
        "leaves by": _moment(view.deadline),
        "ended": _moment(view.ended_at),
        "preempted by": view.preempted_by
        and f"{view.preempted_by} of '{view.preempted_by_component}' ({view.preemption_rule})",
        "retry of": view.retry_of,
        "on node loss": view.on_node_loss,
        "being repaired until": _moment(view.repair_until),
        "grants so far": view.attempt or None,
        "placement group": view.group_id,
        "named": view.group_name,
        "nodes": ", ".join(dict.fromkeys(view.nodes)),
        "job": view.job,
        "actor": view.actor,
        "lifetime": view.lifetime,
    }


def _moment(when: float | None) -> str | None:
    """The local time of day, and how far away it is."""
    if when is None:
        return None
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    away = when - time.time()
    return f"{clock} ({output.duration(-away)} ago)" if away <= 0 else f"{clock} (in {output.duration(away)})"
