"""Models of bfloat16 tensors: updates are float32, sums float64, and the new model is rounded once."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from puf_common.tensors import bfloat16
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_server.aggregation.fold import ArraySource, Contribution, NotFinite, fold
from puf_server.aggregation.method_rules import Vectors, lengths
from puf_server.aggregation.server_step import step
from puf_server.core.config import Plan
from puf_server.core.methods.blocks import weighted_mean

MANIFEST = Manifest((TensorSpec("w", "bf16", (3,)), TensorSpec("mean", "bf16", (1,), "buffer")))
# 1, 1 and -4, and a buffer of 0.5.
BASE = bfloat16.narrow(np.array([1.0, 1.0, -4.0, 0.5])).tobytes()


def update(client: str, values: list[float], samples: int, *, scale: float = 1.0) -> Contribution:
    source = ArraySource(np.array(values, "<f4").tobytes())
    return Contribution(client=client, part="main", samples=samples, source=source, scale=scale, negated=scale < 0)


def folded(updates: list[Contribution], **options: float) -> NDArray[np.float32]:
    out = bytearray()
    fold(MANIFEST, ArraySource(BASE), updates, out.extend, **options)  # type: ignore[arg-type]
    assert len(out) == MANIFEST.nbytes(MODEL) == 8
    return bfloat16.widen(np.frombuffer(bytes(out), "<u2"))


def test_worked_numbers() -> None:
    # Weights 1/4 and 3/4. w0: 1 + 0.25 * 0.5 + 0.75 * 0.25 = 1.3125, exact.
    # w1: 1 + 2^-8 is a tie and becomes 1. w2: -4 + 0.25 * 0.01 = -3.9975, the nearest number is -4 (its step is 2^-6).
    # The buffer is the mean 0.25 * 1 + 0.75 * 3 = 2.5.
    a = update("a", [0.5, 2.0**-8, 0.01, 1.0], 1)
    b = update("b", [0.25, 2.0**-8, 0.0, 3.0], 3)
    assert folded([a, b]).tolist() == [1.3125, 1.0, -4.0, 2.5]


def test_the_sum_is_rounded_once_from_float64() -> None:
    # 1 + 2^-8 + 2^-40: float32 in between would lose the last term, and the tie would become 1.
    a, b = update("a", [0, 2.0**-7, 0, 0.5], 1), update("b", [0, 2.0**-39, 0, 0.5], 1)
    assert folded([a, b]).tolist()[1] == 1 + 2.0**-7


def test_a_target_is_negated_as_in_other_types() -> None:
    target, other = update("a", [0.5, 0, 0, 9.0], 1, scale=-2.0), update("b", [0.5, 0, 0, 0.75], 1)
    # 1 + (0.5 * -2 * 0.5) + 0.5 * 0.5 = 0.75. The buffer is that of the retained client.
    assert folded([target, other], denominator=2).tolist() == [0.75, 1.0, -4.0, 0.75]


def test_the_order_of_arrival_changes_no_bit() -> None:
    random.seed(3)
    updates = [update(f"c{i}", [random.gauss(0, 0.1) for _ in range(4)], 1 + i) for i in range(7)]
    first = hashlib.sha256(folded(updates).tobytes()).hexdigest()
    for _ in range(5):
        random.shuffle(updates)
        assert hashlib.sha256(folded(updates).tobytes()).hexdigest() == first


def test_a_model_beyond_the_range_is_refused() -> None:
    with pytest.raises(NotFinite, match="tensor w would no longer be finite with the update of b"):
        folded([update("a", [0, 0, 0, 0], 1), update("b", [3.4e38, 0, 0, 0], 1)], server_lr=3.0)


def test_rules_of_methods_and_moments_of_the_server_read_and_write_the_same_numbers() -> None:
    updates = [update("a", [0.5, 2.0**-8, 0.01, 1.0], 1), update("b", [0.25, 2.0**-8, 0.0, 3.0], 3)]
    out = bytearray()
    Vectors(MANIFEST, ArraySource(BASE), {}, updates).combine(weighted_mean, out.extend)
    assert bfloat16.widen(np.frombuffer(bytes(out), "<u2")).tolist() == [1.3125, 1.0, -4.0, 0.5]
    files = bytearray(), bytearray(), bytearray()
    plan = Plan(server_optimizer="adam", server_lr=1.0, server_beta1=0.0, server_beta2=0.0, server_tau=1.0)
    step(MANIFEST, ArraySource(BASE), updates, None, plan, (files[0].extend, files[1].extend, files[2].extend))
    assert [len(file) for file in files] == [8, MANIFEST.nbytes(UPDATE), MANIFEST.nbytes(UPDATE)]
    # 1 + 0.3125 / (|0.3125| + 1) = 1.238..., whose nearest bfloat16 is 1.234375.
    assert bfloat16.widen(np.frombuffer(bytes(files[0]), "<u2")).tolist() == [1.234375, 1.0, -4.0, 2.5]
    assert lengths(ArraySource(BASE), MANIFEST.ranges(MODEL)) == (pytest.approx(18**0.5),)
