"""Folding against the best blocked float64 sum on this machine, and what else a round's bytes cost one core."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.manifest import Manifest, TensorSpec
from puf_lab.bench.federation import PARAMETERS
from puf_lab.bench.report import Report, spread
from puf_server.aggregate import Contribution, fold
from puf_server.files import FileSource

__all__ = ["folding"]

_UPDATES = 10
_BLOCKS = (1 << 14, 1 << 15, 1 << 16, 1 << 17)


def folding(report: Report, scratch: Path, repeats: int) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    updates = [np.random.default_rng(i).standard_normal(PARAMETERS, np.float32) for i in range(_UPDATES)]
    for i, update in enumerate(updates):
        update.tofile(scratch / f"{i}.update")
    np.zeros(PARAMETERS, "<f4").tofile(scratch / "base")
    gigabytes = sum(u.nbytes for u in updates) / 1e9
    ways = {(block, threads): _summing(updates, block, threads) for block in _BLOCKS for threads in (1, 2)}
    sums: dict[tuple[int, int], list[float]] = {way: [] for way in ways}
    ours: list[float] = []
    for _ in range(repeats):
        for way, work in ways.items():
            sums[way].append(gigabytes / _timed(work))
        ours.append(gigabytes / _timed(lambda: _fold(scratch)))
    best = max(sums, key=lambda way: statistics.median(sums[way]))
    note = f"fold, from files, {spread(ours)} GB/s; best sum, in memory, {spread(sums[best])} GB/s"
    report.at_least("fold_to_best_sum", statistics.median(ours) / statistics.median(sums[best]), 0.8, note=note)
    report.details["fold_gb_per_second"] = {"fold": ours, "best_sum": sums[best], "best_block_and_threads": best}
    _costs(report, updates[0].data.cast("B"), scratch, statistics.median(ours))


def _summing(updates: list[NDArray[np.float32]], block: int, threads: int) -> Callable[[], object]:
    total = np.zeros(PARAMETERS)

    def share(first: int, last: int) -> None:
        product = np.empty(block)
        for begin in range(first, last, block):
            part = total[begin : min(begin + block, last)]
            space = product[: part.size]
            for update in updates:
                np.copyto(space, update[begin : begin + part.size])
                np.multiply(space, 0.1, out=space)
                np.add(part, space, out=part)

    cuts = [PARAMETERS * i // threads for i in range(threads + 1)]

    def work() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(share, cuts[:-1], cuts[1:]))

    return work


def _fold(scratch: Path) -> None:
    manifest = Manifest((TensorSpec("weights", "f32", (PARAMETERS,)),))
    with ExitStack() as stack:
        updates = [
            Contribution(
                client=f"client-{i}",
                part="main",
                samples=1,
                source=stack.enter_context(FileSource(scratch / f"{i}.update")),
            )
            for i in range(_UPDATES)
        ]
        fold(manifest, stack.enter_context(FileSource(scratch / "base")), updates, lambda block: None)


def _costs(report: Report, payload: memoryview, scratch: Path, fold_rate: float) -> None:
    """Seconds that one round of 10 clients spends beside moving bytes, each measured alone."""

    def spool() -> None:
        with (scratch / "spool").open("wb", buffering=0) as file:
            for at in range(0, len(payload), 1 << 20):
                file.write(payload[at : at + (1 << 20)])
            os.fsync(file.fileno())

    one: dict[str, Any] = {
        "sha256": _timed(lambda: hashlib.sha256(payload)),
        "spool_and_fsync": _timed(spool),
        "finite_check": _timed(lambda: np.isfinite(np.frombuffer(payload, "<f4")).all()),
    }
    report.details["seconds_beside_moving_bytes"] = {
        # Client's update, server's check of it, client's check of the model.
        "sha256_three_times": 3 * _UPDATES * one["sha256"],
        "spool_and_fsync": _UPDATES * one["spool_and_fsync"],
        "finite_check_twice": 2 * _UPDATES * one["finite_check"],
        "fold": _UPDATES * len(payload) / 1e9 / fold_rate,
    }


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
