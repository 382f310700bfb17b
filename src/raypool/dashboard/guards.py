"""Who may ask, and who may change anything. Knows nothing of what is asked.

1. A page of a foreign site may make a browser call this server by a name of its own (DNS rebinding). So the `Host` of
   every request is looked at: see `Guard.refuses_host`.
2. With a token, everything but the page itself, which holds nothing, needs it: as a bearer, or, made into something
   else, in a cookie. A browser sends a cookie to every port of a host, so to servers of others, too: they cannot
   tell the token from it.
3. Nothing is changed unless that was allowed when the dashboard was started; then only by a page of this server: its
   `Origin` is this host, and it has read the CSRF token of this process, which a foreign page cannot.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

CSRF = "X-Raypool-CSRF"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True)
class Guard:
    """host: where the server listens. token: "" for none. actions: whether anything may be changed."""

    host: str
    token: str = ""
    actions: bool = False
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    names: frozenset[str] = field(init=False)
    """By which this machine is known to others, if they reach it."""

    def __post_init__(self) -> None:
        others = set() if is_loopback(self.host) else {socket.gethostname().lower(), socket.getfqdn().lower()}
        object.__setattr__(self, "names", frozenset(others))

    @property
    def cookie(self) -> tuple[str, str]:
        """Its name and its value, both made of the token: dashboards with different tokens on one host do not take
        each other's away, and one that is started again knows its own."""
        made = hmac.new(self.token.encode(), b"the cookie of raypool's dashboard", hashlib.sha256).hexdigest()
        return f"raypool_{made[:8]}", made[8:]

    def refuses_host(self, headers: Mapping[str, str]) -> str:
        """Why the name that the browser called this server by is not one of it; "" if it is.

        On a loopback host: that host and the names of this machine's loopback. Else an address too, which nobody can
        bind anew, and the name of this machine. With a token any name will do: the browser keeps it for the name
        under which it was given, so a page of a foreign name has none.
        """
        name = host_of(headers.get("Host", ""))
        if name and (name == self.host.lower() or is_loopback(name)):
            return ""
        if not is_loopback(self.host) and name:
            if self.token or _address(name) is not None:
                return ""
            if name in self.names:
                return ""
        return f"this server is not called '{name[:100]}'"

    def refuses_token(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> str:
        """Why who asks may not see anything; "" if he may."""
        if not self.token:
            return ""
        kind, _, bearer = headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return "" if _same(bearer.strip(), self.token) else "that is not the token of this dashboard"
        name, value = self.cookie
        return "" if _same(cookies.get(name, ""), value) else "this dashboard asks for its token"

    def refuses_action(self, headers: Mapping[str, str]) -> str:
        """Why nothing may be changed by this request; "" if it may. Host and token are looked at before."""
        if not self.actions:
            return "this dashboard is read-only: it was started without --allow-actions"
        if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return "only a page of this dashboard may change anything"
        host = headers.get("Host", "").lower()
        if headers.get("Origin", "").lower() not in (f"http://{host}", f"https://{host}"):
            return "only a page of this dashboard may change anything: the Origin is another"
        if not _same(headers.get(CSRF, ""), self.csrf):
            return f"the {CSRF} header is missing or of another process: load the page again"
        return ""


def host_of(header: str) -> str:
    """The name of a `Host` header, without the port; "" if it is not written as one."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^][:/?#@\s]+))(?::[0-9]+)?", header.lower())
    return (found[1] or found[2]) if found else ""


def is_token(text: str) -> bool:
    """Whether a browser can send it as a bearer."""
    return bool(re.fullmatch("[!-~](?:[ -~]*[!-~])?", text))


def _same(given: str, own: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), own.encode())
