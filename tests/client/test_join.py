"""Joining a cluster: who cannot is told what is in the way."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import ray

import raypool
from raypool.errors import BrokerUnavailable


def test_where_nobody_listens_there_is_no_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(BrokerUnavailable, match=f"no Ray cluster at '{where}'.*ray start --head"):
        raypool.connect(where)


def test_a_cluster_that_lets_nobody_in_without_a_token_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> None:
        raise RuntimeError("Failed to connect to GCS:\n Unauthenticated")

    monkeypatch.setattr(ray, "init", refuse)
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        where = f"127.0.0.1:{gcs.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable) as told:
            raypool.connect(where)
    assert f"what answers at '{where}'" in str(told.value) and "no Ray cluster" not in str(told.value)
    assert "GCS: Unauthenticated" in str(told.value) and "RAY_AUTH_TOKEN_PATH" in str(told.value)
