"""NoT is an involution of one layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from puf_common import models
from puf_common.errors import UsageError
from puf_server.core.methods.nott import first_layer, negate


@given(values=st.lists(st.floats(width=32), max_size=8))
def test_twice_is_nothing_to_the_bit_and_the_length_stays(values: list[float]) -> None:
    block = np.array(values, "f4")
    assert negate(negate(block)).tobytes() == block.tobytes()
    with np.errstate(over="ignore"):
        assert np.array_equal(np.square(negate(block)), np.square(block), equal_nan=True)


@pytest.mark.parametrize(
    ("name", "weight"), [("digits-cnn", "0.weight"), ("resnet8-gn", "conv1.weight"), ("resnet18-gn", "conv1.weight")]
)
def test_the_first_layer_is_the_models_own(name: str, weight: str) -> None:
    assert first_layer(models.manifest_of(models.build(name, {}, 1))) == (weight,)


def test_order_is_declared_not_alphabetical_and_norms_are_passed_over() -> None:
    layers = {"z": nn.LayerNorm(4), "y": nn.Linear(4, 3), "a": nn.Linear(3, 2)}
    manifest = models.manifest_of(nn.ModuleDict(layers))
    assert first_layer(manifest) == ("y.weight",)
    assert first_layer(manifest, include_bias=True) == ("y.weight", "y.bias")
    with pytest.raises(UsageError, match="no kernel or matrix"):
        first_layer(models.manifest_of(nn.LayerNorm(4)))


def test_a_first_layer_without_bias_sees_its_input_negated() -> None:
    layer = nn.Conv2d(3, 4, 3, bias=False)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = layer(-x)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(negate(layer.weight.detach().numpy())))
    assert torch.equal(layer(x), expected)
