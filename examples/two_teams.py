"""Two teams want the same twelve GPUs: who gets what, who waits, who leaves, and why.

    python examples/two_teams.py

Uses the client directly: requests are asked for, and explained, without any work in them.
"""

from __future__ import annotations

import sys

import raypool
from raypool import Client

TWELVE = {"resources": {"gpu_count": 4}, "workers": 3, "strategy": "SPREAD"}
FOUR = {"resources": {"gpu_count": 4}}


def main() -> None:
    try:
        client = raypool.connect()
    except raypool.BrokerUnavailable as error:
        sys.exit(f"{error}\nTo try it on this machine: python examples/local_cluster.py, in another terminal.")

    print("\n1. Nobody else is there: the sandbox gets all twelve GPUs, ten of them borrowed.")
    sandbox = client.submit(component="sandbox", **TWELVE)
    sandbox = client.wait(sandbox.id)
    show(client, sandbox.id)

    print("\n2. team-ml asks for four, all inside its reserve: the sandbox is asked to leave.")
    team_ml = client.submit(component="team-ml", **FOUR)
    show(client, sandbox.id, team_ml.id)

    print("\n3. The sandbox leaves before its grace is over, and team-ml runs.")
    client.release(sandbox.id)
    team_ml = client.wait(team_ml.id)
    show(client, sandbox.id, team_ml.id)

    print("\n4. The sandbox asks again for all twelve: it waits, and takes nothing from team-ml's reserve.")
    again = client.submit(component="sandbox", retry_of=sandbox.id, **TWELVE)
    show(client, team_ml.id, again.id)

    for request in (team_ml, again):
        client.release(request.id)


def show(client: Client, *request_ids: str) -> None:
    for request_id in request_ids:
        request = client.request(request_id)
        print(f"   {request.component:8} {request.status:10} {client.why(request_id).sentence}")
    for policy in client.policies(pool="gpus"):
        used, borrowed = policy.used["gpu"], policy.borrowed.get("gpu", 0)
        if used:
            print(f"   {policy.component} holds {used} gpu, {borrowed} of them borrowed")


if __name__ == "__main__":
    main()
