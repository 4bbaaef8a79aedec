"""Between a torch module and the bytes of its manifest: the payload of a model, and the update between two models.

torch is imported inside the functions that use it, as in `networks`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import Mismatch, UsageError
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import nn


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that are sent, in the order of `state_dict`. A tied parameter is sent once, under its first name."""
    import torch

    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    owners: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"{name} is a {type(tensor).__name__}, not a tensor: extra state cannot be sent")
        if torch.nn.parameter.is_lazy(tensor):
            raise UsageError(f"tensor {name} has no shape yet: run one batch through the model where it is built")
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise UsageError(f"tensor {name} is not dense: sparse and quantized tensors cannot be sent")
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
            f"tensor {name} is bfloat16, which cannot be sent: keep the weights in float32 and compute in bfloat16 "
            "with torch.autocast inside the model"
        )
    return _names().get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


@cache
def _names() -> dict[torch.dtype, str]:
    import torch

    return {
        torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.int8: "i8", torch.int16: "i16",
        torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "bool",
    }  # fmt: skip


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    import torch

    role = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
    return TensorSpec(name, _dtype(name, tensor), tuple(tensor.shape), role)


def manifest_of(model: nn.Module) -> Manifest:
    """Parameters and persistent buffers in the order of `state_dict`, tied parameters once."""
    return Manifest(tuple(_spec(name, tensor) for name, tensor in _tensors(model).items()))


def _fitting(model: nn.Module, manifest: Manifest) -> dict[str, torch.Tensor]:
    """The model's tensors, detached. Raises Mismatch unless they are those of the manifest."""

    def shown(spec: TensorSpec | None) -> str:
        return f"{spec.role} {spec.name} {spec.dtype} {list(spec.shape)}" if spec else "nothing"

    tensors = _tensors(model)
    here = [_spec(name, tensor) for name, tensor in tensors.items()]
    for i in range(max(len(here), len(manifest.tensors))):
        ours = here[i] if i < len(here) else None
        theirs = manifest.tensors[i] if i < len(manifest.tensors) else None
        if ours != theirs:
            raise Mismatch(
                f"the model here is not the federation's: tensor {i} is {shown(ours)} here and {shown(theirs)} there; "
                "check --model and its options"
            )
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _read_into(view: NDArray[np.generic], tensor: torch.Tensor) -> None:
    """Copies a tensor from any device into a payload, and converts its type if they differ."""
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
    """Sets the model's tensors to these bytes, in place, on any device."""
    import torch

    tensors = _fitting(model, manifest)
    for name, view in manifest.views(payload, MODEL).items():
        # torch refuses memory that is not writable.
        tensors[name].copy_(torch.from_numpy(view if view.flags.writeable else view.copy()))


def update_of(model: nn.Module, manifest: Manifest, base_payload: bytearray | memoryview | bytes) -> bytearray:
    """The update from a base model to this one: parameters local minus base, buffers as they are now.

    Differences have the type of the update: float32, or float64 if the parameter has it.
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
