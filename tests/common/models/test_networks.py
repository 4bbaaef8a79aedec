"""Built-in networks, the user's own networks, and published weights."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from puf_common.errors import UsageError
from puf_common.models import module_tensors, networks


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
def test_built_in_networks_have_the_stated_number_of_parameters(
    name: str, options: dict[str, str], parameters: int
) -> None:
    manifest = module_tensors.manifest_of(networks.build(name, options, 1))
    assert manifest.parameters == parameters
    assert all(t.role == "parameter" and t.dtype == "f32" for t in manifest.tensors)


@pytest.mark.parametrize(("name", "shape"), [("digits-cnn", (2, 1, 8, 8)), ("resnet8-gn", (2, 3, 32, 32))])
def test_built_in_networks_give_a_score_for_every_class(name: str, shape: tuple[int, ...]) -> None:
    output = networks.build(name, {}, 1)(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert output.shape == (2, 10)
    assert not torch.equal(output[0], output[1])


def test_the_modules_of_a_resnet_have_their_initial_weights() -> None:
    model = networks.build("resnet8-gn", {"channels": "1"}, 1)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 9
    assert all(m.num_groups == 2 and m.weight.eq(1).all() and m.bias.eq(0).all() for m in norms)
    assert not [m for m in model.modules() if isinstance(m, nn.MaxPool2d | nn.BatchNorm2d)]
    assert model(torch.zeros(1, 1, 32, 32)).shape == (1, 10)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = _state(networks.build("digits-cnn", {}, 7))
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "the caller's random generator is unchanged"
    torch.manual_seed(2)
    again, other = _state(networks.build("digits-cnn", {}, 7)), _state(networks.build("digits-cnn", {}, 8))
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
def test_wrong_names_and_options_are_clear_errors(name: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        networks.build(name, options, 1)


def test_the_users_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def build(options): return nn.Linear(2, int(options['out']))\n"
        "def number(options): return 3\n"
        "constant = 3\n"
    )
    first, again = (networks.build_any("own_net:build", {"out": "3"}, 5) for _ in range(2))
    assert isinstance(first, nn.Linear)
    assert isinstance(again, nn.Linear)
    assert first.weight.shape == (3, 2)
    assert torch.equal(first.weight, again.weight)
    assert module_tensors.manifest_of(networks.build_any("digits-cnn", {}, 5)).parameters == 38_378
    for spec, says in {
        "own_net:number": "number must return a torch.nn.Module, not int",
        "own_net:constant": "own_net:constant is a int",
        "own_net:nothing": "has no nothing",
        "nowhere:build": "no module nowhere",
        "own net:build": "must be package.module:name",
    }.items():
        with pytest.raises(UsageError, match=says):
            networks.build_any(spec, {}, 5)


def test_importing_networks_imports_no_torch() -> None:
    code = "import sys, puf_common.models.networks as m; m.built_in(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_mit_b0_loads_published_weights_by_either_naming(tmp_path: Path) -> None:
    """The published names, and those of Hugging Face's transformers, which stores keys and values separately."""
    from safetensors.torch import save_file

    from puf_common.models.mit import load_published

    source, target = (networks.build("mit-b0", {}, seed) for seed in (1, 2))
    encoder = source.get_submodule("encoder").state_dict()
    assert sum(t.numel() for t in encoder.values()) == 3_319_392
    assert module_tensors.manifest_of(source).parameters == 3_345_092
    save_file(encoder, tmp_path / "published.safetensors")
    save_file(_as_transformers(encoder), tmp_path / "transformers.safetensors")
    for name in ("published", "transformers"):
        target = networks.build("mit-b0", {}, 2)
        head = target.get_parameter("head.weight").clone()
        load_published(target, tmp_path / f"{name}.safetensors")
        loaded = target.get_submodule("encoder").state_dict()
        assert all(torch.equal(loaded[key], value) for key, value in encoder.items())
        assert torch.equal(target.get_parameter("head.weight"), head)
    save_file({"weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match=r"not a checkpoint of MiT-B0: patch_embed1\.proj\.weight is missing"):
        load_published(target, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="cannot read"):
        load_published(target, tmp_path / "nothing.safetensors")
    with pytest.raises(UsageError, match="for the model mit-b0"):
        load_published(networks.build("digits-cnn", {}, 1), tmp_path / "published.safetensors")


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


def test_threads_that_build_at_the_same_time_get_the_same_weights() -> None:
    """All threads share torch's random generator."""
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: networks.build("digits-cnn", {}, 3), range(16)))
    first = torch.nn.utils.parameters_to_vector(models[0].parameters())
    assert all(torch.equal(first, torch.nn.utils.parameters_to_vector(m.parameters())) for m in models)


@pytest.mark.parametrize("name", networks.built_in())
def test_the_size_of_a_network_is_known_before_it_has_memory(name: str) -> None:
    """A client builds the federation's network on the device "meta" first, to compare its size."""
    pytest.importorskip({"mit-b0": "segmentation_models_pytorch", "res-unet": "monai"}.get(name, "torch"))
    with torch.device("meta"):
        shapes = networks.build(name, {}, 1).state_dict()
    real = networks.build(name, {}, 1).state_dict()
    assert {key: tensor.shape for key, tensor in shapes.items()} == {key: tensor.shape for key, tensor in real.items()}
