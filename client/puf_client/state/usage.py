"""Which samples this client trained on, with the first and last round of each.

It is written before an update is sent, so that no training is missing. It therefore includes updates that the server
refuses. Most rounds use the same samples, so each set of samples is written once, with its rounds in a second file:

    used/<digest>.ids       the salted hashes of a set, 32 bytes each
    used/<digest>.json      {"trained": [first, last] or null, "unlearned": [first, last] or null}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_client.state.directory import StateDirectory, damaged, read_json

_BYTES = 32
Rounds = tuple[int, int] | None


@dataclass(frozen=True)
class Used:
    """First and last round in which a sample was trained on, and in which it was used to unlearn."""

    trained: Rounds = None
    unlearned: Rounds = None

    def __or__(self, other: Used) -> Used:
        return Used(_span(self.trained, other.trained), _span(self.unlearned, other.unlearned))


class SampleUsage:
    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._folder = state.path / "used"
        self._last: tuple[Sequence[str], bytes, str] | None = None

    def note(self, ids: Sequence[str], indices: NDArray[np.intp], *, number: int, unlearning: bool) -> None:
        """Records the samples of an update, before it is sent."""
        digest = self._set(ids, indices)
        path = self._folder / f"{digest}.json"
        known = read_json(path, _used) if path.exists() else Used()
        now = known | (Used(unlearned=(number, number)) if unlearning else Used(trained=(number, number)))
        if now != known:
            self._state.write(path, json.dumps(asdict(now)).encode())

    def look_up(self, sample_id: str) -> Used | None:
        """Returns the rounds of a sample; None if no update from this directory used it."""
        if not self._folder.is_dir():
            return None
        wanted = np.frombuffer(bytes.fromhex(self._state.salted(sample_id)), dtype=np.uint8)
        found: Used | None = None
        for path in sorted(self._folder.glob("*.json")):
            ids = path.with_suffix(".ids")
            content = ids.read_bytes() if ids.exists() else b""
            if not content or len(content) % _BYTES:
                raise damaged(ids)
            hashes = np.frombuffer(content, dtype=np.uint8).reshape(-1, _BYTES)
            if (hashes == wanted).all(axis=1).any():
                found = (found or Used()) | read_json(path, _used)
        return found

    def _set(self, ids: Sequence[str], indices: NDArray[np.intp]) -> str:
        """Returns the digest of a set of samples, after its hashes are on disk."""
        chosen = indices.tobytes()
        if self._last is not None and self._last[0] is ids and self._last[1] == chosen:
            return self._last[2]
        content = b"".join(sorted(bytes.fromhex(self._state.salted(ids[i])) for i in indices))
        digest = hashlib.sha256(content).hexdigest()[:32]
        path = self._folder / f"{digest}.ids"
        if not path.exists():
            self._state.write(path, content)
        self._last = (ids, chosen, digest)
        return digest


def _span(a: Rounds, b: Rounds) -> Rounds:
    if a is None or b is None:
        return a or b
    return min(a[0], b[0]), max(a[1], b[1])


def _used(content: dict[str, Any]) -> Used:
    return Used(_rounds(content["trained"]), _rounds(content["unlearned"]))


def _rounds(content: list[int] | None) -> Rounds:
    if content is None:
        return None
    first, last = map(int, content)
    return first, last
