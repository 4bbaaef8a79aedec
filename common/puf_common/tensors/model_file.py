"""Model files: the safetensors format, with the tensors in the order of the manifest.

    8 bytes      length of the header, little-endian
    header       JSON: name -> {dtype, shape, data_offsets} and "__metadata__": text -> text; padded with spaces
    payload      the tensors, one after the other, without gaps

This module writes the header itself because the safetensors library sorts tensors and needs all of them in memory. Here
the payload of a model is the end of its file, byte for byte, and can be streamed in both directions. The library can
read these files, and this module can read files of the library; the order of the file is then the order of the
manifest. The metadata "puf.buffers" is a JSON list of the names of buffers. Tensors that are not floating are always
buffers. Where frozen tensors are left out, "puf.base" is their digest in hex.

A file may be hostile: every value is checked before it is used, and no more memory is allocated than the file has
bytes.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.files.durable import DISK, Writes
from puf_common.files.new_file import NewFile, draft_path, published
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec

BUFFERS_KEY = "puf.buffers"
# What a file of trained tensors states about the frozen ones: their digest, and the seed that the model was built with.
BASE_KEY, BASE_SEED_KEY = "puf.base", "puf.base_seed"
MAX_HEADER = 100_000_000  # the limit of the library

_METADATA = "__metadata__"
_DTYPES = ("F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "BOOL")
_MAX_DIMENSIONS = 64  # numpy's limit

Bytes = bytes | bytearray | memoryview


def write_header(manifest: Manifest, metadata: Mapping[str, str]) -> bytes:
    """The bytes before the payload in a file of this manifest."""
    buffers = [t.name for t in manifest.tensors if t.role == "buffer"]
    header: dict[str, Any] = {_METADATA: {**metadata, BUFFERS_KEY: json.dumps(buffers)}}
    for tensor in manifest.ranges(MODEL):
        if tensor.spec.name == _METADATA or not tensor.spec.name.isprintable():
            raise UsageError(f"a tensor must not be called {tensor.spec.name!r}")
        header[tensor.spec.name] = {
            "dtype": tensor.spec.dtype.upper(),
            "shape": list(tensor.spec.shape),
            "data_offsets": [tensor.offset, tensor.offset + tensor.nbytes],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise UsageError(f"the header would have {len(text)} bytes, more than the {MAX_HEADER} a model file may have")
    return len(text).to_bytes(8, "little") + text


def save(
    path: Path,
    manifest: Manifest,
    payload: Bytes | Iterable[Bytes],
    metadata: Mapping[str, str],
    files: Writes = DISK,
) -> None:
    """Writes a model file: complete, also after a power cut, or not at all.

    The payload is in manifest order. It may be an iterable of chunks of any size; only one chunk is in memory at a time.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {path.parent}; make it first")
    header = write_header(manifest, metadata)
    chunks = [payload] if isinstance(payload, bytes | bytearray | memoryview) else payload
    expected, written = manifest.nbytes(MODEL), 0
    # With the usual permissions: a model is not a secret by itself.
    with published(NewFile(draft_path(path), files, 0o666), path) as file:
        file.write(header)
        for chunk in chunks:
            file.write(chunk)
            written += len(chunk)
            if written > expected:
                break
        if written != expected:
            more = "more than " if written > expected else ""
            raise Mismatch(f"{path.name}: the payload has {more}{min(written, expected)} bytes, not {expected}")


def read_manifest(path: Path) -> tuple[Manifest, dict[str, str], int]:
    """The manifest in file order, the other metadata, and the offset of the payload."""
    with _opened(path) as file:
        return _read_header(file, Path(path).name)


def parse_header(text: bytes, size: int, name: str) -> Manifest:
    """The manifest of a file of `size` bytes that begins with `text`. Raises where its payload does not follow that."""
    manifest, _, begins_at = _read_header(io.BytesIO(text), name, size)
    if begins_at != len(text):
        raise StorageCorrupted(f"{name}: the header has {begins_at} bytes, not {len(text)}")
    return manifest


def read_payload(path: Path, manifest: Manifest | None = None) -> bytearray:
    """The bytes of the tensors in file order, or in the order of a manifest with the same tensors."""
    with _opened(path) as file:
        stored, _, start = _read_header(file, Path(path).name)
        if manifest is None or _layout(manifest) == _layout(stored):
            payload = bytearray(stored.nbytes(MODEL))
            _fill(file, start, memoryview(payload), path)
            return payload
        _require_same(stored, manifest, Path(path).name)
        offsets = {tensor.spec.name: tensor.offset for tensor in stored.ranges(MODEL)}
        payload = bytearray(manifest.nbytes(MODEL))
        whole = memoryview(payload)
        for tensor in manifest.ranges(MODEL):
            target = whole[tensor.offset : tensor.offset + tensor.nbytes]
            _fill(file, start + offsets[tensor.spec.name], target, path)
        return payload


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise UsageError(f"cannot read the model file {path}: {error.strerror}") from None


def _fill(file: BinaryIO, offset: int, view: memoryview, path: Path) -> None:
    file.seek(offset)
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise StorageCorrupted(f"{Path(path).name}: the file ends in the middle of the payload")
        view = view[count:]


def _read_header(file: BinaryIO, name: str, size: int | None = None) -> tuple[Manifest, dict[str, str], int]:
    size = file.seek(0, os.SEEK_END) if size is None else size
    file.seek(0)
    prefix = file.read(8)
    if len(prefix) < 8:
        raise StorageCorrupted(f"{name} is too short to be a model file: {size} bytes")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        if prefix.startswith((b"PK\x03\x04", b"\x80\x02")):  # files of torch.save, new and old
            raise UsageError(f"{name} looks like a pickled model; save it with safetensors.torch.save_file instead")
        raise StorageCorrupted(f"{name} is not a safetensors file: its header would have {length} bytes")
    if 8 + length > size:
        raise StorageCorrupted(f"{name} is cut off: its header should have {length} bytes, the whole file has {size}")
    header = _parse(file.read(length), name)
    metadata = _metadata(header.pop(_METADATA, None), name)
    buffers = _buffers(metadata.pop(BUFFERS_KEY, "[]"), name)
    # A stable sort: empty tensors have the offset of their successor and keep the order of the header.
    entries = sorted(
        ((*_entry(key, value, name), key) for key, value in header.items()), key=lambda entry: (entry[0], entry[1])
    )
    specs: list[TensorSpec] = []
    reached = 0
    for begin, end, dtype, shape, key in entries:
        if begin != reached:
            fault = "overlaps the one before it" if begin < reached else "leaves a gap before it"
            raise StorageCorrupted(f"{name}: tensor {key} {fault} (starts at {begin}, expected {reached})")
        reached = end
        floating = "F" in dtype
        specs.append(TensorSpec(key, dtype.lower(), shape, "buffer" if key in buffers or not floating else "parameter"))
    if 8 + length + reached != size:
        raise StorageCorrupted(f"{name}: the tensors need {reached} bytes, the file holds {size - 8 - length}")
    missing = buffers - header.keys()
    if missing:
        raise StorageCorrupted(f"{name}: {BUFFERS_KEY} names {min(missing)!r}, which the file does not have")
    try:
        return Manifest(tuple(specs)), metadata, 8 + length
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}") from None


def _parse(text: bytes, name: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("a name occurs twice")
        return fields

    try:
        header = json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise StorageCorrupted(f"{name}: the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise StorageCorrupted(f"{name}: the header is not a JSON object")
    return header


def _entry(key: str, value: Any, name: str) -> tuple[int, int, str, tuple[int, ...]]:
    """Begin, end, dtype and shape of one tensor, after checks."""
    if not key.isprintable():
        raise StorageCorrupted(f"{name}: the tensor name {key!r} has unprintable characters")
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise StorageCorrupted(f"{name}: tensor {key} must have dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise StorageCorrupted(f"{name}: tensor {key}: dtype must be text")
    if dtype not in _DTYPES:
        raise UsageError(f"{name}: tensor {key}: type {dtype!r} cannot be sent; use one of {', '.join(_DTYPES)}")
    if not _naturals(shape) or len(shape) > _MAX_DIMENSIONS:
        raise StorageCorrupted(f"{name}: tensor {key}: shape must be a list of at most {_MAX_DIMENSIONS} sizes")
    if not _naturals(offsets) or len(offsets) != 2:
        raise StorageCorrupted(f"{name}: tensor {key}: data_offsets must be two numbers, begin and end")
    itemsize = TensorSpec(key, dtype.lower(), ()).numpy_dtype(MODEL).itemsize
    if prod(max(d, 1) for d in shape) * itemsize > 2**62:
        raise StorageCorrupted(f"{name}: tensor {key}: shape is too large")
    begin, end = offsets
    if end - begin != prod(shape) * itemsize:
        raise StorageCorrupted(
            f"{name}: tensor {key} needs {prod(shape) * itemsize} bytes, its data_offsets span {end - begin}"
        )
    return begin, end, dtype, tuple(shape)


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _metadata(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise StorageCorrupted(f"{name}: {_METADATA} must map text to text")
    return value


def _buffers(text: str, name: str) -> frozenset[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise StorageCorrupted(f"{name}: {BUFFERS_KEY} must be a JSON list of tensor names")
    return frozenset(names)


def _layout(manifest: Manifest) -> list[tuple[str, str, tuple[int, ...]]]:
    # Without roles: a file of another program does not state which of its floating tensors are buffers.
    return [(t.name, t.dtype, t.shape) for t in manifest.tensors]


def _require_same(stored: Manifest, wanted: Manifest, name: str) -> None:
    have = {t.name: (t.dtype, t.shape) for t in stored.tensors}
    want = {t.name: (t.dtype, t.shape) for t in wanted.tensors}
    for tensor in sorted(have.keys() | want.keys()):
        if tensor not in have:
            raise Mismatch(f"{name} lacks the tensor {tensor}")
        if tensor not in want:
            raise Mismatch(f"{name} has the tensor {tensor}, which the model does not have")
        if have[tensor] != want[tensor]:
            raise Mismatch(f"{name}: tensor {tensor} is {_shown(*have[tensor])}, the model has {_shown(*want[tensor])}")


def _shown(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
