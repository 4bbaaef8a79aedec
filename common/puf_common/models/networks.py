"""Networks by name.

torch takes seconds to import and serving never needs it, so it is imported inside the functions that use it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from puf_common.config import plugins
from puf_common.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")

# Held while torch's random generator is seeded, or a model is built with it.
GENERATOR = threading.RLock()


def built_in() -> tuple[str, ...]:
    """The names that `build` accepts."""
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
            "or package.module:function for your own model"
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
    """The model that the user's `function(options)` makes. The same seed gives the same weights on every machine."""
    from torch import nn

    model = _seeded(lambda: function(options), seed)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{getattr(function, '__name__', function)} must return a torch.nn.Module, not {type(model).__name__}"
        )
    return model


def build_any(spec: str, options: Mapping[str, str], seed: int) -> nn.Module:
    """A built-in network, or the user's own as package.module:function, which is also looked for in the current directory.

    Only for a spec that the user of this machine wrote. A name from the network goes to `build`, which imports nothing.
    """
    if ":" not in spec:
        return build(spec, options, seed)
    function = plugins.load(spec)

    @wraps(function)
    def called(options: Mapping[str, str]) -> object:
        return plugins.call(function, dict(options))

    return build_with(called, options, seed)


def _seeded(make: Callable[[], T], seed: int) -> T:
    """Runs `make` with torch's random generator at `seed`. The caller's generator stays as it was.

    All threads share that generator, so that one of them builds at a time.
    """
    import torch

    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def _digits_cnn(classes: int) -> nn.Module:
    """38,378 parameters at 10 classes. Small, yet able to memorise its clients' data: there is something to forget."""
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
    """556,900 parameters at 100 classes. About ten times faster than the smallest ResNet, and able to memorise small subsets."""
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
    """timm's ResNet for small images: 3x3 stem with stride 1, no pooling after it, GroupNorm with 2 groups."""
    from timm.models.resnet import BasicBlock, ResNet
    from torch import nn

    block: Any = BasicBlock
    # timm lets the caller choose the width of a "deep" stem only. Its three convolutions are replaced by one below.
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
    # timm's forward pass needs four stages.
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
    """MONAI's residual U-Net at the size of the paper's. GroupNorm, because batch statistics do not average well."""
    try:
        from monai.networks.nets import UNet
    except ModuleNotFoundError:
        raise UsageError("the model res-unet needs MONAI: pip install 'puf-fl[lab]'") from None
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


# Every built-in network: its function, and its options with their defaults.
_NETWORKS: dict[str, tuple[Callable[..., nn.Module], dict[str, int]]] = {
    "cifar-cnn": (_cifar_cnn, {"classes": 10, "channels": 3}),
    "digits-cnn": (_digits_cnn, {"classes": 10}),
    "mit-b0": (_mit_b0, {"classes": 100}),
    "res-unet": (_res_unet, {"classes": 2, "channels": 1}),
    "resnet8-gn": (_resnet8, {"classes": 10, "channels": 3}),
    "resnet18-gn": (_resnet18, {"classes": 100, "channels": 3}),
}
