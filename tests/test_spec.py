"""What people write, row by row: translation to whole numbers, and the sentence for every fault."""

import json
import math
import os
import pickle
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from raypool.errors import SpecError
from raypool.spec import (
    MEMORY_UNITS,
    BrokerConfig,
    PolicySpec,
    PoolSpec,
    RequestSpec,
    ResourceSettings,
    parse_memory,
)

POOL = {"name": "p", "capacity": {"gpu": 8}}
POLICY = {"pool": "p", "component": "red", "priority": 1}
SPECS = (ResourceSettings, PoolSpec, PolicySpec, RequestSpec, BrokerConfig)

NAME_RULE = "must be 1 to 128 printable characters, without '/' and without spaces at its ends"
MEMORY_RULE = "must be a whole number > 0 and a unit, like '16GiB' (KB KiB MB MiB GB GiB TB TiB PB PiB)"
RESOURCE_FIELDS = "gpu_count, cpu_count, memory, pool_resources, preemptible"


def named(rows):
    return {"argvalues": [row[1:] for row in rows], "ids": [row[0] for row in rows]}


def fault_of(spec, data):
    with pytest.raises(SpecError) as caught:
        spec.load(data)
    return str(caught.value)


# --- from ResourceSettings to a demand --------------------------------------------------------

ONE_WORKER = [
    ("nothing asked", {}, {}),
    ("pool resources as they are", {"pool_resources": {"licence": 2}}, {"licence": 2}),
    ("gpus", {"gpu_count": 2}, {"gpu": 2}),
    ("gpu_count replaces the pool resource", {"gpu_count": 2, "pool_resources": {"gpu": 5}}, {"gpu": 2}),
    ("gpu_count 0 removes the pool resource", {"gpu_count": 0, "pool_resources": {"gpu": 5}}, {}),
    ("gpu_count null leaves it alone", {"gpu_count": None, "pool_resources": {"gpu": 5}}, {"gpu": 5}),
    ("gpu_count 0 alone is no key", {"gpu_count": 0}, {}),
    ("whole cpus", {"cpu_count": 2}, {"mcpu": 2000}),
    ("half a cpu", {"cpu_count": 0.5}, {"mcpu": 500}),
    ("1.1 is exact, not 1101", {"cpu_count": 1.1}, {"mcpu": 1100}),
    ("2.3 is exact", {"cpu_count": 2.3}, {"mcpu": 2300}),
    ("0.07 is exact", {"cpu_count": 0.07}, {"mcpu": 70}),
    ("a part of a thousandth rounds up", {"cpu_count": 1.0005}, {"mcpu": 1001}),
    ("the smallest cpu is one thousandth", {"cpu_count": 1e-9}, {"mcpu": 1}),
    ("cpu_count replaces the pool resource", {"cpu_count": 1, "pool_resources": {"mcpu": 7}}, {"mcpu": 1000}),
    ("memory in binary units rounds up", {"memory": "16GiB"}, {"memory_mb": 17180}),
    ("memory in decimal units is exact", {"memory": "16GB"}, {"memory_mb": 16000}),
    ("the smallest memory is one", {"memory": "1KB"}, {"memory_mb": 1}),
    ("one MiB is two MB, rounded up", {"memory": "1MiB"}, {"memory_mb": 2}),
    ("leading zeros change nothing", {"memory": "0" * 30 + "1GB"}, {"memory_mb": 1000}),
    ("memory replaces the pool resource", {"memory": "1GB", "pool_resources": {"memory_mb": 7}}, {"memory_mb": 1000}),
    (
        "all at once",
        {"gpu_count": 1, "cpu_count": 1.5, "memory": "2GB", "pool_resources": {"licence": 3}},
        {"gpu": 1, "mcpu": 1500, "memory_mb": 2000, "licence": 3},
    ),
]


@pytest.mark.parametrize(("settings", "demand"), **named(ONE_WORKER))
def test_one_workers_resources_become_whole_numbers(settings, demand):
    assert ResourceSettings.load(settings).demand() == demand


WHOLE_REQUESTS = [
    ("nothing but a step", {}, {"step_run": 1}),
    ("one worker", {"resources": {"gpu_count": 2}}, {"gpu": 2, "step_run": 1}),
    (
        "workers multiply every key",
        {"workers": 3, "resources": {"gpu_count": 2, "cpu_count": 0.5, "pool_resources": {"licence": 1}}},
        {"gpu": 6, "mcpu": 1500, "licence": 3, "step_run": 1},
    ),
    (
        "rounding happens per worker, before it is multiplied",
        {"workers": 10, "resources": {"cpu_count": 1.0005, "memory": "1KB"}},
        {"mcpu": 10010, "memory_mb": 10, "step_run": 1},
    ),
    (
        "unlike bundles are summed by key",
        {"bundles": [{"gpu_count": 2}, {"cpu_count": 1, "gpu_count": 1}, {"memory": "1GB"}]},
        {"gpu": 3, "mcpu": 1000, "memory_mb": 1000, "step_run": 1},
    ),
    (
        "step_run is 1 whatever was written",
        {"workers": 4, "resources": {"pool_resources": {"step_run": 5}}},
        {"step_run": 1},
    ),
    (
        "step_run is 1 with bundles too",
        {"bundles": [{"pool_resources": {"step_run": 2}}, {"pool_resources": {"step_run": 3}}]},
        {"step_run": 1},
    ),
]


@pytest.mark.parametrize(("fields", "demand"), **named(WHOLE_REQUESTS))
def test_a_whole_requests_demand(fields, demand):
    spec = RequestSpec.load({"component": "red", **fields})
    assert spec.demand() == demand
    assert all(type(amount) is int for amount in spec.demand().values())


@given(st.decimals("0.0001", "1000", places=4))
def test_cpus_of_any_decimal_are_rounded_up_exactly(cpus):
    thousandths = ResourceSettings(cpu_count=float(cpus)).demand()["mcpu"]
    assert thousandths - 1 < cpus * 1000 <= thousandths


@pytest.mark.parametrize("unit", MEMORY_UNITS)
def test_memory_knows_every_unit(unit):
    bytes_ = 3 * MEMORY_UNITS[unit]
    assert parse_memory(f"3{unit}") == bytes_
    assert ResourceSettings(memory=f"3{unit}").demand() == {"memory_mb": math.ceil(bytes_ / 10**6)}


def test_a_demand_is_a_copy_that_the_caller_may_change():
    settings = ResourceSettings(pool_resources={"licence": 1})
    settings.demand()["licence"] = 5
    assert settings.demand() == {"licence": 1}


PREEMPTIBLE = [
    ("by default", {}, True),
    ("said in the resources", {"resources": {"preemptible": False}}, False),
    ("said on the request", {"preemptible": False}, False),
    ("said on the request, with resources that say nothing", {"preemptible": False, "resources": {}}, False),
    ("said on the request, with bundles", {"preemptible": False, "bundles": [{}]}, False),
    ("bundles that say nothing", {"bundles": [{}]}, True),
]


@pytest.mark.parametrize(("fields", "preemptible"), **named(PREEMPTIBLE))
def test_whether_a_request_is_preemptible(fields, preemptible):
    assert RequestSpec.load({"component": "red", **fields}).is_preemptible is preemptible


def test_a_gang_has_one_bundle_per_worker_in_order():
    unlike = RequestSpec.load({"component": "r", "bundles": [{"gpu_count": 2}, {}]})
    assert [bundle.gpu_count for bundle in unlike.bundle_list()] == [2, None]
    assert len(RequestSpec(component="r", workers=3).bundle_list()) == 3


# --- what is refused, and with which sentence -------------------------------------------------

WHOLE, NUMBER = "must be a whole number", "must be a number"

BAD_RESOURCES = [
    ("gpu_count: a boolean", {"gpu_count": True}, f"gpu_count: {WHOLE}, got True"),
    ("gpu_count: negative", {"gpu_count": -1}, "gpu_count: must be >= 0, got -1"),
    ("gpu_count: a fraction", {"gpu_count": 1.5}, f"gpu_count: {WHOLE}, got 1.5"),
    ("gpu_count: a whole float", {"gpu_count": 1.0}, f"gpu_count: {WHOLE}, got 1.0"),
    ("gpu_count: a string", {"gpu_count": "2"}, f"gpu_count: {WHOLE}, got '2'"),
    ("gpu_count: not a number", {"gpu_count": math.nan}, f"gpu_count: {WHOLE}, got nan"),
    ("gpu_count: infinite", {"gpu_count": math.inf}, f"gpu_count: {WHOLE}, got inf"),
    ("gpu_count: a list", {"gpu_count": [1]}, f"gpu_count: {WHOLE}, got [1]"),
    (
        "gpu_count: above all bounds",
        {"gpu_count": 10**15 + 1},
        "gpu_count: must be <= 1000000000000000, got 1000000000000001",
    ),
    (
        "gpu_count: so large that Python will not print it",
        {"gpu_count": 10**5000},
        "gpu_count: must be <= 1000000000000000, got a number of 16610 bits",
    ),
    ("cpu_count: a boolean", {"cpu_count": True}, f"cpu_count: {NUMBER}, got True"),
    ("cpu_count: zero", {"cpu_count": 0}, "cpu_count: must be > 0, got 0"),
    ("cpu_count: negative", {"cpu_count": -0.5}, "cpu_count: must be > 0, got -0.5"),
    ("cpu_count: a string", {"cpu_count": "2"}, f"cpu_count: {NUMBER}, got '2'"),
    ("cpu_count: not a number", {"cpu_count": math.nan}, "cpu_count: must be a finite number, got nan"),
    ("cpu_count: infinite", {"cpu_count": math.inf}, "cpu_count: must be a finite number, got inf"),
    ("cpu_count: minus infinite", {"cpu_count": -math.inf}, "cpu_count: must be a finite number, got -inf"),
    ("cpu_count: above all bounds", {"cpu_count": 2e9}, "cpu_count: must be <= 1000000000, got 2000000000.0"),
    ("memory: a number", {"memory": 16}, "memory: must be a string, got 16"),
    ("memory: a boolean", {"memory": True}, "memory: must be a string, got True"),
    ("memory: no unit", {"memory": "16"}, f"memory: {MEMORY_RULE}, got '16'"),
    ("memory: zero", {"memory": "0GB"}, f"memory: {MEMORY_RULE}, got '0GB'"),
    ("memory: negative", {"memory": "-1GB"}, f"memory: {MEMORY_RULE}, got '-1GB'"),
    ("memory: a sign", {"memory": "+1GB"}, f"memory: {MEMORY_RULE}, got '+1GB'"),
    ("memory: a fraction", {"memory": "1.5GB"}, f"memory: {MEMORY_RULE}, got '1.5GB'"),
    ("memory: a space", {"memory": "16 GiB"}, f"memory: {MEMORY_RULE}, got '16 GiB'"),
    ("memory: a short unit", {"memory": "16G"}, f"memory: {MEMORY_RULE}, got '16G'"),
    ("memory: a small unit", {"memory": "16gib"}, f"memory: {MEMORY_RULE}, got '16gib'"),
    ("memory: a line end", {"memory": "1GB\n"}, f"memory: {MEMORY_RULE}, got '1GB\\n'"),
    ("memory: digits of another script", {"memory": "１GB"}, f"memory: {MEMORY_RULE}, got '１GB'"),
    ("memory: empty", {"memory": ""}, f"memory: {MEMORY_RULE}, got ''"),
    ("memory: too much", {"memory": "1000001PB"}, "memory: must be at most 1000000PB, got '1000001PB'"),
    ("memory: digits without end", {"memory": "9" * 5000 + "KB"}, "memory: must be at most 1000000PB, got '999"),
    ("pool_resources: zero", {"pool_resources": {"tpu": 0}}, "pool_resources.tpu: must be > 0, got 0"),
    ("pool_resources: negative", {"pool_resources": {"tpu": -1}}, "pool_resources.tpu: must be > 0, got -1"),
    ("pool_resources: a boolean", {"pool_resources": {"tpu": True}}, f"pool_resources.tpu: {WHOLE}, got True"),
    ("pool_resources: a whole float", {"pool_resources": {"tpu": 1.0}}, f"pool_resources.tpu: {WHOLE}, got 1.0"),
    ("pool_resources: a string", {"pool_resources": {"tpu": "2"}}, f"pool_resources.tpu: {WHOLE}, got '2'"),
    ("pool_resources: a list", {"pool_resources": []}, "pool_resources: must be a mapping, got []"),
    ("pool_resources: null", {"pool_resources": None}, "pool_resources: must be a mapping, got None"),
    ("pool_resources: a numbered key", {"pool_resources": {1: 1}}, "pool_resources[1]: must be a string, got 1"),
    ("pool_resources: an empty key", {"pool_resources": {"": 1}}, "must not be empty, got ''"),
    ("pool_resources: a slash in a key", {"pool_resources": {"a/b": 1}}, f"pool_resources.a/b: {NAME_RULE}"),
    ("pool_resources: a line in a key", {"pool_resources": {"a\n": 1}}, f"pool_resources.a\\n: {NAME_RULE}"),
    ("preemptible: a number", {"preemptible": 1}, "preemptible: must be true or false, got 1"),
    ("preemptible: a string", {"preemptible": "yes"}, "preemptible: must be true or false, got 'yes'"),
    (
        "an unknown field that is nearly one",
        {"gpu_cont": 1},
        f"gpu_cont: no such field (allowed: {RESOURCE_FIELDS}); did you mean 'gpu_count'?",
    ),
    ("an unknown field that is like none", {"xyz": 1}, f"xyz: no such field (allowed: {RESOURCE_FIELDS})"),
    ("not a mapping", [], "ResourceSettings: the document: must be a mapping, got []"),
    ("nothing", None, "ResourceSettings: the document: must be a mapping, got None"),
]


@pytest.mark.parametrize(("data", "sentence"), **named(BAD_RESOURCES))
def test_resources_that_are_not_valid_name_field_and_value_and_rule(data, sentence):
    assert sentence in fault_of(ResourceSettings, data)


BAD_POOLS = [
    ("no name", {"name": None}, "name: must be a string, got None"),
    ("an empty name", {"name": ""}, "name: must not be empty, got ''"),
    ("a slash in the name", {"name": "a/b"}, f"name: {NAME_RULE}, got 'a/b'"),
    ("a space before the name", {"name": " a"}, f"name: {NAME_RULE}, got ' a'"),
    ("a control character in the name", {"name": "a\x07"}, f"name: {NAME_RULE}, got 'a\\x07'"),
    ("a long name", {"name": "a" * 129}, "name: must have at most 128 characters, got 'aaa"),
    ("no capacity", {"capacity": {}}, "capacity: must not be empty, got {}"),
    ("capacity 0", {"capacity": {"gpu": 0}}, "capacity.gpu: must be > 0, got 0"),
    ("capacity with a fraction", {"capacity": {"gpu": 1.5}}, "capacity.gpu: must be a whole number, got 1.5"),
    ("an unknown queueing", {"queueing": "fifo"}, "queueing: must be 'strict' or 'backfill', got 'fifo'"),
    ("negative grace", {"grace_seconds": -1}, "grace_seconds: must be >= 0, got -1"),
    ("a boolean grace", {"grace_seconds": True}, "grace_seconds: must be a number, got True"),
    ("endless grace", {"grace_seconds": math.inf}, "grace_seconds: must be a finite number, got inf"),
    ("no time to place", {"placement_timeout_seconds": 0}, "placement_timeout_seconds: must be > 0, got 0"),
    ("an unknown infeasible", {"infeasible": "maybe"}, "infeasible: must be 'wait' or 'reject', got 'maybe'"),
    ("a label that is a number", {"node_labels": {"zone": 1}}, "node_labels.zone: must be a string, got 1"),
    ("a long description", {"description": "x" * 5000}, "description: must have at most 4096 characters, got 'xxx"),
    (
        "a Ray resource for a key it does not list",
        {"ray_resources": {"tpu": "TPU"}},
        "ray_resources names key 'tpu', which the pool's capacity does not list",
    ),
    (
        "a Ray resource for gpu",
        {"ray_resources": {"gpu": "GPU"}},
        "ray_resources may not map 'gpu' to 'GPU': Ray's own are mapped already",
    ),
    (
        "one of Ray's own for another key",
        {"capacity": {"tpu": 1}, "ray_resources": {"tpu": "memory"}},
        "ray_resources may not map 'tpu' to 'memory': Ray's own are mapped already",
    ),
    ("a misspelt field", {"queing": "strict"}, "did you mean 'queueing'?"),
]


@pytest.mark.parametrize(("fields", "sentence"), **named(BAD_POOLS))
def test_a_pool_that_is_not_valid(fields, sentence):
    assert sentence in fault_of(PoolSpec, {**POOL, **fields})


BAD_POLICIES = [
    ("negative priority", {"priority": -1}, "priority: must be >= 0, got -1"),
    ("a boolean priority", {"priority": False}, "priority: must be a whole number, got False"),
    ("a fractional priority", {"priority": 0.5}, "priority: must be a whole number, got 0.5"),
    ("no priority", {"priority": None}, "priority: must be a whole number, got None"),
    ("a negative reserve", {"reserved": {"gpu": -1}}, "reserved.gpu: must be >= 0, got -1"),
    ("a limit that is a string", {"limit": {"gpu": "8"}}, "limit.gpu: must be a whole number, got '8'"),
    (
        "an unknown component type",
        {"component_type": "user"},
        "component_type: must be 'team', 'orchestrator' or 'step_operator', got 'user'",
    ),
    ("a misspelt field", {"limits": {}}, "did you mean 'limit'?"),
]


@pytest.mark.parametrize(("fields", "sentence"), **named(BAD_POLICIES))
def test_a_policy_that_is_not_valid(fields, sentence):
    assert sentence in fault_of(PolicySpec, {**POLICY, **fields})


BAD_REQUESTS = [
    ("no workers", {"workers": 0}, "workers: must be >= 1, got 0"),
    ("a float of workers", {"workers": 2.0}, "workers: must be a whole number, got 2.0"),
    ("a boolean of workers", {"workers": True}, "workers: must be a whole number, got True"),
    ("far too many workers", {"workers": 10_001}, "workers: must be <= 10000, got 10001"),
    ("no bundles", {"bundles": []}, "bundles: must not be empty, got ()"),
    ("bundles that are a mapping", {"bundles": {}}, "bundles: must be a list, got {}"),
    ("a faulty bundle", {"bundles": [{}, {"gpu_count": -1}]}, "bundles[1].gpu_count: must be >= 0, got -1"),
    ("a misspelt field in a bundle", {"bundles": [{"gpu_cont": 1}]}, "bundles[0].gpu_cont: no such field"),
    ("a misspelt field in its resources", {"resources": {"cpus": 1}}, "resources.cpus: no such field"),
    (
        "resources and bundles",
        {"bundles": [{}], "resources": {}},
        "give either resources (with workers) or bundles, not both",
    ),
    ("workers and bundles", {"bundles": [{}], "workers": 2}, "give either resources (with workers) or bundles"),
    (
        "preemptible in a bundle",
        {"bundles": [{"preemptible": False}]},
        "with bundles, preemptible stands on the request: a gang leaves whole",
    ),
    (
        "preemptible twice",
        {"preemptible": False, "resources": {"preemptible": True}},
        "preemptible is given twice: on the request and in its resources; give it once",
    ),
    ("a strategy in small letters", {"strategy": "pack"}, "strategy: must be 'PACK', 'SPREAD', 'STRICT_PACK'"),
    ("an unknown lifetime", {"lifetime": "job"}, "lifetime: must be 'detached', got 'job'"),
    ("negative grace", {"grace_seconds": -1}, "grace_seconds: must be >= 0, got -1"),
    ("an empty id", {"id": ""}, "id: must not be empty, got ''"),
    ("an id with a slash", {"id": "a/b"}, f"id: {NAME_RULE}, got 'a/b'"),
    ("an empty pin", {"pool": ""}, "pool: must not be empty, got ''"),
    ("a component that is a number", {"component": 5}, "component: must be a string, got 5"),
]


@pytest.mark.parametrize(("fields", "sentence"), **named(BAD_REQUESTS))
def test_a_request_that_is_not_valid(fields, sentence):
    assert sentence in fault_of(RequestSpec, {"component": "red", **fields})


@pytest.mark.parametrize(
    ("spec", "missing"),
    [(PoolSpec, ["name", "capacity"]), (PolicySpec, ["pool", "component", "priority"]), (RequestSpec, ["component"])],
)
def test_what_is_required_is_said_field_by_field(spec, missing):
    with pytest.raises(SpecError) as caught:
        spec.load({})
    assert caught.value.problems == tuple(f"{field}: is required" for field in missing)


def test_every_fault_is_told_at_once_with_its_path():
    with pytest.raises(SpecError) as caught:
        pools = [POOL, {"name": "q", "capacity": {"gpu": 0}}]
        BrokerConfig.load({"pools": pools, "policies": [{**POLICY, "priority": -1}]})
    assert caught.value.problems == (
        "pools[1].capacity.gpu: must be > 0, got 0",
        "policies[0].priority: must be >= 0, got -1",
    )
    assert str(caught.value).startswith("BrokerConfig: pools[1]")


@pytest.mark.parametrize(
    "build", [lambda: ResourceSettings(gpu_count=-1), lambda: ResourceSettings.load({"gpu_count": -1})]
)
def test_a_fault_is_a_spec_error_and_a_value_error_however_the_spec_is_built(build):
    with pytest.raises(ValueError, match="gpu_count") as caught:
        build()
    assert isinstance(caught.value, SpecError)


HUGE = [
    ("a long string", PoolSpec, {**POOL, "name": "x" * 10_000_000}),
    ("a long key", PoolSpec, {**POOL, "capacity": {"x" * 1_000_000: -1}}),
    ("a long field name", ResourceSettings, {"x" * 1_000_000: 1}),
    ("ten thousand faults", PoolSpec, {**POOL, "capacity": {f"k{i}": -1 for i in range(10_000)}}),
    ("a mapping with long keys in the place of a number", PoolSpec, {**POOL, "capacity": {"a": {"x" * 10**6: 1}}}),
    ("a long list", PoolSpec, {**POOL, "capacity": list(range(1_000_000))}),
    ("ten thousand digits", PoolSpec, {**POOL, "capacity": {"gpu": 10**10_000}}),
]


@pytest.mark.parametrize(("spec", "data"), **named(HUGE))
def test_a_huge_input_does_not_make_a_huge_message(spec, data):
    with pytest.raises(SpecError) as caught:
        spec.load(data)
    assert len(str(caught.value)) < 2000
    assert sum(map(len, caught.value.problems)) < 2000


def test_faults_beyond_the_twentieth_are_counted():
    with pytest.raises(SpecError) as caught:
        PoolSpec(name="p", capacity={f"k{i:02}": -1 for i in range(30)})
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 10 more"


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_every_spec_exports_a_closed_json_schema(spec):
    schema = json.loads(json.dumps(spec.model_json_schema()))
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(spec.model_fields)


def test_the_exported_schema_has_the_bounds_of_lists():
    bundles = RequestSpec.model_json_schema()["properties"]["bundles"]["anyOf"][0]
    assert (bundles["type"], bundles["minItems"], bundles["maxItems"]) == ("array", 1, 10_000)


WHOLE_CONFIG = {
    "pools": [
        {
            "name": "gpus",
            "description": "all of them",
            "capacity": {"gpu": 16, "mcpu": 64000, "tpu": 4},
            "queueing": "backfill",
            "node_labels": {"zone": "a"},
            "ray_resources": {"tpu": "TPU"},
            "grace_seconds": 30,
            "placement_timeout_seconds": 5,
            "infeasible": "reject",
        },
        {"name": "rest", "capacity": {"gpu": 1}},
    ],
    "policies": [
        {"pool": "gpus", "component": "red", "priority": 10, "reserved": {"gpu": 4}, "limit": {"gpu": 8}},
        {"pool": "gpus", "component": "red", "component_type": "orchestrator", "priority": 0},
        {"pool": "rest", "component": "red", "priority": 0},
    ],
    "unmanaged": "allow",
}

EXAMPLES = [
    ("no resources", ResourceSettings, {}),
    ("resources", ResourceSettings, {"gpu_count": 0, "cpu_count": 1.5, "memory": "1GB", "preemptible": False}),
    ("a plain pool", PoolSpec, POOL),
    ("a policy", PolicySpec, {**POLICY, "reserved": {"gpu": 0}, "limit": {"gpu": 0}}),
    ("a request", RequestSpec, {"id": "a", "component": "red", "workers": 2, "resources": {"gpu_count": 1}}),
    ("bundles", RequestSpec, {"id": "a", "component": "red", "bundles": [{}, {"gpu_count": 1}], "preemptible": True}),
    ("a whole file", BrokerConfig, WHOLE_CONFIG),
    ("an empty file", BrokerConfig, {}),
]


@pytest.mark.parametrize(("spec", "data"), **named(EXAMPLES))
def test_what_is_dumped_loads_again_as_the_same(spec, data):
    loaded = spec.load(data)
    wire = json.loads(json.dumps(loaded.dump()))
    assert spec.load(wire) == loaded
    assert spec.load(loaded) == loaded
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def test_fields_at_their_defaults_are_not_dumped():
    assert PoolSpec.load({**POOL, "queueing": "strict", "grace_seconds": 0}).dump() == POOL


def test_a_requests_id_is_dumped_so_that_a_repeated_call_asks_once():
    spec = RequestSpec(component="red")
    assert spec.dump() == {"id": spec.id, "component": "red"}
    assert spec.id != RequestSpec(component="red").id


def test_unmanaged_reject_is_dumped_when_it_was_said_since_it_takes_back_an_allow():
    assert BrokerConfig(unmanaged="reject").dump() == {"unmanaged": "reject"}
    assert BrokerConfig().dump() == {}


@pytest.mark.parametrize(("spec", "data"), **named(EXAMPLES))
def test_a_spec_is_frozen(spec, data):
    loaded = spec.load(data)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(loaded, next(iter(spec.model_fields)), "other")


def test_a_spec_keeps_no_hold_of_the_callers_dict():
    capacity = {"gpu": 8}
    pool = PoolSpec(name="p", capacity=capacity)
    capacity["gpu"] = 1
    assert pool.capacity == {"gpu": 8}


def test_faults_pickle_since_they_cross_processes():
    with pytest.raises(SpecError) as caught:
        PoolSpec.load({})
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)


# --- files ------------------------------------------------------------------------------------

FILE = """
pools:
  - name: shared
    capacity: {gpu: 8, mcpu: 32000}
    queueing: backfill
policies:
  - {pool: shared, component: prod, component_type: team, priority: 100, reserved: {gpu: 2}, limit: {gpu: 8}}
  - {pool: shared, component: research, priority: 10}
unmanaged: allow
"""


def test_a_yaml_file_with_pools_and_policies_loads_as_it_stands(tmp_path):
    file = tmp_path / "pools.yaml"
    file.write_text(FILE)
    config = BrokerConfig.from_yaml(file)
    assert config == BrokerConfig.from_yaml(FILE)
    assert config.pools == (PoolSpec(name="shared", capacity={"gpu": 8, "mcpu": 32000}, queueing="backfill"),)
    assert [policy.owner for policy in config.policies] == [("prod", "team"), ("research", "team")]
    assert config.unmanaged == "allow"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}"])
def test_an_empty_file_is_an_empty_config(text):
    assert BrokerConfig.from_yaml(text) == BrokerConfig()


BAD_FILES = [
    ("not YAML", "pools: [", "not readable as YAML: while parsing"),
    ("two documents", "a: 1\n---\nb: 1\n", "not readable as YAML: expected a single document"),
    ("a NUL", "\x00", "not readable as YAML: unacceptable character"),
    ("an object", "!!python/object:os.system {}", "not readable as YAML: could not determine a constructor"),
    ("an impossible date", "name: 2024-13-45", "not readable as YAML: month must be in 1..12"),
    ("a number of 5000 digits", "a: " + "9" * 5000, "not readable as YAML: Exceeds the limit"),
    ("brackets without end", "[" * 1_000, "not readable as YAML: maximum recursion depth"),
    ("a list", "- 1", "BrokerConfig: the document: must be a mapping, got [1]"),
    ("no list after pools", "pools:\n", "pools: must be a list, got None"),
    ("a numbered key", "1: 2", "BrokerConfig: [1]: must be a string, got 1"),
    ("a key twice", "pools: []\npolicies: []\npools: []\n", "key 'pools' is there twice in"),
    ("an amount twice", "pools: [{name: p, capacity: {gpu: 8, gpu: 4}}]", "key 'gpu' is there twice"),
    (
        "a misspelt word",
        "pool: []",
        "pool: no such field (allowed: pools, policies, unmanaged, owner_timeout_seconds); did",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), **named(BAD_FILES))
def test_a_file_that_is_not_valid(text, sentence):
    with pytest.raises(SpecError) as caught:
        BrokerConfig.from_yaml(text)
    assert sentence in str(caught.value)


def test_a_file_that_is_not_text_is_a_spec_error_and_a_missing_one_an_os_error(tmp_path):
    file = tmp_path / "pools.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not readable as YAML"):
        BrokerConfig.from_yaml(file)
    with pytest.raises(FileNotFoundError):
        BrokerConfig.from_yaml(tmp_path / "none.yaml")


def test_a_yaml_alias_may_be_changed_by_a_merge():
    text = "pools:\n  - &p {name: a, capacity: {gpu: 1}}\n  - {<<: *p, name: b}\n"
    assert [pool.name for pool in BrokerConfig.from_yaml(text).pools] == ["a", "b"]


DUPLICATES = [
    ("a pool", {"pools": [POOL, POOL]}, "pool 'p' is there twice"),
    ("a policy", {"policies": [POLICY, POLICY]}, "the policy of team 'red' in pool 'p' is there twice"),
]


@pytest.mark.parametrize(("data", "sentence"), **named(DUPLICATES))
def test_each_pool_and_each_policy_stands_once(data, sentence):
    assert sentence in fault_of(BrokerConfig, data)


def test_one_name_may_have_policies_of_several_component_types_and_pools():
    kinds = ("team", "orchestrator")
    policies = [{**POLICY, "pool": pool, "component_type": kind} for pool in "pq" for kind in kinds]
    assert len(BrokerConfig.load({"policies": policies}).policies) == 4


SCENARIOS = Path(__file__).parent / "scenarios"


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.name)
def test_pools_policies_and_requests_of_the_conformance_scenarios_load_as_they_stand(file):
    for document in yaml.safe_load_all(file.read_text()):
        BrokerConfig.load({"pools": document.get("pools", []), "policies": document.get("policies", [])})
        for entry in document["timeline"]:
            if "submit" in entry:
                RequestSpec.load({key: value for key, value in entry["submit"].items() if key != "duration"})


# --- a config as a file -----------------------------------------------------------------------

AS_WRITTEN = """\
# version 3
# of a test
unmanaged: allow

pools:
- name: gpus
  description: all of them
  capacity: {gpu: 16, mcpu: 64000, tpu: 4}
  queueing: backfill
  node_labels: {zone: a}
  ray_resources: {tpu: TPU}
  grace_seconds: 30.0
  placement_timeout_seconds: 5.0
  infeasible: reject
- name: rest
  capacity: {gpu: 1}

policies:
# who may use 'gpus'
- pool: gpus
  component: red
  priority: 10
  reserved: {gpu: 4}
  limit: {gpu: 8}
- pool: gpus
  component: red
  component_type: orchestrator
  priority: 0
# who may use 'rest'
- pool: rest
  component: red
  priority: 0
"""


def test_a_config_is_written_as_one_would_write_it():
    config = BrokerConfig.load(WHOLE_CONFIG)
    assert config.to_yaml("version 3\nof a test") == AS_WRITTEN
    assert BrokerConfig.from_yaml(AS_WRITTEN) == config


def test_an_empty_config_is_a_file_too():
    assert BrokerConfig.from_yaml(BrokerConfig().to_yaml()) == BrokerConfig()


def test_a_comment_cannot_become_anything_else():
    text = BrokerConfig.load(WHOLE_CONFIG).to_yaml("a\x00b\u2028unmanaged: reject\x85pools: []\r\npolicies: []")
    assert BrokerConfig.from_yaml(text) == BrokerConfig.load(WHOLE_CONFIG)


ODD_NAMES = [
    "=",
    "<<",
    "on",
    "null",
    "1",
    "1e3",
    "0x1f",
    "~",
    "-",
    "#a",
    "a: b",
    "a #b",
    "'",
    '"',
    "{a}",
    "é",
    "😀",
    "%",
    "@",
]
SIGNS = "ab0 :#{}[]'\",-?&*!|>%@`=\\~_.é😀"
NAMES = st.sampled_from([*ODD_NAMES, "pool", "name", "gpu", "!!int 3", "2026-11-30", "x" * 128]) | (
    st.text(alphabet=SIGNS, max_size=20).map(lambda text: text.strip() or "a")
)
FIGURES = st.dictionaries(NAMES, st.integers(1, 10**15), min_size=1, max_size=3)
SECONDS = st.floats(5e-324, 10**6)


@st.composite
def configs(draw):
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    pools = [
        PoolSpec(
            name=name,
            description=draw(st.text(max_size=10) | st.just("a\n\n  long " + "word " * 60)),
            capacity=draw(FIGURES),
            queueing=draw(st.sampled_from(["strict", "backfill"])),
            node_labels=draw(st.dictionaries(st.sampled_from(["zone", "a.b/c"]), st.sampled_from(["1", "no"]))),
            grace_seconds=draw(SECONDS),
            placement_timeout_seconds=draw(SECONDS),
        )
        for name in sorted(names)
    ]
    owners = st.tuples(st.sampled_from(names or ["p"]), NAMES, st.sampled_from(["team", "orchestrator"]))
    policies = [
        PolicySpec(
            pool=pool,
            component=component,
            component_type=kind,
            priority=draw(st.integers(0, 10**15)),
            reserved=draw(st.just({}) | FIGURES),
            limit=draw(st.just({}) | FIGURES),
        )
        for pool, component, kind in sorted(draw(st.lists(owners, max_size=4, unique=True)))
    ]
    wide = draw(st.sampled_from([{}, {"unmanaged": "allow"}, {"unmanaged": "reject", "owner_timeout_seconds": 5.5}]))
    return BrokerConfig(pools=tuple(pools), policies=tuple(policies), **wide)


@settings(max_examples=2 * int(os.environ.get("RAYPOOL_HISTORIES", "10")), deadline=None)
@given(configs(), st.text(max_size=20))
def test_a_config_that_is_written_and_read_is_the_same(config, head):
    again = BrokerConfig.from_yaml(config.to_yaml(head))
    assert again == config
    assert again.dump() == config.dump()
