"""What survives a crash of the server. Records become text with the real store's adapters; models are exact books."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from puf_common.errors import StorageCorrupted, Unavailable
from puf_common.receipts.signing_key import SigningKey
from puf_common.tensors.digests import digest
from puf_server.core.config import FederationConfig
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import Round
from puf_server.core.state.state import AuditNote, State
from puf_server.storage import rows
from puf_server.storage.layout import history_name, spool_name
from puf_server.storage.state_rows import MANY, difference, state_of
from tests.sim.weights import MANIFEST, Update, Weights, model_payload

__all__ = ["Crash", "SimSpool", "SimStore"]

_KEY = SigningKey.generate()


class Crash(BaseException):
    """The server process ends at this point."""


class SimSpool:
    """Updates as bytes: files with a name, and parts of uploads that are still arriving."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.parts: dict[int, bytes] = {}
        self._numbers = count()

    def new(self) -> SimPart:
        return SimPart(self, next(self._numbers))

    def publish(self, file: SimPart, name: str) -> None:
        self.files[name] = file.taken()

    def exists(self, name: str) -> bool:
        return name in self.files


class SimPart:
    def __init__(self, spool: SimSpool, number: int) -> None:
        self._parts = spool.parts
        self._number = number
        self._parts[number] = b""

    def write(self, data: bytes) -> None:
        self._parts[self._number] += bytes(data)

    def taken(self) -> bytes:
        return self._parts.pop(self._number)

    def discard(self) -> None:
        self._parts.pop(self._number, None)


class SimStore:
    """A store in memory with the interface that the engine needs."""

    manifest = MANIFEST
    key = _KEY

    def __init__(
        self,
        config: FederationConfig,
        strikes: Callable[[str], bool],
        watch: Callable[[State | None, State], None],
    ) -> None:
        self.config = config
        self.models: dict[str, Weights] = {}
        self.spool = SimSpool()
        self.history: dict[str, bytes] = {}
        # What each received update is, by client and digest. The checker keeps this, not the server.
        self.books: dict[tuple[str, str], Update] = {}
        # Model files with a flipped bit.
        self.damaged: set[str] = set()
        self.audit: list[tuple[float, str, dict[str, Any]]] = []
        self._meta: dict[str, str] = {}
        self._tables: dict[str, dict[Any, str]] = {table: {} for table in MANY}
        # Rows with a flipped bit, by table and key, with their true text. A row that is written again is sound.
        self._flipped: dict[tuple[str, Any], str] = {}
        self.time: float | None = None
        # Members as they were before a change: they stay in the database's log until it is emptied.
        self.log: list[str] = []
        self.long_reader = False
        self._served: dict[bytes, str] = {}
        self._strikes = strikes
        self._watch = watch

    def _checked(self, table: str) -> list[tuple[object, object, object]]:
        """The rows of a table with their checksums, as the real database returns them."""
        return [
            (key, body, rows.checksum(table, key, self._flipped.get((table, key), body)))
            for key, body in self._rows(table).items()
        ]

    def _rows(self, table: str) -> dict[Any, str]:
        return self._meta if table == "meta" else self._tables[table]

    def load(self) -> State:
        """The stored state. Raises StorageCorrupted as the real store does."""
        for table in ("meta", *self._tables):
            rows.verify(table, self._checked(table), "state.db")
        return state_of(
            self._meta, {table: sorted(rows.items()) for table, rows in self._tables.items()}, "the simulation"
        )

    def newer(self, known: State) -> State | None:
        """None: one server serves."""
        return None

    def mark_completed(self) -> None:
        """Does nothing."""

    def never_wait(self) -> None:
        """Does nothing."""

    def last_time(self) -> float | None:
        return self.time

    def record_time(self, now: float) -> bool:
        self.time = now
        return True

    def log_bytes(self) -> int:
        return 0

    def flip_a_row(self, choose: Callable[[list[tuple[str, Any]]], tuple[str, Any]]) -> str:
        """Changes one letter of a record in the database. Returns the name of the record."""
        table, key = choose([(table, key) for table in ("meta", *self._tables) for key in self._rows(table)])
        found = self._rows(table)
        text = self._flipped.setdefault((table, key), found[key])
        digits = [i for i, letter in enumerate(text) if letter.isdigit()]
        at = digits[len(digits) // 2] if digits else len(text) // 2
        # Another digit, where there is one: the record stays readable.
        found[key] = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        return f"{table}/{key}"

    def flip_a_bit(self, choose: Callable[[list[str]], str]) -> str:
        """Changes an update in the spool or a model. Returns the name of the file."""
        name = choose(sorted([*self.spool.files, *self.models]))
        if name in self.models:
            self.damaged.add(name)
        else:
            content = bytearray(self.spool.files[name])
            content[len(content) // 2] ^= 1
            self.spool.files[name] = bytes(content)
        return name

    def mend(self) -> None:
        """The operator copies damaged model files and records from a backup."""
        self.damaged.clear()
        for (table, key), text in self._flipped.items():
            self._rows(table)[key] = text
        self._flipped.clear()

    def disk_space(self) -> None:
        """A full disk is an event of the simulator. The space is not known."""

    def save(self, before: State | None, after: State, now: float | None = None) -> bool:
        """One transaction. It writes the same difference as the real store, completely or not at all."""
        changed = difference(before, after)
        if changed is None and not after.notes:
            return False
        if self._strikes("disk_full"):
            raise Unavailable("the state cannot be written: disk full")
        if self._strikes("crash_before_save"):
            raise Crash("before a transaction")
        if changed is not None:
            for name, written in changed.put.items():
                for key, body in written:
                    table = self._rows(name)
                    self.log += [table[key]] if name == "members" and key in table else []
                    self._put(name, key, body)
            for name, keys in changed.deleted.items():
                for key in keys:
                    del self._tables[name][key]
                    self._flipped.pop((name, key), None)
        self.time = self.time if now is None else now
        self._append(after.notes)
        self._watch(before, after)
        if self._strikes("crash_after_save"):
            raise Crash("after a transaction, before its reply")
        return True

    def _put(self, table: str, key: Any, text: str) -> None:
        self._rows(table)[key] = text
        self._flipped.pop((table, key), None)

    def _append(self, notes: tuple[AuditNote, ...]) -> None:
        for note in notes:
            self.audit.append((note.at, note.event, json.loads(json.dumps(dict(note.facts)))))

    def require_files(self, state: State) -> None:
        for model in state.models.values():
            name = model_name(model)
            if model.status is not ModelStatus.DELETED and (
                self.models[name].digest != model.digest or name in self.damaged
            ):
                raise StorageCorrupted(f"model {model.version} is damaged")
        lost = [r.key for r in state.history.values() if r.digest and history_name(r) not in self.history]
        if lost:
            raise StorageCorrupted(f"what was kept as {lost} is gone")

    def damaged_updates(self, current: Round | None) -> dict[str, str]:
        """Recorded updates whose files are missing or different."""
        received = current.received if current is not None else {}
        return {
            key: "missing or damaged"
            for key, update in received.items()
            if current is not None
            and digest(self.spool.files.get(spool_name(current, key), b""), update.digest_kind).hex() != update.digest
        }

    def audit_fault(self) -> str:
        return ""

    def delete_update(self, current: Round, key: str) -> None:
        self.spool.files.pop(spool_name(current, key), None)

    def delete_orphans(self, newest: Callable[[], State], *, everything: bool = False) -> None:
        """Deletes what the real store would delete."""
        state = newest()
        coming = f"v{state.newest + 1:06d}-"
        models = {model_name(m) for m in state.models.values() if m.status is not ModelStatus.DELETED}
        self.models = {
            name: w for name, w in self.models.items() if name in models or (not everything and name.startswith(coming))
        }
        wanted: set[str] = set()
        on_its_way: tuple[str, ...] = ()
        if state.round is not None:
            wanted = {spool_name(state.round, key) for key in state.round.received}
            on_its_way = tuple(spool_name(state.round, assignment.key, "") for assignment in state.round.missing)
        self.spool.files = {
            name: u
            for name, u in self.spool.files.items()
            if name in wanted or (not everything and name.startswith(on_its_way))
        }
        if everything:
            self.spool.parts.clear()

        kept = {history_name(r) for r in state.history.values() if r.digest}
        writing = f"{state.round.number:08d}." if state.round is not None else "nothing"
        self.history = {
            name: u for name, u in self.history.items() if name in kept or (not everything and name.startswith(writing))
        }

    def weights(self, model: ModelVersion) -> Weights:
        return self.models[model_name(model)]

    def payload(self, model: ModelVersion) -> bytes | None:
        """The bytes of a model; None if they do not match their digest."""
        name = model_name(model)
        return None if name in self.damaged else model_payload(self.models[name].digest)

    def model_of(self, payload: bytes) -> str:
        """The digest of the model with these bytes, also of a deleted one."""
        return self._served[payload]

    def note_model(self, weights: Weights) -> None:
        self._served[model_payload(weights.digest)] = weights.digest

    def purge_free_pages(self) -> bool:
        if not self.long_reader:
            self.log = []
        return not self.long_reader

    def snapshot(self) -> tuple[Any, ...]:
        """A backup: records, models and stored history, without updates of the open round."""
        tables = {name: dict(rows) for name, rows in self._tables.items()}
        return dict(self._meta), tables, dict(self.models), dict(self.history), list(self.audit), self.time

    def put_back(self, snapshot: tuple[Any, ...]) -> None:
        meta, tables, models, history, audit, self.time = snapshot
        self._meta, self.models, self.audit = dict(meta), dict(models), list(audit)
        self.history = dict(history)
        self._tables = {name: dict(rows) for name, rows in tables.items()}
        self.spool = SimSpool()
        self._flipped.clear()

    def close(self) -> None:
        """Does nothing."""


def model_name(model: ModelVersion) -> str:
    return file_name(model.version, model.digest)


def file_name(version: int, digest: str) -> str:
    return f"v{version:06d}-{digest[:16]}"
