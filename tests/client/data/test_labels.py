from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from puf_client.data import ClientData
from puf_client.data.labels import labels_of, of_classes
from puf_common.errors import UsageError


def client(y: torch.Tensor) -> ClientData:
    data = TensorDataset(torch.zeros(len(y), 1), y)
    return ClientData(data, ids=[f"s{i}" for i in range(len(y))])


def test_labels_are_in_the_order_of_the_data() -> None:
    y = torch.arange(600) % 7
    assert labels_of(client(y)).tolist() == y.tolist()
    assert of_classes(client(torch.tensor([2, 0, 2, 1])), [2, 1]) == [0, 2, 3]


def test_a_class_without_samples_is_refused() -> None:
    with pytest.raises(UsageError, match="no sample of class 5; nothing was filed; its classes are 0, 2"):
        of_classes(client(torch.tensor([2, 0])), [2, 5])


@pytest.mark.parametrize("y", [torch.zeros(3), torch.zeros(3, 4, dtype=torch.long)], ids=["numbers", "pixels"])
def test_data_without_one_class_per_sample_is_refused(y: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="only if every sample has one class number"):
        labels_of(client(y))
