"""The exact difference between two models, compressed: `DIFFERENCE_KIND_EXACT` of the contract.

Models of neighbouring rounds have nearly the same numbers. Bit patterns of floats, read as integers with the right order,
then differ by small integers. Their upper bytes are mostly zero; the bytes of the same place stand together, so that zstd
finds that. The difference of integers is exact, so the result has the bits of the new model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import TransferCorrupted
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import MODEL, Manifest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Elements of a block. A byte of each is one block of zstd, which has a table of its own.
BLOCK = 1 << 17
_LEVEL = 3
# A plane with fewer bytes shares a block of zstd with others: a table would cost more than it saves.
_LEAST_PLANE = 4096
# The window that the level's compressor uses has 2 MiB. A larger one would let the sender decide on the receiver's memory.
_WINDOW_LOG = 23

Read = Callable[[int, memoryview], None]


class Run(NamedTuple):
    """A block of neighbouring elements with one type: its place in the model and its elements as integers."""

    offset: int
    length: int
    dtype: np.dtype[Any]
    floating: bool

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize


def runs(manifest: Manifest) -> Iterator[Run]:
    """The blocks of a model, in order."""
    begin, count = 0, 0
    kind: np.dtype[Any] = np.dtype("u1")
    for tensor in manifest.ranges(MODEL):
        if count and tensor.dtype != kind:
            yield from _blocks(begin, count, kind)
            begin, count = begin + count * kind.itemsize, 0
        kind, count = tensor.dtype, count + tensor.spec.size
    yield from _blocks(begin, count, kind)


def _blocks(begin: int, count: int, kind: np.dtype[Any]) -> Iterator[Run]:
    integers = np.dtype(f"<i{kind.itemsize}")
    for start in range(0, count, BLOCK):
        yield Run(begin + start * kind.itemsize, min(BLOCK, count - start), integers, kind.kind == "f")


def encoded(manifest: Manifest, old: Read, new: Read) -> Iterator[bytes]:
    """The bytes of the difference, in parts. `old` and `new` read the models: offset and memory to fill."""
    compressor = zstd.ZstdCompressor(level=_LEVEL)
    for run in runs(manifest):
        before, after = np.empty(run.length, run.dtype), np.empty(run.length, run.dtype)
        old(run.offset, before.data.cast("B"))
        new(run.offset, after.data.cast("B"))
        planes = _planes(_distance(run, before, after))
        for plane in planes:
            yield compressor.compress(plane.data)
            if run.length >= _LEAST_PLANE:
                yield compressor.flush(zstd.ZstdCompressor.FLUSH_BLOCK)
    yield compressor.flush()


def _distance(run: Run, before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """What is to be added to the one to get the other, as z of the contract. Uses the memory of its arguments."""
    if run.floating:
        _order(before)
        _order(after)
    np.subtract(after, before, out=after)
    np.right_shift(after, 8 * run.dtype.itemsize - 1, out=before)
    np.left_shift(after, 1, out=after)
    np.bitwise_xor(after, before, out=after)
    return after


def _order(bits: NDArray[Any]) -> None:
    """Turns bit patterns of floats into integers with the same order, in place. Applied twice it changes nothing."""
    width = 8 * bits.dtype.itemsize
    mask = np.right_shift(bits, width - 1)
    np.bitwise_and(mask, bits.dtype.type((1 << (width - 1)) - 1), out=mask)
    np.bitwise_xor(bits, mask, out=bits)


def _planes(values: NDArray[Any]) -> list[NDArray[np.uint8]]:
    raw = values.view(np.uint8).reshape(len(values), -1)
    return [np.ascontiguousarray(raw[:, place]) for place in range(raw.shape[1])]


class ExactDecoder:
    """Makes the new model from the old one and the bytes of a difference, in parts of any size."""

    def __init__(self, manifest: Manifest, base: Payload) -> None:
        self._base = memoryview(base).cast("B")
        self._runs = runs(manifest)
        self._run = next(self._runs, None)
        self._planes = bytearray()
        self._zstd = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})

    def feed(self, data: Payload) -> Iterator[memoryview]:
        """The parts of the new model that are known after these bytes, in order. Use each before the next."""
        while self._run is not None:
            try:
                self._planes += self._zstd.decompress(data, self._run.nbytes - len(self._planes))
            except (zstd.ZstdError, EOFError) as error:
                raise TransferCorrupted(f"the difference cannot be decompressed: {error}") from None
            data = b""
            if len(self._planes) < self._run.nbytes:
                return
            yield _applied(self._run, self._planes, self._base)
            self._run, self._planes = next(self._runs, None), bytearray()


def _applied(run: Run, planes: bytearray, base: memoryview) -> memoryview:
    old = np.frombuffer(base[run.offset : run.offset + run.nbytes], run.dtype).copy()
    new = np.empty(run.length, run.dtype)
    raw = new.view(np.uint8).reshape(run.length, -1)
    for place, plane in enumerate(np.frombuffer(planes, np.uint8).reshape(-1, run.length)):
        raw[:, place] = plane
    if run.floating:
        _order(old)
    sign = np.bitwise_and(new, 1)
    np.negative(sign, out=sign)
    unsigned = new.view(f"<u{run.dtype.itemsize}")
    np.right_shift(unsigned, 1, out=unsigned)
    np.bitwise_xor(new, sign, out=new)
    np.add(new, old, out=new)
    if run.floating:
        _order(new)
    return new.data.cast("B")
