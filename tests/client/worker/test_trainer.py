"""Whether the data fits the model and the task is known before the client joins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.client.routines.points import TASK, network, payload, points
from torch import nn
from torch.utils.data import TensorDataset

from puf_client.data import ClientData
from puf_client.worker.devices import choose
from puf_client.worker.trainer import Trainer, require_same_model
from puf_common.errors import Mismatch, UsageError
from puf_common.models.module_tensors import manifest_of
from puf_common.v1 import federation_pb2 as pb


def trainer(train: TensorDataset, holdout: TensorDataset | None = None, model: nn.Module | None = None) -> Trainer:
    model = model or network()
    return Trainer(
        data=ClientData(train, holdout=holdout, ids=[f"s{i}" for i in range(len(train))]),
        model=model,
        manifest=manifest_of(model),
        task=TASK,
        choice=choose("cpu"),
        recipe=pb.Recipe(threads=1),
        plugin_version="",
        fresh=network,
    )


def test_data_that_fits_changes_nothing() -> None:
    with_norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    for model in (network(), with_norm):
        before = payload(model)
        trainer(points(), points(4), model).check_fit()
        assert payload(model) == before
        assert model.training


def test_no_samples_fit() -> None:
    trainer(points(0)).check_fit()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": torch.zeros(5, 7)}, r"the training data, x of shape \(2, 7\) and y of shape \(2,\) torch.int64"),
        ({"y": torch.zeros(5)}, "torch.float32 for 2 samples, does not fit the model and the task"),
        ({"y": torch.full((5,), 9)}, "out of bounds"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_its_shapes(change: dict[str, Any], says: str) -> None:
    arrays = {"x": torch.zeros(5, 3), "y": torch.zeros(5, dtype=torch.int64), **change}
    with pytest.raises(UsageError, match=says):
        trainer(TensorDataset(arrays["x"], arrays["y"])).check_fit()
    with pytest.raises(UsageError, match=r"the hold-out data|hold-out data, |out of bounds"):
        trainer(points(), TensorDataset(arrays["x"], arrays["y"])).check_fit()


def test_labels_of_a_distiller_are_not_read() -> None:
    unlabeled = TensorDataset(torch.zeros(5, 3), torch.full((5,), -1))
    trainer(unlabeled).check_fit(labels=False)
    with pytest.raises(UsageError, match="does not fit"):
        trainer(unlabeled).check_fit()


def test_another_model_is_refused_with_the_first_tensor_that_differs() -> None:
    described = pb.DescribeReply(manifest=manifest_of(nn.Linear(3, 4)).to_pb())
    with pytest.raises(Mismatch, match=r"tensor 0 is parameter weight f32 \[2, 3\] here and .* \[4, 3\] there"):
        require_same_model(nn.Linear(3, 2), described)
