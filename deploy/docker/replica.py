"""The main process of a client's container: who it is, its certificate, its work, and an end that supervisors understand.

    name          PUF_NAME, else the replica's number: `client-3` for the third container of a compose service or
                  of a StatefulSet. The number is also its wish for a shard.
    certificate   made by `puf-client enroll --through $PUF_ENROLMENT` where that is set; the key stays in the volume
    work          `puf-client run`, or the command that the container was given
    end           a client that was forgotten ends with 0, so that `restart: on-failure` leaves it alone

Commands that run beside it (`docker compose exec client puf-client --unlearn --yes`) find the name in PUF_CONFIG. A
container ends with its main process and takes them with it, so a client that was forgotten waits until they are done.
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
    """N of `project_client_N`, `project-client-N` or `puf-client-N`, with or without a domain."""
    for name in names:
        if found := re.fullmatch(r".*[_-](\d{1,6})", name.partition(".")[0]):
            return int(found[1])
    return None


def own_names() -> list[str]:
    """What the network calls this container (compose numbers replicas there and nowhere else), then its host name."""
    host = socket.gethostname()
    try:
        return [reverse(socket.gethostbyname(host)), host]
    except (OSError, ValueError, IndexError, UnicodeDecodeError):
        return [host]


def reverse(address: str, server: tuple[str, int] = ("127.0.0.11", 53)) -> str:
    """The name that the engine's own DNS has for an address. The C library would look into /etc/hosts first, where a
    container finds nothing but its random host name."""
    labels = [*reversed(address.split(".")), "in-addr", "arpa"]
    question = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0" + struct.pack(">HH", 12, 1)
    asked = struct.pack(">6H", os.getpid() & 0xFFFF, 0x0100, 1, 0, 0, 0) + question
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.settimeout(2.0)
        wire.sendto(asked, server)
        answer = wire.recv(4096)
    if answer[:2] != asked[:2] or struct.unpack(">H", answer[6:8])[0] == 0:
        raise ValueError(f"nobody knows {address}")
    # Behind the question: the name asked for; type, class, time to live and length (10 bytes); the name wanted.
    return dns_name(answer, dns_name(answer, len(asked))[1] + 10)[0]


def dns_name(message: bytes, at: int) -> tuple[str, int]:
    """The name at a place in a DNS message, and where it ends. Names may go on elsewhere (RFC 1035, 4.1.4)."""
    labels: list[str] = []
    end, jumps = 0, 0
    while length := message[at]:
        if length >= 0xC0:
            end, jumps = end or at + 2, jumps + 1
            at = struct.unpack(">H", message[at : at + 2])[0] & 0x3FFF
            if jumps > 10:
                raise ValueError("a name without end")
            continue
        labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), end or at + 1


def identity(env: Mapping[str, str], names: Callable[[], Sequence[str]] = own_names) -> dict[str, str]:
    """Name and shard, where they are not set already."""
    number = None if env.get("PUF_NAME") else replica_number(names())
    if not env.get("PUF_NAME") and number is None:
        sys.exit("this container has no number that could name its client: set PUF_NAME")
    found = {"name": env.get("PUF_NAME") or f"{env.get('PUF_NAME_PREFIX', 'client')}-{number}"}
    if env.get("PUF_SHARD") == "lease" and number is not None:
        # Compose counts from 1, a StatefulSet from 0.
        found["shard"] = f"lease:{max(0, number - int(env.get('PUF_FIRST_REPLICA', '1')))}"
    return found


def ending(code: int) -> int:
    """What the supervisor is told: whoever must not be started again has done its work."""
    return 0 if code in (FORGOTTEN, SUPERSEDED) else code


def others() -> list[int]:
    """Processes in this container beside its first one and this one."""
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
        # The file says it; a variable would win over it.
        env.pop(f"PUF_{key.upper()}", None)
    if desk := env.get("PUF_ENROLMENT"):
        keys = Path(env["PUF_TLS_KEY"]).parent
        enrol = ["puf-client", "enroll", "--name", mine["name"], "--dir", str(keys), "--through", desk]
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
