"""The receipt as a file: JSON for programs, signed, in exactly one spelling.

    {"receipt": {...}, "signature": {"algorithm": "Ed25519", "public_key": hex, "value": hex}}

The signature covers the compact JSON of "receipt" (keys sorted, ASCII, no spaces) after a line that says what it is. The
file itself has one valid spelling, too, so that no byte of it can change unnoticed, not even a space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from puf_common.errors import TransferCorrupted
from puf_common.receipts.signing import SigningKey, fingerprint, signed_by

__all__ = ["FORMAT", "Receipt", "canonical", "issue", "read"]

FORMAT = 1
_KIND = "puf-receipt"
_PURPOSE = b"puf receipt 1\n"
_ALGORITHM = "Ed25519"


@dataclass(frozen=True)
class Receipt:
    """A receipt that is intact: signed by `key`. Whether that key is the right one is the reader's question."""

    content: Mapping[str, Any]
    key: bytes

    @property
    def ticket(self) -> str:
        return str(self.content["ticket"]["id"])

    @property
    def client(self) -> str:
        return str(self.content["ticket"]["client"])

    @property
    def federation(self) -> str:
        return str(self.content["federation"]["id"])

    @property
    def audit_head(self) -> tuple[int, str]:
        """Number and hash of the last audit line when the receipt was made."""
        return int(self.content["audit"]["line"]), str(self.content["audit"]["hash"])

    @property
    def key_fingerprint(self) -> str:
        return fingerprint(self.key)


def canonical(content: Mapping[str, Any]) -> bytes:
    """What is signed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def issue(content: Mapping[str, Any], key: SigningKey) -> bytes:
    """The file of a receipt that says this."""
    content = {**content, "kind": _KIND, "format": FORMAT}
    return _spelled(content, key.public, key.sign(_PURPOSE + canonical(content)))


def read(file: bytes) -> Receipt:
    """The receipt in a file; TransferCorrupted when a single byte of it is not as it was signed."""
    try:
        parsed = json.loads(file)
        content = parsed["receipt"]
        key, signature = (bytes.fromhex(parsed["signature"][name]) for name in ("public_key", "value"))
        whole = _spelled(content, key, signature) == file
        facts = Receipt(content, key)
        told = bool(facts.ticket and facts.client and facts.federation and facts.audit_head)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TransferCorrupted("this is not a receipt, or it is damaged") from None
    if not whole or not signed_by(key, _PURPOSE + canonical(content), signature):
        raise TransferCorrupted("the receipt was changed after it was signed")
    if not told or (content.get("kind"), content.get("format")) != (_KIND, FORMAT):
        raise TransferCorrupted(f"a receipt of format {content.get('format')} cannot be read here, only of {FORMAT}")
    return facts


def _spelled(content: Mapping[str, Any], public: bytes, signature: bytes) -> bytes:
    sealed = {
        "receipt": content,
        "signature": {"algorithm": _ALGORITHM, "public_key": public.hex(), "value": signature.hex()},
    }
    return json.dumps(sealed, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
