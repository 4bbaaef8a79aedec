"""What every HTTP request must pass before a page sees it: method, host, origin and token. Headers of every answer."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Everything from this origin, nothing inline, no plug-ins, no frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Access:
    """Who may read the pages. `hosts` are the names under which the dashboard is reached; an empty token: none is needed."""

    hosts: frozenset[str]
    tls: bool = False
    token: str = field(default="", repr=False)


class Guard:
    """ASGI middleware that refuses what is not allowed and adds the security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refuse(scope["method"], Headers(scope=scope))
        await (self._app if refused is None else refused)(scope, receive, send_safe)

    def _refuse(self, method: str, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_of(hosts[0]) not in self._access.hosts:
            return _plain("this host name is not allowed; see --allow-host", 400)
        if method != "GET":
            return _plain("only GET is allowed", 405, allow="GET")
        origin = f"http{'s' * self._access.tls}://{hosts[0]}"
        if any(stated.lower() != origin.lower() for stated in headers.getlist("origin")) or _from_elsewhere(headers):
            return _plain("requests of other sites are refused", 403)
        if self._access.token and not _shows(headers.getlist("authorization"), self._access.token):
            return _plain(
                "a token is needed", 401, **{"www-authenticate": 'Basic realm="PUF dashboard", charset="UTF-8"'}
            )
        return None


def _from_elsewhere(headers: Headers) -> bool:
    """Whether another site makes the browser load this, other than by a link that a person follows."""
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
    return site in ("cross-site", "same-site") and (mode != "navigate" or headers.get("sec-fetch-dest") != "document")


def _shows(stated: list[str], token: str) -> bool:
    """Whether the request carries the token: as a bearer token, or as the password that a browser asks for."""
    if len(stated) != 1:
        return False
    scheme, _, value = stated[0].partition(" ")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    # Hashes have equal lengths, so the comparison reveals nothing.
    return hmac.compare_digest(_hash(value.strip()), _hash(token))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def host_of(text: str) -> str:
    """The host of a Host header without its port, in lower case. An IPv6 address keeps its brackets."""
    host, colon, port = text.strip().lower().rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii():
        return text.strip().lower()
    return host


def allowed_hosts(listen: str, more: Iterable[str] = ()) -> frozenset[str]:
    """The names of a dashboard that listens on this host: itself, this machine's names if it is loopback, and `more`."""
    found = {_bracketed(name) for name in (listen, *more)}
    try:
        address = ipaddress.ip_address(listen)
    except ValueError:
        loopback = listen == "localhost"
    else:
        loopback = address.is_loopback
        if address.is_unspecified:
            found.discard(_bracketed(listen))
    return frozenset(found | ({"localhost", "127.0.0.1", "[::1]"} if loopback else set()))


def _bracketed(host: str) -> str:
    host = host.strip("[]").lower()
    return f"[{host}]" if ":" in host else host


def _plain(text: str, code: int, **headers: str) -> Response:
    return PlainTextResponse(f"{text}\n", code, headers=headers)
