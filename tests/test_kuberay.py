"""examples/kuberay/raycluster.yaml is never applied here: it must be what KubeRay's `v1` RayCluster has, and its head
must start the broker. docs/how-to/kuberay.md says so."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from raypool import BrokerConfig

from .pages import DOCS, ROOT, all_blocks

MANIFEST = ROOT / "examples" / "kuberay" / "raycluster.yaml"
PAGE = DOCS / "how-to" / "kuberay.md"


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
CONTAINER = closed(
    ["name", "image"],
    name=TEXT,
    image=TEXT,
    command={"type": "array", "items": TEXT},
    args={"type": "array", "items": TEXT},
    env={"type": "array", "items": closed(["name", "value"], name=TEXT, value=TEXT)},
    ports={"type": "array", "items": closed(["containerPort"], containerPort=NUMBER, name=TEXT)},
    resources=closed([], limits=TEXTS, requests=TEXTS),
    volumeMounts={"type": "array", "items": closed(["name", "mountPath"], name=TEXT, mountPath=TEXT, readOnly=FLAG)},
)
POD = closed(
    ["spec"],
    metadata={"type": "object"},
    spec=closed(
        ["containers"],
        containers={"type": "array", "items": CONTAINER, "minItems": 1},
        volumes={"type": "array", "items": closed(["name"], name=TEXT, configMap=closed(["name"], name=TEXT))},
    ),
)
RAY_CLUSTER = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=closed(["name"], name=TEXT, annotations=TEXTS, labels=TEXTS),
    spec=closed(
        ["headGroupSpec"],
        rayVersion=TEXT,
        enableInTreeAutoscaling=FLAG,
        headGroupSpec=closed(["rayStartParams", "template"], rayStartParams=TEXTS, serviceType=TEXT, template=POD),
        workerGroupSpecs={
            "type": "array",
            "items": closed(
                ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                groupName=TEXT,
                replicas=NUMBER,
                minReplicas=NUMBER,
                maxReplicas=NUMBER,
                numOfHosts=NUMBER,
                rayStartParams=TEXTS,
                template=POD,
            ),
        },
    ),
)
"""A part of the RayCluster of KubeRay (`ray-operator/apis/ray/v1/raycluster_types.go`) and of a Kubernetes Pod: the
fields that the manifest has, and which must be there. Quantities and parameters are text, as in these types."""


@pytest.fixture
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))


@pytest.fixture
def spec(documents: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = documents[1]["spec"]
    return found


def head(spec: dict[str, Any]) -> dict[str, Any]:
    (container,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def test_it_has_fields_of_a_ray_cluster_only(documents: list[dict[str, Any]]) -> None:
    pools, cluster = documents
    assert (pools["apiVersion"], pools["kind"]) == ("v1", "ConfigMap")
    jsonschema.validate(cluster, RAY_CLUSTER)
    cluster["spec"]["headGroupSpecs"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster, RAY_CLUSTER)


def test_the_pools_load_and_the_workers_have_what_they_share_out(
    documents: list[dict[str, Any]], spec: dict[str, Any]
) -> None:
    config = BrokerConfig.from_yaml(documents[0]["data"]["pools.yaml"])
    (group,) = spec["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    assert spec["enableInTreeAutoscaling"] is False
    (worker,) = group["template"]["spec"]["containers"]
    gpus = int(worker["resources"]["limits"]["nvidia.com/gpu"]) * group["replicas"]
    assert config.pools[0].capacity == {"gpu": gpus}
    assert worker["image"] == head(spec)["image"], "the same raypool on all pods"


def test_the_pools_file_is_where_the_head_looks_for_it(documents: list[dict[str, Any]], spec: dict[str, Any]) -> None:
    (volume,) = spec["headGroupSpec"]["template"]["spec"]["volumes"]
    (mount,) = head(spec)["volumeMounts"]
    assert volume["configMap"]["name"] == documents[0]["metadata"]["name"]
    assert volume["name"] == mount["name"]
    (name,) = documents[0]["data"]
    assert f"raypool start -f {mount['mountPath']}/{name};" in head(spec)["args"][0]


def test_the_head_starts_ray_and_tries_the_broker_until_ray_is_up(
    documents: list[dict[str, Any]], spec: dict[str, Any], tmp_path: Path
) -> None:
    """Its command in a shell, with stand-ins: Ray comes up while `raypool start` has failed twice already."""
    assert documents[1]["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    stand_ins = {
        "raypool": 'echo "raypool $*" >> log; test -e up',
        "sleep": "echo waits >> log; test $(grep -c waits log) -lt 2 || touch up",
        "ray": 'echo "ray $*" >> log; for i in $(seq 3000); do test -e up && break; /bin/sleep 0.01; done',
    }
    for name, does in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    assert head(spec)["command"] == ["/bin/bash", "-lc", "--"]
    environment = {**os.environ, "KUBERAY_GEN_RAY_START_CMD": "ray start --head --block"}
    script = f'PATH="{tmp_path}:$PATH"; {head(spec)["args"][0].replace("ulimit -n 65536", "true")}; wait'
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=True, timeout=60)
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(line for line in lines if line != "waits") == [
        "ray start --head --block",
        *["raypool start -f /etc/raypool/pools.yaml"] * 3,
    ]


def test_the_page_uses_the_names_of_the_manifest(documents: list[dict[str, Any]], spec: dict[str, Any]) -> None:
    commands = [line for block in all_blocks("console") if block.page == PAGE for line in block.commands]
    assert f"kubectl apply -f {MANIFEST.relative_to(ROOT)}" in commands
    image = head(spec)["image"]
    dockerfile = MANIFEST.with_name("Dockerfile")
    assert f"docker build -f {dockerfile.relative_to(ROOT)} -t {image} ." in commands
    assert f"rayproject/ray:{spec['rayVersion']}-" in dockerfile.read_text(encoding="utf-8")
    service = f"{documents[1]['metadata']['name']}-head-svc"
    for line in commands:
        if line.startswith("kubectl exec"):
            assert line.startswith(f"kubectl exec service/{service} -- raypool "), line
        if "configmap" in line:
            assert line.endswith(f"configmap {documents[0]['metadata']['name']}"), line
