"""How a model's outputs are computed: memory format, number type, compilation. Training and evaluation share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Acceleration:
    """Options of the recipe. They change speed and rounding, not what is computed."""

    channels_last: bool = False
    """Stores images and convolutions with channels last: faster kernels on devices with tensor cores."""
    amp: bool = False
    """Runs forward passes in bfloat16 where torch's autocast allows it. The loss needs no scaling."""
    compile: bool = False
    """Compiles the model with torch, once for all rounds. This takes a minute and helps on GPUs."""


PLAIN = Acceleration()


def forward_of(model: nn.Module, how: Acceleration, device: torch.device) -> Callable[[Tensor], Any]:
    """Returns the model's forward function. The weights do not change. Outputs are at least float32, as losses need."""
    call: Callable[[Tensor], Any] = model
    if how.compile:
        if model not in _COMPILED:
            _COMPILED[model] = torch.compile(model)
        call = _COMPILED[model]
    if how.channels_last:
        model.to(memory_format=torch.channels_last)
    if not how.amp and not how.channels_last:
        return call

    def forward(x: Tensor) -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=how.amp):
            return widened(call(arranged(x, how)))

    return forward


def arranged(x: Tensor, how: Acceleration) -> Tensor:
    """Returns the batch in the memory format of the model."""
    images = how.channels_last and x.dim() == 4
    return x.contiguous(memory_format=torch.channels_last) if images else x


def widened(output: Any) -> Any:
    """Returns bfloat16 outputs as float32. Losses and scores need its precision."""
    return output.float() if isinstance(output, Tensor) and output.dtype == torch.bfloat16 else output


# Compiling takes a minute, so each model is compiled once.
_COMPILED: WeakKeyDictionary[nn.Module, Callable[[Tensor], Any]] = WeakKeyDictionary()
