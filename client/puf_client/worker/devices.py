"""Which device a client computes on, and the reason for the choice."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from puf_common.errors import UsageError


@dataclass(frozen=True)
class Choice:
    device: torch.device
    why: str
    """A sentence with the device and the reason."""


def choose(spec: str, *, index: int = 0, memory_fraction: float | None = None) -> Choice:
    """Returns the device for "auto", "cpu", "cuda" or "cuda:1".

    Clients on the same machine pass their number as `index`: "auto" and "cuda" distribute them over the GPUs. Clients on
    the same GPU pass the fraction of its memory that each may use.
    """
    if spec not in ("auto", "cpu", "cuda") and not re.fullmatch(r"cuda:\d+", spec):
        raise UsageError(f"device {spec!r} must be auto, cpu, cuda or cuda:N")
    if memory_fraction is not None and not 0 < memory_fraction <= 1:
        raise UsageError(f"the fraction of a GPU's memory must be above 0 and at most 1, not {memory_fraction:g}")
    if spec == "cpu":
        return Choice(torch.device("cpu"), "computing on the CPU, as requested")
    lack = _lack_of_cuda()
    if lack and spec == "auto":
        return Choice(torch.device("cpu"), f"computing on the CPU: {lack}")
    if lack:
        raise UsageError(f"device {spec} was requested, but {lack}; use --device cpu or auto")
    count = torch.cuda.device_count()
    number = int(spec[5:]) if ":" in spec else index % count
    if number >= count:
        raise UsageError(f"device {spec} was requested, but there is only cuda:0 to cuda:{count - 1}")
    device = torch.device("cuda", number)
    if memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(memory_fraction, device)
    share = "" if memory_fraction is None else f", with at most {memory_fraction:.0%} of its memory"
    reason = f"one of {count} on this machine" if spec == "auto" else "as requested"
    return Choice(device, f"computing on {device} ({torch.cuda.get_device_name(device)}), {reason}{share}")


def _lack_of_cuda() -> str:
    """Returns why no GPU can be used, or ""."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "this PyTorch was built without CUDA"
    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        return "PyTorch finds no GPU"
    return ""
