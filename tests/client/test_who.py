"""Who changes pools, as his client says it."""

import getpass

import pytest

from raypool.client.client import _who


def test_who_it_is_may_be_said_and_else_is_the_user(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    monkeypatch.delenv("RAYPOOL_USER", raising=False)
    assert (_who(None), _who("ben"), _who("")) == ("ann", "ben", "")
    monkeypatch.setenv("RAYPOOL_USER", "ci of team-ml")
    assert _who(None) == "ci of team-ml"


@pytest.mark.parametrize(("name", "told"), [("x" * 200, "x" * 128), ("a\nb", "")])
def test_a_name_that_the_broker_would_not_take_is_made_one_that_it_takes(monkeypatch, name, told):
    monkeypatch.setenv("RAYPOOL_USER", name)
    assert _who(None) == told


@pytest.mark.parametrize("error", [KeyError("uid 1234"), OSError("no username")])
def test_a_user_without_a_name_is_nobody(monkeypatch, error):
    def getuser():
        raise error

    monkeypatch.delenv("RAYPOOL_USER", raising=False)
    monkeypatch.setattr(getpass, "getuser", getuser)
    assert _who(None) == ""
