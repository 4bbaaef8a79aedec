"""The weighted sum of a round: w <- w + eta_s * sum_i (n_i / n) * u_i.

FedAvg, PUF-Regular and PUF-Special all use this sum. They differ in the clients that take part and in the scales that the
u_i already contain. Sums are float64 in the order of client names, block by block over all updates at once. So the result
has the same bits in every order of arrival, and memory does not grow with clients or parameters. Threads share the
blocks. No sum crosses a block, so that the number of threads does not change the result.

Buffers are never scaled. Floating buffers become the mean over retained clients, integer buffers the maximum. Without a
retained client they stay as they are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import PufError
from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorRange
from puf_common.tensors.scaling import scale_block
from puf_server.aggregation.verified import VerifiedSource

# Elements per block: few enough that float64 sums stay in a core's cache, enough to be worth a task for a thread.
_BLOCK = 1 << 18
_THREADS = min(4, os.cpu_count() or 1)

T = TypeVar("T")


class NotFinite(PufError):
    """A computed model has a value that is not finite."""


class Source(Protocol):
    """Random access to the bytes of a model or an update."""

    def read_into(self, offset: int, out: memoryview) -> None: ...


class ArraySource:
    """A payload in memory."""

    def __init__(self, payload: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(payload)

    def read_into(self, offset: int, out: memoryview) -> None:
        out[:] = self._view[offset : offset + len(out)]


def read_block(
    source: Source, tensor: TensorRange, start: int, count: int, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """`count` numbers of a tensor from element `start` on, in `out` where it is given."""
    block = np.empty(count, tensor.dtype) if out is None else out
    source.read_into(tensor.offset + start * tensor.dtype.itemsize, block.data.cast("B"))
    return tensor.numbers(block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One update and its weight. `scale` is the factor that the server still applies: 1 unless the server flips."""

    client: str
    part: str
    samples: int
    source: Source
    scale: float = 1.0
    negated: bool = False
    # Whether a target sent it for the data to forget.
    target: bool = False
    # The tensors of the update; None: all of the model.
    layout: Manifest | None = None


def fold(
    manifest: Manifest,
    base: Source,
    contributions: Sequence[Contribution],
    write: Callable[[memoryview], object],
    *,
    denominator: int | None = None,
    server_lr: float = 1.0,
) -> None:
    """Writes the new model in manifest order. `denominator` is the fixed n of an unlearning round; None: received samples."""
    ordered = sorted(contributions, key=lambda c: (c.client.encode(), c.part))
    n = sum(c.samples for c in ordered) if denominator is None else denominator

    def compute(block: Block, space: Space) -> NDArray[Any]:
        return computed(block, base, ordered, n, server_lr, space)

    for w in in_order(compute, manifest, base, [c.source for c in ordered]):
        write(w.data.cast("B"))


class Block(NamedTuple):
    """Neighbouring elements of one tensor, in the model and in the updates."""

    here: TensorRange
    there: TensorRange
    start: int
    size: int


@dataclass(frozen=True)
class Space:
    """Memory of one thread, used for every block: new pages would cost as much time as the sums."""

    raw: NDArray[np.uint8] = field(default_factory=lambda: np.empty(_BLOCK * 8, np.uint8))
    product: NDArray[np.float64] = field(default_factory=lambda: np.empty(_BLOCK, np.float64))
    total: NDArray[np.float64] = field(default_factory=lambda: np.empty(_BLOCK, np.float64))


def blocks(manifest: Manifest) -> Iterator[Block]:
    for here, there in zip(manifest.ranges(MODEL), manifest.ranges(UPDATE), strict=True):
        for start in range(0, here.spec.size, _BLOCK):
            yield Block(here, there, start, min(_BLOCK, here.spec.size - start))


def in_order(
    compute: Callable[[Block, Space], T], manifest: Manifest, base: Source, updates: Sequence[Source]
) -> Iterator[T]:
    """The results in the order of the blocks. A few blocks are computed at the same time.

    `updates` are all other files that `compute` reads. They have the layout of an update.
    """
    spaces: SimpleQueue[Space] = SimpleQueue()
    for _ in range(_THREADS):
        spaces.put(Space())

    def one(block: Block) -> T:
        space = spaces.get()
        try:
            return compute(block, space)
        except BaseException:
            _fail(base, block.here, block.start)
            for source in updates:
                _fail(source, block.there, block.start)
            raise
        finally:
            spaces.put(space)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="fold") as pool:
        under_way: deque[Future[T]] = deque()
        for block in blocks(manifest):
            under_way.append(pool.submit(one, block))
            if len(under_way) > 2 * _THREADS:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def computed(
    block: Block, base: Source, updates: Sequence[Contribution], n: int, server_lr: float, space: Space
) -> NDArray[Any]:
    """One block of the new model, in its type."""
    spec = block.here.spec
    w = read_block(base, block.here, block.start, block.size)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        if spec.role == "parameter":
            made = _stepped(w, block, updates, n, server_lr, space)
        else:
            made = merge(w, block.there, block.start, updates)
    if spec.floating and not all_finite(values := spec.numbers(made)):
        raise not_finite(block, np.flatnonzero(~np.isfinite(values)), updates)
    return made


def not_finite(block: Block, where: NDArray[np.intp], updates: Sequence[Contribution]) -> NotFinite:
    """The error for a block whose elements `where` are not finite. It names the client that is the most likely cause."""
    name, client = block.here.spec.name, _culprit(block.there, block.start, where, updates)
    whose = f" with the update of {client}" if client else ""
    return NotFinite(f"tensor {name} would no longer be finite{whose}", tensor=name, client=client)


def _fail(source: Source, tensor: TensorRange, start: int) -> None:
    """Lets no thread wait for a block that failed."""
    if isinstance(source, VerifiedSource):
        source.fail(tensor.offset + start * tensor.dtype.itemsize)


def _stepped(
    w: NDArray[Any], block: Block, updates: Sequence[Contribution], n: int, server_lr: float, space: Space
) -> NDArray[Any]:
    """w + server_lr * sum of (n_i / n) * u_i, rounded once from float64 to the type of the model."""
    total, product = average(block, updates, n, space), space.product[: w.size]
    np.multiply(total, server_lr, out=total)
    np.copyto(product, w)
    np.add(product, total, out=product)
    if block.here.dtype != w.dtype:
        return block.here.spec.stored(product)
    # Into memory that is there: new pages would cost as much time as the sum.
    np.copyto(w, product, casting="same_kind")
    return w


def average(block: Block, updates: Sequence[Contribution], n: int, space: Space) -> NDArray[np.float64]:
    """One block of the sum of (n_i / n) * u_i, in the memory of `space`."""
    total, product = space.total[: block.size], space.product[: block.size]
    raw = space.raw[: block.size * block.there.dtype.itemsize].view(block.there.dtype)
    total.fill(0.0)
    for c in updates:
        np.copyto(product, scale_block(read_block(c.source, block.there, block.start, block.size, raw), c.scale))
        np.multiply(product, c.samples / n, out=product)
        np.add(total, product, out=total)
    return total


def merge(w: NDArray[Any], tensor: TensorRange, start: int, updates: Sequence[Contribution]) -> NDArray[Any]:
    """A block of a buffer as the model stores it: the mean or the maximum over retained clients; without any, unchanged."""
    # Negated updates are read, too: every byte of a file is hashed.
    read = [(c, read_block(c.source, tensor, start, w.size)) for c in updates]
    retained, values = [c for c, _ in read if not c.negated], [value for c, value in read if not c.negated]
    if not retained:
        return tensor.spec.stored(w)
    if not tensor.spec.floating:
        largest: NDArray[Any] = np.maximum.reduce(values)
        return largest.astype(w.dtype)
    n = sum(c.samples for c in retained)
    mean = np.zeros(w.size, np.float64)
    for c, value in zip(retained, values, strict=True):
        mean += np.multiply(value, c.samples / n, dtype=np.float64)
    return tensor.spec.stored(mean)


def _culprit(tensor: TensorRange, start: int, where: NDArray[np.intp], updates: Sequence[Contribution]) -> str:
    """The client whose update has the largest weighted value among the elements that are not finite."""

    def weight(c: Contribution) -> float:
        u = read_block(c.source, tensor, start, int(where[-1]) + 1)[where]
        with np.errstate(over="ignore"):
            return float(np.abs(scale_block(u, c.scale).astype(np.float64)).max()) * c.samples

    return max(updates, key=weight).client if updates else ""
