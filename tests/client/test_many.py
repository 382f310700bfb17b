"""A list of requests as the broker takes it: each body once, in calls of bounded size, checked before."""

import pytest

from raypool.client import many
from raypool.client.client import Client
from raypool.client.many import Many
from raypool.errors import SpecError
from raypool.spec import RequestSpec, ResourceSettings

ONE = {"component": "red", "resources": {"gpu_count": 1}}


def calls(specs):
    return [call for _, call in Many(specs).calls("job1")]


def asked(call):
    """The requests of a call, put together again."""
    bodies, ids, body_of, _ = call
    return [{"id": id, **bodies[at]} for id, at in zip(ids, body_of, strict=True)]


def test_what_is_asked_for_alike_is_sent_once_however_it_is_written():
    specs = [
        {**ONE, "id": "a"},
        {"id": "b", **ONE, "pool": None},
        RequestSpec(id="c", component="red", resources=ResourceSettings(gpu_count=1)),
        {"id": "d", "component": "red", "resources": ResourceSettings(gpu_count=1)},
        {"id": "e", "component": "red", "resources": {"gpu_count": 1}, "workers": 1},
        {"id": "f", "component": "red", "resources": {"gpu_count": 2}},
    ]
    [(bodies, ids, body_of, job)] = calls(specs)
    assert bodies == [ONE, {"component": "red", "resources": {"gpu_count": 2}}]
    assert (ids, body_of, job) == (list("abcdef"), [0, 0, 0, 0, 0, 1], "job1")


def test_every_request_without_an_id_gets_one_of_its_own():
    [(_, ids, _, _)] = calls([dict(ONE) for _ in range(100)] + [RequestSpec.load(ONE) for _ in range(100)])
    assert len(set(ids)) == 200


@pytest.mark.parametrize("gpus", [True, 1.0, "1"], ids=repr)
def test_what_only_looks_alike_is_checked_by_itself(gpus):
    with pytest.raises(SpecError, match=r"specs\[1\]: resources.gpu_count: must be a whole number"):
        Many([ONE, {"component": "red", "resources": {"gpu_count": gpus}}])


def test_every_fault_is_told_with_its_place_and_its_field():
    with pytest.raises(SpecError) as caught:
        Many([
            ONE,
            {"component": "red", "resources": {"gpu_count": -1}},
            {**ONE, "id": "a/b"},
            {**ONE, "id": 7},
            {**ONE, "componet": "x"},
            17,
        ])  # fmt: skip
    assert str(caught.value).startswith(
        "nothing was submitted: specs[1]: resources.gpu_count: must be >= 0, got -1; "
    )
    places = [problem.split(": ")[:2] for problem in caught.value.problems]
    assert places[:4] == [
        ["specs[1]", "resources.gpu_count"], ["specs[2]", "id"], ["specs[3]", "id"], ["specs[4]", "componet"],
    ]  # fmt: skip
    assert caught.value.problems[4] == "specs[5]: must be a RequestSpec or a mapping of its fields, got int"


def test_of_many_faults_the_first_twenty_are_told():
    with pytest.raises(SpecError) as caught:
        Many([{"component": ""} for _ in range(1_000)])
    assert len(caught.value.problems) == 20
    assert len(str(caught.value)) < 3_000


def test_an_id_twice_is_the_same_request_or_a_fault():
    assert asked(calls([{**ONE, "id": "a"}, {**ONE, "id": "a"}])[0]) == [{"id": "a", **ONE}] * 2
    with pytest.raises(SpecError, match=r"specs\[2\]: id: 'a' is that of specs\[0\], which asks for something else"):
        Many([{**ONE, "id": "a"}, {"component": ""}, {"component": "red", "id": "a"}])


def test_the_component_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("RAYPOOL_COMPONENT", "blue")
    assert [body["component"] for body in calls([{"resources": {"gpu_count": 1}}, ONE])[0][0]] == ["blue", "red"]


def test_a_call_has_at_most_so_many_requests_and_only_the_bodies_that_they_need(monkeypatch):
    monkeypatch.setattr(many, "AT_ONCE", 3)
    specs = [{"id": f"r{i}", "component": "red", "workers": 1 + i} for i in range(8)]
    sent = calls(specs)
    assert [len(call[1]) for call in sent] == [3, 3, 2]
    assert [len(call[0]) for call in sent] == [3, 3, 2]
    assert [one["id"] for call in sent for one in asked(call)] == [f"r{i}" for i in range(8)]
    assert [one.get("workers", 1) for call in sent for one in asked(call)] == list(range(1, 9))


def test_a_call_has_at_most_so_much_text(monkeypatch):
    monkeypatch.setattr(many, "CHARACTERS_AT_ONCE", 5_000)
    specs = [{"component": "red", "description": f"{i}" * 2_000} for i in range(9)]
    assert [len(call[1]) for call in calls(specs)] == [3, 3, 3]


def test_an_empty_list_asks_for_nothing():
    assert calls([]) == []


class Line:
    """A broker that answers with the number of the call and of the request in it."""

    def __init__(self):
        self.calls = []

    def call(self, method, *args):
        self.calls.append((method, args))
        return [[100 * len(self.calls) + i, "pending", None] for i in range(len(args[1]))]

    async def acall(self, method, *args):
        return self.call(method, *args)


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setattr(many, "AT_ONCE", 2)
    monkeypatch.setattr("raypool.client.client.job_id", lambda: "job1")
    return Line()


def test_views_come_in_the_order_of_the_list(line):
    views = Client(line).submit_many([{**ONE, "id": id} for id in "abc"])
    assert [(view.id, view.number, view.status) for view in views] == [
        ("a", 100, "pending"), ("b", 101, "pending"), ("c", 200, "pending"),
    ]  # fmt: skip
    assert [(method, args[1:]) for method, args in line.calls] == [
        ("submit_many", (["a", "b"], [0, 0], "job1")), ("submit_many", (["c"], [0], "job1")),
    ]  # fmt: skip


def test_nothing_is_sent_if_the_last_one_is_wrong(line):
    with pytest.raises(SpecError, match=r"specs\[3\]: component"):
        Client(line).submit_many([*[dict(ONE) for _ in range(3)], {"component": ""}])
    assert line.calls == []


def test_code_on_an_event_loop_asks_the_same(line):
    import asyncio

    views = asyncio.run(Client(line).submit_many_async({**ONE, "id": id} for id in "abc"))
    assert [view.id for view in views] == ["a", "b", "c"]
