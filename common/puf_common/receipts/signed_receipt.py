"""The file of a receipt: signed JSON in exactly one spelling.

    {"receipt": {...}, "signature": {"algorithm": "Ed25519", "public_key": hex, "value": hex}}

The signature covers the line "puf receipt 1" and the canonical bytes of "receipt". The file itself has one valid
spelling, too: no byte of it can change unnoticed, not even a space.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from puf_common.errors import TransferCorrupted
from puf_common.receipts.content import FORMAT, KIND, ReceiptContent, canonical
from puf_common.receipts.signing_key import SigningKey, fingerprint, signed_by

_PURPOSE = b"puf receipt 1\n"
_ALGORITHM = "Ed25519"


@dataclass(frozen=True)
class Receipt:
    """An intact receipt, signed by `key`. The reader decides whether to trust that key."""

    content: ReceiptContent
    key: bytes

    @property
    def ticket(self) -> str:
        return self.content.ticket.id

    @property
    def client(self) -> str:
        return self.content.ticket.client

    @property
    def federation(self) -> str:
        return self.content.federation.id

    @property
    def key_fingerprint(self) -> str:
        return fingerprint(self.key)


def issue(content: ReceiptContent, key: SigningKey) -> bytes:
    """The signed file of a receipt with this content."""
    stated = content.as_json()
    return _spelled(stated, key.public, key.sign(_PURPOSE + canonical(stated)))


def read(file: bytes) -> Receipt:
    """The receipt in a file. Raises TransferCorrupted if a single byte differs from what was signed."""
    try:
        parsed = json.loads(file)
        stated = parsed["receipt"]
        key, signature = (bytes.fromhex(parsed["signature"][name]) for name in ("public_key", "value"))
        intact = _spelled(stated, key, signature) == file and signed_by(key, _PURPOSE + canonical(stated), signature)
        kind, form = stated.get("kind"), stated.get("format")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise TransferCorrupted("this is not a receipt, or it is damaged") from None
    if not intact:
        raise TransferCorrupted("the receipt was changed after it was signed")
    if (kind, form) != (KIND, FORMAT):
        raise TransferCorrupted(f"a receipt of format {form} cannot be read here, only of {FORMAT}")
    try:
        return Receipt(ReceiptContent.model_validate(stated), key)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        raise TransferCorrupted(f"the receipt is intact, but {where} is missing or has another type") from None


def _spelled(stated: dict[str, Any], public: bytes, signature: bytes) -> bytes:
    sealed = {
        "receipt": stated,
        "signature": {"algorithm": _ALGORITHM, "public_key": public.hex(), "value": signature.hex()},
    }
    return json.dumps(sealed, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
