"""FedAU: a new head is trained on random labels, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from puf_client.routines.aux_head import AuxHeadOptions, aux_head, head_of, random_labels
from puf_client.routines.evaluate import evaluate
from puf_client.routines.train import train
from puf_client.tasks import Classification, Segmentation
from puf_common.errors import UsageError
from puf_common.models import module_tensors, networks
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
    stream,
)

OPTIONS = AuxHeadOptions()


def test_all_tensors_but_the_head_keep_their_bits() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    model.eval()
    aux_head(model, points(), TASK, settings(epochs=3), OPTIONS, context=RUN)
    changed = {name for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"3.weight", "3.bias"} == set(head_of(model)[0])
    assert not model.training


@pytest.mark.parametrize(("name", "layer"), [("digits-cnn", "9"), ("resnet8-gn", "fc"), ("resnet18-gn", "fc")])
def test_the_head_of_a_built_in_model_is_its_last_weight_and_bias(name: str, layer: str) -> None:
    model = networks.build(name, {"classes": "7"}, 1)
    names, head = head_of(model)
    assert names == (f"{layer}.weight", f"{layer}.bias")
    assert names == tuple(t.name for t in module_tensors.manifest_of(model).tensors[-2:])
    assert head.out_features == 7


def test_the_head_does_not_start_from_the_models_head() -> None:
    model, other = network(), network()
    with torch.no_grad():
        head_of(other)[1].weight.mul_(100).add_(1)
    for m in (model, other):
        aux_head(m, points(), TASK, settings(), OPTIONS, context=RUN)
    assert payload(model) == payload(other)
    still = network()
    aux_head(still, points(), TASK, settings(1e-12), AuxHeadOptions(init_std=0.01), context=RUN)
    head = head_of(still)[1]
    assert 0.001 < float(head.weight.detach().std()) < 0.03
    assert float(head.bias.detach().abs().max()) < 1e-6


def test_only_the_labels_of_retained_samples_matter() -> None:
    def trained(data: Any, forget: Any = None) -> bytes:
        model = network()
        aux_head(model, data, TASK, settings(epochs=2), OPTIONS, forget=forget, context=RUN)
        return payload(model)

    data, other = points(), relabelled(points())
    assert trained(data) == trained(other)
    assert trained(data, np.ones(20, bool)) == trained(data)
    half = np.arange(20) < 10
    assert trained(data, half) != trained(other, half)
    mixed = points()
    mixed.tensors[1][:10] = other.tensors[1][:10]
    assert trained(data, half) == trained(mixed, half)


def test_labels_are_uniform_over_all_classes_and_new_in_every_epoch() -> None:
    seen: list[Tensor] = []

    class Watching(Classification):
        def loss(self, output: Tensor, target: Tensor) -> Tensor:
            seen.append(target)
            return super().loss(output, target)

    aux_head(network(), points(20), Watching(), settings(epochs=3, batch_size=20), OPTIONS, context=RUN)
    # The order also differs between epochs.
    told = [sorted(labels.tolist()) for labels in seen]
    assert told == [sorted(random_labels(20, 3, stream(epoch)).tolist()) for epoch in range(3)]
    assert told[0] != told[1] != told[2]
    drawn = Counter(random_labels(3000, 3, 7).tolist())
    assert sorted(drawn) == [0, 1, 2]
    assert all(900 < n < 1100 for n in drawn.values())


def test_the_new_head_learns_the_retained_samples() -> None:
    model, data = network(), points(60)
    train(model, data, TASK, settings(0.3, epochs=20), context=RUN)
    forget = np.zeros(60, bool)
    forget[:5] = True
    aux_head(model, data, TASK, settings(0.3, epochs=30), OPTIONS, forget=forget, context=RUN)
    assert evaluate(model, data, TASK, device=CPU).score_sum > 45
    aux_head(model, data, TASK, settings(0.3, epochs=30), OPTIONS, context=RUN)
    assert evaluate(model, data, TASK, device=CPU).score_sum < 40


def test_samples_pass_through_the_backbone_once() -> None:
    class Seen(Dataset[Any]):
        asked = 0

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            self.asked += 1
            return points()[index]

    data = Seen()
    result = aux_head(network(), data, TASK, settings(epochs=10), OPTIONS, context=RUN)
    assert data.asked == 21, "one sample more, whose size decides how many fit in a batch"
    assert result.samples_processed == 200


def test_unsuitable_models_are_refused() -> None:
    with pytest.raises(UsageError, match="last linear layer of a model, and this model has none"):
        aux_head(segmenter(), pixels(), Segmentation(), settings(), OPTIONS, context=RUN)
    pixelwise = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Linear(4, 4))
    with pytest.raises(UsageError, match="an auxiliary head works on classification"):
        aux_head(pixelwise, pixels(), Segmentation(), settings(), OPTIONS, context=RUN)
    softened = nn.Sequential(nn.Linear(3, 3), nn.Softmax(1))
    with pytest.raises(UsageError, match="a model that ends in one linear layer"):
        aux_head(softened, points(), TASK, settings(), OPTIONS, context=RUN)
    with pytest.raises(UsageError, match=r"expects the head 0.bias, this model's head is 4.weight, 4.bias"):
        aux_head(network(), points(), TASK, settings(), OPTIONS, outputs_named=["0.bias"], context=RUN)
    aux_head(network(), points(), TASK, settings(), OPTIONS, outputs_named=["4.bias", "4.weight"], context=RUN)
