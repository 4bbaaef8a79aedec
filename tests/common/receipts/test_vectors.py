"""The receipts in protos/vectors, and the rules of the page for other languages, carried out step by step."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from tests.common.receipts.vectors import DIRECTORY, content, vectors

from puf_common.errors import TransferCorrupted
from puf_common.receipts import signed_receipt

INDEX: dict[str, Any] = json.loads((DIRECTORY / "vectors.json").read_text())
RESULTS = {entry["file"]: entry["result"] for entry in INDEX["files"]}
SIGNED = bytes.fromhex((DIRECTORY / INDEX["signed_bytes"]).read_text())


def test_the_committed_vectors_are_those_of_this_version() -> None:
    """`python -m tests.common.receipts.vectors` makes them again. A change of the signed bytes breaks other languages."""
    assert {path.name: path.read_bytes() for path in DIRECTORY.iterdir()} == vectors()


def verified_by_the_page(file: bytes, key: str) -> Any:
    """The content of a receipt, by the steps of docs/other-languages.md and without this project's code."""
    head, tail = b'{\n "receipt": ', b',\n "signature": '
    start, end = len(head), file.rfind(tail)
    if not file.startswith(head) or end < 0:
        raise ValueError("no receipt")
    body, signature = file[start:end], json.loads(file[end + len(tail) : -3])
    compact = re.sub(rb'("(?:[^"\\]|\\.)*")|[ \n]+', lambda found: found[1] or b"", body)
    if signature["public_key"] != key:
        raise ValueError("another key")
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
    public.verify(bytes.fromhex(signature["value"]), b"puf receipt 1\n" + compact)
    assert b"puf receipt 1\n" + compact == SIGNED
    return json.loads(body)


@pytest.mark.parametrize("name", RESULTS)
def test_the_steps_of_the_page_give_the_stated_result(name: str) -> None:
    file = (DIRECTORY / name).read_bytes()
    if RESULTS[name] in ("valid", "spelling"):
        assert verified_by_the_page(file, INDEX["public_key"]) == content()
    else:
        with pytest.raises((InvalidSignature, ValueError)):
            verified_by_the_page(file, INDEX["public_key"])


@pytest.mark.parametrize("name", RESULTS)
def test_this_version_gives_the_stated_result(name: str) -> None:
    file = (DIRECTORY / name).read_bytes()
    if RESULTS[name] in ("valid", "other key"):
        trusted = signed_receipt.read(file).key.hex() == INDEX["public_key"]
        assert trusted == (RESULTS[name] == "valid")
    else:
        with pytest.raises(TransferCorrupted):
            signed_receipt.read(file)
