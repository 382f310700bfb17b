"""The history of pools and policies outlives the broker's process, and leads back."""

from __future__ import annotations

import pytest

import raypool
from raypool import ResourceSettings

from .conftest import until
from .test_restart import kill_broker

FIRST = {
    "pools": [{"name": "shared", "capacity": {"gpu": 8}}],
    "policies": [{"pool": "shared", "component": "prod", "priority": 90, "reserved": {"gpu": 8}}],
}
SECOND = {
    "pools": [{"name": "shared", "capacity": {"gpu": 12}}, {"name": "extra", "capacity": {"gpu": 4}}],
    "policies": [
        {"pool": "shared", "component": "prod", "priority": 90, "reserved": {"gpu": 4}},
        {"pool": "extra", "component": "sandbox", "priority": 10},
    ],
}


def test_the_history_survives_the_broker_and_leads_back(client: raypool.Client) -> None:
    client.apply(FIRST, by="ann", note="to begin with")
    first = client.history()[-1].number
    lease = raypool.lease(ResourceSettings(gpu_count=4), workers=2, component="prod").acquire()
    (found,) = client.preview(SECOND).consequences
    assert (found.kind, found.request, found.before, found.after) == ("evictable", lease.request_id, {}, {"gpu": 4})
    before, config = client.journal(), client.config()
    client.preview(SECOND)
    assert (client.journal(), client.config()) == (before, config)
    client.apply(SECOND, by="ben")
    assert client.request(lease.request_id).borrowed == {"gpu": 4}

    history = client.history()
    kill_broker(client)
    assert client.history() == history
    assert [(one.number, one.by) for one in history[-2:]] == [(first, "ann"), (first + 1, "ben")]

    sandbox = raypool.lease(ResourceSettings(gpu_count=1), component="sandbox").acquire()
    with pytest.raises(raypool.Refused, match="pool 'extra' is in use: 0 queued, 1 charged"):
        client.rollback(first)
    assert client.history() == history
    sandbox.release()
    until(lambda: client.pool("extra").used == {"gpu": 0}, "its room is given back")
    client.rollback(first, by="ann")
    kill_broker(client)
    assert client.config() == config
    last = client.history()[-1]
    assert (last.number, last.back_to, last.by) == (first + 2, first, "ann")
    assert client.request(lease.request_id).borrowed == {}
    lease.release()
