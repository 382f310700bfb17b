"""From a request to the bundles of its placement group, in Ray's names and units."""

import pytest

from raypool.core.bundles import bundles_of, describe_bundle
from raypool.spec import SMALLEST_CPU, RequestSpec

TPU = {"tpu": "TPU"}


def named(rows):
    return {"argvalues": [row[1:] for row in rows], "ids": [row[0] for row in rows]}


ONE_BUNDLE = [
    ("gpus in pieces", {"gpu_count": 2}, {}, {"GPU": 2.0}),
    ("gpus from pool resources", {"pool_resources": {"gpu": 2}}, {}, {"GPU": 2.0}),
    ("gpu_count 0 takes them away", {"gpu_count": 0, "pool_resources": {"gpu": 2}, "cpu_count": 1}, {}, {"CPU": 1.0}),
    ("cpus in pieces", {"cpu_count": 1.5}, {}, {"CPU": 1.5}),
    ("a cpu fraction that Ray holds exactly", {"cpu_count": 1.0005}, {}, {"CPU": 1.0005}),
    ("a cpu fraction is rounded up to four decimals", {"cpu_count": 0.33331}, {}, {"CPU": 0.3334}),
    ("the smallest cpu", {"cpu_count": 1e-9}, {}, {"CPU": 0.0001}),
    ("thousandths from pool resources", {"pool_resources": {"mcpu": 1500}}, {}, {"CPU": 1.5}),
    ("cpu_count goes before pool resources", {"cpu_count": 1, "pool_resources": {"mcpu": 9000}}, {}, {"CPU": 1.0}),
    ("memory in bytes, not rounded", {"memory": "16GiB"}, {}, {"memory": 16 * 2.0**30}),
    ("megabytes from pool resources", {"pool_resources": {"memory_mb": 16}}, {}, {"memory": 16e6}),
    ("a licence stays with the broker", {"gpu_count": 1, "pool_resources": {"licence": 3}}, {}, {"GPU": 1.0}),
    ("a key that is a Ray resource", {"pool_resources": {"tpu": 4}}, TPU, {"TPU": 4.0}),
    ("a Ray resource that is not asked for", {"gpu_count": 1}, TPU, {"GPU": 1.0}),
    (
        "two keys of one Ray resource add up",
        {"pool_resources": {"v4": 1, "v5": 2}},
        {"v4": "TPU", "v5": "TPU"},
        {"TPU": 3.0},
    ),
    ("nothing at all still holds something", {}, {}, {"CPU": 0.0001}),
    ("only a licence still holds something", {"pool_resources": {"licence": 1}}, {}, {"CPU": SMALLEST_CPU}),
]


@pytest.mark.parametrize(("resources", "ray_resources", "bundle"), **named(ONE_BUNDLE))
def test_what_one_worker_holds(resources, ray_resources, bundle):
    spec = RequestSpec.load({"component": "red", "resources": resources})
    assert bundles_of(spec, ray_resources) == (bundle,)


def test_a_gang_has_a_bundle_per_worker():
    spec = RequestSpec.load({"component": "red", "workers": 3, "resources": {"gpu_count": 1}})
    assert bundles_of(spec, {}) == ({"GPU": 1.0},) * 3


def test_a_request_without_resources_has_the_smallest_bundle_per_worker():
    assert bundles_of(RequestSpec(component="red", workers=2), {}) == ({"CPU": 0.0001},) * 2


def test_unlike_bundles_keep_their_order():
    spec = RequestSpec.load({"component": "red", "bundles": [{"cpu_count": 1}, {"gpu_count": 8}, {}]})
    assert bundles_of(spec, {}) == ({"CPU": 1.0}, {"GPU": 8.0}, {"CPU": 0.0001})


DESCRIBED = [
    (
        "gpu first, then cpu, then by name",
        {"memory": 16e9, "CPU": 4.0, "TPU": 1.0, "GPU": 2.0},
        "2 GPU, 4 CPU, 1 TPU",
    ),
    ("memory in GB", {"memory": 16.5e9}, "16.5 GB memory"),
    ("fractions", {"CPU": 0.0001}, "0.0001 CPU"),
]


@pytest.mark.parametrize(("bundle", "words"), **named(DESCRIBED))
def test_a_bundle_in_words(bundle, words):
    assert describe_bundle(bundle).startswith(words)
