"""cluster.yaml is never run here: it must be what Ray's launcher accepts, and fit the pools that it starts with."""

from __future__ import annotations

import copy
import json
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from raypool import BrokerConfig

TOP = Path(__file__).parents[1]


@pytest.fixture
def cluster() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((TOP / "cluster.yaml").read_text())
    return loaded


def test_rays_own_schema_accepts_it(cluster: dict[str, Any]) -> None:
    schema = json.loads(files("ray.autoscaler").joinpath("ray-schema.json").read_text())
    jsonschema.validate(cluster, schema)


def test_rays_launcher_accepts_it(cluster: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    assert prepared["head_start_ray_commands"] == cluster["head_start_ray_commands"]
    assert prepared["available_node_types"].keys() == cluster["available_node_types"].keys()


def test_the_report_period_reaches_ray_as_json(cluster: dict[str, Any]) -> None:
    start = next(command for command in cluster["head_start_ray_commands"] if "ray start --head" in command)
    option = next(word for word in shlex.split(start) if word.startswith("--system-config="))
    assert json.loads(option.partition("=")[2]) == {"raylet_report_resources_period_milliseconds": 10}


def test_the_broker_starts_on_the_head_after_ray(cluster: dict[str, Any]) -> None:
    commands = cluster["head_start_ray_commands"]
    ray_start = next(number for number, command in enumerate(commands) if "ray start" in command)
    assert commands.index("raypool start -f ~/raypool/examples/pools.yaml") > ray_start
    assert not any("raypool start" in command for command in cluster["worker_start_ray_commands"])


def test_every_node_gets_this_raypool(cluster: dict[str, Any]) -> None:
    assert cluster["file_mounts"] == {"~/raypool": "."}
    assert any("pip install" in command and "~/raypool" in command for command in cluster["setup_commands"])


def test_the_nodes_have_what_the_pools_share_out(cluster: dict[str, Any]) -> None:
    nodes = cluster["available_node_types"]["gpu"]
    assert nodes["min_workers"] == nodes["max_workers"] == cluster["max_workers"]
    pools = {pool.name: pool for pool in BrokerConfig.from_yaml(TOP / "examples" / "pools.yaml").pools}
    assert pools["gpus"].capacity["gpu"] == nodes["min_workers"] * nodes["resources"]["GPU"]
    assert pools["cpus"].capacity["mcpu"] <= nodes["min_workers"] * nodes["resources"]["CPU"] * 1000
