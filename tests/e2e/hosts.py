"""Two machines in one: network namespaces joined by a cable, gone with the processes that hold them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

__all__ = ["Host", "available", "cabled"]


@dataclass(frozen=True)
class Host:
    """A network of its own; `enter` goes before a command that is to run there."""

    pid: int

    @property
    def enter(self) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--user", "--net", "--preserve-credentials"]

    def ip(self, *words: str) -> None:
        subprocess.run([*self.enter, "ip", *words], check=True, capture_output=True)

    def worsen(self, link: str, *, delay_ms: int, loss: float) -> list[str]:
        """Makes the line slow and lossy as far as this kernel can: what was done."""
        netem = ["tc", "qdisc", "add", "dev", link, "root", "netem", "delay", f"{delay_ms}ms", "loss", f"{100 * loss}%"]
        drop = ["iptables", "-A", "INPUT", "-i", link, "-m", "statistic", "--mode", "random", "-j", "DROP"]
        for done, words in (("delay", netem), ("loss", [*drop, "--probability", str(loss)])):
            if shutil.which(words[0]) and subprocess.run([*self.enter, *words], capture_output=True).returncode == 0:
                return ["delay", "loss"] if done == "delay" else ["loss"]
        return []


def available() -> bool:
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    tried = ["unshare", "--map-root-user", "--net", "ip", "link", "add", "cable", "type", "veth", "peer", "name", "end"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@contextmanager
def cabled(near: list[str], far: list[str]) -> Iterator[tuple[Host, Host]]:
    """Two hosts with these addresses, which reach each other and nothing else."""
    with ExitStack() as stack:
        here = _held(stack, ["unshare", "--map-root-user", "--net"])
        there = _held(stack, [*here.enter, "unshare", "--net"])
        here.ip("link", "add", "cable", "type", "veth", "peer", "name", "end")
        here.ip("link", "set", "end", "netns", str(there.pid))
        for host, link, addresses in ((here, "cable", near), (there, "end", far)):
            host.ip("link", "set", "lo", "up")
            for address in addresses:
                host.ip("address", "add", f"{address}/24", "dev", link)
            host.ip("link", "set", link, "up")
        yield here, there


def _held(stack: ExitStack, words: list[str]) -> Host:
    """Namespaces live as long as a process in them: one that says when it is there, and ends with its input."""
    process = subprocess.Popen(
        [*words, "sh", "-c", "echo $$; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.enter_context(process)
    assert process.stdout is not None
    assert process.stdin is not None
    stack.callback(process.stdin.close)
    return Host(int(process.stdout.readline()))
