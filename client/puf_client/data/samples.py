"""Samples as the routines use them: fetched one by one, or stacked once on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from puf_common.errors import PufError, UsageError


@dataclass(frozen=True)
class Resident:
    """Samples stacked into tensors on one device. Also a map-style dataset."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


@runtime_checkable
class Batches(Protocol):
    """A dataset that returns whole batches on a device. It may augment, so every batch is requested again."""

    def __len__(self) -> int: ...
    def take(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]: ...
    def on(self, device: torch.device) -> Batches: ...
    def only(self, indices: Sequence[int]) -> Batches: ...


Samples: TypeAlias = "Dataset[Any] | Resident | Batches"


# Largest data of a client that is stacked on its device.
RESIDENT_BYTES = 2 << 30


def resident(dataset: Samples, device: torch.device, *, limit_bytes: int = RESIDENT_BYTES) -> Samples:
    """Returns the dataset stacked on the device, or unchanged if it is larger than the limit.

    Stacking makes small models several times faster. The dataset must not augment, because every sample is fetched once.
    """
    if isinstance(dataset, Resident):
        return Resident(dataset.x.to(device), dataset.y.to(device))
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        x, y = dataset.tensors
        return Resident(x.to(device), y.to(device)) if x.nbytes + y.nbytes <= limit_bytes else dataset
    samples = count(dataset)
    if samples == 0 or samples * sum(part.nbytes for part in batch(dataset, [0])) > limit_bytes:
        return dataset
    with explain_out_of_memory(device, "storing the data"):
        x, y = batch(dataset, range(samples))
        return Resident(x.to(device), y.to(device))


def select(dataset: Samples, indices: Sequence[int]) -> Samples:
    """Returns the samples at these positions, in this order."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        dataset = Resident(*dataset.tensors)
    if isinstance(dataset, Resident):
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=dataset.y.device)
        return Resident(dataset.x[chosen], dataset.y[chosen])
    return dataset.only(indices) if isinstance(dataset, Batches) else Subset(dataset, list(indices))


def count(dataset: Samples) -> int:
    return len(dataset)  # type: ignore[arg-type]


def stacked_if_tensors(dataset: Samples, device: torch.device) -> Samples:
    """Returns tensors and batch datasets on the device, other datasets unchanged."""
    if isinstance(dataset, Resident | TensorDataset):
        return resident(dataset, device)
    if isinstance(dataset, Batches):
        with explain_out_of_memory(device, "storing the data"):
            return dataset.on(device)
    return dataset


def batch(dataset: Samples, indices: Sequence[int], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    if isinstance(dataset, Resident):
        if isinstance(indices, range):
            return dataset.x[indices.start : indices.stop], dataset.y[indices.start : indices.stop]
        chosen = torch.tensor(indices, device=dataset.y.device)
        return dataset.x.index_select(0, chosen), dataset.y.index_select(0, chosen)
    if isinstance(dataset, Batches):
        x, y = dataset.take(indices)
        return (x, y) if device is None else (x.to(device), y.to(device))
    samples = [dataset[index] for index in indices]
    try:
        x, y = default_collate(samples)
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            raise TypeError(f"they give {type(x).__name__} and {type(y).__name__}")
    except (TypeError, ValueError, RuntimeError) as error:
        if _is_out_of_memory(error):
            raise
        raise UsageError(
            f"the data's samples cannot be stacked into a batch: {' '.join(str(error).split())}; "
            "every sample must be (x, y), tensors, arrays or numbers of the same shapes"
        ) from error
    return (x, y) if device is None else (x.to(device), y.to(device))


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


class OutOfMemory(PufError):
    """A device has too little memory for what it was asked to do."""


@contextmanager
def explain_out_of_memory(device: torch.device, doing: str) -> Iterator[None]:
    """Turns an out-of-memory error into a message that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"{device} ran out of memory while {doing}: give this client more memory, run fewer clients on it, "
            f"{'' if device.type == 'cpu' else 'use --device cpu, '}or create the federation with a smaller batch size"
        ) from error
