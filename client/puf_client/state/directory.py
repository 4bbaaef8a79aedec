"""What a client remembers between runs: which samples it must never train on again, and that it was forgotten.

A directory per federation and name, shared by the worker and by commands such as `puf-client unlearn` running beside
it. There is no lock: every request has a file of its own, written by rename, so that readers see all of it or nothing.
Ids are kept as salted hashes; a file left behind does not tell whose samples were forgotten.

    salt                        32 random bytes, made once
    requests/<request key>.json {"request_key", "hashes", "ticket_id", "withdrawn", "withdrawing"}
    used/                       which samples were trained on, and when (see ledger)
    last-models/                this client's own model after its last rounds, where the federation's method needs it (see
                                lastmodels); gone when the client is forgotten
    receipts/<ticket>.json      what was signed: shown again to a server that does not know of it any more
    forgotten.json              {"membership", "ticket_id", "at"}
    shard.json                  {"shard", "shards"}: the part of the data that the server leased to this client
    server-key.json             {"key", "at"}: the public key that signs receipts, as it was when this client first joined
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_client.state.local_models import LastModels
from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.files.durable import DISK, Writes, make_directories
from puf_common.files.private import create_once, write_over
from puf_common.names import check_name
from puf_common.receipts.signing import fingerprint

__all__ = ["Exclusion", "StateDir", "default_root"]

_SALT_BYTES = 32


@dataclass(frozen=True)
class Exclusion:
    """The samples of one request. Without a ticket it was prepared, but nobody knows yet whether it was filed."""

    request_key: str
    hashes: frozenset[str]
    ticket_id: str = ""
    withdrawn: bool = False
    # Its owner has asked to take it back; only then does the server's word that it is withdrawn put samples back.
    withdrawing: bool = False

    @property
    def effective(self) -> bool:
        return bool(self.ticket_id) and not self.withdrawn


def default_root() -> Path:
    """The user's directory for state, by the rules of the platform."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "puf"
    # The variable counts only where it is absolute, says its specification.
    configured = os.environ.get("XDG_STATE_HOME", "")
    return (Path(configured) if os.path.isabs(configured) else Path.home() / ".local" / "state") / "puf"


class StateDir:
    """One client's directory. Everything in it is written atomically and readable by its owner alone."""

    def __init__(self, path: Path, files: Writes = DISK) -> None:
        self.path = path
        self._files = files
        self._hashed: tuple[Sequence[str], list[str]] | None = None

    @classmethod
    def of(cls, federation_id: str, name: str, root: Path | None = None) -> StateDir:
        """The directory of a client in a federation, under `root` or the platform's own place."""
        return cls((root or default_root()) / _safe(federation_id) / check_name(name))

    @classmethod
    def all_of(cls, name: str, root: Path | None = None) -> list[tuple[str, StateDir]]:
        """The client's directories in every federation, each with the federation's name here."""
        found = sorted((root or default_root()).glob(f"*/{check_name(name)}"))
        return [(path.parent.name, cls(path)) for path in found if path.is_dir()]

    def exclusions(self) -> list[Exclusion]:
        """Every request, withdrawn ones too, by key."""
        return [self._read(path) for path in sorted(self._requests.glob("*.json"))]

    def exclusion(self, request_key: str) -> Exclusion | None:
        path = self._file(request_key)
        return self._read(path) if path.exists() else None

    def by_ticket(self, ticket_id: str) -> Exclusion | None:
        return next((e for e in self.exclusions() if e.ticket_id == ticket_id), None) if ticket_id else None

    def prepare(self, request_key: str, ids: Iterable[str]) -> Exclusion:
        """Writes a request down before it is filed. It counts from the moment its ticket is known."""
        known = self.exclusion(request_key)
        return known or self._write(Exclusion(request_key, frozenset(self.salted(i) for i in ids)))

    def filed(self, request_key: str, ticket_id: str) -> Exclusion:
        """Notes the ticket of a request: from here on its samples are out of training."""
        return self._write(replace(self._known(request_key), ticket_id=ticket_id))

    def withdrawing(self, request_key: str, wanted: bool) -> None:
        """Notes that the owner is about to take a request back, or that the server refused it."""
        self._write(replace(self._known(request_key), withdrawing=wanted))

    def withdraw(self, request_key: str) -> Exclusion:
        """Puts the samples of a request back into training, also where the same ones were asked for before."""
        taken = self._known(request_key)
        for known in self.exclusions():
            if known.hashes == taken.hashes and known.request_key != request_key:
                self._write(replace(known, withdrawn=True))
        return self._write(replace(taken, withdrawn=True, withdrawing=True))

    def discard(self, request_key: str) -> None:
        """Drops a request that was prepared and then refused."""
        self._file(request_key).unlink(missing_ok=True)

    def settle(self, tickets: Iterable[tuple[str, str, bool]]) -> None:
        """Brings the directory in line with the server: (request key, ticket id, withdrawn) of the client's tickets.

        Closes the gap of a command that was killed between the server's answer and its own note of it. A request that
        the server alone withdrew, because another one took it over, keeps its samples out: nobody asked for them back.
        """
        for request_key, ticket_id, withdrawn in tickets:
            known = self.exclusion(request_key)
            if known is None:
                continue
            back = withdrawn and (known.withdrawing or known.withdrawn)
            if (known.ticket_id, known.withdrawn) != (ticket_id, back):
                self._write(replace(known, ticket_id=ticket_id, withdrawn=back))

    def unsettled(self) -> bool:
        """Whether a request stands here of which nobody knows if it was filed, or if it was taken back."""
        return any(not e.ticket_id or (e.withdrawing and not e.withdrawn) for e in self.exclusions())

    def excluded(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """For every sample whether it must stay out of training."""
        gone: frozenset[str] = frozenset().union(*(e.hashes for e in self.exclusions() if e.effective))
        return self._members(ids, gone)

    def forget_indices(self, ids: Sequence[str], request_key: str) -> NDArray[np.intp]:
        """Positions of the samples that a request names."""
        return np.flatnonzero(self._members(ids, self._known(request_key).hashes))

    @property
    def forgotten(self) -> dict[str, Any] | None:
        """What is known about having been forgotten; None for a client that was not."""
        path = self.path / "forgotten.json"
        return _load(path) if path.exists() else None

    def mark_forgotten(self, *, membership: int, ticket_id: str = "") -> None:
        LastModels(self).forget()
        if self.forgotten is None:
            content = {"membership": membership, "ticket_id": ticket_id, "at": time.time()}
            self.write(self.path / "forgotten.json", json.dumps(content).encode())

    def clear_forgotten(self) -> None:
        """For a client that was readmitted and joined anew. Samples that were forgotten stay out all the same."""
        (self.path / "forgotten.json").unlink(missing_ok=True)

    @property
    def server_key(self) -> bytes:
        """The pinned key; empty where none is."""
        path = self.path / "server-key.json"
        if not path.exists():
            return b""
        try:
            return bytes.fromhex(_load(path)["key"])
        except (KeyError, TypeError, ValueError):
            raise StorageCorrupted(f"{path} is damaged; restore it from a backup", file=path) from None

    def check_server_key(self, key: bytes) -> None:
        """Refuses a server with another key than the pinned one, or with none any more."""
        pinned = self.server_key
        if pinned and key != pinned:
            raise Mismatch(
                f"the server's key is {fingerprint(key) or 'missing'}, pinned is {fingerprint(pinned)}: this is not the "
                "server this client joined. If its operator confirms the new key by another way, delete "
                f"{self.path / 'server-key.json'}",
                theirs=fingerprint(key),
                ours=fingerprint(pinned),
            )

    def pin_server_key(self, key: bytes) -> None:
        """Remembers the key of the first server; refuses every other from then on."""
        self.check_server_key(key)
        if key and not self.server_key:
            content = {"key": key.hex(), "at": time.time()}
            self.write(self.path / "server-key.json", json.dumps(content).encode())

    @property
    def shard(self) -> tuple[int, int] | None:
        """The lease that this client has worked on: shard and number of shards."""
        path = self.path / "shard.json"
        if not path.exists():
            return None
        try:
            content = _load(path)
            return int(content["shard"]), int(content["shards"])
        except (KeyError, TypeError, ValueError):
            raise StorageCorrupted(f"{path} is damaged; restore it from a backup", file=path) from None

    def remember_shard(self, shard: int, shards: int) -> None:
        if self.shard != (shard, shards):
            self.write(self.path / "shard.json", json.dumps({"shard": shard, "shards": shards}).encode())

    def request_key(self, ids: Iterable[str]) -> str:
        """A key that names these samples without telling them: asking twice for the same ones is one request."""
        text = "\n".join(sorted(self.salted(i) for i in ids))
        return f"samples-{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def keep_receipt(self, ticket_id: str, file: bytes) -> None:
        """A receipt stays here, too: whoever restores an old backup is shown it without anybody's help."""
        self.write(self.path / "receipts" / f"{_safe(ticket_id)}.json", file)

    def receipts(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((self.path / "receipts").glob("*.json"))]

    def salted(self, sample_id: str) -> str:
        """A sample's id as it is kept here."""
        return hashlib.sha256(self._salt + sample_id.encode("utf-8", "surrogatepass")).hexdigest()

    def write(self, path: Path, content: bytes) -> None:
        """Replaces a file in this directory, durably; readers see the old one or the new one."""
        try:
            make_directories(path.parent, self._files)
        except OSError as error:
            raise UsageError(f"cannot write to {path.parent}: {error.strerror}; choose another --state") from None
        write_over(path, content, files=self._files)

    @property
    def _requests(self) -> Path:
        return self.path / "requests"

    def _file(self, request_key: str) -> Path:
        return self._requests / f"{_safe(request_key)}.json"

    def _known(self, request_key: str) -> Exclusion:
        known = self.exclusion(request_key)
        if known is None:
            raise UsageError(
                f"{self.path} knows nothing of the request {request_key}: it was filed from another machine or with "
                "another --state; only there is it known which samples are meant",
                request_key=request_key,
            )
        return known

    def _read(self, path: Path) -> Exclusion:
        content = _load(path)
        try:
            return Exclusion(
                content["request_key"],
                frozenset(content["hashes"]),
                content["ticket_id"],
                content["withdrawn"],
                # Before there was this key, a withdrawn request was one that its owner took back.
                content.get("withdrawing", content["withdrawn"]),
            )
        except (KeyError, TypeError):
            raise StorageCorrupted(f"{path} is damaged; restore it from a backup", file=path) from None

    def _write(self, exclusion: Exclusion) -> Exclusion:
        content = {**asdict(exclusion), "hashes": sorted(exclusion.hashes)}
        self.write(self._file(exclusion.request_key), json.dumps(content).encode())
        return exclusion

    def _members(self, ids: Sequence[str], hashes: frozenset[str]) -> NDArray[np.bool_]:
        if not hashes:
            return np.zeros(len(ids), dtype=np.bool_)
        # A worker asks before every piece of work, always for the same ids.
        if self._hashed is None or self._hashed[0] is not ids:
            self._hashed = (ids, [self.salted(i) for i in ids])
        return np.fromiter((h in hashes for h in self._hashed[1]), dtype=np.bool_, count=len(ids))

    @cached_property
    def _salt(self) -> bytes:
        """Made by whoever comes first; two processes at once agree on one. Made anew it would match nothing."""
        path = self.path / "salt"
        if not path.exists():
            known = next((p for folder in ("requests", "used") for p in (self.path / folder).glob("*")), None)
            if known is not None:
                raise StorageCorrupted(
                    f"{path} is missing: without it forgotten samples cannot be told apart and would be trained on "
                    f"again. Bring it back from a backup; if it is lost for good, delete {self.path} and name the "
                    "samples anew with `puf-client data exclude`",
                    file=path,
                )
            try:
                make_directories(path.parent, self._files)
            except OSError as error:
                raise UsageError(f"cannot write to {path.parent}: {error.strerror}; choose another --state") from None
            if not path.exists():
                with suppress(FileExistsError):
                    create_once(path, secrets.token_bytes(_SALT_BYTES), self._files)
        salt = path.read_bytes()
        if len(salt) != _SALT_BYTES:
            raise StorageCorrupted(f"{path} is damaged; without it forgotten samples cannot be told apart", file=path)
        return salt


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise StorageCorrupted(f"{path} is damaged; restore it from a backup", file=path)
    return content


def _safe(name: str) -> str:
    """A file name for a word from elsewhere: it must not lead out of the directory."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name).lstrip(".")
    if plain == name and 0 < len(name) <= 100:
        return name
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
