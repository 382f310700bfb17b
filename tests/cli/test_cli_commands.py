"""Every command against the real core without Ray: what it prints, what it changes, how it exits."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml

from raypool.cli import connection, pool, request, values
from raypool.simulation.scenario import STATUSES
from raypool.spec import BrokerConfig, ComponentType, PoolSpec

if TYPE_CHECKING:
    from conftest import Cli

POOLS = """
pools:
  - {name: gpus, capacity: {gpu: 16}}
  - {name: new, capacity: {gpu: 1}}
policies:
  - {pool: gpus, component: red, priority: 10, reserved: {gpu: 2}}
"""


def spec_of(cli: Cli, name: str) -> PoolSpec:
    assert cli.client is not None
    return next(one for one in cli.client.config().pools if one.name == name)


# --- start, stop, status, apply ---------------------------------------------------------------


def test_start_applies_a_file_and_says_which_pools_there_are(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    assert "pools: gpus, new" in cli("start", "-f", str(file)).stdout
    assert "pools: gpus, new" in cli("start").stdout


def test_start_reads_standard_input(cli: Cli) -> None:
    assert "pools: gpus, new" in cli("start", "-f", "-", input=POOLS).stdout


def test_stop_says_what_it_did(cli: Cli) -> None:
    assert "its requests are cancelled" in cli("stop").stdout
    assert cli.stopped and not cli.discarded


def test_stop_gives_up_a_journal_only_when_told_so(cli: Cli) -> None:
    assert "its journal is erased" in cli("stop", "--discard-journal").stdout
    assert cli.stopped and cli.discarded


def test_start_says_where_the_journal_shall_be(cli: Cli) -> None:
    cli("start", "--journal", "/var/lib/journal.sqlite")
    assert cli.journal == "/var/lib/journal.sqlite"


def test_status_says_where_the_journal_is_and_why_nothing_can_be_changed(busy: Cli) -> None:
    assert busy.client is not None
    assert "state" not in busy("status").stdout
    assert re.search(r"journal +/var/lib/journal.sqlite", busy("status").stdout)
    busy.client.degraded = "read-only, degraded: the journal cannot be taken up"
    assert re.search(r"state +read-only, degraded: the journal", busy("status").stdout)
    assert busy.json("status", "-o", "json")["degraded"].startswith("read-only, degraded")


def test_status_shows_pools_requests_and_uptime(busy: Cli) -> None:
    shown = busy("status").stdout
    assert "raypool 9.9" in shown
    assert re.search(r"up \d+ ", shown)
    assert re.search(r"^requests +1 allocated, 1 pending, 1 cancelled$", shown, re.M)
    assert re.search(r"^POOL +KEY +CAPACITY +USED +FREE +BORROWED +LEAVING", shown, re.M)
    assert re.search(r"^gpus +gpu +8 +6 +2 +4 +0 +1 +1$", shown, re.M)


def test_what_ray_does_not_give_back_has_a_column_where_there_is_any(busy: Cli) -> None:
    assert "PHANTOM" not in busy("status").stdout + busy("pool", "list").stdout
    assert busy.client is not None
    ledger = busy.client.broker.pools["gpus"].ledger
    ledger.phantom[0], ledger.free[0] = 2, 0
    assert re.search(r"^gpus +gpu +8 +6 +2 +0 +4 +0 +1 +1$", busy("status").stdout, re.M)
    assert re.search(r"^gpus +8 gpu +0 gpu +2 gpu +4 gpu", busy("pool", "list").stdout, re.M)
    assert busy.json("pool", "list", "-o", "json")[0]["phantom"] == {"gpu": 2}


def test_status_as_data_has_the_uptime(busy: Cli) -> None:
    found = busy.json("status", "-o", "json")
    assert found["requests"] == {"allocated": 1, "pending": 1, "cancelled": 1}
    assert found["uptime_seconds"] > 0
    assert yaml.safe_load(busy("status", "-o", "yaml").stdout)["pools"][0]["name"] == "gpus"


def test_status_shows_warnings(busy: Cli) -> None:
    busy("pool", "create", "cpus", "-c", "{gpu: 1, mcpu: 1000}")
    warned = busy("pool", "attach-policy", "cpus", "red", "-p", "1", "-r", "{gpu: 1}")
    assert "Warning:" in warned.stderr
    assert "reserves no mcpu" in warned.stderr
    assert "reserves no mcpu" in " ".join(busy("status").stdout.split())


def test_apply_says_what_it_added_and_changed(busy: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    shown = busy("apply", "-f", str(file)).stdout
    assert re.search(
        r"^changed +pool 'gpus' +description +the big ones +-\n +capacity +\{gpu: 8\} +\{gpu: 16\}$", shown, re.M
    )
    assert re.search(r"^added +pool 'new' +capacity +- +\{gpu: 1\}$", shown, re.M)
    assert "applied: 1 added, 1 changed, 1 unchanged, none removed" in shown
    assert spec_of(busy, "gpus").capacity == {"gpu": 16}


def test_a_dry_run_changes_nothing(busy: Cli, tmp_path: Path) -> None:
    assert busy.client is not None
    before = busy.client.config()
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    shown = busy("apply", "-f", str(file), "--dry-run").stdout
    assert "nothing was changed; it would be: 1 added, 1 changed, 1 unchanged, none removed" in shown
    assert busy.client.config() == before


def test_a_dry_run_as_data_lists_fields_now_and_then(busy: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    found = busy.json("apply", "-f", str(file), "--dry-run", "-o", "json")
    assert found["applied"] is False
    assert found["removed"] == found["faults"] == []
    assert found["changed"][0]["fields"]["capacity"] == {"now": {"gpu": 8}, "then": {"gpu": 16}}
    assert [one["what"] for one in found["added"]] == ["pool 'new'"]


def test_a_dry_run_that_would_be_refused_exits_1_with_every_fault(busy: Cli) -> None:
    assert busy.client is not None
    before = busy.client.config()
    bad = (
        "policies: [{pool: gpus, component: red, priority: 1, reserved: {gpu: 9}}, "
        "{pool: x, component: red, priority: 1}]"
    )
    refused = busy("apply", "-f", "-", "--dry-run", code=1, input=bad)
    assert "reserved 9 gpu is above the pool's capacity 8" in refused.stderr
    assert "there is no pool 'x'" in refused.stderr
    assert "red" in refused.stdout  # what would be changed is shown all the same
    assert busy.client.config() == before
    as_data = busy("apply", "-f", "-", "--dry-run", "-o", "yaml", code=1, input=bad)
    assert len(yaml.safe_load(as_data.stdout)["faults"]) >= 2


def test_an_apply_that_is_refused_exits_1(busy: Cli) -> None:
    refused = busy("apply", "-f", "-", code=1, input="policies: [{pool: x, component: red, priority: 1}]")
    assert refused.stderr.startswith("Error: nothing was changed: ")


def test_what_holds_for_the_broker_as_a_whole_shows_as_a_change_of_it(busy: Cli) -> None:
    shown = busy("apply", "-f", "-", "--dry-run", input="unmanaged: allow").stdout
    assert re.search(r"changed +the broker +unmanaged +reject +allow", shown)
    file = "{unmanaged: reject, owner_timeout_seconds: 300}"
    shown = busy("apply", "-f", "-", "--dry-run", input=file).stdout
    assert re.search(r"owner_timeout_seconds +60.0 +300.0", shown) and "unmanaged" not in shown
    busy("apply", "-f", "-", input=file)
    assert busy.json("status", "-o", "json")["owner_timeout_seconds"] == 300


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pools: [{name: a, capacity: {gpu: 1.5}}]", "pools[0].capacity.gpu: must be a whole number, got 1.5"),
        ("pools: [", "not readable as YAML"),
        ("pool: []", "pool: no such field"),
        ("just words", "must be a mapping"),
    ],
)
def test_a_file_that_is_not_a_config_is_a_fault_of_writing(cli: Cli, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(text)
    for command in (["start"], ["apply"], ["apply", "--dry-run"]):
        failed = cli(*command, "-f", str(file), code=2)
        assert said in failed.stderr
        assert str(file) in failed.stderr


def test_a_file_that_is_no_text_is_a_fault_of_writing(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_bytes(b"\xff\xfe\x00\x80")
    assert "not UTF-8" in cli("apply", "-f", str(file), code=2).stderr


# --- pools ------------------------------------------------------------------------------------


def test_create_makes_a_pool_of_json_or_yaml(cli: Cli) -> None:
    cli("pool", "create", "a", "-c", "{gpu: 8, seats: 2}", "-d", "for all", "--queueing", "backfill")
    cli("pool", "create", "b", "-c", '{"gpu": 4}', "--node-label", "zone=x", "--grace-seconds", "1.5")
    assert spec_of(cli, "a").dump() == {
        "name": "a", "capacity": {"gpu": 8, "seats": 2}, "description": "for all", "queueing": "backfill",
    }  # fmt: skip
    assert spec_of(cli, "b").node_labels == {"zone": "x"}
    assert spec_of(cli, "b").grace_seconds == 1.5


def test_create_of_a_name_that_exists_is_refused_and_names_update(busy: Cli) -> None:
    refused = busy("pool", "create", "gpus", "-c", "{gpu: 1}", code=1)
    assert "raypool pool update gpus" in refused.stderr
    assert spec_of(busy, "gpus").capacity == {"gpu": 8}


@pytest.mark.parametrize(
    "capacity", ["{gpu: 1.5}", '{"gpu": 8.0}', "{gpu: true}", "{gpu: '8'}", "{gpu: }", "{gpu: 1e3}"]
)
def test_capacity_must_be_whole_numbers(busy: Cli, capacity: str) -> None:
    for words in (["pool", "create", "x"], ["pool", "update", "gpus"]):
        assert "must be a whole number" in busy(*words, "-c", capacity, code=2).stderr
    for option in ("-r", "-l"):
        failed = busy("pool", "attach-policy", "gpus", "red", "-p", "1", option, capacity, code=2)
        assert "must be a whole number" in failed.stderr
    assert [one.name for one in busy.client.config().pools] == ["gpus", "licences"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "capacity", ["8", "gpu=8", "[gpu, 8]", "{gpu: 8", "", "{}", "{gpu: 0}", "{gpu: -1}", "{8: 8}"]
)
def test_capacity_must_be_a_mapping_of_amounts(cli: Cli, capacity: str) -> None:
    cli("pool", "create", "x", "-c", capacity, code=2)
    assert cli.client is not None
    assert cli.client.pools() == []


def test_update_changes_the_named_fields_and_keeps_the_others(busy: Cli) -> None:
    busy("pool", "update", "gpus", "--queueing", "backfill", "--node-label", "zone=b", "--node-label", "kind=h100")
    busy("pool", "update", "gpus", "-c", "{gpu: 10}", "--node-label", "zone=", "--placement-timeout-seconds", "5")
    assert spec_of(busy, "gpus").dump() == {
        "name": "gpus", "capacity": {"gpu": 10}, "description": "the big ones", "queueing": "backfill",
        "node_labels": {"kind": "h100"}, "grace_seconds": 30.0, "placement_timeout_seconds": 5.0,
    }  # fmt: skip


def test_update_can_set_every_field(busy: Cli) -> None:
    busy(
        "pool", "update", "licences", "-d", "", "--infeasible", "reject", "--grace-seconds", "0",
        "--ray-resource", "seats=SEATS",
    )  # fmt: skip
    found = spec_of(busy, "licences")
    assert (found.infeasible, found.ray_resources, found.grace_seconds) == ("reject", {"seats": "SEATS"}, 0)


def test_update_without_a_field_is_a_fault_of_writing(busy: Cli) -> None:
    assert "at least one field" in busy("pool", "update", "gpus", code=2).stderr


def test_update_of_a_pool_that_does_not_exist_is_refused(busy: Cli) -> None:
    refused = busy("pool", "update", "nope", "-c", "{gpu: 1}", code=1)
    assert "there is no pool 'nope' (pools: gpus, licences)" in refused.stderr


def test_update_with_a_value_that_is_not_allowed_is_a_fault_of_writing(busy: Cli) -> None:
    assert "grace_seconds: must be >= 0" in busy("pool", "update", "gpus", "--grace-seconds", "-1", code=2).stderr
    assert "KEY=VALUE" in busy("pool", "update", "gpus", "--node-label", "zone", code=2).stderr


def test_pools_are_listed_with_what_is_free(busy: Cli) -> None:
    shown = busy("pool", "list").stdout
    assert re.search(r"^gpus +8 gpu +2 gpu +4 gpu +2 +1 +1 +strict$", shown, re.M)
    assert [one["name"] for one in busy.json("pool", "list", "-o", "json")] == ["gpus", "licences"]
    assert [one["name"] for one in yaml.safe_load(busy("pool", "list", "-o", "yaml").stdout)] == ["gpus", "licences"]


def test_describe_shows_a_pool_with_its_policies(busy: Cli) -> None:
    shown = busy("pool", "describe", "gpus").stdout
    for part in ("the big ones", "30 s", "red", "blue", "PRIORITY"):
        assert part in shown
    assert busy.json("pool", "describe", "gpus", "-o", "json")["capacity"] == {"gpu": 8}
    assert yaml.safe_load(busy("pool", "describe", "gpus", "-o", "yaml").stdout)["free"] == {"gpu": 2}
    assert "there is no pool 'x'" in busy("pool", "describe", "x", code=1).stderr


def test_delete_asks_first(busy: Cli) -> None:
    assert (
        "Delete pool 'licences' and its 1 policy?" in busy("pool", "delete", "licences", code=1, input="n\n").stderr
    )
    busy("pool", "delete", "licences", code=1, input="")
    assert spec_of(busy, "licences")
    busy("pool", "delete", "licences", input="y\n")
    assert [one["name"] for one in busy.json("pool", "list", "-o", "json")] == ["gpus"]


def test_delete_with_y_does_not_ask(busy: Cli) -> None:
    assert busy("pool", "delete", "licences", "-y").stderr == ""
    assert "in use" in busy("pool", "delete", "gpus", "-y", code=1).stderr
    assert "there is no pool" in busy("pool", "delete", "licences", "-y", code=1).stderr


# --- policies ---------------------------------------------------------------------------------


def test_attach_policy_adds_and_replaces(busy: Cli) -> None:
    words = ["pool", "attach-policy", "licences", "green", "-t", "orchestrator"]
    shown = busy(*words, "-p", "7", "-r", "{seats: 1}", "-l", '{"seats": 2}').stdout
    assert "orchestrator 'green' may use pool 'licences': priority 7, reserved 1 seats, limit 2 seats" in shown
    assert "limit the capacity" in " ".join(busy(*words, "-p", "8").stdout.split())
    found = busy.json("pool", "list-policies", "licences", "--component", "green", "-o", "json")
    assert [(one["priority"], one["component_type"], one["reserved"]) for one in found] == [(8, "orchestrator", {})]


def test_attach_policy_to_a_pool_that_does_not_exist_is_refused(busy: Cli) -> None:
    assert "there is no pool 'x'" in busy("pool", "attach-policy", "x", "red", "-p", "1", code=1).stderr


def test_attach_policy_needs_a_priority(busy: Cli) -> None:
    assert "--priority" in busy("pool", "attach-policy", "gpus", "red", code=2).stderr
    assert "priority: must be >= 0" in busy("pool", "attach-policy", "gpus", "red", "-p", "-1", code=2).stderr


def test_detach_policy_takes_it_away_unless_in_use(busy: Cli) -> None:
    busy("pool", "detach-policy", "licences", "red")
    assert "in use" in busy("pool", "detach-policy", "gpus", "red", code=1).stderr
    assert "no policy" in busy("pool", "detach-policy", "gpus", "red", "-t", "step_operator", code=1).stderr


def test_policies_are_listed_of_one_pool_or_all(busy: Cli) -> None:
    assert len(busy.json("pool", "list-policies", "-o", "json")) == 3
    assert len(yaml.safe_load(busy("pool", "list-policies", "gpus", "-o", "yaml").stdout)) == 2
    shown = busy("pool", "list-policies", "--component", "red").stdout
    assert "blue" not in shown
    assert re.search(r"^red +team +gpus +10 +2 gpu +8 gpu +6 gpu +4 gpu +0 +1$", shown, re.M)
    assert "there is no pool" in busy("pool", "list-policies", "x", code=1).stderr
    assert busy("pool", "list-policies", "--component", "x").stdout == "no policies\n"


# --- requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "ids"), [("queued", ["bbbb2222"]), ("active", ["aaaa1111"]), ("all", ["aaaa1111", "bbbb2222"])]
)
def test_the_requests_of_a_pool_are_queued_active_or_all(busy: Cli, view: str, ids: list[str]) -> None:
    found = busy.json("pool", "requests", "gpus", "--view", view, "-o", "json")
    assert [one["id"] for one in found] == ids


def test_the_requests_of_a_pool_that_does_not_exist_are_refused(busy: Cli) -> None:
    assert "there is no pool 'x'" in busy("pool", "requests", "x", code=1).stderr
    assert "there is no pool 'x'" in busy("request", "list", "--pool", "x", code=1).stderr


def test_requests_are_listed(busy: Cli) -> None:
    shown = busy("request", "list").stdout
    assert re.search(r"^ID +STATUS +COMPONENT +POOL +LINE +DEMAND +BORROWED +SINCE +STARTS IN$", shown, re.M)
    assert re.search(r"^aaaa1111 +allocated +red +gpus +- +6 gpu +4 gpu .* -$", shown, re.M)
    assert re.search(r"^bbbb2222 +pending +blue +gpus +1 +4 gpu +- .* \d+ \w+ \.\. \d+ \w+$", shown, re.M)
    running = busy("request", "list", "--status", "allocated").stdout
    assert re.search(r"^ID +STATUS +COMPONENT +POOL +LINE +DEMAND +BORROWED +SINCE$", running, re.M)
    assert next(one["id"] for one in yaml.safe_load(busy("request", "list", "-o", "yaml").stdout)) == "aaaa1111"


def test_when_they_are_expected_to_start_is_shown_of_those_of_whom_it_is_known(
    busy: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert busy.client is not None
    waits = replace(busy.client.request("bbbb2222"), eta_p50_seconds=750.0, eta_p90_seconds=2400.0)
    late = replace(waits, id="dddd4444", eta_p90_seconds=None)
    later = replace(late, id="eeee5555", eta_beyond_seconds=9e5)
    last = replace(later, id="ffff6666", eta_p50_seconds=None)
    views = [busy.client.request("aaaa1111"), waits, late, later, last]
    monkeypatch.setattr(busy.client, "requests", lambda **_: views)
    monkeypatch.setattr(busy.client, "request", lambda _: waits)
    shown = busy("request", "list").stdout
    assert re.search(r"^ID .* SINCE +STARTS IN$", shown, re.M)
    assert re.search(r"^bbbb2222 .* 12 min \.\. 40 min$", shown, re.M)
    assert re.search(r"^dddd4444 .* 12 min \.\. \?$", shown, re.M)
    assert re.search(r"^eeee5555 .* 12 min \.\. > 10 d$", shown, re.M)
    assert re.search(r"^ffff6666 .* > 10 d$", shown, re.M)
    assert re.search(r"^aaaa1111 .* -$", shown, re.M)
    sentence = "expected to start in about 12 min, in 9 of 10 cases within 40 min"
    assert sentence in busy("request", "describe", "bbbb2222").stdout


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["--status", "pending"], ["bbbb2222"]),
        (["--component", "red"], ["aaaa1111", "cccc3333"]),
        (["--pool", "gpus", "--status", "allocated"], ["aaaa1111"]),
    ],
)
def test_the_list_of_requests_is_filtered(busy: Cli, words: list[str], ids: list[str]) -> None:
    assert [one["id"] for one in busy.json("request", "list", *words, "-o", "json")] == ids


def test_describe_shows_a_request(busy: Cli) -> None:
    shown = busy("request", "describe", "bbbb2222").stdout
    assert "nightly" in shown
    assert re.search(r"^waits +gpus: ", shown, re.M)
    assert busy.json("request", "describe", "bbbb2222", "-o", "json")["component"] == "blue"
    assert yaml.safe_load(busy("request", "describe", "aaaa1111", "-o", "yaml").stdout)["demand"]["gpu"] == 6


def test_why_is_the_brokers_sentence(busy: Cli) -> None:
    assert busy("request", "why", "bbbb").stdout.startswith("'bbbb2222' waits: ")


def test_cancel_ends_a_request_with_its_reason(busy: Cli) -> None:
    assert busy("request", "cancel", "bbbb", "--reason", "maintenance").stdout.startswith(
        "request 'bbbb2222' is cancelled"
    )
    assert "maintenance" in busy("request", "describe", "bbbb").stdout


def test_delete_forgets_an_ended_request_only(busy: Cli) -> None:
    assert busy("request", "delete", "cccc").stdout == "request 'cccc3333' is deleted\n"
    busy("request", "delete", "aaaa", code=1)
    assert [one["id"] for one in busy.json("request", "list", "-o", "json")] == ["aaaa1111", "bbbb2222"]


@pytest.mark.parametrize("command", ["describe", "why", "cancel", "delete"])
def test_shortened_ids_are_passed_to_the_broker_as_they_are(busy: Cli, command: str) -> None:
    busy("request", command, "cc" if command == "delete" else "bb")
    assert busy.client is not None
    assert busy.client.asked[0] in ("bb", "cc")
    failed = busy("request", command, "zz", code=1)
    assert failed.stderr == "Error: there is no request 'zz'; `raypool request list` shows those there are\n"


# --- empty, many, wide ------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["pool", "list"], ["pool", "list-policies"], ["request", "list"]])
def test_an_empty_listing_says_so(cli: Cli, words: list[str]) -> None:
    shown = cli(*words).stdout
    assert shown.startswith("no ")
    assert shown.count("\n") == 1
    assert cli.json(*words, "-o", "json") == []
    assert yaml.safe_load(cli(*words, "-o", "yaml").stdout) == []


def test_status_of_an_empty_broker_says_so(cli: Cli) -> None:
    shown = cli("status").stdout
    assert re.search(r"^requests +none$", shown, re.M)
    assert "no pools" in shown


def test_thousands_of_requests_are_listed(busy: Cli) -> None:
    assert busy.client is not None
    for number in range(400):
        busy.client.submit(id=f"r{number:04}", component="blue", resources={"gpu_count": 1 + number % 8})
    assert len(busy("request", "list", "--status", "pending").stdout.splitlines()) == 402
    assert len(busy.json("request", "list", "-o", "json")) == 403
    assert len(yaml.load(busy("request", "list", "-o", "yaml").stdout, yaml.CSafeLoader)) == 403


def test_long_names_still_fit_100_columns(cli: Cli) -> None:
    assert cli.client is not None
    long, wide = "x" * 128, "池" * 60
    keys = {f"{'key' * 20}{number}": 10**15 for number in range(5)}
    cli.client.apply(
        BrokerConfig.load(
            {
                "pools": [{"name": name, "capacity": keys, "description": "d " * 300} for name in (long, wide)],
                "policies": [{"pool": name, "component": long, "priority": 1} for name in (long, wide)],
            }
        )
    )
    cli.client.submit(id=long, component=long, resources={"pool_resources": keys}, description="e\x1b[2J" * 50)
    for words in (
        ["status"], ["pool", "list"], ["pool", "describe", long], ["pool", "describe", wide],
        ["pool", "list-policies"], ["pool", "requests", long], ["request", "list"], ["request", "describe", long],
    ):  # fmt: skip
        shown = cli(*words).stdout
        assert "\x1b" not in shown
    assert long in "".join(cli("request", "describe", long).stdout.split())


# --- errors and exit codes --------------------------------------------------------------------

EVERY_QUESTION: list[list[str]] = [
    ["start"], ["stop"], ["status"], ["apply", "-f", "-"], ["apply", "-f", "-", "--dry-run"],
    ["pool", "create", "x", "-c", "{gpu: 1}"], ["pool", "list"], ["pool", "describe", "x"],
    ["pool", "update", "x", "-d", "y"], ["pool", "delete", "x"], ["pool", "attach-policy", "x", "y", "-p", "1"],
    ["pool", "detach-policy", "x", "y"], ["pool", "list-policies"], ["pool", "requests", "x"],
    ["request", "list"], ["request", "describe", "x"], ["request", "why", "x"], ["request", "cancel", "x"],
    ["request", "delete", "x"], ["why", "x"], ["submit"], ["submit", "--dry-run"],
]  # fmt: skip


@pytest.mark.parametrize("words", EVERY_QUESTION, ids=" ".join)
def test_without_a_broker_every_command_exits_3_in_one_sentence(cli: Cli, words: list[str]) -> None:
    cli.client = None
    failed = cli(*words, code=3, input="pools: []")
    assert failed.stderr == "Error: no broker runs here: start one with `raypool start`\n"
    assert failed.stdout == ""


@pytest.mark.parametrize("words", EVERY_QUESTION, ids=" ".join)
def test_the_address_may_stand_on_the_group_or_the_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    seen: list[Any] = []

    def note(*_: Any) -> None:
        import click

        seen.append(click.get_current_context().meta.get("raypool.address"))
        cli.client = None
        cli.connect()

    for name in ("connect", "start", "stop"):
        monkeypatch.setattr(connection, name, note)
    cli("--address", "a:1", *words, code=3, input="")
    cli(*words, "--address", "b:2", code=3, input="")
    cli("--address", "a:1", *words, "--address", "b:2", code=3, input="")
    monkeypatch.setenv("RAY_ADDRESS", "c:3")
    cli(*words, code=3, input="")
    cli(*words, "--address", "b:2", code=3, input="")
    assert seen == ["a:1", "b:2", "b:2", "c:3", "b:2"]


@pytest.mark.parametrize(
    "words",
    [["--nope"], ["nope"], ["pool", "nope"], ["pool", "list", "--nope"], ["pool", "list", "-o", "xml"],
     ["pool", "create"], ["request", "describe"], ["request", "list", "--status", "lost"],
     ["apply"], ["apply", "-f", "/no/such/file"], ["pool", "requests", "gpus", "--view", "some"],
     ["pool", "attach-policy", "gpus", "red", "-p", "1", "-t", "person"], ["simulate"]],
    ids=" ".join,
)  # fmt: skip
def test_what_is_not_written_correctly_exits_2_in_one_sentence(cli: Cli, words: list[str]) -> None:
    failed = cli(*words, code=2)
    assert failed.stdout == ""
    assert re.fullmatch(r"Error: [^\n]+; see `raypool[^\n]* --help`\n", failed.stderr)


@pytest.mark.parametrize("words", [[], ["pool"], ["request"]])
def test_a_group_without_a_command_shows_its_help(cli: Cli, words: list[str]) -> None:
    assert "Commands:" in cli(*words, code=2).stderr


@pytest.mark.parametrize("words", [[], *EVERY_QUESTION, ["simulate"], ["pool"], ["request"]], ids=" ".join)
def test_every_command_has_help(cli: Cli, words: list[str]) -> None:
    names = [word for word in words[:2] if re.fullmatch(r"[a-z-]{4,}", word)]
    shown = cli(*names, "--help").stdout
    assert shown.startswith("Usage: raypool")


def test_the_words_of_options_are_those_of_the_spec() -> None:
    assert get_args(ComponentType) == tuple(values.COMPONENT_TYPE.choices)
    assert STATUSES == request.STATUSES
    fields = set(PoolSpec.model_fields) - {"name"}
    options = {pool._FIELD_OF.get(str(one.name), str(one.name)) for one in pool.update.params}
    assert fields <= options


def test_version_is_the_packages() -> None:
    from click.testing import CliRunner

    from raypool.cli.main import main
    from raypool.version import __version__

    assert __version__ in CliRunner().invoke(main, ["--version"]).stdout


# --- quick ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["pool", "--help"], ["pool", "create", "--help"], ["pool", "create", "x", "-c"], ["nope"]],
)
def test_help_and_faults_of_writing_load_nothing_that_is_slow(words: list[str]) -> None:
    code = f"""if True:
        import sys
        import raypool.cli.main
        slow = lambda: sorted({{"ray", "pydantic", "rich", "yaml", "importlib.metadata"}} & set(sys.modules))
        assert not slow(), slow()
        sys.argv = ["raypool", *{words!r}]
        try:
            raypool.cli.main.main()
        except SystemExit:
            pass
        assert not slow(), slow()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_words(shell: str) -> None:
    import os

    def complete(instruction: str, words: str, at: int) -> str:
        code = "import sys; sys.argv[0] = 'raypool'; from raypool.cli.main import main; main()"
        typed = words.split(" ")
        env = os.environ | {"_RAYPOOL_COMPLETE": instruction, "COMP_WORDS": words, "COMP_CWORD": str(at)}
        if shell == "fish":
            env["COMP_CWORD"] = typed[at]
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
        return done.stdout

    assert "attach-policy" in complete(f"{shell}_complete", "raypool pool att", 2)
    assert "preempting" in complete(f"{shell}_complete", "raypool request list --status pre", 4)
    assert "simulate" in complete(f"{shell}_complete", "raypool si", 1)
