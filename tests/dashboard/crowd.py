"""The real decision core behind the client's methods, and a dashboard over it, without Ray.

python -m tests.dashboard.crowd --port 8266     # 50 pools, 5,000 requests, until Ctrl-C
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

from raypool.core import events as ev
from raypool.core.broker import Broker
from raypool.dashboard.guards import Guard
from raypool.dashboard.serving import serve
from raypool.server.pages import page_of, view_page
from raypool.server.views import Eta
from raypool.spec import BrokerConfig
from raypool.view import EventView, PageView, PreviewView, RequestView, UsageView

from ..cli.conftest import CoreClient

CALLS = ("status", "page", "why", "request", "submit", "cancel", "apply", "preview", "config", "usage", "events")

MARKUP = "<img src=x onerror=document.title='broken'><b>bold</b>"
"""What somebody may call his request."""


class PagedClient(CoreClient):
    """With what the dashboard asks, and a clock that goes. away: raised by every call, if it is set. Calls of several
    threads are answered one after the other."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.RLock()
        super().__init__()
        self.now = time.time()
        self.away: Exception | None = None
        self.calls: list[str] = []
        self.no_forecasts = False  # one of thousands takes seconds, which the broker spends in slices
        self.used = UsageView([], 60, {})
        self.happened: list[EventView] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found
        if self.away is not None:
            raise self.away
        self.calls.append(name)

        def call(*args: Any, **more: Any) -> Any:
            with self._one_at_a_time:
                return found(*args, **more)

        return call

    def _starts(self, broker: Broker) -> dict[str, Eta]:
        return {} if self.no_forecasts else super()._starts(broker)

    def page(
        self,
        kind: str,
        *,
        pool: str | None = None,
        component: str | None = None,
        skip: int = 0,
        count: int = 50,
    ) -> PageView:
        chosen, in_all = page_of(self.broker, kind, pool, component, skip, count)
        return view_page(self.broker, chosen, in_all, skip, {}, pool)

    def usage(self, since_seconds: float, step_seconds: float, *, pool: str | None = None) -> UsageView:
        return self.used

    def events(
        self,
        *,
        since: float = 0.0,
        pool: str | None = None,
        request: str | None = None,
        kind: str | None = None,
        limit: int = 1_000,
    ) -> list[EventView]:
        return [
            one
            for one in self.happened
            if one.at >= since
            and pool in (None, one.pool)
            and kind in (None, one.kind)
            and request in (None, one.request, one.by.get("request"))
        ][-limit:]

    def preview(self, config: Any) -> PreviewView:
        return super().preview(BrokerConfig.load(config) if isinstance(config, dict) else config)

    def apply(self, config: Any, *, by: str | None = None, note: str = "") -> list[str]:
        return super().apply(BrokerConfig.load(config) if isinstance(config, dict) else config, by=by, note=note)

    def place_all(self, node: str = "6f00d3aa" + 48 * "0") -> None:
        """Whatever was granted is placed."""
        for request in list(self.broker.requests.values()):
            if request.current is not None and not request.current.placed:
                self.feed(ev.PlacementReady(request.id, request.grants, f"group-of-{request.id}", (node,)))

    def running(self) -> list[RequestView]:
        return self.page("running").requests


def three_teams() -> PagedClient:
    """Eight GPUs. production holds 2 of its reserve, sandbox 6, all borrowed; production's next has sandbox leave."""
    client = PagedClient()
    client.apply(
        {
            "pools": [{"name": "gpus", "capacity": {"gpu": 8}, "grace_seconds": 90.0, "description": "hall 2"}],
            "policies": [
                {"pool": "gpus", "component": "production", "priority": 100, "reserved": {"gpu": 4}},
                {"pool": "gpus", "component": "team-ml", "priority": 50, "reserved": {"gpu": 2}, "limit": {"gpu": 6}},
                {"pool": "gpus", "component": "sandbox", "priority": 10},
            ],
        }
    )
    client.submit(id="serve", component="production", resources={"gpu_count": 2})
    client.submit(id="sweep", component="sandbox", resources={"gpu_count": 6}, description=MARKUP)
    client.place_all()
    client.submit(id="rollout", component="production", resources={"gpu_count": 2}, description="the new model")
    client.submit(id="train", component="team-ml", resources={"gpu_count": 4})
    client.submit(id="play", component="sandbox", resources={"gpu_count": 1})
    return client


def crowd(pools: int = 50, requests: int = 5_000) -> PagedClient:
    client = PagedClient()
    client.now -= 2 * requests
    client.no_forecasts = True
    names = [f"pool-{i:02}" for i in range(pools)]
    client.apply(
        {
            "pools": [
                {"name": name, "capacity": {"gpu": 64, "mcpu": 512_000}, "grace_seconds": 60.0} for name in names
            ],
            "policies": [
                {"pool": name, "component": f"team-{i % 7}-{k}", "priority": 10 * k, "reserved": {"gpu": 8}}
                for i, name in enumerate(names)
                for k in range(4)
            ],
        }
    )
    for number in range(requests):
        at = number % pools
        client.submit(
            id=f"r{number:05}",
            component=f"team-{at % 7}-{number // pools % 4}",
            pool=names[at],
            resources={"gpu_count": 1 + number % 8, "cpu_count": 1},
            description=f"experiment {number}",
        )
    client.place_all()
    client.now = time.time()
    return client


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--few", action="store_true", help="three teams on eight GPUs")
    options.add_argument("--allow-actions", action="store_true")
    asked = options.parse_args()
    client = three_teams() if asked.few else crowd()
    guard = Guard("127.0.0.1", actions=asked.allow_actions)
    serve(lambda: client, guard, asked.port, lambda url: print(url, flush=True))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
