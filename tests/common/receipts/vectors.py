"""Test vectors of receipts for other languages: `python -m tests.common.receipts.vectors` writes them to protos/vectors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.common.receipts.test_signed_receipt import stated

from puf_common.receipts import signed_receipt
from puf_common.receipts.content import ReceiptContent, canonical
from puf_common.receipts.signing_key import SigningKey

DIRECTORY = Path(__file__).parents[3] / "protos" / "vectors"
# Keys for tests only: everyone can compute them.
KEY, OTHER_KEY = (
    SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(text).digest()))
    for text in (b"puf test vector", b"puf test vector of another key")
)


def content() -> dict[str, Any]:
    """A receipt with every kind of value whose spelling differs between programs."""
    facts = stated()
    facts["federation"] |= {"title": 'Kliniken Zürich 病院 \U0001f600 "A" \\ {"signature": 1}  two spaces'}
    facts["ticket"] |= {"reference": "tab\there, line\nbreak, <&> / \x7f"}
    facts["method"] |= {"kappa": 2.0, "scale": -1e-05, "eta_u": 1.0000000000000002e22}
    return facts


def vectors() -> dict[str, bytes]:
    """All files by name."""
    valid = signed_receipt.issue(ReceiptContent.model_validate(content()), KEY)
    signed = b"puf receipt 1\n" + canonical(content())
    foreign = signed_receipt.issue(ReceiptContent.model_validate(content()), OTHER_KEY)
    wrong_signature = valid.replace(
        json.loads(valid)["signature"]["value"].encode(), json.loads(foreign)["signature"]["value"].encode()
    )
    files = {
        "valid.json": (valid, "valid", "as the server wrote it"),
        "changed-client.json": (valid.replace(b"clinic-7", b"clinic-8"), "invalid", "the name of the client"),
        "changed-number.json": (valid.replace(b'"kappa": 2.0', b'"kappa": 2'), "invalid", "2.0 became 2"),
        "changed-escape.json": (
            valid.replace(b"\\u00fc", "ü".encode()),
            "invalid",
            "an escaped character is spelled out",
        ),
        "changed-order.json": (unsorted(valid), "invalid", "the keys are in another order"),
        "wrong-signature.json": (wrong_signature, "invalid", "the signature of another key"),
        "other-key.json": (foreign, "other key", "intact, and signed by a key that is not the federation's"),
        "two-receipts.json": (
            valid.replace(b'{\n "receipt": ', b'{\n "receipt": {"kind": "puf-receipt"},\n "receipt": ', 1),
            "invalid",
            "a second receipt in front; some parsers use the first one, some the last one",
        ),
        "cut.json": (valid[: len(valid) // 2], "invalid", "the file ends early"),
        "more-space.json": (valid.replace(b'"kind": ', b'"kind":  '), "spelling", "one more space between tokens"),
    }
    index = {
        "public_key": KEY.public.hex(),
        "signature": json.loads(valid)["signature"]["value"],
        "signed_bytes": "signed-bytes.hex",
        "files": [{"file": name, "result": result, "what": what} for name, (_, result, what) in files.items()],
    }
    return {
        **{name: data for name, (data, _, _) in files.items()},
        "signed-bytes.hex": signed.hex().encode() + b"\n",
        "vectors.json": json.dumps(index, indent=1).encode() + b"\n",
    }


def unsorted(file: bytes) -> bytes:
    """The same receipt with the keys of "rounds" in another order."""
    rounds = b'"applied": 3,\n   "recovered": true,\n   "recovery": 2'
    assert rounds in file
    return file.replace(rounds, b'"recovered": true,\n   "applied": 3,\n   "recovery": 2')


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, data in vectors().items():
        (DIRECTORY / name).write_bytes(data)
