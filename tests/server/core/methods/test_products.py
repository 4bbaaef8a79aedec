"""Models that are linear in updates and in differences to other models."""

from __future__ import annotations

import numpy as np
import pytest

from puf_common.tensors.manifest import TensorSpec
from puf_server.core.methods.blocks import TensorBlock, UpdateBlock
from puf_server.core.methods.products import Products, combined, vector_of


def update(client: str, u: tuple[float, ...], *, target: bool = False) -> UpdateBlock:
    return UpdateBlock(client=client, samples=1, u=np.array(u, np.float32), target=target)


def block(role: str, *updates: UpdateBlock) -> TensorBlock:
    return TensorBlock(
        tensor=TensorSpec("t", "f32", (2,), role),
        parameter=0 if role == "parameter" else -1,
        w=np.array([1.0, -2.0], np.float32),
        others={"before": np.array([0.0, 1.0], np.float32)},
        updates=updates,
    )


def test_each_vector_enters_with_its_factor() -> None:
    one, two = update("a", (1, 1)), update("b", (4, 0))
    made = combined(block("parameter", one, two), {"a/main": 2.0, "before": 0.5})
    # w + 2 * (1, 1) + 0.5 * (w - before); b has no factor.
    assert made.tolist() == [1 + 2 + 0.5, -2 + 2 - 1.5]


def test_buffers_come_from_retained_clients_only() -> None:
    made = combined(block("buffer", update("a", (3, 5)), update("u", (9, 9), target=True)), {"a/main": 7.0})
    assert made.tolist() == [3.0, 5.0]
    assert combined(block("buffer", update("u", (9, 9), target=True)), {}).tolist() == [1.0, -2.0]


def test_products_are_found_by_name() -> None:
    products = Products(("a/main", "b/main"), ((4.0, 1.0), (1.0, 9.0)))
    assert products.of("b/main", "a/main") == 1.0
    assert products.matrix(["b/main"], ("a/main", "b/main")).tolist() == [[1.0, 9.0]]
    assert vector_of(update("a", (0, 0))) == "a/main"
    with pytest.raises(ValueError, match="not in tuple"):
        products.of("a/main", "c/main")
