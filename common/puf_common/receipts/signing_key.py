"""Ed25519 signatures: the server signs, others check against the key that they have pinned."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from puf_common.errors import StorageCorrupted

KEY_BYTES = 32


class SigningKey:
    """A private key. Its file is PEM (PKCS 8)."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, text: bytes) -> SigningKey:
        try:
            key = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError) as error:
            raise StorageCorrupted(f"the signing key cannot be read: {error}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise StorageCorrupted("the signing key is not an Ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def signed_by(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the private key of this public key made the signature over the message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(public: bytes) -> str:
    """The first half of the key's SHA-256, for people to compare. Empty for no key."""
    return hashlib.sha256(public).hexdigest()[:32] if public else ""
