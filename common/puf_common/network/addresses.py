"""Addresses of the form HOST:PORT, for servers to listen on and for clients to connect to."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from puf_common.errors import UsageError


class Address(NamedTuple):
    """Host and port. An IPv6 host has no brackets."""

    host: str
    port: int


def parse_address(text: str, what: str, *, free_port: bool = False) -> Address:
    """Host and port of HOST:PORT or [IPV6]:PORT. `what` names the text in the error. Port 0 asks for a free port."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    lowest = 0 if free_port else 1
    # Without a host a server would listen on every network.
    if host in ("", "[]") or (":" in host and not bracketed) or not port.isascii() or not port.isdecimal():
        raise UsageError(f"{what} {text!r} must be HOST:PORT, e.g. 127.0.0.1:7300 or [::1]:7300")
    if len(port) > 5 or not lowest <= int(port) <= 65535:
        raise UsageError(f"{what} {text!r}: the port must lie between {lowest} and 65535")
    return Address(host[1:-1] if bracketed else host, int(port))


def check_target(text: str, what: str) -> str:
    """The address of a server if a client can connect to it: HOST:PORT, dns:///HOST:PORT or unix:PATH."""
    if not text.startswith("unix:"):
        parse_address(text.removeprefix("dns:///"), what)
    return text


def check_targets(text: str, what: str) -> str:
    """The same for several servers of one federation: IP:PORT,IP:PORT,... or one address as above."""
    if "," in text:
        versions = set[int]()
        for one in text.split(","):
            try:
                versions.add(ipaddress.ip_address(parse_address(one, what).host).version)
            except ValueError:
                versions.add(0)
        if len(versions) != 1 or 0 in versions:
            raise UsageError(
                f"{what} {text!r}: several servers must all have IPv4 or all have IPv6 addresses; for names, give one name "
                "that stands for all of them"
            )
        return text
    return check_target(text, what)


def grpc_target(targets: str) -> str:
    """What gRPC connects to: it takes the first of several servers that answers, and another one when that ends."""
    if "," not in targets:
        return targets
    return f"{'ipv6' if '[' in targets else 'ipv4'}:{targets}"


def is_loopback(target: str) -> bool:
    """Whether the address is on this machine; of several servers, whether all are."""
    if "," in target:
        return all(map(is_loopback, target.split(",")))
    if target.startswith("unix:"):
        return True
    host = target.removeprefix("dns:///").rsplit(":", 1)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
