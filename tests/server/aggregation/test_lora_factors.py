"""Two trained factors of a product: negating each factor does not negate the product. With one of them frozen it does.

LoRA adds B A to a weight. B begins at zero, A at random. Numbers are worked out by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_server.aggregation.fold import ArraySource, Contribution, fold

A, B = TensorSpec("lora_A", "f32", (1, 2)), TensorSpec("lora_B", "f32", (2, 1))
# The client's training moves A from (1, 2) to (3, 1), and B from (0, 0) to (1, -1).
A_BEFORE, A_CHANGE = [[1.0, 2.0]], [[2.0, -1.0]]
B_BEFORE, B_CHANGE = [[0.0], [0.0]], [[1.0], [-1.0]]


def negated(manifest: Manifest, before: list[object], changes: list[object]) -> dict[str, NDArray[np.float32]]:
    """The model after an unlearning round of this client alone, with scale -1."""
    source = ArraySource(b"".join(np.array(values, "<f4").tobytes() for values in changes))
    target = Contribution(client="a", part="main", samples=1, source=source, scale=-1.0, negated=True)
    out = bytearray()
    fold(manifest, ArraySource(b"".join(np.array(v, "<f4").tobytes() for v in before)), [target], out.extend)
    return {name: view.copy() for name, view in manifest.views(bytes(out), MODEL).items()}  # type: ignore[misc]


def test_both_factors_trained() -> None:
    model = negated(Manifest((A, B)), [A_BEFORE, B_BEFORE], [A_CHANGE, B_CHANGE])
    assert model["lora_A"].tolist() == [[-1.0, 3.0]]
    assert model["lora_B"].tolist() == [[-1.0], [1.0]]
    product = model["lora_B"] @ model["lora_A"]
    assert product.tolist() == [[1.0, -3.0], [-1.0, 3.0]]
    # The client's training added B A = (1, -1)^T (3, 1) to the weight. Its negation would be:
    wanted = -(np.array(B_BEFORE) + B_CHANGE) @ (np.array(A_BEFORE) + A_CHANGE)
    assert wanted.tolist() == [[-3.0, -1.0], [3.0, 1.0]]
    # The error is twice the product of the changes. Here it is larger than what was to be negated, and the new product even
    # points the way that it should not: its inner product with the client's change is not negative.
    assert (product - wanted).tolist() == (2 * np.array(B_CHANGE) @ np.array(A_CHANGE)).tolist()
    assert np.linalg.norm(product - wanted) == pytest.approx(6.3246, abs=1e-4)
    assert np.linalg.norm(wanted) == pytest.approx(4.4721, abs=1e-4)
    assert float((product * -wanted).sum()) == 0.0


def test_a_frozen_and_b_trained() -> None:
    # The same B with A frozen: the product changes by (1, -1)^T (1, 2), and the round takes exactly that away.
    model = negated(Manifest((B,)), [B_BEFORE], [B_CHANGE])
    product = model["lora_B"] @ np.array(A_BEFORE)
    assert product.tolist() == (-np.array(B_CHANGE) @ np.array(A_BEFORE)).tolist() == [[-1.0, -2.0], [1.0, 2.0]]


def test_the_mean_of_products_is_not_the_product_of_means() -> None:
    # The same holds for ordinary rounds: client a as above, client b with A to (0, 0) and B to (1, 1).
    products = np.array([[3.0, 1.0], [-3.0, -1.0]]), np.array([[0.0, 0.0], [0.0, 0.0]])
    means = np.array([[1.0], [0.0]]) @ np.array([[1.5, 0.5]])
    assert ((products[0] + products[1]) / 2).tolist() == [[1.5, 0.5], [-1.5, -0.5]]
    assert means.tolist() == [[1.5, 0.5], [0.0, 0.0]]
