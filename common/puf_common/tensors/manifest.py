"""The manifest of a model: the tensors that travel, their order, and their role in aggregation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import Mismatch, UsageError
from puf_common.tensors import bfloat16

if TYPE_CHECKING:
    from puf_common.v1 import tensors_pb2 as pb

# An update has F32 for F16 and BF16; every other type is the same in model and update. BF16 is stored as bits.
_DTYPES: dict[str, str] = {
    "f16": "<f2", "f32": "<f4", "f64": "<f8", "i8": "|i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "u8": "|u1",
    "bool": "|b1", "bf16": "<u2",
}  # fmt: skip
_FLOATS = frozenset({"f16", "f32", "f64", "bf16"})
_BITS = np.dtype("<u2")
_WIDENED = frozenset({"f16", "bf16"})
_ROLES = frozenset({"parameter", "buffer"})

Use = Literal["model", "update"]
MODEL: Use = "model"
UPDATE: Use = "update"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor. `role` is "parameter" (an update has its difference) or "buffer" (an update has its value)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str = "parameter"

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def floating(self) -> bool:
        return self.dtype in _FLOATS

    def numpy_dtype(self, use: Use) -> np.dtype[np.generic]:
        return np.dtype(_DTYPES["f32" if use == UPDATE and self.dtype in _WIDENED else self.dtype])

    def numbers(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Values as the model stores them, as numbers to compute with: bfloat16 as float32, every other type unchanged."""
        return bfloat16.widen(stored) if self.dtype == "bf16" else stored

    def stored(self, values: NDArray[Any]) -> NDArray[Any]:
        """Numbers in the type of the model, rounded once to the nearest value, ties to even."""
        return bfloat16.narrow(values) if self.dtype == "bf16" else values.astype(_DTYPES[self.dtype], copy=False)

    def line(self) -> str:
        return f"{self.name}|{self.dtype}|{','.join(map(str, self.shape))}|{self.role}\n"


@dataclass(frozen=True, slots=True)
class TensorRange:
    """The place of a tensor in the payload of a model or an update."""

    spec: TensorSpec
    dtype: np.dtype[np.generic]
    offset: int
    nbytes: int

    def numbers(self, block: NDArray[Any]) -> NDArray[Any]:
        """Values of this payload, as numbers to compute with."""
        return self.spec.numbers(block) if self.dtype == _BITS else block


@dataclass(frozen=True)
class Manifest:
    """An ordered set of tensors. Two manifests with the same fingerprint describe the same bytes."""

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = [t.name for t in self.tensors]
        if not names:
            raise UsageError("the model has no tensors")
        if len(set(names)) != len(names):
            raise UsageError("the model names a tensor twice")
        for t in self.tensors:
            if t.dtype not in _DTYPES:
                raise UsageError(f"tensor {t.name}: type {t.dtype} cannot be sent; use one of {', '.join(_DTYPES)}")
            if t.role not in _ROLES:
                raise UsageError(f"tensor {t.name}: role must be parameter or buffer, not {t.role}")
            if t.role == "parameter" and not t.floating:
                raise UsageError(f"tensor {t.name}: a parameter must be floating, not {t.dtype}")
            if "\n" in t.name or "|" in t.name:
                raise UsageError(f"tensor name {t.name!r} must not contain '|' or a line break")

    @cached_property
    def fingerprint(self) -> bytes:
        return hashlib.sha256("".join(t.line() for t in self.tensors).encode()).digest()

    @property
    def parameters(self) -> int:
        """Number of trained scalars (the paper's P)."""
        return sum(t.size for t in self.tensors if t.role == "parameter")

    def ranges(self, use: Use) -> tuple[TensorRange, ...]:
        """The place of every tensor, in order."""
        return self._in_model if use == MODEL else self._in_update

    def nbytes(self, use: Use) -> int:
        last = self.ranges(use)[-1]
        return last.offset + last.nbytes

    @cached_property
    def _in_model(self) -> tuple[TensorRange, ...]:
        return tuple(_places(self.tensors, MODEL))

    @cached_property
    def _in_update(self) -> tuple[TensorRange, ...]:
        return tuple(_places(self.tensors, UPDATE))

    def views(self, payload: bytearray | memoryview | bytes, use: Use) -> dict[str, NDArray[np.generic]]:
        """The tensors by name, as views into the payload, without copies."""
        if len(payload) != self.nbytes(use):
            raise Mismatch(f"payload has {len(payload)} bytes, the manifest requires {self.nbytes(use)}")
        return {
            t.spec.name: np.frombuffer(payload, t.dtype, t.spec.size, t.offset).reshape(t.spec.shape)
            for t in self.ranges(use)
        }

    def values(self, payload: bytearray | memoryview | bytes) -> dict[str, NDArray[Any]]:
        """The tensors of a model by name, as numbers: bfloat16 copied to float32, the others as views without copies."""
        views = self.views(payload, MODEL)
        return {spec.name: spec.numbers(views[spec.name]) for spec in self.tensors}

    def require(self, fingerprint: bytes, whose: str) -> None:
        """Raises Mismatch unless the fingerprint is that of this manifest."""
        if fingerprint != self.fingerprint:
            raise Mismatch(
                f"{whose} describes another model: fingerprint {fingerprint.hex()[:16]}, "
                f"the federation's is {self.fingerprint.hex()[:16]}; check --model and its options",
                theirs=fingerprint.hex(),
                ours=self.fingerprint.hex(),
            )

    def to_pb(self) -> pb.Manifest:
        # Imported at first use: the core also runs beside a protobuf that is older than the generated code.
        from puf_common.v1 import tensors_pb2 as pb

        return pb.Manifest(
            tensors=[
                pb.TensorSpec(
                    name=t.name,
                    dtype=f"DTYPE_{t.dtype.upper()}",
                    shape=t.shape,
                    role=f"ROLE_{t.role.upper()}",
                )
                for t in self.tensors
            ],
            fingerprint=self.fingerprint,
        )

    @classmethod
    def from_pb(cls, message: pb.Manifest) -> Manifest:
        """Returns the manifest. Raises if it names types that this version does not know."""
        from puf_common.v1 import tensors_pb2 as pb

        for t in message.tensors:
            if t.dtype not in pb.DType.values() or t.role not in pb.Role.values():
                raise Mismatch(
                    f"tensor {t.name!r} has a type or role that this version does not know: install a newer one"
                )
        manifest = cls(
            tuple(
                TensorSpec(
                    name=t.name,
                    dtype=pb.DType.Name(t.dtype).removeprefix("DTYPE_").lower(),
                    shape=tuple(t.shape),
                    role=pb.Role.Name(t.role).removeprefix("ROLE_").lower(),
                )
                for t in message.tensors
            )
        )
        manifest.require(message.fingerprint, "the received manifest")
        return manifest


def _places(tensors: Sequence[TensorSpec], use: Use) -> Iterator[TensorRange]:
    offset = 0
    for spec in tensors:
        dtype = spec.numpy_dtype(use)
        nbytes = spec.size * dtype.itemsize
        yield TensorRange(spec, dtype, offset, nbytes)
        offset += nbytes
