"""Folding compared with the best blocked float64 sum on this machine, and other costs of a round's bytes on one core."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puf_common.malloc import keep_freed_memory
from puf_common.tensors.digests import digest
from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_lab.bench.federation import PARAMETERS
from puf_lab.bench.report import Report, seconds, spread
from puf_server.aggregation.fold import Contribution, Source, fold
from puf_server.aggregation.verified import VerifiedSource
from puf_server.storage.durable import FileSource

# Elements of an update from a position on: a view of them, or a copy in the given buffer.
_Read = Callable[[int, NDArray[np.float32]], NDArray[np.float32]]

_UPDATES = 10
_BLOCKS = (1 << 15, 1 << 16, 1 << 17, 1 << 18)


def folding(report: Report, scratch: Path, repeats: int) -> None:
    keep_freed_memory()  # as in the server
    updates = [np.random.default_rng(i).standard_normal(PARAMETERS, np.float32) for i in range(_UPDATES)]
    for i, update in enumerate(updates):
        update.tofile(scratch / f"{i}.update")
    np.zeros(PARAMETERS, "<f4").tofile(scratch / "base")
    gigabytes = sum(u.nbytes for u in updates) / 1e9
    digests = [digest(u.data.cast("B"), "blake3").hex() for u in updates]
    ours: list[float] = []
    verified: list[float] = []
    with ExitStack() as stack:
        files = [stack.enter_context(FileSource(scratch / f"{i}.update")) for i in range(_UPDATES)]
        places: dict[str, list[_Read]] = {
            "memory": [lambda begin, out, u=u: u[begin : begin + out.size] for u in updates],  # type: ignore[misc]
            "files": [_from_file(f) for f in files],
        }
        ways = {
            (place, block, threads): _summing(reads, block, threads)
            for place, reads in places.items()
            for block in _BLOCKS
            for threads in (1, 2)
        }
        sums: dict[tuple[str, int, int], list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, work in ways.items():
                sums[way].append(gigabytes / seconds(work))
            ours.append(gigabytes / seconds(lambda: _fold(scratch)))
            verified.append(gigabytes / seconds(lambda: _fold(scratch, digests)))
    fold_rate = statistics.median(ours)
    report.details["verified_fold_gb_per_second"] = verified
    for place, name, goal in (("memory", "fold_to_best_sum", 0.8), ("files", "fold_to_best_sum_from_files", None)):
        best = max((way for way in sums if way[0] == place), key=lambda way: statistics.median(sums[way]))
        note = f"fold, from files, {spread(ours)} GB/s; best sum, from {place}, {spread(sums[best])} GB/s"
        report.at_least(name, fold_rate / statistics.median(sums[best]), goal, note=note)
        report.details[f"{name}_gb_per_second"] = {"fold": ours, "best": sums[best], "block_and_threads": best[1:]}
    _costs(report, updates[0].data.cast("B"), scratch, fold_rate)


def _from_file(source: FileSource) -> _Read:
    def read(begin: int, out: NDArray[np.float32]) -> NDArray[np.float32]:
        source.read_into(4 * begin, out.data.cast("B"))
        return out

    return read


def _summing(updates: list[_Read], block: int, threads: int) -> Callable[[], object]:
    total = np.zeros(PARAMETERS)

    def share(first: int, last: int) -> None:
        product, raw = np.empty(block), np.empty(block, np.float32)
        for begin in range(first, last, block):
            part = total[begin : min(begin + block, last)]
            space = product[: part.size]
            for update in updates:
                np.copyto(space, update(begin, raw[: part.size]))
                np.multiply(space, 0.1, out=space)
                np.add(part, space, out=part)

    cuts = [PARAMETERS * i // threads for i in range(threads + 1)]

    def work() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(share, cuts[:-1], cuts[1:]))

    return work


def _fold(scratch: Path, digests: Sequence[str] | None = None) -> None:
    """Folds all updates. With `digests` their files are verified meanwhile, as the server does."""
    manifest = Manifest((TensorSpec("weights", "f32", (PARAMETERS,)),))
    paths = [scratch / f"{i}.update" for i in range(_UPDATES)]
    with ExitStack() as stack:
        files = [stack.enter_context(FileSource(path)) for path in paths]
        checked = [VerifiedSource(f, str(p), d, "blake3") for f, p, d in zip(files, paths, digests or (), strict=False)]
        sources: Sequence[Source] = checked or files
        updates = [
            Contribution(client=f"client-{i}", part="main", samples=1, source=source)
            for i, source in enumerate(sources)
        ]
        fold(manifest, stack.enter_context(FileSource(scratch / "base")), updates, lambda block: None)
        for source in checked:
            source.finish()


def _costs(report: Report, payload: memoryview, scratch: Path, fold_rate: float) -> None:
    """Seconds that a round of 10 clients takes besides the transfer, each measured alone."""

    def spool() -> None:
        with (scratch / "spool").open("wb", buffering=0) as file:
            for at in range(0, len(payload), 1 << 20):
                file.write(payload[at : at + (1 << 20)])
            os.fsync(file.fileno())

    report.details["seconds_beside_moving_bytes"] = {
        # The client's update, the server's check of it, and the client's check of the model.
        "blake3_three_times": 3 * _UPDATES * seconds(lambda: digest(payload, "blake3")),
        "sha256_in_its_place": 3 * _UPDATES * seconds(lambda: digest(payload, "sha256")),
        "spool_and_fsync": _UPDATES * seconds(spool),
        "finite_check_twice": 2 * _UPDATES * seconds(lambda: all_finite(np.frombuffer(payload, "<f4"))),
        "fold": _UPDATES * len(payload) / 1e9 / fold_rate,
    }
