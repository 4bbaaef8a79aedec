"""The bytes of a torch module: manifest, payload and update."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from puf_common.errors import Mismatch, UsageError
from puf_common.models import module_tensors, networks
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest
from puf_common.tensors.scaling import scale_update


class Mixed(nn.Module):
    """Parameters of three types, buffers of two, one of them not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.half16 = nn.Parameter(torch.tensor([1.5, -2.0], dtype=torch.float16))
        self.norm = nn.BatchNorm1d(2)
        self.double64 = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))
        self.register_buffer("half_mean", torch.tensor([0.5], dtype=torch.float16))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_manifest_follows_the_state_dict_with_roles() -> None:
    manifest = module_tensors.manifest_of(Mixed())
    assert [(t.name, t.dtype, t.role) for t in manifest.tensors] == [
        ("half16", "f16", "parameter"),
        ("double64", "f64", "parameter"),
        ("half_mean", "f16", "buffer"),
        ("norm.weight", "f32", "parameter"),
        ("norm.bias", "f32", "parameter"),
        ("norm.running_mean", "f32", "buffer"),
        ("norm.running_var", "f32", "buffer"),
        ("norm.num_batches_tracked", "i64", "buffer"),
    ]


@pytest.mark.parametrize("kind", [bytearray, bytes, memoryview])
def test_payload_round_trip(kind: type[bytes]) -> None:
    model, other = Mixed(), Mixed()
    with torch.no_grad():
        model.half16.add_(1)
        model.norm.weight.mul_(3)
    model.norm(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    manifest = module_tensors.manifest_of(model)
    payload = module_tensors.payload_of(model, manifest)
    assert len(payload) == manifest.nbytes(MODEL)
    module_tensors.load_payload(other, manifest, kind(payload))
    assert all(torch.equal(a, b) for a, b in zip(_state(model).values(), _state(other).values(), strict=True))
    assert module_tensors.payload_of(other, manifest) == payload


def test_an_update_has_differences_of_parameters_and_values_of_buffers() -> None:
    model = Mixed()
    manifest = module_tensors.manifest_of(model)
    base = bytes(module_tensors.payload_of(model, manifest))
    with torch.no_grad():
        model.half16.copy_(torch.tensor([1.75, 1000.0]))
        model.double64.add_(0.1)
    model.norm(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    update = manifest.views(module_tensors.update_of(model, manifest, base), UPDATE)
    assert update["half16"].dtype == np.float32
    assert update["half16"].tolist() == [0.25, 1002.0], "1002 is computed in float32"
    assert update["double64"].dtype == np.float64
    assert update["double64"] == np.float64(0.1) + np.float64(0.1) - np.float64(0.1)
    assert update["norm.weight"].tolist() == [0, 0]
    assert update["half_mean"].tolist() == [0.5]
    assert update["norm.num_batches_tracked"] == 1
    assert update["norm.running_mean"].tolist() == model.norm.get_buffer("running_mean").tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=2), st.sampled_from([1.0, -2.0, 0.5]))
def test_an_update_is_the_float32_difference_and_only_it_is_scaled(values: list[float], scale: float) -> None:
    model = nn.BatchNorm1d(2)
    manifest = module_tensors.manifest_of(model)
    base = module_tensors.payload_of(model, manifest)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(values))
    update = module_tensors.update_of(model, manifest, base)
    scale_update(manifest, update, scale)
    views = manifest.views(update, UPDATE)
    assert np.array_equal(views["weight"], np.float32(scale) * (np.array(values, np.float32) - np.float32(1)))
    assert views["running_var"].tolist() == [1, 1]


def test_tied_parameters_are_sent_once() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2, bias=False), "decoder": nn.Linear(2, 2, bias=False)})
    model["decoder"].weight = model["encoder"].weight
    manifest = module_tensors.manifest_of(model)
    assert [t.name for t in manifest.tensors] == ["encoder.weight"]
    module_tensors.load_payload(model, manifest, np.array([1, 2, 3, 4], np.float32).tobytes())
    assert model.state_dict()["decoder.weight"].flatten().tolist() == [1, 2, 3, 4]


def _sharing() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.data = model[0].weight.data
    return model


class _Extra(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"steps": 3}


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(2, 2).requires_grad_(False), "every parameter of the model is frozen"),
        (nn.Linear(2, 2, dtype=torch.complex64), "weight: type complex64 cannot be sent"),
        (_sharing(), "0.weight and 1.weight share memory"),
        (nn.LazyLinear(3), "weight has no shape yet"),
        (_Extra(2, 2), "_extra_state is a dict"),
        (nn.ReLU(), "no tensors"),
    ],
    ids=["frozen", "complex", "sharing", "lazy", "extra", "empty"],
)
def test_models_that_cannot_be_sent_are_clear_errors(model: nn.Module, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        module_tensors.manifest_of(model)


def test_a_mismatch_names_the_first_tensor_that_differs() -> None:
    manifest = module_tensors.manifest_of(networks.build("digits-cnn", {"classes": "4"}, 1))
    here = networks.build("digits-cnn", {}, 1)
    payload = bytearray(manifest.nbytes(MODEL))
    with pytest.raises(Mismatch, match=r"9\.weight f32 \[10, 64\] here and parameter 9\.weight f32 \[4, 64\] there"):
        module_tensors.load_payload(here, manifest, payload)
    with pytest.raises(Mismatch, match="nothing here"):
        module_tensors.payload_of(nn.Linear(2, 2, bias=False), module_tensors.manifest_of(nn.Linear(2, 2)))
    with pytest.raises(Mismatch, match="bytes"):
        module_tensors.load_payload(here, module_tensors.manifest_of(here), payload)


def test_a_frozen_parameter_that_travels_is_a_parameter() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    manifest = module_tensors.manifest_of(model, whole=True)
    assert {t.role for t in manifest.tensors} == {"parameter"}
    assert isinstance(manifest, Manifest)
    assert not any(module_tensors.update_of(model, manifest, module_tensors.payload_of(model, manifest)))
