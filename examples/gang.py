"""A gang: three workers, all of them or none, each on a node of its own.

    python examples/gang.py

The lease is one placement group. Options for the actor of each bundle come from the lease, so that a
worker cannot end up outside of it; when the block is left, the workers end and the room is given back.
"""

from __future__ import annotations

import sys

import ray

import raypool
from raypool import ResourceSettings


@ray.remote
class Worker:
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())

    def setup(self, master: str) -> str:
        """Where torch.distributed.init_process_group() would stand."""
        node = ray.get_runtime_context().get_node_id()[:8]
        return f"rank {self.rank} of {self.world_size} on node {node}, GPUs {ray.get_gpu_ids()}, master {master}"


def main() -> None:
    try:
        raypool.connect()
    except raypool.BrokerUnavailable as error:
        sys.exit(f"{error}\nTo try it on this machine: python examples/local_cluster.py, in another terminal.")

    two_gpus = ResourceSettings(gpu_count=2)
    with raypool.lease(two_gpus, component="sandbox", workers=3, strategy="STRICT_SPREAD") as lease:
        size = len(lease.nodes)
        workers = [Worker.options(**lease.actor_options(rank)).remote(rank, size) for rank in range(size)]
        master = ray.get(workers[0].address.remote())
        for line in ray.get([worker.setup.remote(master) for worker in workers]):
            print(line)

        lease_now = lease.describe()
        request, group = lease_now["request"], lease_now["placement_group"]
        print(f"pool '{request['pool']}', demand {request['demand']}, borrowed {request['borrowed']}")
        print(f"placement group {group['name']}: {group['state']}, {group['strategy']}")
        for bundle, node in sorted(group["bundles_to_node_id"].items()):
            print(f"  bundle {bundle} {group['bundles'][bundle]} on node {node[:8]}")


if __name__ == "__main__":
    main()
