"""The main process of a client's container: sets name and shard, gets a certificate, and runs the client.

    name          PUF_NAME, else from the replica's number: `client-3` for the third container of a compose service or
                  of a StatefulSet. The number is also the preferred shard.
    certificate   made by `puf-client enroll --through $PUF_ENROLMENT` if that is set; the key stays in the volume
    work          `puf-client run`, or the command of the container
    exit code     0 for a client that was forgotten, so that `restart: on-failure` does not restart it

Other commands in the container (`docker compose exec client puf-client --unlearn --yes`) read the name from PUF_CONFIG. A
container ends with its main process. Therefore the process of a forgotten client waits until these commands have ended.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["ending", "identity", "main", "replica_number"]

FORGOTTEN, SUPERSEDED = 10, 11


def replica_number(names: Sequence[str]) -> int | None:
    """N of `project_client_N`, `project-client-N` or `puf-client-N`, with or without a domain; None without a number."""
    for name in names:
        if found := re.fullmatch(r".*[_-](\d{1,6})", name.partition(".")[0]):
            return int(found[1])
    return None


def own_names() -> list[str]:
    """The container's name in the network and its host name. Compose states the replica's number only in the network."""
    host = socket.gethostname()
    try:
        return [reverse(socket.gethostbyname(host)), host]
    except (OSError, ValueError, IndexError, UnicodeDecodeError):
        return [host]


def reverse(address: str, server: tuple[str, int] = ("127.0.0.11", 53)) -> str:
    """The name of an address in the DNS of the container engine.

    The C library would read /etc/hosts first, which has only the container's random host name.
    """
    labels = [*reversed(address.split(".")), "in-addr", "arpa"]
    question = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0" + struct.pack(">HH", 12, 1)
    asked = struct.pack(">6H", os.getpid() & 0xFFFF, 0x0100, 1, 0, 0, 0) + question
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.settimeout(2.0)
        wire.sendto(asked, server)
        answer = wire.recv(4096)
    if answer[:2] != asked[:2] or struct.unpack(">H", answer[6:8])[0] == 0:
        raise ValueError(f"{address} has no name")
    # After the question: the queried name; type, class, time to live and length (10 bytes); the answer.
    return dns_name(answer, dns_name(answer, len(asked))[1] + 10)[0]


def dns_name(message: bytes, at: int) -> tuple[str, int]:
    """The name at a position of a DNS message, and its end. Names may contain pointers (RFC 1035, 4.1.4)."""
    labels: list[str] = []
    end, jumps = 0, 0
    while length := message[at]:
        if length >= 0xC0:
            end, jumps = end or at + 2, jumps + 1
            at = struct.unpack(">H", message[at : at + 2])[0] & 0x3FFF
            if jumps > 10:
                raise ValueError("the name has too many pointers")
            continue
        labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), end or at + 1


def identity(env: Mapping[str, str], names: Callable[[], Sequence[str]] = own_names) -> dict[str, str]:
    """Name and shard for the configuration file, unless they are set."""
    number = None if env.get("PUF_NAME") else replica_number(names())
    if not env.get("PUF_NAME") and number is None:
        sys.exit("this container has no number for the client's name: set PUF_NAME")
    found = {"name": env.get("PUF_NAME") or f"{env.get('PUF_NAME_PREFIX', 'client')}-{number}"}
    if env.get("PUF_SHARD") == "lease" and number is not None:
        # Compose counts from 1, a StatefulSet from 0.
        found["shard"] = f"lease:{max(0, number - int(env.get('PUF_FIRST_REPLICA', '1')))}"
    return found


def ending(code: int) -> int:
    """The exit code of the container. A client that must not be restarted ends with 0."""
    return 0 if code in (FORGOTTEN, SUPERSEDED) else code


def others() -> list[int]:
    """Ids of the other processes in this container, without process 1."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) not in (1, os.getpid()):
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z":
                found.append(int(entry.name))
    return found


def main(argv: Sequence[str]) -> int:
    env = os.environ
    mine = identity(env)
    Path(env["PUF_CONFIG"]).write_text("".join(f'{key} = "{value}"\n' for key, value in mine.items()))
    for key in mine:
        # A variable would override the file.
        env.pop(f"PUF_{key.upper()}", None)
    if requests := env.get("PUF_ENROLMENT"):
        keys = Path(env["PUF_TLS_KEY"]).parent
        enrol = ["puf-client", "enroll", "--name", mine["name"], "--dir", str(keys), "--through", requests]
        if code := subprocess.run(enrol, check=False).returncode:
            return code
    work = subprocess.Popen(list(argv) or ["puf-client", "run"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: work.terminate())
    code = work.wait()
    if code == FORGOTTEN:
        while others():
            time.sleep(0.5)
    return ending(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
