"""Exporting, previewing and going back, against the real core without Ray."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from raypool.spec import BrokerConfig

if TYPE_CHECKING:
    from conftest import Cli

LARGER = "pools: [{name: gpus, capacity: {gpu: 10}, grace_seconds: 30.0, description: the big ones}]"


def flat(text: str) -> str:
    """Without the line breaks and columns of a table."""
    return " ".join(text.split())


# --- apply --dry-run --------------------------------------------------------------------------


def test_a_dry_run_says_who_starts(busy: Cli) -> None:
    shown = busy("apply", "-f", "-", "--dry-run", input=LARGER).stdout
    assert re.search(r"^changed +pool 'gpus' +capacity +\{gpu: 8\} +\{gpu: 10\}$", shown, re.M)
    assert "dry run, nothing was changed; it would be: 0 added, 1 changed, 0 unchanged, none removed" in shown
    assert "starts request 'bbbb2222' of 'blue' starts in pool 'gpus' with 4 gpu, 4 gpu of it borrowed" in flat(shown)
    assert busy.json("request", "describe", "bbbb2222", "-o", "json")["status"] == "pending"


def test_a_dry_run_says_whose_borrowed_part_grows_and_who_is_rejected(busy: Cli) -> None:
    smaller = "{pools: [{name: gpus, capacity: {gpu: 3}}], policies: [{pool: gpus, component: red, priority: 1}]}"
    shown = flat(busy("apply", "-f", "-", "--dry-run", input=smaller).stdout)
    assert "rejected request 'bbbb2222' of 'blue' is rejected: asks for 4 gpu, pool 'gpus' has 3" in shown
    assert "evictable request 'aaaa1111' of 'red' borrows 6 gpu in pool 'gpus' instead of 4 gpu" in shown


def test_a_dry_run_says_who_would_be_evicted_now(busy: Cli) -> None:
    higher = "policies: [{pool: gpus, component: blue, priority: 50}]"
    shown = flat(busy("apply", "-f", "-", "--dry-run", input=higher).stdout)
    assert "evicted request 'aaaa1111' of 'red' has to make room in pool 'gpus' for 'bbbb2222' of 'blue'" in shown


def test_a_dry_run_says_what_pools_would_promise_beyond_their_nodes(busy: Cli) -> None:
    assert busy.client is not None
    busy.client.broken = ["pool 'gpus' promises 10 gpu, and the nodes have 8"]
    assert "promises pool 'gpus' promises 10 gpu, and the nodes have 8" in flat(
        busy("apply", "-f", "-", "--dry-run", input=LARGER).stdout
    )


def test_what_is_applied_all_the_same_is_warned_of(busy: Cli) -> None:
    assert busy.client is not None
    busy.client.broken = ["pool 'gpus' promises 10 gpu, and the nodes have 8"]
    for words in (("apply", "-f", "-"), ("rollback", "1", "--yes"), ("pool", "update", "gpus", "-c", "{gpu: 10}")):
        said = busy(*words, input=LARGER).stderr
        assert flat(said) == "Warning: pool 'gpus' promises 10 gpu, and the nodes have 8"


def test_a_dry_run_without_consequences_says_so(busy: Cli) -> None:
    assert (
        "nothing follows for who waits or runs now"
        in busy("apply", "-f", "-", "--dry-run", input="pools: [{name: new, capacity: {gpu: 1}}]").stdout
    )


def test_a_long_list_of_consequences_says_how_many_more_there_are(busy: Cli) -> None:
    assert busy.client is not None
    for n in range(30):
        busy.client.submit(id=f"w{n:02}", component="blue", resources={"gpu_count": 4})
    smaller = "pools: [{name: gpus, capacity: {gpu: 3}}]"
    assert busy.client is not None
    refused = "policies: [{pool: gpus, component: blue, priority: 5}]"
    shown = busy("apply", "-f", "-", "--dry-run", input=f"{{{smaller}, {refused}}}").stdout
    assert len(re.findall(r"^rejected ", shown, re.M)) == 21
    assert re.search(r"^rejected +and 11 more$", shown, re.M)


def test_a_dry_run_as_data_has_the_consequences(busy: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(LARGER)
    found = busy.json("apply", "-f", str(file), "--dry-run", "-o", "json")
    assert [(one["kind"], one["request"], one["pool"]) for one in found["consequences"]] == [
        ("starts", "bbbb2222", "gpus")
    ]
    assert (found["more"], found["promises"], found["applied"]) == ({}, [], False)


# --- export -----------------------------------------------------------------------------------


def test_what_is_exported_can_be_applied_and_changes_nothing(busy: Cli, tmp_path: Path) -> None:
    assert busy.client is not None
    before = busy.client.config()
    file = tmp_path / "pools.yaml"
    busy("export", str(file))
    assert BrokerConfig.from_yaml(file) == before
    shown = busy("apply", "-f", str(file)).stdout
    assert "applied: 0 added, 0 changed, 5 unchanged, none removed" in shown
    assert (busy.client.config(), len(busy.client.history())) == (before, 1)


def test_an_export_says_which_version_it_is_and_who_made_it(busy: Cli) -> None:
    busy("apply", "-f", "-", "--note", "more room", input=LARGER)
    lines = busy("export").stdout.splitlines()
    assert lines[0] == "# raypool: pools and policies"
    assert re.fullmatch(r"# version 2, 1970-01-01 \d\d:\d\d:\d\d, by ann: more room", lines[1])
    assert "  capacity: {gpu: 10}" in lines
    assert "# who may use 'gpus'" in lines


def test_an_export_may_be_json(busy: Cli) -> None:
    assert busy.client is not None
    assert BrokerConfig.load(busy.json("export", "-o", "json")) == busy.client.config()


def test_an_empty_broker_exports_an_empty_file(cli: Cli) -> None:
    shown = cli("export").stdout
    assert "nothing was applied yet" in shown
    assert "0 changed" in cli("apply", "-f", "-", input=shown).stdout


# --- history ----------------------------------------------------------------------------------


def test_the_history_lists_what_was_changed_when_and_by_whom(busy: Cli) -> None:
    busy("apply", "-f", "-", "--note", "more room", input=LARGER)
    busy("pool", "detach-policy", "licences", "red")
    shown = flat(busy("history").stdout)
    assert re.search(r"NUMBER WHEN +BY +WHAT +NOTE", shown)
    assert "2 1970-01-01" in shown
    assert "ann pool 'gpus' changed: capacity more room" in shown
    assert "policy of 'red' in pool 'licences' detached" in shown
    found = busy.json("history", "-o", "json")
    assert [(one["number"], one["by"], one["note"]) for one in found] == [
        (1, "ann", ""), (2, "ann", "more room"), (3, "", ""),
    ]  # fmt: skip


def test_an_empty_history_says_so(cli: Cli) -> None:
    assert "nothing was applied yet" in cli("history").stdout


def test_an_earlier_config_is_shown(busy: Cli) -> None:
    busy("apply", "-f", "-", input=LARGER)
    shown = busy("history", "1").stdout
    assert "# version 1, " in shown
    assert yaml.safe_load(shown)["pools"][0]["capacity"] == {"gpu": 8}
    assert json.loads(busy("history", "1", "-o", "json").stdout)["pools"][0]["capacity"] == {"gpu": 8}
    assert "there is no version 9: those from 1 to 2 are kept" in busy("history", "9", code=1).stderr


# --- rollback ---------------------------------------------------------------------------------


@pytest.fixture
def changed(busy: Cli) -> Cli:
    """Version 2 has fewer GPUs, another pool and another policy."""
    second = (
        "{pools: [{name: gpus, capacity: {gpu: 6}, grace_seconds: 30.0}, {name: new, capacity: {gpu: 1}}], "
        "policies: [{pool: new, component: red, priority: 1}, {pool: gpus, component: green, priority: 1}]}"
    )
    busy("apply", "-f", "-", input=second)
    return busy


def test_going_back_shows_what_it_does_and_asks(changed: Cli) -> None:
    assert changed.client is not None
    second = changed.client.config()
    asked = changed("rollback", "1", code=1, input="n\n")
    assert "Go back to version 1?" in asked.stderr
    assert re.search(r"^changed +pool 'gpus' +description +- +the big ones", asked.stdout, re.M)
    assert re.search(r"^removed +pool 'new' +- +-$", asked.stdout, re.M)
    assert re.search(r"^removed +policy of team 'green' in pool 'gpus' +- +-$", asked.stdout, re.M)
    assert "it would be: 0 added, 1 changed, 4 unchanged, 3 removed" in asked.stdout
    assert changed.client.config() == second
    done = changed("rollback", "1", "--note", "too small", input="y\n")
    assert "pools and policies are as after change 1; this is version 3" in done.stdout
    assert changed.client.config() == changed.client.config_of(1)
    assert changed.client.history()[-1].note == "too small"


def test_a_dry_run_of_going_back_asks_nothing_and_changes_nothing(changed: Cli) -> None:
    assert changed.client is not None
    second = changed.client.config()
    shown = changed("rollback", "1", "--dry-run").stdout
    assert "dry run, nothing was changed; it would be: 0 added, 1 changed, 4 unchanged, 3 removed" in shown
    assert "nothing follows for who waits or runs now" in shown
    assert (changed.client.config(), len(changed.client.history())) == (second, 2)


def test_going_back_tells_what_follows(busy: Cli) -> None:
    busy("apply", "-f", "-", input="policies: [{pool: gpus, component: red, priority: 10, reserved: {gpu: 6}}]")
    shown = flat(busy("rollback", "1", "--yes").stdout)
    assert "evictable request 'aaaa1111' of 'red' borrows 4 gpu in pool 'gpus' instead of nothing" in shown


def test_going_back_as_data(changed: Cli) -> None:
    found = changed.json("rollback", "1", "--yes", "-o", "json")
    assert [one["what"] for one in found["removed"]] == [
        "pool 'new'", "policy of team 'green' in pool 'gpus'", "policy of team 'red' in pool 'new'",
    ]  # fmt: skip
    assert (found["applied"], found["faults"], found["consequences"]) == (True, [], [])


def test_going_back_is_refused_with_every_fault(changed: Cli) -> None:
    assert changed.client is not None
    second = changed.client.config()
    changed.client.submit(id="dddd", component="green", resources={"gpu_count": 6})
    changed.client.submit(id="eeee", component="red", pool="new", resources={"gpu_count": 1})
    refused = changed("rollback", "1", "--yes", code=1)
    assert "the policy of 'green' in pool 'gpus' is in use: 1 queued, 0 charged" in refused.stderr
    assert "pool 'new' is in use: 0 queued, 1 charged" in refused.stderr
    assert "refused, nothing was changed; it would be: 0 added, 1 changed" in refused.stdout
    assert changed.json("rollback", "1", "--yes", "-o", "json", code=1)["faults"][1].startswith(
        "pool 'new' is in use"
    )
    assert changed.client.config() == second


def test_there_is_no_going_back_to_what_never_was(busy: Cli) -> None:
    assert "there is no version 7" in busy("rollback", "7", code=1).stderr
