"""A client's state directory: which samples it must not train on, and whether it was forgotten.

There is one directory per federation and client name. The worker and commands such as `puf-client unlearn` use it at the
same time, without a lock: every request has its own file, written by rename, so that readers see a whole file or none.
Ids are stored as salted hashes, so that a remaining file does not disclose whose samples were forgotten.

    salt                        32 random bytes, written once
    requests/<request key>.json {"request_key", "hashes", "ticket_id", "withdrawn", "withdrawing"}
    used/                       which samples were trained on, and in which rounds (see `usage`)
    last-models/                this client's local models of its last rounds, if the federation's method needs them (see
                                `local_models`); deleted when the client is forgotten
    rounding-errors/            what rounding changed in the last updates, if they are sent as 8-bit numbers (see
                                `rounding_errors`); deleted when the client files a request or is forgotten
    receipts/<ticket>.json      signed receipts, presented to a server that no longer knows the request
    forgotten.json              {"membership", "ticket_id", "at"}
    shard.json                  {"shard", "shards"}: the shard that the server leased to this client
    server-key.json             {"key", "at"}: the public key that signs receipts, as of this client's first join
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from puf_client.state.local_models import LocalModels
from puf_client.state.rounding_errors import RoundingErrors
from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.files.durable import DISK, Writes, make_directories
from puf_common.files.private import create_once, write_over
from puf_common.names import check_name
from puf_common.receipts.signing_key import fingerprint

T = TypeVar("T")

_SALT_BYTES = 32


@dataclass(frozen=True)
class Exclusion:
    """The samples of one request. Without a ticket, the request was prepared, and may or may not have been filed."""

    request_key: str
    hashes: frozenset[str]
    ticket_id: str = ""
    withdrawn: bool = False
    # The client asked to withdraw it. Only then does a withdrawn ticket return the samples to training.
    withdrawing: bool = False

    @property
    def effective(self) -> bool:
        return bool(self.ticket_id) and not self.withdrawn

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Exclusion:
        return cls(
            content["request_key"],
            frozenset(content["hashes"]),
            content["ticket_id"],
            content["withdrawn"],
            # Old files lack this key. In them, only the client itself withdrew requests.
            content.get("withdrawing", content["withdrawn"]),
        )


def default_root() -> Path:
    """Returns the user's state directory, by the rules of the platform."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "puf"
    # The XDG specification ignores relative paths.
    configured = os.environ.get("XDG_STATE_HOME", "")
    return (Path(configured) if os.path.isabs(configured) else Path.home() / ".local" / "state") / "puf"


class StateDirectory:
    """The directory of one client in one federation. All files are written atomically and readable only by the user."""

    def __init__(self, path: Path, files: Writes = DISK) -> None:
        self.path = path
        self._requests = path / "requests"
        self._files = files
        self._hashed: tuple[Sequence[str], list[str]] | None = None

    @classmethod
    def of(cls, federation_id: str, name: str, root: Path | None = None, files: Writes = DISK) -> StateDirectory:
        """Returns the directory of a client in a federation, under `root` or the platform's default."""
        return cls((root or default_root()) / _safe(federation_id) / check_name(name), files)

    @classmethod
    def all_of(cls, name: str, root: Path | None = None) -> list[tuple[str, StateDirectory]]:
        """Returns the client's directories in all federations, each with its federation's directory name."""
        found = sorted((root or default_root()).glob(f"*/{check_name(name)}"))
        return [(path.parent.name, cls(path)) for path in found if path.is_dir()]

    def exclusions(self) -> list[Exclusion]:
        """Returns all requests by key, also withdrawn ones."""
        # A worker calls this several times for each assignment, mostly without any request.
        try:
            names = os.listdir(self._requests)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [read_json(self._requests / n, Exclusion.parse) for n in sorted(names) if n.endswith(".json")]

    def exclusion(self, request_key: str) -> Exclusion | None:
        return find_json(self._file(request_key), Exclusion.parse)

    def prepare(self, request_key: str, ids: Iterable[str]) -> Exclusion:
        """Stores a request before it is filed. It takes effect when its ticket is known.

        A server that was restored from a backup may not know a withdrawn request with this key: it is then a new one.
        """
        known = self.exclusion(request_key)
        if known is not None and not known.withdrawn:
            return known
        return self._write(Exclusion(request_key, frozenset(self.salted(i) for i in ids)))

    def filed(self, request_key: str, ticket_id: str) -> Exclusion:
        """Stores the ticket of a request. From now on its samples are excluded from training."""
        RoundingErrors(self).delete()
        return self._write(replace(self._known(request_key), ticket_id=ticket_id))

    def withdrawing(self, request_key: str, wanted: bool) -> None:
        """Stores whether the client is withdrawing a request; False if the server refused."""
        self._write(replace(self._known(request_key), withdrawing=wanted))

    def withdraw(self, request_key: str) -> Exclusion:
        """Returns the samples of a request to training, also if earlier requests named the same samples."""
        taken = self._known(request_key)
        for known in self.exclusions():
            if known.hashes == taken.hashes and known.request_key != request_key:
                self._write(replace(known, withdrawn=True))
        return self._write(replace(taken, withdrawn=True, withdrawing=True))

    def settle(self, tickets: Iterable[tuple[str, str, bool]]) -> None:
        """Updates the directory from the client's tickets at the server: (request key, ticket id, withdrawn).

        This completes a command that was killed between the server's answer and its own write. If the server withdrew a
        request because another one took it over, its samples stay excluded: the client did not ask for them back.
        """
        for request_key, ticket_id, withdrawn in tickets:
            known = self.exclusion(request_key)
            if known is None:
                continue
            back = withdrawn and (known.withdrawing or known.withdrawn)
            if (known.ticket_id, known.withdrawn) != (ticket_id, back):
                self._write(replace(known, ticket_id=ticket_id, withdrawn=back))

    def unsettled(self) -> bool:
        """Whether there is a request of which it is unknown if it was filed, or if it was withdrawn."""
        return any(not e.ticket_id or (e.withdrawing and not e.withdrawn) for e in self.exclusions())

    def excluded(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Returns for every sample whether it is excluded from training."""
        gone: frozenset[str] = frozenset().union(*(e.hashes for e in self.exclusions() if e.effective))
        return self._members(ids, gone)

    def forget_indices(self, ids: Sequence[str], request_key: str) -> NDArray[np.intp]:
        """Returns the positions of the samples that a request names."""
        return np.flatnonzero(self._members(ids, self._known(request_key).hashes))

    @property
    def forgotten(self) -> dict[str, Any] | None:
        """When and by which ticket this client was forgotten; None if it was not."""
        return self._json("forgotten.json", dict)

    def mark_forgotten(self, *, membership: int, ticket_id: str = "") -> None:
        LocalModels(self).delete()
        RoundingErrors(self).delete()
        if self.forgotten is None:
            self._write_json("forgotten.json", membership=membership, ticket_id=ticket_id, at=time.time())

    def clear_forgotten(self) -> None:
        """Deletes the mark, for a readmitted client that joined again. Forgotten samples stay excluded."""
        self.delete(self.path / "forgotten.json")

    @property
    def server_key(self) -> bytes:
        """The pinned key; empty if there is none."""
        return self._json("server-key.json", lambda content: bytes.fromhex(content["key"])) or b""

    def check_server_key(self, key: bytes) -> None:
        """Raises for a server whose key is missing or differs from the pinned key."""
        pinned = self.server_key
        if pinned and key != pinned:
            raise Mismatch(
                f"the server's key is {fingerprint(key) or 'missing'}, the pinned key is {fingerprint(pinned)}: this is not "
                "the server that this client joined. If the operator confirms the new key on another channel, delete "
                f"{self.path / 'server-key.json'}",
                theirs=fingerprint(key),
                ours=fingerprint(pinned),
            )

    def pin_server_key(self, key: bytes) -> None:
        """Stores the key of the first server. Raises for any other key."""
        self.check_server_key(key)
        if key and not self.server_key:
            self._write_json("server-key.json", key=key.hex(), at=time.time())

    @property
    def shard(self) -> tuple[int, int] | None:
        """The leased shard that this client has worked on, and the number of shards."""
        return self._json("shard.json", lambda content: (int(content["shard"]), int(content["shards"])))

    def write_shard(self, shard: int, shards: int) -> None:
        if self.shard != (shard, shards):
            self._write_json("shard.json", shard=shard, shards=shards)

    def request_key(self, ids: Iterable[str]) -> str:
        """Returns a key for these samples that does not disclose them. Equal samples give an equal key."""
        text = "\n".join(sorted(self.salted(i) for i in ids))
        return f"samples-{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def write_receipt(self, ticket_id: str, file: bytes) -> None:
        """Stores a receipt, to present it to a server that was restored from an older backup."""
        self.write(self.path / "receipts" / f"{_safe(ticket_id)}.json", file)

    def receipts(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted((self.path / "receipts").glob("*.json"))]

    def salted(self, sample_id: str) -> str:
        """Returns the stored form of a sample's id."""
        return hashlib.sha256(self._salt + sample_id.encode("utf-8", "surrogatepass")).hexdigest()

    def write(self, path: Path, content: bytes) -> None:
        """Replaces a file durably and atomically."""
        self._make_directory(path.parent)
        write_over(path, content, files=self._files)

    def delete(self, path: Path) -> None:
        """Deletes a file durably. Does nothing if there is none."""
        with suppress(FileNotFoundError):
            self._files.unlink(path)
            self._files.fsync_dir(path.parent)

    def _make_directory(self, path: Path) -> None:
        try:
            make_directories(path, self._files)
        except OSError as error:
            raise UsageError(f"cannot write to {path}: {error.strerror}; choose another --state") from None

    def _json(self, name: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
        return find_json(self.path / name, parse)

    def _write_json(self, name: str, **content: object) -> None:
        self.write(self.path / name, json.dumps(content).encode())

    def _file(self, request_key: str) -> Path:
        return self._requests / f"{_safe(request_key)}.json"

    def _known(self, request_key: str) -> Exclusion:
        known = self.exclusion(request_key)
        if known is None:
            raise UsageError(
                f"{self.path} does not know the request {request_key}: it was filed from another machine or with "
                "another --state; only that state directory knows its samples",
                request_key=request_key,
            )
        return known

    def _write(self, exclusion: Exclusion) -> Exclusion:
        content = {**asdict(exclusion), "hashes": sorted(exclusion.hashes)}
        self.write(self._file(exclusion.request_key), json.dumps(content).encode())
        return exclusion

    def _members(self, ids: Sequence[str], hashes: frozenset[str]) -> NDArray[np.bool_]:
        if not hashes:
            return np.zeros(len(ids), dtype=np.bool_)
        # A worker calls this before every assignment, always with the same ids.
        if self._hashed is None or self._hashed[0] is not ids:
            self._hashed = (ids, [self.salted(i) for i in ids])
        return np.fromiter((h in hashes for h in self._hashed[1]), dtype=np.bool_, count=len(ids))

    @cached_property
    def _salt(self) -> bytes:
        """The salt of this directory. Concurrent processes create only one. A new salt would match no stored hash."""
        path = self.path / "salt"
        salt = _content(path)
        if salt is None:
            known = next((p for folder in ("requests", "used") for p in (self.path / folder).glob("*")), None)
            if known is not None:
                raise StorageCorrupted(
                    f"{path} is missing: without it forgotten samples cannot be recognised and would be trained on "
                    f"again. Restore it from a backup; if there is none, delete {self.path} and name the samples again "
                    "with `puf-client data exclude`",
                    file=path,
                )
            self._make_directory(path.parent)
            with suppress(FileExistsError):
                create_once(path, secrets.token_bytes(_SALT_BYTES), self._files)
            salt = path.read_bytes()
        if len(salt) != _SALT_BYTES:
            raise StorageCorrupted(f"{path} is damaged; without it forgotten samples cannot be recognised", file=path)
        return salt


def damaged(path: Path) -> StorageCorrupted:
    """Returns the error for a file of the state directory that cannot be read."""
    return StorageCorrupted(f"{path} is missing or damaged; restore it from a backup", file=path)


def _content(path: Path) -> bytes | None:
    """Returns the content of a file; None if there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json(path: Path, parse: Callable[[dict[str, Any]], T]) -> T:
    """Returns the parsed content of a JSON file. Raises `StorageCorrupted` if it is not what `parse` expects."""
    found = find_json(path, parse)
    if found is None:
        raise damaged(path)
    return found


def find_json(path: Path, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """Returns what `read_json` returns; None if there is no file."""
    written = _content(path)
    if written is None:
        return None
    try:
        content = json.loads(written)
        if isinstance(content, dict):
            return parse(content)
    except (KeyError, TypeError, ValueError):
        pass
    raise damaged(path)


def _safe(name: str) -> str:
    """Returns a safe file name for text from the network: it cannot lead out of the directory."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name).lstrip(".")
    if plain == name and 0 < len(name) <= 100:
        return name
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
