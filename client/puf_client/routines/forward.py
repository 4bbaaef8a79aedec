"""How a model's outputs are computed: memory format, number type, compilation. Training and evaluation share it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
        _COMPILED.move_to_end(model)
        if len(_COMPILED) > _MOST_COMPILED:
            _COMPILED.popitem(last=False)
    if how.channels_last:
        model.to(memory_format=torch.channels_last)
    if not how.amp and not how.channels_last:
        return call

    def forward(x: Tensor) -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=how.amp):
            return widened(call(arranged(x, how)))

    return forward


def forward_of_teacher(teacher: nn.Module, how: Acceleration, device: torch.device) -> Callable[[Tensor], Any]:
    """The same for a model that lives for one assignment. It is not compiled: that would take longer than it saves."""
    return forward_of(teacher, replace(how, compile=False), device)


def arranged(x: Tensor, how: Acceleration) -> Tensor:
    """Returns the batch in the memory format of the model."""
    images = how.channels_last and x.dim() == 4
    return x.contiguous(memory_format=torch.channels_last) if images else x


def widened(output: Any) -> Any:
    """Returns bfloat16 outputs as float32. Losses and scores need its precision."""
    return output.float() if isinstance(output, Tensor) and output.dtype == torch.bfloat16 else output


# Compiling takes a minute, so a model is compiled once. A compiled function keeps its model alive. A process has one model
# that it trains and, in the lab, one that it evaluates.
_COMPILED: OrderedDict[nn.Module, Callable[[Tensor], Any]] = OrderedDict()
_MOST_COMPILED = 2
