"""Stores the history that the federation's method will need of an ordinary round, before the round commits.

Files are in DIR/history, named by round, kind, client and digest. Files that no record names are deleted as orphans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from puf_common.errors import StorageCorrupted
from puf_common.tensors.manifest import UPDATE
from puf_server.aggregation.method_rules import lengths
from puf_server.core.methods.fukd import accumulate
from puf_server.core.state.rounds import Assignment, HistoryRecord, Round
from puf_server.core.state.state import State
from puf_server.storage.durable import FileSource, NewFile, remove, sync_directory
from puf_server.storage.layout import history_name
from puf_server.storage.state_store import Store

_BLOCK = 1 << 16


def write_history(
    store: Store, state: State, current: Round, kinds: frozenset[str], *, server_lr: float
) -> tuple[HistoryRecord, ...]:
    """Writes the history of a closed round and returns its records, which take effect with the round's commit."""
    found: list[HistoryRecord] = []
    total = sum(update.samples for update in current.received.values())
    about: dict[str, Any]
    for assignment in sorted(current.assignments, key=lambda s: s.key):
        if not kinds or assignment.key not in current.received:
            continue
        samples = current.received[assignment.key].samples
        about = {
            "client": assignment.client,
            "membership": assignment.membership,
            "round": current.number,
            "samples": samples,
        }
        with store.spool.read(current, assignment.key) as source:
            if "norms" in kinds:
                key = f"norms/{current.number:08d}/{assignment.client}"
                found.append(HistoryRecord(key=key, kind="norms", norms=lengths(store.manifest, source), **about))
            if "first-updates" in kinds:
                found.append(_file(store, "first-updates", assignment, about, _whole(store, source)))
            if "sums" in kinds:
                share = server_lr * samples / total
                known = state.history.get(_sum_key(assignment))
                about["since"] = known.since if known is not None else current.number
                found.append(_file(store, "sums", assignment, about, _added(store, state, assignment, source, share)))
    return tuple(found)


def read_history(store: Store, record: HistoryRecord) -> FileSource:
    """Random access to a stored update or sum."""
    path = store.layout.history / history_name(record)
    try:
        return store.files.read(path)
    except FileNotFoundError:
        raise StorageCorrupted(f"the stored history {record.key} is missing: {path}") from None


def _new(store: Store, key: str) -> NewFile:
    """A file being written. It gets its name when its digest is known."""
    folder = store.layout.history
    if not folder.exists():
        store.files.mkdir(folder)
        sync_directory(store.directory, store.files)
    path = folder / f"{key.replace('/', '.')}.part"
    remove(path, store.files)
    return NewFile(path, store.files)


def _file(
    store: Store, kind: str, assignment: Assignment, about: dict[str, Any], blocks: Iterator[memoryview]
) -> HistoryRecord:
    key = f"{kind}/{assignment.client}/{assignment.membership}"
    sha, nbytes = hashlib.sha256(), 0
    file = _new(store, key)
    try:
        for block in blocks:
            sha.update(block)
            file.write(block)
            nbytes += len(block)
        record = HistoryRecord(key=key, kind=kind, digest=sha.hexdigest(), nbytes=nbytes, **about)
        file.publish(store.layout.history / history_name(record))
    except BaseException:
        file.discard()
        raise
    return record


def _whole(store: Store, source: FileSource) -> Iterator[memoryview]:
    total, step = store.manifest.nbytes(UPDATE), 1 << 20
    for offset in range(0, total, step):
        block = memoryview(bytearray(min(step, total - offset)))
        source.read_into(offset, block)
        yield block


def _added(
    store: Store, state: State, assignment: Assignment, source: FileSource, share: float
) -> Iterator[memoryview]:
    """The blocks of A_k + share * u in the layout of an update. Buffers are not summed: their blocks are zero."""
    known = state.history.get(_sum_key(assignment))
    with ExitStack() as stack:
        old = stack.enter_context(read_history(store, known)) if known is not None else None
        for place in store.manifest.ranges(UPDATE):
            for start in range(0, place.spec.size, _BLOCK):
                block = np.zeros(min(_BLOCK, place.spec.size - start), place.dtype)
                if place.spec.role == "parameter":
                    at, fresh = place.offset + start * place.dtype.itemsize, np.empty_like(block)
                    source.read_into(at, fresh.data.cast("B"))
                    if old is not None:
                        old.read_into(at, block.data.cast("B"))
                    block = accumulate(block, fresh, share).astype(block.dtype)
                yield block.data.cast("B")


def _sum_key(assignment: Assignment) -> str:
    return f"sums/{assignment.client}/{assignment.membership}"
