from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from puf_client.data.samples import Resident, batch, count, explain_out_of_memory, resident, select
from puf_common.errors import PufError, UsageError

CPU = torch.device("cpu")


class Counted(Dataset[Any]):
    """Numpy samples that count how often they are fetched."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples
        self.fetched = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        return self.samples[index]


def _samples(number: int) -> list[Any]:
    return [(np.array([i, -i], np.float32), i) for i in range(number)]


def test_stacking_fetches_every_sample_once() -> None:
    dataset = Counted(_samples(5))
    stacked = resident(dataset, CPU)
    assert isinstance(stacked, Resident)
    assert dataset.fetched == 6, "one to learn the size"
    assert torch.equal(stacked.x[:, 0], torch.arange(5.0))
    assert stacked.y.tolist() == [0, 1, 2, 3, 4]
    assert [int(stacked[i][1]) for i in range(len(stacked))] == [0, 1, 2, 3, 4], "it is a dataset like any other"


def test_data_above_the_limit_is_not_stacked() -> None:
    dataset = Counted(_samples(100))
    assert resident(dataset, CPU, limit_bytes=100) is dataset
    assert dataset.fetched == 1
    tensors = TensorDataset(torch.zeros(100, 2), torch.zeros(100))
    assert resident(tensors, CPU, limit_bytes=100) is tensors
    assert isinstance(resident(tensors, CPU), Resident)
    empty = Counted([])
    assert resident(empty, CPU) is empty


@pytest.mark.parametrize("kind", ["resident", "tensors", "fetched"])
def test_a_selection_keeps_its_order(kind: str) -> None:
    stacked = resident(Counted(_samples(6)), CPU)
    assert isinstance(stacked, Resident)
    dataset: Any = {
        "resident": stacked,
        "tensors": TensorDataset(stacked.x, stacked.y),
        "fetched": Counted(_samples(6)),
    }[kind]
    chosen = select(dataset, [4, 0, 2])
    x, y = batch(chosen, [0, 1, 2])
    assert y.tolist() == [4, 0, 2]
    assert x[:, 0].tolist() == [4, 0, 2]
    assert count(select(dataset, [])) == 0
    assert count(select(chosen, [1])) == 1


@pytest.mark.parametrize(
    "samples",
    [
        [(np.zeros(2), 0), (np.zeros(3), 0)],
        [(np.zeros(2), 0, 0), (np.zeros(2), 0, 0)],
        [(np.zeros(2), "cat"), (np.zeros(2), "dog")],
        [(object(), 0), (object(), 0)],
    ],
    ids=["ragged", "triples", "words", "objects"],
)
def test_samples_that_cannot_be_stacked_are_refused(samples: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"samples cannot be stacked into a batch: .*every sample must be \(x, y\)"):
        batch(Counted(samples), [0, 1])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
)
def test_out_of_memory_says_what_to_do(error: Exception) -> None:
    with (
        pytest.raises(PufError, match=r"cpu ran out of memory while dreaming: .*smaller batch"),
        explain_out_of_memory(CPU, "dreaming"),
    ):
        raise error


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"), explain_out_of_memory(CPU, "dreaming"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
