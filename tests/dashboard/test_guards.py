"""Who may see the dashboard, and who may change anything through it: each guard with the right and the wrong case."""

import socket

import pytest

from raypool.dashboard.guards import COOKIE, CSRF, Guard, is_loopback


def headers(host="127.0.0.1:8266", **more):
    return {"Host": host, **more}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_only_this_machine_reaches_a_loopback_host(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "head.example", "localhost.example"])
def test_others_reach_any_other_host(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("name", ["127.0.0.1:8266", "localhost:8266", "LOCALHOST", "[::1]:9000", "127.0.0.1"])
def test_on_a_loopback_host_the_names_of_the_loopback_are_taken_whatever_the_port(name):
    assert Guard("127.0.0.1").refuses_host(headers(name)) == ""


@pytest.mark.parametrize(
    "name", ["evil.example:8266", "127.0.0.1.evil.example", "10.0.0.5:8266", "localhost.evil.example", "", "[", "@"]
)
def test_on_a_loopback_host_any_other_name_is_refused(name):
    assert Guard("127.0.0.1").refuses_host(headers(name))
    assert Guard("127.0.0.1", token="t").refuses_host(headers(name))


def test_on_another_host_an_address_or_the_name_of_the_machine_is_taken_and_a_foreign_name_only_with_a_token():
    for name in ("10.0.0.5:8266", "[fd00::5]:8266", f"{socket.gethostname()}:8266", "localhost"):
        assert Guard("0.0.0.0").refuses_host(headers(name)) == ""
    assert Guard("0.0.0.0").refuses_host(headers("evil.example"))
    assert Guard("head.example").refuses_host(headers("head.example:8266")) == ""
    assert Guard("0.0.0.0", token="secret").refuses_host(headers("proxy.example")) == ""
    assert Guard("0.0.0.0", token="secret").refuses_host({})


def test_the_token_comes_as_a_bearer_or_in_the_cookie():
    guard = Guard("0.0.0.0", token="secret")
    assert guard.refuses_token(headers(Authorization="Bearer secret"), {}) == ""
    assert guard.refuses_token(headers(), {COOKIE: "secret"}) == ""
    assert Guard("127.0.0.1").refuses_token(headers(), {}) == ""
    for wrong in ("Bearer other", "Bearer ", "secret", "Basic secret", "Bearer secret2", "Bearer s\u00e9cret"):
        assert guard.refuses_token(headers(Authorization=wrong), {})
    assert guard.refuses_token(headers(), {})
    assert guard.refuses_token(headers(), {COOKIE: "other"})


def right(guard):
    return headers(Origin="http://127.0.0.1:8266", **{CSRF: guard.csrf, "Sec-Fetch-Site": "same-origin"})


def test_a_page_of_this_server_may_change_something_where_that_is_allowed():
    guard = Guard("127.0.0.1", actions=True)
    assert guard.refuses_action(right(guard)) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://evil.example", "Host": "127.0.0.1:8266"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {CSRF: ""},
        {CSRF: "x"},
        {CSRF: "that-of-another-process-which-is-as-long-as-it"},
    ],
    ids=lambda value: " ".join(f"{name} {text}"[:40] for name, text in value.items()),
)
def test_nobody_else_may(wrong):
    guard = Guard("127.0.0.1", actions=True)
    assert guard.refuses_action({**right(guard), **wrong})


def test_a_dashboard_that_was_not_told_to_allow_actions_changes_nothing():
    guard = Guard("127.0.0.1")
    assert "read-only" in guard.refuses_action(right(guard))
