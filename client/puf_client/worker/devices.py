"""Where a client computes, and the words for it: nobody should wonder why the GPU is idle."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from puf_common.errors import UsageError

__all__ = ["Choice", "choose"]


@dataclass(frozen=True)
class Choice:
    device: torch.device
    why: str
    """A sentence that says which device and why."""


def choose(spec: str, *, index: int = 0, memory_fraction: float | None = None) -> Choice:
    """The device behind "auto", "cpu", "cuda" or "cuda:1".

    Clients that share a machine pass their number as `index`: "auto" and "cuda" deal them out over the GPUs. Clients
    that share a GPU pass the fraction of its memory that each may use; without it the first to need more takes it.
    """
    if spec not in ("auto", "cpu", "cuda") and not re.fullmatch(r"cuda:\d+", spec):
        raise UsageError(f"device {spec!r} must be auto, cpu, cuda or cuda:N")
    if memory_fraction is not None and not 0 < memory_fraction <= 1:
        raise UsageError(f"the fraction of a GPU's memory must be above 0 and at most 1, not {memory_fraction:g}")
    if spec == "cpu":
        return Choice(torch.device("cpu"), "computing on the CPU, as asked")
    lack = _lack_of_cuda()
    if lack and spec == "auto":
        return Choice(torch.device("cpu"), f"computing on the CPU: {lack}")
    if lack:
        raise UsageError(f"device {spec} was asked for, but {lack}; use --device cpu or auto")
    count = torch.cuda.device_count()
    number = int(spec[5:]) if ":" in spec else index % count
    if number >= count:
        raise UsageError(f"device {spec} was asked for, but there is only cuda:0 to cuda:{count - 1}")
    device = torch.device("cuda", number)
    if memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(memory_fraction, device)
    share = "" if memory_fraction is None else f", with at most {memory_fraction:.0%} of its memory"
    reason = f"one of {count} here" if spec == "auto" else "as asked"
    return Choice(device, f"computing on {device} ({torch.cuda.get_device_name(device)}), {reason}{share}")


def _lack_of_cuda() -> str:
    """Why no GPU can be used, or nothing."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "this PyTorch was built without CUDA"
    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        return "PyTorch finds no GPU here"
    return ""
