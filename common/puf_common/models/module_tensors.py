"""Between a torch module and the bytes of its manifest: the payload of a model, and the update between two models.

Only trained parameters and buffers travel. Frozen parameters (`requires_grad=False`) are the base model: they stay where they
are, and a digest states which ones they are. torch is imported inside the functions that use it, as in `networks`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import Mismatch, UsageError
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec, Use

if TYPE_CHECKING:
    import torch
    from torch import nn


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's tensors, in the order of `state_dict`. A tied parameter is there once, under its first name."""
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


def _dtype(tensor: torch.Tensor) -> str:
    """The name of the type in a manifest; PyTorch's name where a manifest has none."""
    return _names().get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


@cache
def _names() -> dict[torch.dtype, str]:
    import torch

    return {
        torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.int8: "i8", torch.int16: "i16",
        torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "bool",
        torch.bfloat16: "bf16",
    }  # fmt: skip


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    import torch

    role = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
    return TensorSpec(name, _dtype(tensor), tuple(tensor.shape), role)


def _frozen(tensor: torch.Tensor) -> bool:
    import torch

    return not tensor.requires_grad and isinstance(tensor, torch.nn.Parameter)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes, each once. Frozen parameters (`requires_grad=False`) are left out."""
    return [p for p in model.parameters() if p.requires_grad]


def manifest_of(model: nn.Module, *, whole: bool = False) -> Manifest:
    """Trained parameters and persistent buffers in the order of `state_dict`, tied parameters once.

    With `whole` also the frozen parameters, as in federations that were made before frozen parameters stayed at clients.
    """
    tensors = _tensors(model)
    sent = {name: tensor for name, tensor in tensors.items() if whole or not _frozen(tensor)}
    if tensors and all(map(_frozen, tensors.values())) and not whole:
        raise UsageError("every parameter of the model is frozen (requires_grad=False): there is nothing to train")
    return Manifest(tuple(_spec(name, tensor) for name, tensor in sent.items()))


def base_digest(model: nn.Module) -> bytes:
    """SHA-256 of the frozen parameters: names, types, shapes and bytes. Empty if no parameter is frozen."""
    computed, found = hashlib.sha256(), False
    for name, tensor in _tensors(model).items():
        if _frozen(tensor):
            found = True
            computed.update(f"{name}|{_dtype(tensor)}|{','.join(map(str, tensor.shape))}\n".encode())
            computed.update(_bytes(tensor))
    return computed.digest() if found else b""


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of one tensor in C order. Copied only if it is on another device or not contiguous."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _fitting(model: nn.Module, manifest: Manifest) -> dict[str, torch.Tensor]:
    """The model's tensors that travel, detached. Raises Mismatch unless they are those of the manifest."""
    tensors = _tensors(model)
    frozen = {name for name, tensor in tensors.items() if _frozen(tensor)}
    if frozen and not any(spec.name in frozen for spec in manifest.tensors):
        tensors = {name: tensor for name, tensor in tensors.items() if name not in frozen}
    if len(tensors) != len(manifest.tensors) or not all(map(_is, tensors, tensors.values(), manifest.tensors)):
        raise mismatch([_spec(name, tensor) for name, tensor in tensors.items()], manifest)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _is(name: str, tensor: torch.Tensor, spec: TensorSpec) -> bool:
    """Whether `_spec` would return this spec. A worker asks for every tensor in every assignment."""
    import torch

    role = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
    return (spec.name, spec.shape, spec.role) == (name, tensor.shape, role) and spec.dtype == _dtype(tensor)


def mismatch(here: Sequence[TensorSpec], manifest: Manifest) -> Mismatch:
    """The error that shows the first tensor that differs."""

    def shown(spec: TensorSpec | None) -> str:
        return f"{spec.role} {spec.name} {spec.dtype} {list(spec.shape)}" if spec else "nothing"

    pairs = zip_longest(here, manifest.tensors)
    i, ours, theirs = next((i, ours, theirs) for i, (ours, theirs) in enumerate(pairs) if ours != theirs)
    return Mismatch(
        f"the model here is not the federation's: tensor {i} is {shown(ours)} here and {shown(theirs)} there; "
        "check the model (--model) and its options, and which parameters are frozen (requires_grad=False)"
    )


def _as_tensor(view: NDArray[Any], spec: TensorSpec, use: Use) -> torch.Tensor:
    """A torch tensor in the memory of a payload."""
    import torch

    if spec.dtype == "bf16" and use == MODEL:
        return torch.from_numpy(view.view("<i2")).view(torch.bfloat16)
    return torch.from_numpy(view)


def payload_of(model: nn.Module, manifest: Manifest) -> bytearray:
    """The model's bytes in the order of the manifest."""
    tensors = _fitting(model, manifest)
    payload = bytearray(manifest.nbytes(MODEL))
    views = manifest.views(payload, MODEL)
    for spec in manifest.tensors:
        _as_tensor(views[spec.name], spec, MODEL).copy_(tensors[spec.name])
    return payload


def load_payload(model: nn.Module, manifest: Manifest, payload: bytearray | memoryview | bytes) -> None:
    """Sets the model's tensors to these bytes, in place, on any device. Frozen parameters stay as they are."""
    tensors = _fitting(model, manifest)
    views = manifest.views(payload, MODEL)
    for spec in manifest.tensors:
        view = views[spec.name]
        # torch refuses memory that is not writable.
        tensors[spec.name].copy_(_as_tensor(view if view.flags.writeable else view.copy(), spec, MODEL))


def update_of(model: nn.Module, manifest: Manifest, base_payload: bytearray | memoryview | bytes) -> bytearray:
    """The update from a base model to this one: parameters local minus base, buffers as they are now.

    Differences have the type of the update: float32, or float64 if the parameter has it.
    """
    tensors = _fitting(model, manifest)
    base = manifest.values(base_payload)
    payload = bytearray(manifest.nbytes(UPDATE))
    views = manifest.views(payload, UPDATE)
    for spec in manifest.tensors:
        view = views[spec.name]
        # From any device; converts the type if they differ.
        _as_tensor(view, spec, UPDATE).copy_(tensors[spec.name])
        if spec.role == "parameter":
            np.subtract(view, base[spec.name].astype(view.dtype, copy=False), out=view)
    return payload
