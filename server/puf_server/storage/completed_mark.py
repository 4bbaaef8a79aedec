"""Where the audit log stood when a request was completed last, as a file beside a database that is restored on its own.

A database that was restored to an earlier moment knows forgotten clients again. Its log then lacks the marked entry.
"""

from __future__ import annotations

import json
from pathlib import Path

from puf_common.audit_chain import EMPTY, Head
from puf_common.errors import StorageCorrupted
from puf_server.storage.durable import Files, new_file

FILE = "completed.json"


class CompletedMark:
    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / FILE
        self._files = files

    def read(self) -> Head:
        try:
            stored = json.loads(self._path.read_text())
            return Head(int(stored["line"]), bytes.fromhex(stored["hash"]))
        except FileNotFoundError:
            return EMPTY
        except (ValueError, KeyError, TypeError):
            raise StorageCorrupted(f"{self._path} is damaged; bring it back from a backup") from None

    def write(self, head: Head) -> None:
        with new_file(self._path, self._files) as file:
            file.write(json.dumps({"line": head.number, "hash": head.hash.hex()}).encode())
