"""MoDe: guidance uses the labels of the teacher, not the true labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from puf_client.routines.evaluate import evaluate
from puf_client.routines.guide import guide
from puf_client.routines.train import train
from puf_client.tasks import Segmentation
from puf_common.errors import UsageError
from tests.client.routines.points import (
    CPU,
    RUN,
    TASK,
    network,
    payload,
    pixels,
    points,
    relabelled,
    segmenter,
    settings,
)


def _said(dataset: TensorDataset) -> TensorDataset:
    x, _ = dataset.tensors
    with torch.no_grad():
        return TensorDataset(x, network(2).eval()(x).argmax(1))


def test_it_is_training_on_the_teachers_labels() -> None:
    guided, trained, teacher = network(), network(), network(2)
    result = guide(guided, points(), TASK, settings(epochs=2), teacher=teacher, context=RUN)
    assert result == train(trained, _said(points()), TASK, settings(epochs=2), context=RUN)
    assert payload(guided) == payload(trained)
    assert payload(teacher) == payload(network(2))


def test_true_labels_do_not_matter() -> None:
    models = [network(), network()]
    for model, data in zip(models, (points(), relabelled(points())), strict=True):
        guide(model, data, TASK, settings(), teacher=network(2), context=RUN)
    assert payload(models[0]) == payload(models[1])


def test_retained_samples_keep_their_labels() -> None:
    data = points()
    forget = np.arange(20) % 3 == 0
    mixed = TensorDataset(
        data.tensors[0], torch.where(torch.from_numpy(forget), _said(data).tensors[1], data.tensors[1])
    )
    guided, trained = network(), network()
    guide(guided, data, TASK, settings(epochs=2), teacher=network(2), forget=forget, context=RUN)
    train(trained, mixed, TASK, settings(epochs=2), context=RUN)
    assert payload(guided) == payload(trained)
    nothing = network()
    guide(nothing, data, TASK, settings(epochs=2), teacher=network(2), forget=np.zeros(20, bool), context=RUN)
    plain = network()
    train(plain, data, TASK, settings(epochs=2), context=RUN)
    assert payload(nothing) == payload(plain)


def test_the_model_learns_the_teachers_labels() -> None:
    model, data = network(), points(60)
    train(model, data, TASK, settings(0.3, epochs=20), context=RUN)
    known = evaluate(model, data, TASK, device=CPU).score_sum
    guide(model, data, TASK, settings(0.3, epochs=20), teacher=network(2), context=RUN)
    assert evaluate(model, _said(data), TASK, device=CPU).score_sum > 50
    assert evaluate(model, data, TASK, device=CPU).score_sum < 0.7 * known


def test_segmentation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"guidance works on classification: .*PUF, NoT and retraining"):
        guide(segmenter(), pixels(), Segmentation(), settings(), teacher=segmenter(), context=RUN)
