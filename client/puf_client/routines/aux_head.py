"""FedAU (Gu et al. 2024), after training: the target trains a fresh head on random labels, and the server mixes it in.

The backbone is frozen, so every sample passes through it once and the head trains on what came out. Labels to forget are
drawn uniformly over all classes, the true one among them, and anew in every epoch; in the scope of samples those that
stay keep their own. What goes back is the head alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.data.samples import Resident, Samples, count
from puf_client.routines.evaluate import outputs
from puf_client.routines.inputs import require_classes
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes, prepare
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.seeds import derive

__all__ = ["AuxHeadOptions", "aux_head", "head_of", "random_labels"]


@dataclass(frozen=True)
class AuxHeadOptions:
    """Learning rate and epochs (published: that of the last round, and 10) come with the settings."""

    init_std: float = 0.01
    """Of the fresh weights, which are normal around 0; biases begin at 0."""
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        if not (self.init_std >= 0 and self.weight_decay >= 0):
            raise UsageError(
                f"aux_head: init_std and weight_decay must be 0 or more, not {self.init_std:g} and {self.weight_decay:g}"
            )


def aux_head(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    settings: TrainSettings,
    options: AuxHeadOptions,
    *,
    forget: NDArray[np.bool_] | None = None,
    outputs_named: Collection[str] = (),
    device: torch.device,
    stream: Callable[[int], int],
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> TrainResult:
    """Replaces the model's head by the auxiliary one, in place; every other bit of the model stays.

    `forget` says which samples get random labels; None: all of them. `outputs_named` are the tensors that the server
    awaits, checked against those of the head found here. The dataset is one that does not augment.
    """
    if count(dataset) == 0:
        raise UsageError("there is no sample to train on")
    prepare(device, settings.threads)
    names, head = head_of(model)
    if outputs_named and set(outputs_named) != set(names):
        raise UsageError(
            f"the federation takes {', '.join(sorted(outputs_named))} for the model's head, here it is {', '.join(names)}: "
            "FedAU needs a model whose last linear layer is its last layer"
        )
    seen = _features(model, head, dataset, device, should_stop)
    auxiliary = _fresh(head, options, derive(stream(0), "auxiliary head")).to(device)
    random_here = torch.ones(len(seen), dtype=torch.bool) if forget is None else torch.as_tensor(forget)
    random_here = random_here.to(device)
    drawn: dict[int, Tensor] = {}

    def loss_of(now: Batch) -> Tensor:
        if now.epoch not in drawn:
            drawn.clear()
            drawn[now.epoch] = random_labels(len(seen), head.out_features, stream(now.epoch)).to(device)
        labels = torch.where(random_here[now.chosen], drawn[now.epoch][now.chosen], now.y)
        return task.loss(auxiliary(now.x), labels)

    settings = replace(settings, optimizer="sgd", momentum=0.0, weight_decay=options.weight_decay)
    step = descent(auxiliary, settings, loss_of, device)
    result = passes(seen, settings, step, device=device, stream=stream, progress=progress, should_stop=should_stop)
    with torch.no_grad():
        for parameter, value in zip(head.parameters(), auxiliary.parameters(), strict=True):
            parameter.copy_(value)
    return result


def head_of(model: nn.Module) -> tuple[tuple[str, ...], nn.Linear]:
    """The last linear layer in the order of the model, and the names of its tensors."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise UsageError("FedAU replaces a model's last linear layer, and this model has none")
    name, head = layers[-1]
    return tuple(f"{name}.{part}" if name else part for part, _ in head.named_parameters()), head


def random_labels(samples: int, classes: int, seed: int) -> Tensor:
    """Uniform over all classes: those of one epoch."""
    generator = torch.Generator().manual_seed(derive(seed, "random labels"))
    return torch.randint(classes, (samples,), generator=generator)


def _fresh(head: nn.Linear, options: AuxHeadOptions, seed: int) -> nn.Linear:
    auxiliary = copy.deepcopy(head).cpu()
    with torch.no_grad():
        auxiliary.weight.normal_(std=options.init_std, generator=torch.Generator().manual_seed(seed))
        if auxiliary.bias is not None:
            auxiliary.bias.zero_()
    return auxiliary.requires_grad_()


def _same(a: Tensor, b: Tensor) -> bool:
    """Values that are not finite are for the loss to tell of."""
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _features(
    model: nn.Module,
    head: nn.Linear,
    dataset: Samples,
    device: torch.device,
    should_stop: Callable[[], bool] | None,
) -> Resident:
    """What enters the head, for every sample, with the backbone as it is when evaluated."""
    calls: list[tuple[Tensor, Tensor]] = []
    hook = head.register_forward_hook(lambda module, entered, left: calls.append((entered[0].detach(), left.detach())))
    features, labels = [], []
    try:
        for output, y in outputs(model, dataset, device, 256, should_stop):
            require_classes("an auxiliary head", output, y)
            if len(calls) != 1 or calls[0][0].ndim != 2 or not _same(calls[0][1], output):
                raise UsageError(
                    "FedAU needs a model that ends in one linear layer: what leaves the last one here is not the "
                    "model's output"
                )
            features.append(calls.pop()[0])
            labels.append(y)
    finally:
        hook.remove()
    return Resident(torch.cat(features), torch.cat(labels))
