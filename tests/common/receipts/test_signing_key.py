"""Ed25519 keys and signatures."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from puf_common.errors import StorageCorrupted
from puf_common.receipts.signing_key import KEY_BYTES, SigningKey, fingerprint, signed_by

KEY = SigningKey.generate()


def test_a_key_survives_pem() -> None:
    again = SigningKey.from_pem(KEY.to_pem())
    assert again.public == KEY.public
    assert len(KEY.public) == KEY_BYTES
    assert signed_by(KEY.public, b"message", again.sign(b"message"))


def test_another_message_key_or_signature_does_not_match() -> None:
    signature = KEY.sign(b"message")
    assert not signed_by(KEY.public, b"messages", signature)
    assert not signed_by(SigningKey.generate().public, b"message", signature)
    assert not signed_by(KEY.public, b"message", signature[:-1])
    assert not signed_by(KEY.public, b"message", b"")
    assert not signed_by(b"short", b"message", signature)


def test_an_unusable_key_file_is_a_clear_error() -> None:
    with pytest.raises(StorageCorrupted, match="the signing key cannot be read"):
        SigningKey.from_pem(b"no key")
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(StorageCorrupted, match="not an Ed25519 key"):
        SigningKey.from_pem(other)


def test_a_fingerprint_is_half_of_the_sha256() -> None:
    assert fingerprint(KEY.public) == hashlib.sha256(KEY.public).hexdigest()[:32]
    assert fingerprint(b"") == ""
