"""Who may see the dashboard, and who may change anything through it: each guard with the right and the wrong case."""

import socket

import pytest

from raypool.dashboard.guards import CSRF, Guard, is_loopback, is_token


def headers(host="127.0.0.1:8266", **more):
    return {"Host": host, **more}


@pytest.mark.parametrize(
    ("host", "only_this_machine"),
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.5", False),
        ("head.example", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_host(host, only_this_machine):
    assert is_loopback(host) == only_this_machine


LOOPBACK = ["127.0.0.1:8266", "localhost:8266", "LOCALHOST", "[::1]:9000", "127.0.0.1"]
FOREIGN = ["evil.example:8266", "127.0.0.1.evil.example", "10.0.0.5:8266", "localhost.evil.example"]
NO_NAMES = [
    "",
    "[",
    "@",
    "evil.example@127.0.0.1",
    "127.0.0.1/evil.example",
    "127.0.0.1:80:80",
    "[::1",
    "127.0.0.1 x",
]


@pytest.mark.parametrize("token", ["", "secret"], ids=["no token", "token"])
@pytest.mark.parametrize(
    ("name", "taken"), [(name, True) for name in LOOPBACK] + [(name, False) for name in FOREIGN + NO_NAMES]
)
def test_on_a_loopback_host_the_names_of_the_loopback_are_taken_whatever_the_port_and_no_other(name, taken, token):
    assert (Guard("127.0.0.1", token).refuses_host(headers(name)) == "") == taken


@pytest.mark.parametrize(
    ("host", "name", "taken", "taken_with_a_token"),
    [
        ("0.0.0.0", "10.0.0.5:8266", True, True),
        ("0.0.0.0", "[fd00::5]:8266", True, True),
        ("0.0.0.0", f"{socket.gethostname()}:8266", True, True),
        ("0.0.0.0", "localhost", True, True),
        ("head.example", "head.example:8266", True, True),
        ("0.0.0.0", "proxy.example", False, True),
        ("0.0.0.0", "", False, False),
    ],
)
def test_on_another_host_an_address_or_the_name_of_the_machine_is_taken_and_a_foreign_name_only_with_a_token(
    host, name, taken, taken_with_a_token
):
    assert (Guard(host).refuses_host(headers(name)) == "") == taken
    assert (Guard(host, "secret").refuses_host(headers(name)) == "") == taken_with_a_token


def test_without_a_token_nobody_is_asked_for_one():
    assert Guard("127.0.0.1").refuses_token(headers(), {}) == ""


GUARD = Guard("0.0.0.0", "secret")
NAME, VALUE = GUARD.cookie


@pytest.mark.parametrize(
    ("authorization", "cookies", "taken"),
    [
        ("Bearer secret", {}, True),
        ("bearer  secret", {}, True),
        (None, {NAME: VALUE}, True),
        ("Basic of-a-proxy", {NAME: VALUE}, True),
        (None, {}, False),
        ("Bearer other", {NAME: VALUE}, False),
        ("Bearer ", {}, False),
        ("secret", {}, False),
        ("Basic secret", {}, False),
        ("Bearer secret2", {}, False),
        ("Bearer s\u00e9cret", {}, False),
        ("Bearer s\udce9cret", {}, False),
        (None, {NAME: "secret"}, False),
        (None, {NAME: "other"}, False),
        (None, {"raypool_other": VALUE}, False),
    ],
)
def test_the_token_comes_as_a_bearer_or_in_the_cookie_that_is_made_of_it(authorization, cookies, taken):
    sent = headers() if authorization is None else headers(Authorization=authorization)
    assert (GUARD.refuses_token(sent, cookies) == "") == taken


def test_the_cookie_does_not_tell_the_token_and_is_another_for_another_token_and_the_same_after_a_restart():
    assert "secret" not in NAME + VALUE
    assert Guard("127.0.0.1", "secret").cookie == (NAME, VALUE)
    other = Guard("127.0.0.1", "other").cookie
    assert other[0] != NAME and other[1] != VALUE


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("s", True),
        ("a b;c=\"d'", True),
        ("", False),
        (" a", False),
        ("a ", False),
        ("g\u00e9", False),
        ("a\nb", False),
    ],
)
def test_a_token_is_what_a_header_can_carry(text, fits):
    assert is_token(text) == fits


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
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {CSRF: ""},
        {CSRF: "x"},
        {CSRF: "\udce9"},
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
