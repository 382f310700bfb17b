"""`raypool dashboard` (how-to/dashboard.md): what it asks of its options, and what it serves with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raypool.cli.dashboard import PORT
from raypool.dashboard import serving

if TYPE_CHECKING:
    from conftest import Cli


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """With which guard and port it was served."""
    found: list[tuple[Any, int]] = []

    def serve(connect: Any, guard: Any, port: int, ready: Any) -> None:
        found.append((guard, port))
        ready(f"http://{guard.host}:{port}")

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.delenv("RAYPOOL_DASHBOARD_TOKEN", raising=False)
    return found


def test_it_is_read_only_and_for_this_machine_unless_told_otherwise(cli: Cli, asked: list[tuple[Any, int]]) -> None:
    told = cli("dashboard").stdout
    assert f"http://127.0.0.1:{PORT} (read-only)" in told
    guard, port = asked[0]
    assert (guard.host, guard.actions, guard.token, port) == ("127.0.0.1", False, "", PORT)


def test_actions_need_a_token_where_others_reach_it(
    cli: Cli, asked: list[tuple[Any, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "needs a token" in cli("dashboard", "--host", "0.0.0.0", "--allow-actions", code=2).stderr
    assert not asked
    cli("dashboard", "--allow-actions")
    cli("dashboard", "--host", "0.0.0.0", "--allow-actions", "--token", "secret")
    monkeypatch.setenv("RAYPOOL_DASHBOARD_TOKEN", "from the variable")
    cli("dashboard", "--host", "0.0.0.0", "--allow-actions")
    assert [(guard.actions, guard.token) for guard, _ in asked] == [
        (True, ""),
        (True, "secret"),
        (True, "from the variable"),
    ]


@pytest.mark.parametrize("token", [" ", "secret ", "gehéim", "a\nb"])
def test_a_token_that_a_browser_could_not_send_is_refused(cli: Cli, asked: list[tuple[Any, int]], token: str) -> None:
    assert "the token must be of ASCII" in cli("dashboard", "--token", token, code=2).stderr
    assert not asked


def test_it_says_that_others_see_it_where_they_do(cli: Cli, asked: list[tuple[Any, int]]) -> None:
    assert "whoever reaches this port sees it" in cli("dashboard", "--host", "0.0.0.0").stderr
    assert cli("dashboard").stderr == ""


def test_without_a_broker_it_does_not_begin(cli: Cli, asked: list[tuple[Any, int]]) -> None:
    cli.client = None
    cli("dashboard", code=3)
    assert not asked


def test_start_says_how_to_open_it(cli: Cli) -> None:
    assert (
        f"`raypool dashboard` shows who holds what and who waits, at http://127.0.0.1:{PORT}" in cli("start").stdout
    )
