"""Stores the history that the federation's method will need of an ordinary round, before the round commits.

Files are in the folder history, named by round, kind, client and digest. Files that no record names are deleted as orphans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from puf_common.errors import StorageCorrupted
from puf_common.tensors.manifest import UPDATE
from puf_server.aggregation.fold import read_block
from puf_server.aggregation.method_rules import lengths
from puf_server.aggregation.spreads import spreads
from puf_server.aggregation.verified import VerifiedSource
from puf_server.core.methods.fukd import accumulate
from puf_server.core.state.rounds import HistoryRecord, Round
from puf_server.core.state.state import State
from puf_server.storage.layout import HISTORY, history_name
from puf_server.storage.state_store import Store
from puf_server.storage.stored_files import StoredFile

_BLOCK = 1 << 16


def write_history(
    store: Store, state: State, current: Round, kinds: frozenset[str], *, server_lr: float
) -> tuple[HistoryRecord, ...]:
    """Writes the history of a closed round and returns its records, which take effect with the round's commit."""
    found: list[HistoryRecord] = []
    total = sum(update.samples for update in current.received.values())
    apart = spreads(store, current, server_lr) if "spreads" in kinds else {}
    for assignment in sorted(current.assignments, key=lambda s: s.key):
        if not kinds or assignment.key not in current.received:
            continue
        client, samples = assignment.client, current.received[assignment.key].samples
        about: dict[str, Any] = {"client": client, "membership": assignment.membership}
        about |= {"round": current.number, "samples": samples}
        if assignment.key in apart:
            key = f"spreads/{current.number:08d}/{client}"
            found.append(HistoryRecord(key=key, kind="spreads", norms=(apart[assignment.key],), **about))
        with store.spool.read(current, assignment.key) as source:
            if "norms" in kinds:
                norms = lengths(source, store.manifest.ranges(UPDATE))
                key = f"norms/{current.number:08d}/{client}"
                found.append(HistoryRecord(key=key, kind="norms", norms=norms, **about))
            if "first-updates" in kinds:
                key = f"first-updates/{client}/{assignment.membership}"
                found.append(_file(store, source.blocks(), key=key, kind="first-updates", **about))
            if "sums" in kinds:
                key = f"sums/{client}/{assignment.membership}"
                old = state.history.get(key)
                blocks = _added(store, old, source, server_lr * samples / total)
                since = old.since if old is not None else current.number
                found.append(_file(store, blocks, key=key, kind="sums", since=since, **about))
    return tuple(found)


def read_history(store: Store, record: HistoryRecord, stack: ExitStack) -> VerifiedSource:
    """Random access to a stored update or sum. `stack` closes the file."""
    name = f"{HISTORY}/{history_name(record)}"
    where = store.files.where(name)
    try:
        raw = stack.enter_context(store.files.read(name))
    except FileNotFoundError:
        raise StorageCorrupted(f"the stored history {record.key} is missing: {where}") from None
    return VerifiedSource(raw, where, record.digest, "sha256")


class HistoryFile:
    """A file of the history that is being written. It gets its name when its digest is known."""

    def __init__(self, store: Store, key: str) -> None:
        self._key = key
        self._sha, self._nbytes = hashlib.sha256(), 0
        self._file = store.files.new(f"{HISTORY}/{key.replace('/', '.')}")

    def write(self, block: memoryview) -> None:
        self._sha.update(block)
        self._file.write(block)
        self._nbytes += len(block)

    def publish(self, **about: Any) -> HistoryRecord:
        record = HistoryRecord(key=self._key, digest=self._sha.hexdigest(), nbytes=self._nbytes, **about)
        self._file.publish(f"{HISTORY}/{history_name(record)}")
        return record

    def discard(self) -> None:
        self._file.discard()


def _file(store: Store, blocks: Iterator[memoryview], *, key: str, **about: Any) -> HistoryRecord:
    """Writes the file of a record."""
    file = HistoryFile(store, key)
    try:
        for block in blocks:
            file.write(block)
        return file.publish(**about)
    except BaseException:
        file.discard()
        raise


def _added(store: Store, known: HistoryRecord | None, source: StoredFile, share: float) -> Iterator[memoryview]:
    """The blocks of A_k + share * u in the layout of an update. Buffers are not summed: their blocks are zero."""
    with ExitStack() as stack:
        old = None
        if known is not None:
            stored = read_history(store, known, stack)
            stored.verify()
            old = stored.raw
        for tensor in store.manifest.ranges(UPDATE):
            for start in range(0, tensor.spec.size, _BLOCK):
                block = np.zeros(min(_BLOCK, tensor.spec.size - start), tensor.dtype)
                if tensor.spec.role == "parameter":
                    fresh = read_block(source, tensor, start, block.size)
                    if old is not None:
                        read_block(old, tensor, start, block.size, block)
                    block = accumulate(block, fresh, share).astype(block.dtype)
                yield block.data.cast("B")
