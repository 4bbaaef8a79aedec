"""A process that writes a client's state directory and prints every fact after it was stored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage

IDS = [f"sample-{i}" for i in range(24)]


def work(root: Path, begin: int) -> None:
    """Pins the server's key, then excludes one sample after the other and notes what was trained on."""
    state = StateDirectory.of("f-test", "anna", root)
    state.pin_server_key(b"k" * 32)
    print("key", flush=True)
    state.write_shard(1, 3)
    print("shard", flush=True)
    for number in range(begin, len(IDS)):
        state.prepare(f"r{number}", [IDS[number]])
        state.filed(f"r{number}", f"t{number}")
        print("excluded", number, flush=True)
        usage = SampleUsage(state)
        usage.note(IDS, np.arange(number + 1), number=number + 1, unlearning=False)
        print("trained", number, flush=True)
        state.write_receipt(f"t{number}", b"{}" * (number + 1))
        print("receipt", number, flush=True)


def missing(root: Path, facts: list[tuple[str, int]]) -> list[str]:
    """The facts that are not in the directory."""
    state = StateDirectory.of("f-test", "anna", root)
    usage = SampleUsage(state)
    excluded, receipts = state.excluded(IDS), set(state.receipts())
    there: dict[str, Callable[[int], bool]] = {
        "key": lambda _: state.server_key == b"k" * 32,
        "shard": lambda _: state.shard == (1, 3),
        "excluded": lambda n: bool(excluded[n]),
        "trained": lambda n: usage.look_up(IDS[n]) is not None,
        "receipt": lambda n: b"{}" * (n + 1) in receipts,
    }
    return [f"{kind} {number}" for kind, number in facts if not there[kind](number)]


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
