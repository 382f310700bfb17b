"""`raypool why`, `raypool submit --dry-run`: as on docs/how-to/why.md, whose outputs are those of this test."""

from __future__ import annotations

import shlex

import pytest
from conftest import Cli

from raypool.spec import BrokerConfig
from tests.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "why.md"

ASKED = [
    {"id": "sweep", "component": "sandbox", "resources": {"gpu_count": 4}},
    {"id": "finetune", "component": "research", "resources": {"gpu_count": 3}},
    {"id": "nightly", "component": "sandbox", "resources": {"gpu_count": 3}},
    {"id": "ablation", "component": "sandbox", "resources": {"gpu_count": 1}},
    {"id": "huge", "component": "research", "resources": {"gpu_count": 16}},
]
"""When the page begins."""

SECOND = {"id": "second", "component": "research", "resources": {"gpu_count": 2}}
TRAINING = {"id": "training", "component": "production", "resources": {"gpu_count": 4}}


@pytest.fixture
def shared(cli: Cli) -> Cli:
    """The pool of the page, and who asks there."""
    assert cli.client is not None
    cli.client.apply(BrokerConfig.from_yaml(blocks(PAGE, "yaml")[0].text))
    for fields in ASKED:
        cli.client.submit(**fields)
    cli.client.now += 4 * 3600
    return cli


def written() -> list[tuple[str, str]]:
    """Each command of the page with the output that stands under it."""
    found = []
    for block in blocks(PAGE, "console"):
        command, _, output = block.text.partition("\n")
        found.append((command.removeprefix("$ raypool "), output))
    return found


def printed(shared: Cli) -> list[tuple[str, str]]:
    """The same commands, run one after the other, and what the page says between them."""
    assert shared.client is not None
    found = []
    for command, _ in written():
        if command == "why second":
            shared.client.cancel("nightly")
            shared.client.cancel("ablation")
            shared.client.submit(**SECOND)
        if command == "why training":
            shared.client.cancel("second")
            shared.client.submit(**TRAINING)
        words = shlex.split(command)
        found.append((command, shared(*words, code=1 if "research --gpus 16" in command else 0).stdout))
    return found


def test_the_page_shows_what_is_printed(shared: Cli) -> None:
    assert len(written()) >= 8
    for (command, output), (_, now) in zip(written(), printed(shared), strict=True):
        assert output == now, f"docs/how-to/why.md: `raypool {command}` prints now:\n{now}"


def test_the_two_commands_are_one(shared: Cli) -> None:
    assert shared("why", "nightly").stdout == shared("request", "why", "nigh").stdout


def test_an_explanation_is_data_too(shared: Cli) -> None:
    explained = shared.json("why", "nightly", "-o", "json")
    (wait,) = explained["waits"]
    assert (wait["rule"], wait["position"], wait["ahead"]) == ("no-room", 1, [])
    assert wait["figures"]["gpu"] == {
        "asks": 3, "free": 1, "leaving": 0, "phantom": 0, "capacity": 8,
        "held": {"sandbox": 4, "research": 3}, "others": 0, "used": 4, "reserved": 0, "limit": 8,
    }  # fmt: skip
    assert {one["rule"] for one in explained["would_start"]} >= {"other-ends"}


def test_a_submission_is_detached_and_prints_its_id_and_status(shared: Cli) -> None:
    assert shared.client is not None
    shared.client.cancel("sweep")
    words = ("submit", "--component", "sandbox", "--gpus", "1", "--cpus", "1.5", "-k", "seats=2", "--id", "mine")
    assert "request 'mine' is rejected: pool 'shared' has no seats" in shared(*words, code=1).stdout
    said = shared("submit", "--component", "sandbox", "--gpus", "1", "--id", "ours").stdout
    assert said == "request 'ours' runs in pool 'shared', of which 1 gpu borrowed\n"
    said = shared("submit", "--component", "sandbox", "--gpus", "1", "--workers", "2", "--id", "more").stdout
    assert said.startswith("request 'more' is pending\n'more' waits: first in line")
    assert shared.client.broker.requests["ours"].spec.lifetime == "detached"


def test_a_dry_run_asks_for_nothing(shared: Cli) -> None:
    assert shared.client is not None
    before = list(shared.client.broker.requests)
    answer = shared.json("submit", "--component", "sandbox", "--gpus", "1", "--dry-run", "-o", "json")
    assert (answer["starts"], answer["request"]["status"], answer["request"]["position"]) == (False, "pending", 3)
    assert list(shared.client.broker.requests) == before


def test_a_key_that_is_no_whole_number_is_said(shared: Cli) -> None:
    result = shared("submit", "--component", "sandbox", "-k", "seats=two", code=2)
    assert "--key seats: must be a whole number, got 'two'" in result.stderr
