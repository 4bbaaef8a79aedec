"""A small manifest with parameters and buffers, and models for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec

MANIFEST = Manifest(
    (
        TensorSpec("w", "f32", (2, 3)),
        TensorSpec("half", "f16", (2,)),
        TensorSpec("mean", "f32", (2,), "buffer"),
        TensorSpec("steps", "i64", (), "buffer"),
    )
)


def model(seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(2, 3)).astype(np.float32),
        "half": rng.normal(size=2).astype(np.float16),
        "mean": rng.normal(size=2).astype(np.float32),
        "steps": np.array(seed),
    }


def payload_of(arrays: dict[str, NDArray[Any]]) -> bytearray:
    payload = bytearray(MANIFEST.nbytes(MODEL))
    for name, view in MANIFEST.views(payload, MODEL).items():
        view[...] = arrays[name]
    return payload
