"""A client without Ray: the real decision core behind the client's methods."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raypool.cli import connection
from raypool.cli.main import main
from raypool.core import events as ev
from raypool.core.broker import Broker, World
from raypool.core.dry_run import dry_run
from raypool.core.eta import Forecast
from raypool.core.preview import Change, preview
from raypool.core.what_if import suggestions
from raypool.errors import BrokerUnavailable, Refused
from raypool.server.explanation import view_dry_run, view_explanation, view_suggestion
from raypool.server.views import (
    UNKNOWN,
    Eta,
    config_warnings,
    view_broker,
    view_front,
    view_history,
    view_pool,
    view_preview,
    view_request,
    view_requests,
)
from raypool.spec import BrokerConfig, RequestSpec
from raypool.view import (
    BrokerView,
    DryRunView,
    ExplanationView,
    FrontView,
    PolicyView,
    PoolView,
    PreviewView,
    RequestView,
    VersionView,
)


class CoreClient:
    """As `raypool.Client`. `asked` has the ids and names that commands passed on."""

    def __init__(self) -> None:
        self.broker = Broker(World(confirms_placement=False, confirms_removal=False))
        self.asked: list[str] = []
        self.degraded = ""
        self.written = ""
        self.now = 1000.0
        self.broken: list[str] = []

    def feed(self, event: ev.Event) -> None:
        self.now += 1
        self.broker.handle(event, self.now)

    def status(self) -> BrokerView:
        return view_broker(
            self.broker,
            config_warnings(self.broker),
            self.now - 100,
            "9.9",
            self.degraded,
            "/var/lib/journal.sqlite",
        )

    def journal(self) -> str:
        return self.written

    def pools(self) -> list[PoolView]:
        return self.status().pools

    def pool(self, name: str) -> PoolView:
        if name not in self.broker.pools:
            raise Refused(f"there is no pool '{name}' (pools: {', '.join(self.broker.pools) or 'none'})")
        return view_pool(self.broker.pools[name])

    def front(self, name: str, first: int = 20) -> FrontView:
        self.pool(name)
        return view_front(self.broker.pools[name], self.broker, first, self._starts(self.broker))

    def policies(self, pool: str | None = None, component: str | None = None) -> list[PolicyView]:
        pools = self.pools() if pool is None else [self.pool(pool)]
        return [one for view in pools for one in view.policies if component in (None, one.component)]

    def requests(
        self,
        *,
        status: str | None = None,
        component: str | None = None,
        pool: str | None = None,
        ended: bool = True,
    ) -> list[RequestView]:
        return [
            view
            for view in view_requests(self.broker, self.broker.requests.values(), self._starts(self.broker))
            if status in (None, view.status)
            and component in (None, view.component)
            and (pool is None or pool == view.pool or pool in view.reasons)
            and (ended or not view.ended)
        ]

    def request(self, request_id: str) -> RequestView:
        self.asked.append(request_id)
        matches = [one for one in self.broker.requests if one.startswith(request_id)]
        if len(matches) != 1:
            raise Refused(f"there is no request '{request_id}'; `raypool request list` shows those there are")
        return view_request(self.broker, self.broker.requests[matches[0]], None, self._start(matches[0]))

    def _starts(self, broker: Broker) -> dict[str, Eta]:
        forecast = Forecast(broker, None, self.now, past=self.broker)
        for _ in forecast.steps():
            pass
        return {id: one.seconds_from(self.now) for id, one in forecast.expected.items()}

    def _start(self, id: str) -> Eta:
        return self._starts(self.broker).get(id, UNKNOWN)

    def why(self, request_id: str) -> ExplanationView:
        request = self.broker.requests[self.request(request_id).id]
        explained = view_explanation(self.broker, request, self.now, self._start(request.id))
        found = [view_suggestion(one) for one in suggestions(self.broker, request, self.now)]
        return dataclasses.replace(explained, would_start=found)

    def dry_run(self, **fields: Any) -> DryRunView:
        answer = dry_run(self.broker, self._spec(fields), self.now)
        return view_dry_run(answer, None, self._starts(answer.broker).get(answer.request.id, UNKNOWN))

    def config(self) -> BrokerConfig:
        return self.broker.config

    def cancel(self, request_id: str, reason: str = "cancelled by an operator") -> RequestView:
        view = self.request(request_id)
        self.feed(ev.Cancelled(view.id, reason))
        return self.request(view.id)

    def forget(self, request_id: str) -> None:
        self.feed(ev.Forgotten(self.request(request_id).id))

    def preview(self, config: BrokerConfig) -> PreviewView:
        return self._preview(ev.ConfigApplied(config))

    def preview_rollback(self, number: int) -> PreviewView:
        return self._preview(ev.RolledBack(number))

    def _preview(self, change: Change) -> PreviewView:
        return view_preview(preview(self.broker, change, self.now), self.broken)

    def apply(self, config: BrokerConfig, *, by: str | None = None, note: str = "") -> list[str]:
        self.feed(ev.ConfigApplied(config, by or "ann", note))
        return [*config_warnings(self.broker), *self.broken]

    def history(self) -> list[VersionView]:
        return view_history(self.broker)

    def config_of(self, number: int) -> BrokerConfig:
        return self.broker.history.config_at(number)

    def rollback(self, number: int, *, by: str | None = None, note: str = "") -> list[str]:
        self.feed(ev.RolledBack(number, by or "ann", note))
        return [*config_warnings(self.broker), *self.broken]

    def detach_policy(self, pool: str, component: str, component_type: str = "team") -> None:
        self.feed(ev.PolicyDetached(pool, component, component_type))

    def delete_pool(self, name: str) -> None:
        self.feed(ev.PoolDeleted(name))

    def submit(self, **fields: Any) -> RequestView:
        spec = self._spec(fields)
        self.feed(ev.Submitted(spec))
        return view_request(self.broker, self.broker.requests[spec.id])

    def _spec(self, fields: dict[str, Any]) -> RequestSpec:
        plain = isinstance(fields.get("resources"), dict)
        return RequestSpec.load(fields) if plain else RequestSpec(**fields)


class Cli:
    """Runs commands. `client` is what they find; None: no broker answers."""

    def __init__(self) -> None:
        self.client: CoreClient | None = CoreClient()
        self.stopped = False
        self.discarded = False
        self.journal: str | None = None

    def __call__(self, *words: str, code: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(main, list(words), input=input, prog_name="raypool")
        assert result.exit_code == code, (result.output, result.exception)
        assert "Traceback" not in result.output
        if not {"json", "yaml", "csv", "--json", "simulate", "export"} & set(words):
            for line in result.stdout.splitlines():
                assert len(line) <= 100, f"{len(line)} columns: {line}"
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, code=code).stdout)

    def connect(self) -> CoreClient:
        if self.client is None:
            raise BrokerUnavailable("no broker runs here: start one with `raypool start`")
        return self.client

    def start(self, config: BrokerConfig | None = None, journal: str | None = None) -> CoreClient:
        client = self.connect()
        self.journal = journal
        if config is not None:
            client.apply(config)
        return client

    def stop(self, discard_journal: bool = False) -> None:
        self.connect()
        self.stopped, self.discarded = True, discard_journal


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Two pools, three policies, one request that runs on borrowed room, one that waits, one that ended."""
    made = Cli()
    monkeypatch.setattr(connection, "connect", made.connect)
    monkeypatch.setattr(connection, "start", made.start)
    monkeypatch.setattr(connection, "stop", made.stop)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return made


@pytest.fixture
def busy(cli: Cli) -> Cli:
    assert cli.client is not None
    cli.client.apply(
        BrokerConfig.load(
            {
                "pools": [
                    {"name": "gpus", "capacity": {"gpu": 8}, "description": "the big ones", "grace_seconds": 30.0},
                    {"name": "licences", "capacity": {"seats": 3}, "node_labels": {"zone": "a"}},
                ],
                "policies": [
                    {"pool": "gpus", "component": "red", "priority": 10, "reserved": {"gpu": 2}},
                    {"pool": "gpus", "component": "blue", "priority": 5, "limit": {"gpu": 8}},
                    {"pool": "licences", "component": "red", "priority": 1},
                ],
            }
        )
    )
    cli.client.submit(id="aaaa1111", component="red", resources={"gpu_count": 6})
    cli.client.submit(id="bbbb2222", component="blue", resources={"gpu_count": 4}, description="nightly")
    cli.client.submit(id="cccc3333", component="red", resources={"pool_resources": {"seats": 1}})
    cli.client.cancel("cccc3333")
    cli.client.asked.clear()
    return cli
