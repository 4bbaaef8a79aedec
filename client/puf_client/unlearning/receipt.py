"""`puf-client receipt | verify | present`: the signed receipt of a completed request, fetched, checked and shown again."""

from __future__ import annotations

import os
from pathlib import Path

from puf_client.cli.options import PresentOptions, ReceiptOptions, VerifyOptions
from puf_client.state.directory import StateDir
from puf_client.transport.dial import dial
from puf_client.transport.grpc import Transport
from puf_client.worker.display import console
from puf_common.config.exit_codes import Exit
from puf_common.errors import Mismatch, StorageCorrupted, TransferCorrupted, UsageError
from puf_common.receipts import receipt_file
from puf_common.receipts.evidence import STATEMENT
from puf_common.receipts.page import write
from puf_common.receipts.receipt_file import Receipt
from puf_common.receipts.signing import KEY_BYTES, fingerprint
from puf_common.v1 import federation_pb2 as pb

__all__ = ["collect", "fetch_receipt", "present_receipt", "verify_receipt", "writable"]


def collect(transport: Transport, state: StateDir, ticket_id: str, directory: Path) -> list[Path]:
    """Fetches a receipt, checks it against the pinned key, and writes it with its page."""
    file = transport.get_receipt(ticket_id).receipt
    receipt = receipt_file.read(file)
    state.check_server_key(receipt.key)
    if (receipt.ticket, receipt.client) != (ticket_id, transport.name):
        raise TransferCorrupted(
            f"asked for the receipt of {ticket_id}, got that of {receipt.ticket} of {receipt.client}"
        )
    state.keep_receipt(ticket_id, file)
    return write(file, directory)


def writable(directory: Path) -> None:
    """Found out before anything is asked for: whoever is forgotten wants the receipt."""
    if directory.exists() and not (directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)):
        raise UsageError(f"receipts cannot be written to {directory}; choose another --receipt-dir")


def fetch_receipt(options: ReceiptOptions, ticket_id: str) -> Exit:
    writable(options.receipt_dir)
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        description = transport.describe()
        state = StateDir.of(description.federation_id, options.name, options.state)
        state.check_server_key(description.server_key)
        for path in collect(transport, state, ticket_id, options.receipt_dir):
            console().print(f"written: {path}", soft_wrap=True)
    return Exit.OK


def present_receipt(options: PresentOptions, path: Path) -> Exit:
    """Shows a receipt to the server that signed it; one restored from an older backup opens the ticket again."""
    file = _bytes(path)
    receipt_file.read(file)
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        reply = transport.present_receipt(pb.PresentReceiptRequest(receipt=file))
    console().print(reply.outcome, soft_wrap=True)
    if reply.reopened:
        console().print("Run `puf-client --unlearn` with this client's data to have it forgotten again.")
    return Exit.OK


def verify_receipt(options: VerifyOptions, path: Path) -> Exit:
    """One line and an exit code, without any network: 0 for a receipt that is as the pinned key signed it, else 1."""
    file = _bytes(path)
    try:
        receipt = receipt_file.read(file)
        _trusted(receipt, options)
    except (TransferCorrupted, StorageCorrupted, Mismatch) as error:
        console().print(f"NOT VALID: {path.name}: {error.message}", soft_wrap=True, markup=False)
        return Exit.FAILURE
    ticket = receipt.content.ticket
    verdict = receipt.content.measured_by_client.verdict or "not measured"
    console().print(
        f"VALID: {ticket.id} of {ticket.client} was completed on {ticket.completed_at}, signed with the key "
        f"{receipt.key_fingerprint}; the client's verdict: {verdict} ({STATEMENT})",
        soft_wrap=True,
        markup=False,
    )
    return Exit.OK


def _trusted(receipt: Receipt, options: VerifyOptions) -> None:
    """Compares the key with the one that was given or pinned; a receipt by anybody else's key proves nothing."""
    given = options.key.strip()
    if given:
        if Path(given).is_file():
            given = Path(given).read_text("utf-8", "replace").strip()
        given = given.lower()
        if len(given) == 2 * KEY_BYTES and _is_hex(given):
            given = fingerprint(bytes.fromhex(given))
        if len(given) != KEY_BYTES or not _is_hex(given):
            raise UsageError("--key takes a public key or its fingerprint in hexadecimal, or a file with one of them")
        wanted = given
    else:
        try:
            pinned = StateDir.of(receipt.federation, receipt.client, options.state).server_key
        except UsageError as error:
            raise Mismatch(error.message) from None
        if not pinned:
            raise Mismatch(
                f"intact and signed with the key {receipt.key_fingerprint}, but no key is pinned here to compare it with; "
                "ask the operator for the fingerprint and give it with --key"
            )
        wanted = fingerprint(pinned)
    if receipt.key_fingerprint != wanted:
        raise Mismatch(f"signed with the key {receipt.key_fingerprint}, expected is {wanted}")


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
