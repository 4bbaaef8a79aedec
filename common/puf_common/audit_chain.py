"""The hash chain of the audit log: every entry carries a hash over itself and the hash of the entry before.

A changed, removed or moved entry breaks the chain after it. A receipt reveals a log that was cut off or written again: it
carries number and hash of the last entry at its time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from puf_common.errors import StorageCorrupted


@dataclass(frozen=True, slots=True)
class AuditEntry:
    number: int
    at: float
    event: str
    # The JSON text that is hashed.
    facts: str
    hash: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry of a log."""

    number: int
    hash: bytes


EMPTY = Head(0, b"")


def link(previous: bytes, number: int, at: float, event: str, facts: str) -> bytes:
    return hashlib.sha256(previous + f"{number}|{float(at)!r}|{event}|{facts}".encode()).digest()


def append(head: Head, at: float, event: str, facts: Mapping[str, Any]) -> AuditEntry:
    """The next entry."""
    text = json.dumps(dict(facts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    number = head.number + 1
    return AuditEntry(number, float(at), event, text, link(head.hash, number, at, event, text))


def follow(lines: Iterable[AuditEntry], witness: Head = EMPTY, *, after: Head = EMPTY) -> Head:
    """The head of a log, after a check of all entries. `witness` is an earlier head, for example of a receipt.

    `after` is the head of the entries before `lines`. Raises StorageCorrupted at the first entry that is not as it was
    written.
    """
    head = after
    for line in lines:
        if line.number != head.number + 1:
            raise StorageCorrupted(
                f"audit line {head.number + 1} is missing: after line {head.number} comes line {line.number}",
                line=head.number + 1,
            )
        if line.hash != link(head.hash, line.number, line.at, line.event, line.facts):
            raise StorageCorrupted(
                f"audit line {line.number} ({line.event}) or the one before it was changed, moved or replaced",
                line=line.number,
            )
        head = Head(line.number, line.hash)
        if head.number == witness.number and head.hash != witness.hash:
            raise StorageCorrupted(
                f"audit line {head.number} is not the one that the receipt names: the log was written again",
                line=head.number,
            )
    if head.number < witness.number:
        raise StorageCorrupted(
            f"the audit log was cut off: it ends with line {head.number}, the receipt names line {witness.number}",
            line=head.number + 1,
        )
    return head
