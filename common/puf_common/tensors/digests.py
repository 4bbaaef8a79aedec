"""Digests of tensor bytes: SHA-256 identifies a model, BLAKE3 checks a transfer.

The audit log, receipts and exports identify a model by its SHA-256, which every machine can compute. A round hashes
every transferred byte three times. SHA-256 would take a quarter of the round; BLAKE3 takes a tenth and is as hard to
collide with. A peer without BLAKE3 checks and states SHA-256: the contract has both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, Protocol

from blake3 import blake3

from puf_common.v1 import tensors_pb2 as pb

Payload = bytes | bytearray | memoryview
DigestKind = Literal["sha256", "blake3"]
# The length of both kinds.
DIGEST_BYTES = 32

_KINDS: dict[int, DigestKind] = {pb.DIGEST_KIND_UNSPECIFIED: "sha256", pb.DIGEST_KIND_BLAKE3: "blake3"}


class Hasher(Protocol):
    def update(self, data: Payload, /) -> object: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


def hasher(kind: DigestKind = "sha256") -> Hasher:
    return blake3() if kind == "blake3" else hashlib.sha256()


def digest(payload: Payload, kind: DigestKind = "sha256") -> bytes:
    """The digest of a whole payload, as headers state it."""
    return digest_of([payload], kind)


def digest_of(blocks: Iterable[Payload], kind: DigestKind = "sha256") -> bytes:
    """The digest of a payload that comes in blocks."""
    computed = hasher(kind)
    for block in blocks:
        computed.update(block)
    return computed.digest()


def digest_kind(stated: int) -> DigestKind | None:
    """The kind that a header states; None for a kind that this version does not know."""
    return _KINDS.get(stated)


def to_pb(kind: DigestKind) -> pb.DigestKind:
    return pb.DIGEST_KIND_BLAKE3 if kind == "blake3" else pb.DIGEST_KIND_UNSPECIFIED
