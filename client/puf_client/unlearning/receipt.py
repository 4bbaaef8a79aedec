"""`puf-client receipt | verify | present`: fetches, checks and presents the signed receipt of a completed request."""

from __future__ import annotations

import os
import re
from pathlib import Path

from puf_client.options import PresentOptions, ReceiptOptions, VerifyOptions
from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage, digest_of
from puf_client.terminal import console
from puf_client.transport.base import Transport
from puf_client.transport.dial import dial
from puf_common.config.exit_codes import Exit
from puf_common.errors import Mismatch, StorageCorrupted, TransferCorrupted, UsageError
from puf_common.receipts import signed_receipt
from puf_common.receipts.evidence import STATEMENT
from puf_common.receipts.page import write
from puf_common.receipts.signed_receipt import Receipt
from puf_common.receipts.signing_key import KEY_BYTES, fingerprint
from puf_common.tracing.places import place_of_ticket
from puf_common.tracing.process import span
from puf_common.v1 import federation_pb2 as pb


def collect(transport: Transport, state: StateDirectory, ticket_id: str, directory: Path) -> list[Path]:
    """Fetches a receipt, checks it against the pinned key, and writes it with its page."""
    file = transport.get_receipt(ticket_id).receipt
    receipt = signed_receipt.read(file)
    state.check_server_key(receipt.key)
    if (receipt.ticket, receipt.client) != (ticket_id, transport.name):
        raise TransferCorrupted(
            f"requested the receipt of {ticket_id}, received that of {receipt.ticket} of {receipt.client}"
        )
    state.write_receipt(ticket_id, file)
    return write(file, directory)


def require_writable(directory: Path) -> None:
    """Raises if receipts cannot be written to the directory. Checked before a request is filed."""
    if directory.exists() and not (directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)):
        raise UsageError(f"receipts cannot be written to {directory}; choose another --receipt-dir")


def fetch_receipt(options: ReceiptOptions, ticket_id: str) -> Exit:
    require_writable(options.receipt_dir)
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        description = transport.describe()
        state = StateDirectory.of(description.federation_id, options.name, options.state)
        state.check_server_key(description.server_key)
        place = place_of_ticket(description.federation_id, ticket_id)
        with span("client.receipt", place, ticket=ticket_id):
            paths = collect(transport, state, ticket_id, options.receipt_dir)
        for path in paths:
            console().print(f"written: {path}", soft_wrap=True)
    return Exit.OK


def present_receipt(options: PresentOptions, path: str) -> Exit:
    """Presents a receipt to the server that signed it. A server without the ticket, from an older backup, opens it again."""
    file = _bytes(Path(path))
    signed_receipt.read(file)
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        reply = transport.present_receipt(pb.PresentReceiptRequest(receipt=file))
    console().print(reply.outcome, soft_wrap=True)
    if reply.reopened:
        console().print("Run `puf-client --unlearn` with this client's data to have it forgotten again.")
    return Exit.OK


def verify_receipt(options: VerifyOptions, path: str) -> Exit:
    """Prints the result and returns 0 if the pinned key signed this receipt and its samples agree, else 1. No network."""
    file = _bytes(Path(path))
    try:
        receipt = signed_receipt.read(file)
        _trusted(receipt, options)
        samples = compared(receipt, options.state)
    except (TransferCorrupted, StorageCorrupted, Mismatch) as error:
        console().print(f"NOT VALID: {Path(path).name}: {error.message}", soft_wrap=True)
        return Exit.FAILURE
    ticket = receipt.content.ticket
    verdict = receipt.content.measured_by_client.verdict or "not measured"
    console().print(
        f"VALID: {ticket.id} of {ticket.client} was completed on {ticket.completed_at}, signed with the key "
        f"{receipt.key_fingerprint}; the client's verdict: {verdict} ({STATEMENT})",
        soft_wrap=True,
    )
    if samples:
        console().print(samples, soft_wrap=True)
    return Exit.OK


def compared(receipt: Receipt, root: Path | None) -> str:
    """Returns one line about the unlearned samples, compared with the sample usage of the client's state directory.

    Empty if the receipt states no samples, or there is no such directory. Raises `Mismatch` if it is about other samples.
    """
    stated, ticket = receipt.content.unlearned_samples, receipt.content.ticket
    state = StateDirectory.of(receipt.federation, receipt.client, root)
    if stated is None or not state.path.is_dir():
        return ""
    if stated.digest is None:
        return f"samples: {stated.samples}, as the client states; without a digest they cannot be compared with {state.path}"
    usage = SampleUsage(state)
    trained = usage.trained(ticket.membership)
    if not trained:
        return f"samples: {stated.samples}, as the client states; {state.path} has no record to compare them with"
    request = state.exclusion(ticket.request_key)
    if request is not None:
        agree = digest_of(request.hashes) == stated.digest and len(request.hashes) == stated.samples
    else:
        # A whole client: all samples that it trained on, except those that earlier requests had taken out.
        used = next((known.hashes for known in usage.sets() if known.digest == stated.digest), frozenset[str]())
        excluded = frozenset[str]().union(*(e.hashes for e in state.exclusions() if e.effective))
        agree = len(used) == stated.samples and trained - excluded <= used <= trained
    if not agree:
        raise Mismatch(
            f"the receipt is about {stated.samples} samples with the digest {stated.digest[:16]}; these are not the samples "
            f"that this client had to unlearn by the record in {state.path}"
        )
    return f"samples: the {stated.samples} unlearned samples are those of the record in {state.path} (count and digest agree)"


def _trusted(receipt: Receipt, options: VerifyOptions) -> None:
    """Raises `Mismatch` if the receipt's key is not the given or pinned key. Another key proves nothing."""
    given = options.key.strip()
    if given:
        if Path(given).is_file():
            given = Path(given).read_text("utf-8", "replace").strip()
        given = given.lower()
        if re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", given):
            given = fingerprint(bytes.fromhex(given))
        if not re.fullmatch(f"[0-9a-f]{{{KEY_BYTES}}}", given):
            raise UsageError("--key must be a public key or its fingerprint in hexadecimal, or a file with one of them")
        wanted = given
    else:
        try:
            pinned = StateDirectory.of(receipt.federation, receipt.client, options.state).server_key
        except UsageError as error:
            raise Mismatch(error.message) from None
        if not pinned:
            raise Mismatch(
                f"the receipt is intact and signed with the key {receipt.key_fingerprint}, but no key is pinned here to "
                "compare it with; ask the operator for the fingerprint and pass it with --key"
            )
        wanted = fingerprint(pinned)
    if receipt.key_fingerprint != wanted:
        raise Mismatch(f"signed with the key {receipt.key_fingerprint}, expected {wanted}")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
