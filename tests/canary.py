"""A search for what a forgotten client sent, in every byte of a state directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["found", "searched", "windows"]

_WINDOW = 32


def found(directory: Path, canaries: Mapping[str, bytes]) -> dict[str, list[str]]:
    """The files that contain each canary. Includes the log of the database and files being written."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file())
    return searched({str(path.relative_to(directory)): path.read_bytes() for path in paths}, canaries)


def searched(files: Mapping[str, bytes], canaries: Mapping[str, bytes]) -> dict[str, list[str]]:
    """The same for the content of files."""
    hits: dict[str, list[str]] = {}
    for path, content in files.items():
        for name, canary in canaries.items():
            if canary in content:
                hits.setdefault(name, []).append(path)
    return hits


def windows(name: str, payload: bytes, count: int = 4) -> dict[str, bytes]:
    """Parts of an update that occur nowhere else: from its whole length, without parts of few different bytes."""
    step = max(1, len(payload) // count)
    parts = {f"{name} at {at}": payload[at : at + _WINDOW] for at in range(0, len(payload) - _WINDOW, step)}
    return {where: part for where, part in parts.items() if len(set(part)) > _WINDOW // 3}
