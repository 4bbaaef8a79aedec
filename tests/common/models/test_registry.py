from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from puf_common.errors import Mismatch, UsageError
from puf_common.models import registry
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


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("digits-cnn", {}, 38_378),
        ("digits-cnn", {"classes": "4"}, 37_988),
        ("resnet8-gn", {}, 78_042),
        ("resnet18-gn", {}, 11_220_132),
        ("resnet18-gn", {"classes": "10"}, 11_173_962),
    ],
)
def test_built_in_models_have_the_parameters_they_promise(name: str, options: dict[str, str], parameters: int) -> None:
    manifest = registry.manifest_of(registry.build(name, options, 1))
    assert manifest.parameters == parameters
    assert all(t.role == "parameter" and t.dtype == "f32" for t in manifest.tensors)


@pytest.mark.parametrize(("name", "shape"), [("digits-cnn", (2, 1, 8, 8)), ("resnet8-gn", (2, 3, 32, 32))])
def test_built_in_models_tell_classes_apart(name: str, shape: tuple[int, ...]) -> None:
    output = registry.build(name, {}, 1)(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert output.shape == (2, 10)
    assert not torch.equal(output[0], output[1])


def test_every_module_of_a_resnet_starts_as_it_should() -> None:
    model = registry.build("resnet8-gn", {"channels": "1"}, 1)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 9
    assert all(m.num_groups == 2 and m.weight.eq(1).all() and m.bias.eq(0).all() for m in norms)
    assert not [m for m in model.modules() if isinstance(m, nn.MaxPool2d | nn.BatchNorm2d)]
    assert model(torch.zeros(1, 1, 32, 32)).shape == (1, 10)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = _state(registry.build("digits-cnn", {}, 7))
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "the caller's random numbers are not used up"
    torch.manual_seed(2)
    again, other = _state(registry.build("digits-cnn", {}, 7)), _state(registry.build("digits-cnn", {}, 8))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("digits-cn", {}, "no built-in model 'digits-cn'; use one of cifar-cnn, digits-cnn, mit-b0, res-unet"),
        ("digits-cnn", {"clases": "3"}, "no option 'clases'; it takes classes"),
        ("digits-cnn", {"classes": "0"}, "at least 1, not '0'"),
        ("digits-cnn", {"classes": "ten"}, "whole number"),
    ],
)
def test_wrong_names_and_options_are_told(name: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.build(name, options, 1)


def test_a_model_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def build(options): return nn.Linear(2, int(options['out']))\n"
        "def number(options): return 3\n"
        "constant = 3\n"
    )
    first, again = (registry.build_any("own_net:build", {"out": "3"}, 5) for _ in range(2))
    assert isinstance(first, nn.Linear)
    assert isinstance(again, nn.Linear)
    assert first.weight.shape == (3, 2)
    assert torch.equal(first.weight, again.weight)
    assert registry.manifest_of(registry.build_any("digits-cnn", {}, 5)).parameters == 38_378
    for spec, says in {
        "own_net:number": "number must return a torch.nn.Module, not int",
        "own_net:constant": "own_net:constant is a int",
        "own_net:nothing": "has no nothing",
        "nowhere:build": "no module nowhere",
        "own net:build": "must be package.module:name",
    }.items():
        with pytest.raises(UsageError, match=says):
            registry.build_any(spec, {}, 5)


def test_manifest_follows_the_state_dict_with_roles() -> None:
    manifest = registry.manifest_of(Mixed())
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
    manifest = registry.manifest_of(model)
    payload = registry.payload_of(model, manifest)
    assert len(payload) == manifest.nbytes(MODEL)
    registry.load_payload(other, manifest, kind(payload))
    assert all(torch.equal(a, b) for a, b in zip(_state(model).values(), _state(other).values(), strict=True))
    assert registry.payload_of(other, manifest) == payload


def test_an_update_has_differences_of_parameters_and_values_of_buffers() -> None:
    model = Mixed()
    manifest = registry.manifest_of(model)
    base = bytes(registry.payload_of(model, manifest))
    with torch.no_grad():
        model.half16.copy_(torch.tensor([1.75, 1000.0]))
        model.double64.add_(0.1)
    model.norm(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    update = manifest.views(registry.update_of(model, manifest, base), UPDATE)
    assert update["half16"].dtype == np.float32
    assert update["half16"].tolist() == [0.25, 1002.0], "1002 is taken in float32"
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
    manifest = registry.manifest_of(model)
    base = registry.payload_of(model, manifest)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(values))
    update = registry.update_of(model, manifest, base)
    scale_update(manifest, update, scale)
    views = manifest.views(update, UPDATE)
    assert np.array_equal(views["weight"], np.float32(scale) * (np.array(values, np.float32) - np.float32(1)))
    assert views["running_var"].tolist() == [1, 1]


def test_tied_parameters_travel_once() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2, bias=False), "decoder": nn.Linear(2, 2, bias=False)})
    model["decoder"].weight = model["encoder"].weight
    manifest = registry.manifest_of(model)
    assert [t.name for t in manifest.tensors] == ["encoder.weight"]
    registry.load_payload(model, manifest, np.array([1, 2, 3, 4], np.float32).tobytes())
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
        (nn.Linear(2, 2).bfloat16(), "weight is bfloat16.*autocast"),
        (nn.Linear(2, 2, dtype=torch.complex64), "weight: type complex64 cannot travel"),
        (_sharing(), "0.weight and 1.weight share memory"),
        (nn.LazyLinear(3), "weight has no shape yet"),
        (_Extra(2, 2), "_extra_state is a dict"),
        (nn.ReLU(), "no tensors"),
    ],
    ids=["bfloat16", "complex", "sharing", "lazy", "extra", "empty"],
)
def test_models_that_cannot_travel_are_told(model: nn.Module, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.manifest_of(model)


def test_another_model_is_told_by_its_first_tensor_that_differs() -> None:
    manifest = registry.manifest_of(registry.build("digits-cnn", {"classes": "4"}, 1))
    here = registry.build("digits-cnn", {}, 1)
    payload = bytearray(manifest.nbytes(MODEL))
    with pytest.raises(Mismatch, match=r"9\.weight f32 \[10, 64\] here and parameter 9\.weight f32 \[4, 64\] there"):
        registry.load_payload(here, manifest, payload)
    with pytest.raises(Mismatch, match="nothing here"):
        registry.payload_of(nn.Linear(2, 2, bias=False), registry.manifest_of(nn.Linear(2, 2)))
    with pytest.raises(Mismatch, match="bytes"):
        registry.load_payload(here, registry.manifest_of(here), payload)


def test_a_frozen_parameter_stays_a_parameter() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    manifest = registry.manifest_of(model)
    assert {t.role for t in manifest.tensors} == {"parameter"}
    assert isinstance(manifest, Manifest)
    assert not any(registry.update_of(model, manifest, registry.payload_of(model, manifest)))


def test_importing_models_imports_no_torch() -> None:
    code = "import sys, puf_common.models.registry as m; m.built_in(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_mit_b0_loads_published_weights_by_either_naming(tmp_path: Path) -> None:
    """Names as published, and as Hugging Face's transformers writes them, where keys and values are apart."""
    from safetensors.torch import save_file

    from puf_common.models.mit import load_published

    source, target = (registry.build("mit-b0", {}, seed) for seed in (1, 2))
    encoder = source.get_submodule("encoder").state_dict()
    assert sum(t.numel() for t in encoder.values()) == 3_319_392
    assert registry.manifest_of(source).parameters == 3_345_092
    save_file(encoder, tmp_path / "published.safetensors")
    save_file(_as_transformers(encoder), tmp_path / "transformers.safetensors")
    for name in ("published", "transformers"):
        target = registry.build("mit-b0", {}, 2)
        head = target.get_parameter("head.weight").clone()
        load_published(target, tmp_path / f"{name}.safetensors")
        loaded = target.get_submodule("encoder").state_dict()
        assert all(torch.equal(loaded[key], value) for key, value in encoder.items())
        assert torch.equal(target.get_parameter("head.weight"), head)
    save_file({"weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match=r"no checkpoint of MiT-B0: patch_embed1\.proj\.weight is missing"):
        load_published(target, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="cannot read"):
        load_published(target, tmp_path / "nothing.safetensors")
    with pytest.raises(UsageError, match="for the model mit-b0"):
        load_published(registry.build("digits-cnn", {}, 1), tmp_path / "published.safetensors")


def _as_transformers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    inside = {
        "norm1.": "layer_norm_1.", "norm2.": "layer_norm_2.", "attn.q.": "attention.self.query.",
        "attn.sr.": "attention.self.sr.", "attn.norm.": "attention.self.layer_norm.",
        "attn.proj.": "attention.output.dense.", "mlp.fc1.": "mlp.dense1.", "mlp.fc2.": "mlp.dense2.",
    }  # fmt: skip
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        place, _, rest = name.partition(".")
        stage = int(place[-1]) - 1
        if place.startswith("patch_embed"):
            new = f"patch_embeddings.{stage}.{rest.replace('norm.', 'layer_norm.')}"
        elif place.startswith("norm"):
            new = f"layer_norm.{stage}.{rest}"
        else:
            block, _, rest = rest.partition(".")
            if rest.startswith("attn.kv."):
                for part, half in zip(("key", "value"), tensor.chunk(2), strict=True):
                    end = rest.removeprefix("attn.kv.")
                    found[f"segformer.encoder.block.{stage}.{block}.attention.self.{part}.{end}"] = half.clone()
                continue
            for old, long in inside.items():
                rest = long + rest.removeprefix(old) if rest.startswith(old) else rest
            new = f"block.{stage}.{block}.{rest}"
        found[f"segformer.encoder.{new}"] = tensor
    return found
