"""Whether bundles find room on nodes: four strategies, against brute force, and the sentence for "no"."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypool.core.nodes import Misfit, Node, find_nodes

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
FOUR_GPUS = {"GPU": 4.0, "CPU": 16.0}


def gpus(amount):
    return {"GPU": float(amount)}


def cluster(*gpu_counts):
    return {f"n{index}": {"GPU": float(count), "CPU": 16.0} for index, count in enumerate(gpu_counts)}


def named(rows):
    return {"argvalues": [row[1:] for row in rows], "ids": [row[0] for row in rows]}


# --- where there is a way ---------------------------------------------------------------------

FOUND = [
    ("one bundle goes to the first node that holds it", [gpus(4)], "PACK", cluster(2, 4, 8), ("n1",)),
    ("PACK fills one node before the next", [gpus(2)] * 3, "PACK", cluster(4, 4), ("n0", "n0", "n1")),
    ("SPREAD may share nodes, for Ray may too", [gpus(2)] * 3, "SPREAD", cluster(4, 4), ("n0", "n0", "n1")),
    ("STRICT_PACK wants one node for all", [gpus(2)] * 3, "STRICT_PACK", cluster(4, 8), ("n1", "n1", "n1")),
    ("STRICT_SPREAD wants a node for each", [gpus(2)] * 2, "STRICT_SPREAD", cluster(8, 8), ("n0", "n1")),
    (
        "STRICT_SPREAD gives a small bundle's node to the large one",
        [gpus(1), gpus(8)],
        "STRICT_SPREAD",
        cluster(8, 1),
        ("n1", "n0"),
    ),
    (
        "STRICT_SPREAD moves a chain of bundles",
        [gpus(1), gpus(2), gpus(4)],
        "STRICT_SPREAD",
        cluster(4, 2, 1),
        ("n2", "n1", "n0"),
    ),
    ("large bundles are packed before small ones", [gpus(1), gpus(4)], "PACK", cluster(4, 1), ("n1", "n0")),
    ("every resource counts", [{"GPU": 1.0, "CPU": 8.0}], "PACK", {"a": {"GPU": 8.0}, "b": FOUR_GPUS}, ("b",)),
    (
        "a tenth and two tenths are three tenths",
        [{"CPU": 0.1}, {"CPU": 0.2}],
        "PACK",
        {"a": {"CPU": 0.3}},
        ("a", "a"),
    ),
    ("no bundles need no nodes", [], "PACK", {}, ()),
]


@pytest.mark.parametrize(("bundles", "strategy", "rooms", "nodes"), **named(FOUND))
def test_nodes_for_bundles(bundles, strategy, rooms, nodes):
    assert find_nodes(bundles, strategy, rooms) == nodes


def test_the_rooms_are_only_looked_at():
    rooms = cluster(4, 4)
    find_nodes([gpus(2)] * 3, "PACK", rooms)
    assert rooms == cluster(4, 4)


# --- where there is none ----------------------------------------------------------------------

MISFITS = [
    (
        "larger than every node",
        ([gpus(8)], "PACK", cluster(4, 2)),
        "needs 8 GPU on one node, the largest has 4",
        "bundle 0 (8 GPU) found no node; the largest free block is 4 GPU",
    ),
    (
        "the second bundle is the large one",
        ([gpus(1), gpus(8)], "SPREAD", cluster(4)),
        "needs 8 GPU on one node, the largest has 4",
        "bundle 1 (8 GPU) found no node; the largest free block is 4 GPU",
    ),
    (
        "no node has the resource at all",
        ([{"TPU": 1.0}], "PACK", cluster(4)),
        "needs 1 TPU on one node, the largest has 0",
        "bundle 0 (1 TPU) found no node; the largest free block is 0 TPU",
    ),
    (
        "more memory than any node",
        ([{"memory": 32e9}], "PACK", {"a": {"memory": 16.5e9}}),
        "needs 32 GB memory on one node, the largest has 16.5",
        "bundle 0 (32 GB memory) found no node; the largest free block is 16.5 GB memory",
    ),
    (
        "STRICT_PACK counts the bundles together",
        ([gpus(4)] * 2, "STRICT_PACK", cluster(4, 4)),
        "needs 8 GPU on one node, the largest has 4",
        "the bundles together (8 GPU) found no node; the largest free block is 4 GPU",
    ),
    (
        "each resource is somewhere, but not on one node",
        ([{"GPU": 1.0, "CPU": 32.0}], "PACK", {"a": {"GPU": 8.0, "CPU": 4.0}, "b": {"CPU": 64.0}}),
        "needs 1 GPU, 32 CPU on one node, no node has all of it",
        "bundle 0 (1 GPU, 32 CPU) found no node with all of it free",
    ),
    (
        "STRICT_PACK: enough of each, but not on one node",
        (
            [{"GPU": 1.0}, {"CPU": 32.0}],
            "STRICT_PACK",
            {"a": {"GPU": 8.0, "CPU": 4.0}, "b": {"GPU": 0.5, "CPU": 64.0}},
        ),
        "needs 1 GPU, 32 CPU on one node, no node has all of it",
        "the bundles together (1 GPU, 32 CPU) found no node with all of it free",
    ),
    (
        "PACK: the third of three equal bundles",
        ([gpus(4)] * 3, "PACK", cluster(4, 4)),
        "bundle 2 (4 GPU) finds no node beside the others on 2 nodes",
        "bundle 2 (4 GPU) found no node beside the others; the largest free block is 0 GPU",
    ),
    (
        "STRICT_SPREAD: more bundles than nodes",
        ([gpus(4)] * 2, "STRICT_SPREAD", cluster(8)),
        "bundle 1 (4 GPU) finds no node beside the others on 1 node",
        "bundle 1 (4 GPU) found no node beside the others",
    ),
    (
        "no node has the labels",
        ([gpus(4)], "PACK", {}),
        "needs 4 GPU, no node has the pool's labels",
        "bundle 0 (4 GPU) found no node with the pool's labels",
    ),
    (
        "a node that is overdrawn has nothing free",
        ([gpus(1)], "PACK", {"a": {"GPU": -2.0}}),
        None,
        "bundle 0 (1 GPU) found no node; the largest free block is 0 GPU",
    ),
]


@pytest.mark.parametrize(("question", "as_need", "as_search"), **named(MISFITS))
def test_what_stands_in_the_way_is_a_sentence(question, as_need, as_search):
    misfit = find_nodes(*question)
    assert isinstance(misfit, Misfit)
    assert misfit.certain
    if as_need is not None:
        assert misfit.as_need == as_need
    if as_search is not None:
        assert misfit.as_search == as_search


def test_for_unlike_bundles_a_no_of_first_fit_is_no_proof():
    bundles = [gpus(amount) for amount in (3, 2, 2, 2)]  # 2 + 2 on the one, 3 + 2 on the other would do
    missed = find_nodes(bundles, "PACK", cluster(4, 5))
    assert isinstance(missed, Misfit)
    assert not missed.certain


# --- against brute force ----------------------------------------------------------------------


def possible(bundles, strategy, rooms):
    """Tries every way."""
    for nodes in product(rooms, repeat=len(bundles)):
        if strategy == "STRICT_PACK" and len(set(nodes)) > 1:
            continue
        if strategy == "STRICT_SPREAD" and len(set(nodes)) < len(nodes):
            continue
        if holds(nodes, bundles, rooms):
            return True
    return False


def holds(nodes, bundles, rooms):
    left = {node: dict(room) for node, room in rooms.items()}
    for node, bundle in zip(nodes, bundles, strict=True):
        for resource, amount in bundle.items():
            left[node][resource] = left[node].get(resource, 0.0) - amount
    return all(amount >= -1e-6 for room in left.values() for amount in room.values())


a_room = st.fixed_dictionaries({"GPU": st.integers(0, 8), "CPU": st.integers(0, 8)})
a_bundle = st.dictionaries(st.sampled_from(["GPU", "CPU"]), st.integers(1, 5), min_size=1)
some_rooms = st.lists(a_room, max_size=4).map(lambda rooms: {f"n{index}": room for index, room in enumerate(rooms)})
unlike_bundles = st.lists(a_bundle, min_size=1, max_size=4)
equal_bundles = st.tuples(a_bundle, st.integers(1, 5)).map(lambda pair: [pair[0]] * pair[1])
strategies = st.sampled_from(STRATEGIES)


@given(unlike_bundles | equal_bundles, strategies, some_rooms)
def test_a_way_that_is_found_is_a_way(bundles, strategy, rooms):
    found = find_nodes(bundles, strategy, rooms)
    if isinstance(found, Misfit):
        assert found.as_need and found.as_search
        return
    assert len(found) == len(bundles)
    assert holds(found, bundles, rooms)
    if strategy == "STRICT_PACK":
        assert len(set(found)) == 1
    if strategy == "STRICT_SPREAD":
        assert len(set(found)) == len(found)


@given(equal_bundles, strategies, some_rooms)
def test_for_equal_bundles_the_answer_is_exact(bundles, strategy, rooms):
    found = find_nodes(bundles, strategy, rooms)
    assert (not isinstance(found, Misfit)) == possible(bundles, strategy, rooms)
    assert not isinstance(found, Misfit) or found.certain


@given(unlike_bundles, strategies, some_rooms)
def test_a_certain_no_is_a_proof(bundles, strategy, rooms):
    found = find_nodes(bundles, strategy, rooms)
    if isinstance(found, Misfit) and found.certain:
        assert not possible(bundles, strategy, rooms)


@given(unlike_bundles, st.sampled_from(["STRICT_PACK", "STRICT_SPREAD"]), some_rooms)
def test_the_strict_strategies_are_exact_for_unlike_bundles_too(bundles, strategy, rooms):
    found = find_nodes(bundles, strategy, rooms)
    assert (not isinstance(found, Misfit)) == possible(bundles, strategy, rooms)
    assert not isinstance(found, Misfit) or found.certain


TWO_KINDS = [gpus(1), {"CPU": 1.0}] * 150
LARGE = [
    ("equal bundles, a node each", [gpus(1)] * 2_000, 2_000, True),
    ("one equal bundle too many", [gpus(1)] * 2_001, 2_000, False),
    ("unlike bundles, one too many", TWO_KINDS, 299, False),
]


@pytest.mark.parametrize(("bundles", "nodes", "fits"), **named(LARGE))
def test_a_large_cluster_is_searched_without_deep_recursion(bundles, nodes, fits):
    rooms = {f"n{index}": {"GPU": 1.0, "CPU": 1.0} for index in range(nodes)}
    assert (not isinstance(find_nodes(bundles, "STRICT_SPREAD", rooms), Misfit)) is fits


# --- labels -----------------------------------------------------------------------------------

LABELS = [
    ("no label is wanted", {}, True),
    ("the label it has", {"zone": "a"}, True),
    ("another value", {"zone": "b"}, False),
    ("one it has not", {"gpu": "h100"}, False),
    ("one of two", {"zone": "a", "gpu": "h100"}, False),
]


@pytest.mark.parametrize(("wanted", "has"), **named(LABELS))
def test_a_node_has_all_labels_that_are_wanted(wanted, has):
    assert Node("n", {}, {"zone": "a", "rack": "7"}).has_labels(wanted) is has
