"""Frozen parameters are the base model: they do not travel, and a digest states which ones they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.models.initial import initial_model, read_initial_model
from puf_common.models.module_tensors import base_digest, load_payload, manifest_of, payload_of, trained, update_of
from puf_common.tensors.base_model import require_base
from puf_common.tensors.manifest import MODEL, Manifest
from puf_common.tensors.model_file import save


def network() -> nn.Sequential:
    """A frozen layer of bfloat16, batch statistics, and a trained layer. The first layer is 1 to 6 and 7 to 9."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(1.0, 7).reshape(3, 2))  # type: ignore[operator]
        model[0].bias.copy_(torch.arange(7.0, 10))  # type: ignore[operator]
    model[0].bfloat16().requires_grad_(False)
    return model


def test_only_trained_parameters_and_buffers_travel() -> None:
    assert [(t.name, t.role) for t in manifest_of(network()).tensors] == [
        ("1.running_mean", "buffer"),
        ("1.running_var", "buffer"),
        ("1.num_batches_tracked", "buffer"),
        ("2.weight", "parameter"),
        ("2.bias", "parameter"),
    ]
    assert [tuple(p.shape) for p in trained(network())] == [(1, 3), (1,)]


def test_the_digest_is_that_of_the_contract() -> None:
    numbers = {"0.weight|bf16|3,2\n": range(1, 7), "0.bias|bf16|3\n": range(7, 10)}
    text = b""
    for line, values in numbers.items():
        raw = torch.tensor(list(values), dtype=torch.float32).view(torch.int32) >> 16
        text += line.encode() + raw.to(torch.int16).numpy().tobytes()
    assert base_digest(network()) == hashlib.sha256(text).digest()
    assert base_digest(nn.Linear(2, 2)) == b""


def _float32(model: nn.Sequential) -> None:
    model[0].float()


def _other_value(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].bias[2] = 9.0625  # type: ignore[operator]


def _more_frozen(model: nn.Sequential) -> None:
    model[2].bias.requires_grad_(False)


@pytest.mark.parametrize("change", [_float32, _other_value, _more_frozen])
def test_another_base_model_has_another_digest(change: Callable[[nn.Sequential], None]) -> None:
    model = network()
    change(model)
    assert base_digest(model) != base_digest(network())


def test_the_digest_depends_on_neither_trained_values_nor_memory_layout() -> None:
    model = network()
    with torch.no_grad():
        model[2].weight.add_(1)  # type: ignore[operator]
        model[0].weight.data = model[0].weight.data.t().contiguous().t()  # type: ignore[operator]
    assert not model[0].weight.is_contiguous()  # type: ignore[operator]
    assert base_digest(model) == base_digest(network())


def test_loading_and_updates_leave_frozen_parameters_alone() -> None:
    model, other = network(), network()
    manifest = manifest_of(model)
    payload = payload_of(model, manifest)
    with torch.no_grad():
        other[0].weight.zero_()  # type: ignore[operator]
    load_payload(other, manifest, payload)
    assert payload_of(other, manifest) == payload
    assert not other[0].weight.any()  # type: ignore[operator]
    assert len(update_of(other, manifest, payload)) == len(payload) == manifest.nbytes(MODEL)


def test_a_federation_of_an_older_version_exchanges_frozen_parameters_too() -> None:
    model = network()
    whole = manifest_of(model, whole=True)
    assert [t.name for t in whole.tensors][:2] == ["0.weight", "0.bias"]
    payload = payload_of(model, whole)
    load_payload(model, whole, payload)
    assert payload_of(model, whole) == payload


def test_a_model_with_other_frozen_parameters_does_not_fit() -> None:
    manifest = manifest_of(network())
    model = network()
    model[2].requires_grad_(False)
    with pytest.raises(Mismatch, match="which parameters are frozen"):
        payload_of(model, manifest)


def test_a_file_states_the_base_model(tmp_path: Path) -> None:
    first = initial_model(network(), 5)
    save(tmp_path / "model.safetensors", first.manifest, first.payload, first.metadata)
    assert read_initial_model(tmp_path / "model.safetensors") == first
    assert (first.base_digest, first.base_seed) == (base_digest(network()).hex(), 5)
    plain = initial_model(nn.Linear(2, 2), 5)
    assert (plain.base_digest, plain.base_seed, plain.metadata) == ("", 0, {})


@pytest.mark.parametrize("metadata", [{"puf.base": "xyz"}, {"puf.base": "a" * 64, "puf.base_seed": "-1"}])
def test_a_file_with_a_wrong_digest_is_refused(tmp_path: Path, metadata: dict[str, str]) -> None:
    first = initial_model(network(), 5)
    save(tmp_path / "model.safetensors", first.manifest, first.payload, metadata)
    with pytest.raises(StorageCorrupted, match=r"puf\.base must be"):
        read_initial_model(tmp_path / "model.safetensors")


def test_bfloat16_parameters_travel_as_two_bytes_and_their_differences_as_four() -> None:
    model, base = nn.Linear(2, 1).bfloat16(), nn.Linear(2, 1).bfloat16()
    manifest = manifest_of(model)
    assert [t.dtype for t in manifest.tensors] == ["bf16", "bf16"]
    with torch.no_grad():
        base.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.weight.copy_(torch.tensor([[1.0078125, -2.5]]))
        model.bias.copy_(base.bias)
    before = payload_of(base, manifest)
    assert len(before) == 6
    update = update_of(model, manifest, before)
    assert manifest.views(update, "update")["weight"].tolist() == [[0.0078125, -0.5]]
    load_payload(model, manifest, before)
    assert torch.equal(model.weight, base.weight)
    assert manifest.values(before)["weight"].tolist() == [[1.0, -2.0]]


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (b"\1" * 32, b"", "set requires_grad=True"),
        (b"", b"\1" * 32, "set requires_grad=False"),
        (b"\2" * 32, b"\1" * 32, "checkpoint with the same number types.*the seed 7"),
    ],
)
def test_a_refusal_says_what_to_do(theirs: bytes, ours: bytes, says: str) -> None:
    with pytest.raises(Mismatch, match=f"the model of anna .*{says}"):
        require_base(theirs, ours, "the model of anna", seed=7)
    require_base(ours, ours, "the model of anna", seed=7)


def test_frozen_parameters_may_have_any_type() -> None:
    model = network()
    model[0].weight = nn.Parameter(torch.ones(3, 2, dtype=torch.int8), requires_grad=False)
    assert isinstance(manifest_of(model), Manifest)
    assert base_digest(model) != base_digest(network())
    with pytest.raises(UsageError, match="a parameter must be floating"):
        manifest_of(model, whole=True)
