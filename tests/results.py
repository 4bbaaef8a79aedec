"""runs/torture/result.json: what was run, part by part, each with its commit. Long runs go on where they stopped."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["OUT", "Results", "commit"]

OUT = Path("runs/torture")


def commit() -> str:
    """The commit under test."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


class Results:
    """The parts of one section. Several commands may write to the same file."""

    def __init__(self, file: Path, section: str, *, resume: bool) -> None:
        self._file, self._section, self._commit = file, section, commit()
        file.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            with self._changed() as content:
                content.pop(section, None)

    @property
    def parts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = _read(self._file).get(self._section, {}).get("parts", [])
        return found

    def add(self, name: str, **facts: Any) -> None:
        """Stores one part. A part of the same name is replaced."""
        part = {"name": name, "commit": self._commit, "at": datetime.now(UTC).isoformat(timespec="seconds"), **facts}
        with self._changed() as content:
            parts = [p for p in content.get(self._section, {}).get("parts", []) if p["name"] != name] + [part]
            content[self._section] = {**_summary(parts), "parts": parts}

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = _read(self._file)
            yield content
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(content, indent=1) + "\n")
            os.replace(new, self._file)


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _summary(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of all numbers by name, over the parts; the commits; the failures."""
    totals: Counter[str] = Counter()
    for part in parts:
        for key, value in part.get("counts", {}).items():
            totals[key] += value
    failures = [f"{part['name']}: {part['failure']}" for part in parts if part.get("failure")]
    return {
        "passed": not failures,
        "commits": sorted({part["commit"] for part in parts}),
        "totals": dict(sorted(totals.items())),
        "failures": failures,
    }
