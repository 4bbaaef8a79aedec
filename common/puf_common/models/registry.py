"""Networks by name, and the way between a torch module and the bytes of its manifest.

torch takes seconds to import and serving never needs it, so it is imported inside the functions that do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from puf_common.config import plugins
from puf_common.errors import Mismatch, UsageError
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["build", "build_any", "build_with", "built_in", "load_payload", "manifest_of", "payload_of", "update_of"]

T = TypeVar("T")


def built_in() -> tuple[str, ...]:
    """Names that `build` knows."""
    return tuple(sorted(_NETWORKS))


def build(name: str, options: Mapping[str, str], seed: int) -> nn.Module:
    """A built-in network on the CPU. Its initial weights are a function of name, options and seed alone.

    `digits-cnn` takes 1x8x8 images, `cifar-cnn`, `resnet8-gn` and `resnet18-gn` CIFAR-sized ones, `mit-b0` images whose
    sides are multiples of 32, and `res-unet`, which gives a class to every pixel, multiples of 16. The option `classes`
    sets the number of classes, `channels` (where there is one) that of input channels.
    """
    if name not in _NETWORKS:
        raise UsageError(
            f"there is no built-in model {name!r}; use one of {', '.join(built_in())}, "
            "or package.module:function for a model of your own"
        )
    make, defaults = _NETWORKS[name]
    values = dict(defaults)
    for key, text in options.items():
        if key not in defaults:
            raise UsageError(f"model {name} has no option {key!r}; it takes {', '.join(sorted(defaults))}")
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"model {name}: option {key} must be a whole number of at least 1, not {text!r}")
        values[key] = int(text)
    return _seeded(lambda: make(**values), seed)


def build_with(function: Callable[[Mapping[str, str]], object], options: Mapping[str, str], seed: int) -> nn.Module:
    """A model of the user's own, `function(options)`, made under the same seed on every machine."""
    from torch import nn

    model = _seeded(lambda: function(options), seed)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{getattr(function, '__name__', function)} must return a torch.nn.Module, not {type(model).__name__}"
        )
    return model


def build_any(spec: str, options: Mapping[str, str], seed: int) -> nn.Module:
    """A built-in network, or one of the user's own as package.module:function, looked for in the current directory too.

    For specs that the user of this machine wrote. A name that came over the network goes to `build`, which imports nothing.
    """
    if ":" not in spec:
        return build(spec, options, seed)
    function = plugins.load(spec)

    @wraps(function)
    def told(options: Mapping[str, str]) -> object:
        return plugins.call(function, dict(options))

    return build_with(told, options, seed)


def _seeded(make: Callable[[], T], seed: int) -> T:
    """Runs `make` with torch's random stream at `seed` and leaves the caller's own stream where it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def _digits_cnn(classes: int) -> nn.Module:
    """38,378 parameters at 10 classes. Small, and still able to learn its clients by heart: there is something to forget."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def _cifar_cnn(classes: int, channels: int) -> nn.Module:
    """556,900 parameters at 100 classes, and some ten times faster than the smallest ResNet: learns small subsets by heart."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _resnet(layers: tuple[int, ...], widths: tuple[int, ...], classes: int, channels: int) -> nn.Module:
    """timm's ResNet for small images: 3x3 stem with stride 1, no pooling behind it, GroupNorm with 2 groups."""
    from timm.models.resnet import BasicBlock, ResNet
    from torch import nn

    block: Any = BasicBlock
    # A "deep" stem is the only one whose width timm leaves open; its three convolutions then become one.
    model: Any = ResNet(
        block,
        layers,
        num_classes=classes,
        in_chans=channels,
        channels=widths,
        stem_type="deep",
        stem_width=widths[0] // 2,
        norm_layer=lambda width, **place: nn.GroupNorm(2, width, **place),
    )
    model.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    # timm's forward pass goes through four stages.
    for stage in range(len(layers), 4):
        setattr(model, f"layer{stage + 1}", nn.Identity())
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, nn.GroupNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    network: nn.Module = model
    return network


def _resnet8(classes: int, channels: int) -> nn.Module:
    return _resnet((1, 1, 1), (16, 32, 64), classes, channels)


def _resnet18(classes: int, channels: int) -> nn.Module:
    return _resnet((2, 2, 2, 2), (64, 128, 256, 512), classes, channels)


def _mit_b0(classes: int) -> nn.Module:
    from puf_common.models.mit import mit_b0

    return mit_b0(classes)


def _res_unet(classes: int, channels: int) -> nn.Module:
    """MONAI's residual U-Net at the size of the paper's. GroupNorm, because statistics of batches do not average well."""

    try:
        from monai.networks.nets import UNet
    except ModuleNotFoundError:
        raise UsageError("the model res-unet needs MONAI: pip install 'puf[lab]'") from None
    network: nn.Module = UNet(
        spatial_dims=2,
        in_channels=channels,
        out_channels=classes,
        channels=(32, 64, 128, 288, 560),
        strides=(2, 2, 2, 2),
        num_res_units=2,
        norm=("group", {"num_groups": 1}),
    )
    return network


# Every built-in network: how it is made and the options it takes, with their defaults.
_NETWORKS: dict[str, tuple[Callable[..., nn.Module], dict[str, int]]] = {
    "cifar-cnn": (_cifar_cnn, {"classes": 10, "channels": 3}),
    "digits-cnn": (_digits_cnn, {"classes": 10}),
    "mit-b0": (_mit_b0, {"classes": 100}),
    "res-unet": (_res_unet, {"classes": 2, "channels": 1}),
    "resnet8-gn": (_resnet8, {"classes": 10, "channels": 3}),
    "resnet18-gn": (_resnet18, {"classes": 100, "channels": 3}),
}


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What travels, in the order of `state_dict`. A parameter that is tied to an earlier one travels once, as that."""
    import torch

    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    owners: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"{name} is a {type(tensor).__name__}, not a tensor: extra state cannot travel")
        if torch.nn.parameter.is_lazy(tensor):
            raise UsageError(f"tensor {name} has no shape yet: run one batch through the model where it is built")
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise UsageError(f"tensor {name} is not dense: sparse and quantized tensors cannot travel")
        if tensor.numel() and (owner := owners.setdefault(tensor.data_ptr(), name)) != name:
            raise UsageError(
                f"tensors {owner} and {name} share memory without being one parameter; "
                "tie them by assigning the same nn.Parameter to both"
            )
        found[name] = tensor
    return found


def _dtype(name: str, tensor: torch.Tensor) -> str:
    import torch

    if tensor.dtype == torch.bfloat16:
        raise UsageError(
            f"tensor {name} is bfloat16, which cannot travel: keep the weights in float32 and compute in bfloat16 "
            "with torch.autocast inside the model"
        )
    names = {
        torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.int8: "i8", torch.int16: "i16",
        torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "bool",
    }  # fmt: skip
    return names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    import torch

    role = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
    return TensorSpec(name, _dtype(name, tensor), tuple(tensor.shape), role)


def manifest_of(model: nn.Module) -> Manifest:
    """Parameters and persistent buffers in the order of `state_dict`, tied parameters once."""
    return Manifest(tuple(_spec(name, tensor) for name, tensor in _tensors(model).items()))


def _fitting(model: nn.Module, manifest: Manifest) -> dict[str, torch.Tensor]:
    """The model's tensors, detached, after a check that they are the manifest's."""

    def told(spec: TensorSpec | None) -> str:
        return f"{spec.role} {spec.name} {spec.dtype} {list(spec.shape)}" if spec else "nothing"

    tensors = _tensors(model)
    here = [_spec(name, tensor) for name, tensor in tensors.items()]
    for i in range(max(len(here), len(manifest.tensors))):
        ours = here[i] if i < len(here) else None
        theirs = manifest.tensors[i] if i < len(manifest.tensors) else None
        if ours != theirs:
            raise Mismatch(
                f"the model here is not the federation's: tensor {i} is {told(ours)} here and {told(theirs)} there; "
                "check --model and its options"
            )
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _read_into(view: NDArray[np.generic], tensor: torch.Tensor) -> None:
    """Copies from any device straight into a payload, converting where the payload's type is another."""
    import torch

    torch.from_numpy(view).copy_(tensor)


def payload_of(model: nn.Module, manifest: Manifest) -> bytearray:
    """The model's bytes in the order of the manifest."""
    tensors = _fitting(model, manifest)
    payload = bytearray(manifest.nbytes(MODEL))
    for name, view in manifest.views(payload, MODEL).items():
        _read_into(view, tensors[name])
    return payload


def load_payload(model: nn.Module, manifest: Manifest, payload: bytearray | memoryview | bytes) -> None:
    """Sets the model to these bytes, in place and on whatever device it is."""
    import torch

    tensors = _fitting(model, manifest)
    for name, view in manifest.views(payload, MODEL).items():
        # torch refuses to look at memory that it could not write to.
        tensors[name].copy_(torch.from_numpy(view if view.flags.writeable else view.copy()))


def update_of(model: nn.Module, manifest: Manifest, base_payload: bytearray | memoryview | bytes) -> bytearray:
    """The update from a base model to this one: parameters local minus base, buffers as they are now.

    Differences are taken in the type that travels: float32, or float64 where the parameter is.
    """
    tensors = _fitting(model, manifest)
    base = manifest.views(base_payload, MODEL)
    payload = bytearray(manifest.nbytes(UPDATE))
    views = manifest.views(payload, UPDATE)
    for spec in manifest.tensors:
        view = views[spec.name]
        _read_into(view, tensors[spec.name])
        if spec.role == "parameter":
            np.subtract(view, base[spec.name].astype(view.dtype, copy=False), out=view)
    return payload
