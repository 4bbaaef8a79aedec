"""Style sheet and scripts, read once. Their address contains a hash of their content, so browsers may keep them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent / "assets"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    content: bytes
    media_type: str


class Assets:
    """Every file that a page may load, by the name in its address."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._files: dict[str, Asset] = {}
        for path in sorted(_FOLDER.iterdir()):
            if path.suffix in _TYPES:
                content = path.read_bytes()
                name = f"{path.stem}.{hashlib.sha256(content).hexdigest()[:12]}{path.suffix}"
                self._names[path.name] = name
                self._files[name] = Asset(content, _TYPES[path.suffix])

    def address(self, file: str) -> str:
        return f"/assets/{self._names[file]}"

    def find(self, name: str) -> Asset | None:
        return self._files.get(name)
