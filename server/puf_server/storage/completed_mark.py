"""Where the audit log stood when a request was completed last, as a file beside a database that is restored on its own.

A database that was restored to an earlier moment knows forgotten clients again. Its log then lacks the marked entry.
"""

from __future__ import annotations

import json

from puf_common.audit_chain import EMPTY, Head
from puf_common.errors import StorageCorrupted
from puf_server.storage.stored_files import StoredFiles, published

FILE = "completed.json"


class CompletedMark:
    def __init__(self, files: StoredFiles) -> None:
        self._files = files

    def read(self) -> Head:
        try:
            with self._files.read(FILE) as file:
                stored = json.loads(b"".join(bytes(block) for block in file.blocks()))
            return Head(int(stored["line"]), bytes.fromhex(stored["hash"]))
        except FileNotFoundError:
            return EMPTY
        except (ValueError, KeyError, TypeError):
            raise StorageCorrupted(f"{self._files.where(FILE)} is damaged; bring it back from a backup") from None

    def write(self, head: Head) -> None:
        with published(self._files.new(FILE), FILE) as file:
            file.write(json.dumps({"line": head.number, "hash": head.hash.hex()}).encode())
