"""NoT negates one layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from puf_client.routines import aux_head
from puf_common.models import module_tensors, networks
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_server.core.methods.blocks import TensorBlock
from puf_server.core.methods.layers import first_layer, last_layer
from puf_server.core.methods.weight_negation import NoT, NoTOptions
from puf_server.core.state.rounds import Combine

MODEL = Manifest((TensorSpec("0.weight", "f32", (4, 2)), TensorSpec("1.weight", "f32", (2, 4))))
RULE = NoT(NoTOptions()).rule(Combine(rule="negate"), MODEL, [])


@given(values=st.lists(st.floats(width=32), max_size=8))
def test_negating_twice_gives_the_same_bits_and_other_layers_stay(values: list[float]) -> None:
    w = np.array(values, "f4")
    first, second = (
        RULE(TensorBlock(tensor=tensor, parameter=i, w=w, others={}, updates=[]))
        for i, tensor in enumerate(MODEL.tensors)
    )
    assert second.tobytes() == w.tobytes()
    assert np.array_equal(np.abs(first), np.abs(w), equal_nan=True)
    assert np.array_equal(np.signbit(first), ~np.signbit(w))
    again = RULE(TensorBlock(tensor=MODEL.tensors[0], parameter=0, w=first, others={}, updates=[]))
    assert again.tobytes() == w.tobytes()


@pytest.mark.parametrize(
    ("name", "weight"), [("digits-cnn", "0.weight"), ("resnet8-gn", "conv1.weight"), ("resnet18-gn", "conv1.weight")]
)
def test_the_first_layer_of_known_models(name: str, weight: str) -> None:
    assert first_layer(module_tensors.manifest_of(networks.build(name, {}, 1))) == {weight}


@pytest.mark.parametrize("name", [name for name in networks.built_in() if name != "res-unet"])
def test_server_and_client_agree_on_the_last_layer(name: str) -> None:
    model = networks.build(name, {}, 1)
    assert last_layer(module_tensors.manifest_of(model)) == set(aux_head.head_of(model)[0])


def test_the_order_is_the_declared_one_and_norm_layers_are_skipped() -> None:
    manifest = module_tensors.manifest_of(
        nn.ModuleDict({"z": nn.LayerNorm(4), "y": nn.Linear(4, 3), "a": nn.Linear(3, 2)})
    )
    assert first_layer(manifest) == {"y.weight"}
    assert first_layer(manifest, include_bias=True) == {"y.weight", "y.bias"}


def test_a_first_layer_without_bias_sees_its_input_negated() -> None:
    layer = nn.Conv2d(3, 4, 3, bias=False)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = layer(-x)
    with torch.no_grad():
        layer.weight.neg_()
    assert torch.equal(layer(x), expected)
