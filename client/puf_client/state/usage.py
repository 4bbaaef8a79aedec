"""Which samples this client trained on, with the first and last round of each.

It is written before an update is sent, so that no training is missing. It therefore includes updates that the server
refuses. Most rounds use the same samples, so each set of samples is written once, with its rounds in a second file:

    used/<digest>.ids       the salted hashes of a set, 32 bytes each
    used/<digest>.json      {"trained": [first, last] or null, "unlearned": [first, last] or null,
                            "memberships": those in which the set was trained on; absent in files of older versions}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_client.state.directory import StateDirectory, damaged, find_json, read_json

_BYTES = 32
Rounds = tuple[int, int] | None


@dataclass(frozen=True)
class Used:
    """First and last round in which a sample was trained on, and in which it was used to unlearn."""

    trained: Rounds = None
    unlearned: Rounds = None

    def __or__(self, other: Used) -> Used:
        return Used(_span(self.trained, other.trained), _span(self.unlearned, other.unlearned))


@dataclass(frozen=True)
class UsedSet:
    """One stored set of samples: their salted hashes and the rounds that used them."""

    hashes: frozenset[str]
    rounds: Used
    # None in files of older versions: any membership.
    memberships: frozenset[int] | None

    @property
    def digest(self) -> str:
        return digest_of(self.hashes)

    def trained_in(self, membership: int) -> bool:
        return self.rounds.trained is not None and (self.memberships is None or membership in self.memberships)


class SampleUsage:
    """The record in one state directory."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._folder = state.path / "used"
        self._last: tuple[Sequence[str], bytes, str] | None = None

    def note(
        self, ids: Sequence[str], indices: NDArray[np.intp], *, number: int, unlearning: bool, membership: int = 1
    ) -> None:
        """Records the samples of an update, before it is sent."""
        used = Used(unlearned=(number, number)) if unlearning else Used(trained=(number, number))
        self._add(ids, indices, used, membership)

    def restore(self, ids: Sequence[str], indices: NDArray[np.intp], rounds: tuple[int, int], membership: int) -> None:
        """Records samples that a person says were trained on in these rounds, after the loss of the directory."""
        self._add(ids, indices, Used(trained=rounds), membership)

    def _add(self, ids: Sequence[str], indices: NDArray[np.intp], used: Used, membership: int) -> None:
        path = self._folder / f"{self._set(ids, indices)}.json"
        found = find_json(path, _record)
        known, memberships = found or (Used(), frozenset[int]())
        now = known | used
        # A set of an older version, in which the memberships are not known, stays one.
        also = memberships if used.trained is None or memberships is None else memberships | {membership}
        if (now, also) != found:
            rounds = {"trained": now.trained, "unlearned": now.unlearned}
            content = rounds | ({} if also is None else {"memberships": sorted(also)})
            self._state.write(path, json.dumps(content).encode())

    def look_up(self, sample_id: str) -> Used | None:
        """Returns the rounds of a sample; None if no update from this directory used it."""
        return self.look_up_all([sample_id])[0]

    def look_up_all(self, ids: Sequence[str]) -> list[Used | None]:
        """Returns the rounds of each sample, as `look_up` does."""
        found: list[Used | None] = [None] * len(ids)
        if not self._folder.is_dir():
            return found
        wanted = [self._state.salted(i) for i in ids]
        for known in self.sets():
            found = [
                (used or Used()) | known.rounds if salted in known.hashes else used
                for salted, used in zip(wanted, found, strict=True)
            ]
        return found

    def trained(self, membership: int) -> frozenset[str]:
        """Returns the hashes of all samples that were trained on in a membership; empty without a record."""
        return frozenset[str]().union(*(known.hashes for known in self.sets() if known.trained_in(membership)))

    def sets(self) -> Iterator[UsedSet]:
        """Yields all stored sets."""
        for path in sorted(self._folder.glob("*.json")):
            ids = path.with_suffix(".ids")
            content = ids.read_bytes() if ids.exists() else b""
            if not content or len(content) % _BYTES:
                raise damaged(ids)
            hashes = frozenset(content[i : i + _BYTES].hex() for i in range(0, len(content), _BYTES))
            yield UsedSet(hashes, *read_json(path, _record))

    def _set(self, ids: Sequence[str], indices: NDArray[np.intp]) -> str:
        """Returns the digest of a set of samples, after its hashes are on disk."""
        chosen = indices.tobytes()
        if self._last is not None and self._last[0] is ids and self._last[1] == chosen:
            return self._last[2]
        content = _content({self._state.salted(ids[i]) for i in indices.tolist()})
        digest = hashlib.sha256(content).hexdigest()[:32]
        path = self._folder / f"{digest}.ids"
        if not path.exists():
            self._state.write(path, content)
        self._last = (ids, chosen, digest)
        return digest


def digest_of(hashes: Iterable[str]) -> str:
    """Returns the digest of a set of samples: SHA-256 over the sorted salted hashes. Receipts state it."""
    return hashlib.sha256(_content(hashes)).hexdigest()


def _content(hashes: Iterable[str]) -> bytes:
    return b"".join(sorted(map(bytes.fromhex, hashes)))


def _span(a: Rounds, b: Rounds) -> Rounds:
    if a is None or b is None:
        return a or b
    return min(a[0], b[0]), max(a[1], b[1])


def _record(content: dict[str, Any]) -> tuple[Used, frozenset[int] | None]:
    known = content.get("memberships")
    used = Used(_rounds(content["trained"]), _rounds(content["unlearned"]))
    return used, None if known is None else frozenset(map(int, known))


def _rounds(content: list[int] | None) -> Rounds:
    if content is None:
        return None
    first, last = map(int, content)
    return first, last
