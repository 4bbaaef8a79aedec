"""Two kinds of digests, and headers that state the kind."""

from __future__ import annotations

import hashlib

import pytest

from puf_common.tensors.digests import DIGEST_BYTES, DigestKind, digest, digest_kind, hasher, to_pb


@pytest.mark.parametrize(
    ("kind", "empty"),
    [
        ("sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("blake3", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
    ],
)
def test_both_kinds_match_published_values(kind: DigestKind, empty: str) -> None:
    assert digest(b"", kind).hex() == hasher(kind).hexdigest() == empty
    pieces = hasher(kind)
    for piece in (b"a", bytearray(b"b"), memoryview(b"c")):
        pieces.update(piece)
    assert pieces.digest() == digest(b"abc", kind)
    assert len(pieces.digest()) == DIGEST_BYTES


def test_a_header_without_a_kind_means_sha256() -> None:
    assert digest_kind(0) == "sha256"
    assert digest(b"abc") == hashlib.sha256(b"abc").digest()


@pytest.mark.parametrize("kind", ["sha256", "blake3"])
def test_a_kind_is_the_same_after_sending(kind: DigestKind) -> None:
    assert digest_kind(to_pb(kind)) == kind


def test_an_unknown_kind_is_not_guessed() -> None:
    assert digest_kind(99) is None
