"""The directory of an embedded federation: its state, its audit log, its signing key and its receipts.

DIR/state.json        members, requests and models (digests, no weights)
DIR/audit.jsonl       the audit log; the hash of each entry covers the entry before it
DIR/signing-key.pem   signs receipts
DIR/public-key.txt    its public half, for `puf-client verify --key`
DIR/receipts/         signed receipts and their pages
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from puf_common.audit_chain import EMPTY, AuditEntry, Head, append, follow
from puf_common.errors import StorageCorrupted
from puf_common.files.private import create_once, private_directory, write_over
from puf_common.receipts.content import ReceiptContent
from puf_common.receipts.page import write
from puf_common.receipts.signed_receipt import issue
from puf_common.receipts.signing_key import SigningKey
from puf_server.core.state.state import AuditNote, State

_STATE = TypeAdapter(tuple[str, State])


class Records:
    """Reads and writes the directory. A federation that continues later finds its members and requests here."""

    def __init__(self, directory: Path) -> None:
        self.directory = private_directory(directory)
        with suppress(FileExistsError):
            create_once(directory / "signing-key.pem", SigningKey.generate().to_pem())
        self.key = SigningKey.from_pem((directory / "signing-key.pem").read_bytes())
        write_over(directory / "public-key.txt", self.key.public.hex().encode() + b"\n", mode=0o644)
        self.head = self._checked_head()

    def load(self) -> tuple[str, State]:
        """The federation's id and its state; a new id and an empty state the first time."""
        path = self.directory / "state.json"
        if not path.exists():
            return f"f-{secrets.token_hex(8)}", State()
        try:
            return _STATE.validate_json(path.read_bytes())
        except ValidationError as error:
            raise StorageCorrupted(f"{path} cannot be read: {error.errors()[0]['msg']}; restore a copy of it") from None

    def save(self, federation: str, state: State) -> None:
        """Appends the notes to the audit log, then writes the state."""
        if state.notes:
            self._append(state.notes)
        write_over(self.directory / "state.json", _STATE.dump_json((federation, state)))

    def write_receipt(self, content: ReceiptContent) -> list[Path]:
        return write(issue(content, self.key), self.directory / "receipts")

    def _append(self, notes: tuple[AuditNote, ...]) -> None:
        with (self.directory / "audit.jsonl").open("a", encoding="utf-8") as file:
            for note in notes:
                entry = append(self.head, note.at, note.event, note.facts)
                line = {"number": entry.number, "at": entry.at, "event": entry.event, "facts": entry.facts}
                file.write(json.dumps({**line, "hash": entry.hash.hex()}) + "\n")
                self.head = Head(entry.number, entry.hash)

    def _checked_head(self) -> Head:
        path = self.directory / "audit.jsonl"
        if not path.exists():
            return EMPTY
        try:
            return follow(
                AuditEntry(e["number"], e["at"], e["event"], e["facts"], bytes.fromhex(e["hash"]))
                for e in map(json.loads, path.read_text(encoding="utf-8").splitlines())
            )
        except (ValueError, KeyError, TypeError):
            raise StorageCorrupted(f"{path} is damaged; restore a copy of it") from None
