"""Seeds that depend on their purpose only, never on a clock, an attempt or the order of events."""

from __future__ import annotations

import hashlib


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. derive(7, "train", round, client, part, epoch)."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
