"""Two hosts on one machine: network namespaces with a virtual cable. They end with their processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from puf_lab.federations.processes import Process, wait_until

__all__ = ["Host", "available", "cabled", "far_apart", "long_lines_available"]


@dataclass(frozen=True)
class Host:
    """A network namespace. A command that begins with `enter` runs in it."""

    pid: int

    @property
    def enter(self) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--user", "--net", "--preserve-credentials"]

    def ip(self, *words: str) -> None:
        subprocess.run([*self.enter, "ip", *words], check=True, capture_output=True)


def available() -> bool:
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    tried = ["unshare", "--map-root-user", "--net", "ip", "link", "add", "cable", "type", "veth", "peer", "name", "end"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def long_lines_available() -> bool:
    """Whether slow links can be made. They need devices whose packets pass through a process."""
    return available() and os.access("/dev/net/tun", os.R_OK | os.W_OK)


@contextmanager
def cabled(near: list[str], far: list[str]) -> Iterator[tuple[Host, Host]]:
    """Two hosts with these addresses. They reach each other and no other host."""
    with ExitStack() as stack:
        here, there = _apart(stack)
        here.ip("link", "add", "cable", "type", "veth", "peer", "name", "end")
        here.ip("link", "set", "end", "netns", str(there.pid))
        _addressed(here, near, there, far)
        yield here, there


@contextmanager
def far_apart(
    near: list[str], far: list[str], log: Path, *, delay: float, loss: float
) -> Iterator[tuple[Host, Host, Process]]:
    """Two hosts with a slow link: packets take `delay` seconds in each direction, and some are lost."""
    with ExitStack() as stack:
        here, there = _apart(stack)
        words = [*here.enter, sys.executable, str(Path(__file__).with_name("bad_line.py"))]
        words = [str(shutil.which(words[0])), *words[1:], str(there.pid), str(delay), str(loss)]
        line = stack.enter_context(Process(words, log))
        wait_until(lambda: "joined" in log.read_text(), 30.0, line)
        _addressed(here, near, there, far)
        yield here, there, line


def _apart(stack: ExitStack) -> tuple[Host, Host]:
    here = _held(stack, ["unshare", "--map-root-user", "--net"])
    return here, _held(stack, [*here.enter, "unshare", "--net"])


def _addressed(here: Host, near: list[str], there: Host, far: list[str]) -> None:
    for host, link, addresses in ((here, "cable", near), (there, "end", far)):
        host.ip("link", "set", "lo", "up")
        for address in addresses:
            host.ip("address", "add", f"{address}/24", "dev", link)
        host.ip("link", "set", link, "up")


def _held(stack: ExitStack, words: list[str]) -> Host:
    """A process that keeps a namespace. It reports its start and ends when its input ends."""
    process = subprocess.Popen(
        [*words, "sh", "-c", "echo $$; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.enter_context(process)
    assert process.stdout is not None
    assert process.stdin is not None
    stack.callback(process.stdin.close)
    return Host(int(process.stdout.readline()))
