"""FedAU (Gu et al. 2024), after training: the target trains a new head on random labels, and the server mixes it in.

The backbone is frozen, so each sample passes through it once and the head trains on the features. The labels of samples
to forget are drawn uniformly over all classes, the true class included, once per epoch. In a request for samples, the
retained samples keep their labels. The client sends only the head.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.data.samples import Resident, Samples, count
from puf_client.routines.context import RoutineContext
from puf_client.routines.evaluate import outputs
from puf_client.routines.forward import widened
from puf_client.routines.inputs import require_classes
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes, prepare
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.seeds import derive


@dataclass(frozen=True)
class AuxHeadOptions:
    """Options of the routine. The settings give learning rate and epochs (published: that of the last round, and 10)."""

    init_std: float = 0.01
    """Standard deviation of the new weights, which are normal around 0. Biases begin at 0."""
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
    context: RoutineContext,
    *,
    forget: NDArray[np.bool_] | None = None,
    outputs_named: Collection[str] = (),
) -> TrainResult:
    """Replaces the model's head by the auxiliary head, in place. All other tensors keep their bits.

    `forget` marks the samples that get random labels; None means all. `outputs_named` are the tensors that the server
    expects; they must be those of the head. The dataset must not augment.
    """
    if count(dataset) == 0:
        raise UsageError("there is no sample to train on")
    device, stream = context.device, context.stream
    prepare(device, settings.threads)
    names, head = head_of(model)
    if outputs_named and set(outputs_named) != set(names):
        raise UsageError(
            f"the federation expects the head {', '.join(sorted(outputs_named))}, this model's head is {', '.join(names)}: "
            "FedAU needs a model whose last linear layer is its last layer"
        )
    seen = _features(model, head, dataset, settings, context)
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
    result = passes(seen, settings, step, context)
    with torch.no_grad():
        for parameter, value in zip(head.parameters(), auxiliary.parameters(), strict=True):
            parameter.copy_(value)
    return result


def head_of(model: nn.Module) -> tuple[tuple[str, ...], nn.Linear]:
    """Returns the names of the last linear layer's tensors, and the layer."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise UsageError("FedAU replaces the last linear layer of a model, and this model has none")
    name, head = layers[-1]
    return tuple(f"{name}.{part}" if name else part for part, _ in head.named_parameters()), head


def random_labels(samples: int, classes: int, seed: int) -> Tensor:
    """Returns the labels of one epoch, uniform over all classes."""
    generator = torch.Generator().manual_seed(derive(seed, "random labels"))
    return torch.randint(classes, (samples,), generator=generator)


def _fresh(head: nn.Linear, options: AuxHeadOptions, seed: int) -> nn.Linear:
    auxiliary = copy.deepcopy(head).cpu()
    with torch.no_grad():
        auxiliary.weight.normal_(std=options.init_std, generator=torch.Generator().manual_seed(seed))
        if auxiliary.bias is not None:
            auxiliary.bias.zero_()
    return auxiliary.requires_grad_()


def _features(
    model: nn.Module, head: nn.Linear, dataset: Samples, settings: TrainSettings, context: RoutineContext
) -> Resident:
    """Returns the head's input for every sample, with the backbone in evaluation mode."""
    calls: list[tuple[Tensor, Tensor]] = []
    hook = head.register_forward_hook(lambda module, entered, left: calls.append((entered[0].detach(), left.detach())))
    features, labels = [], []
    # A compiled model does not call hooks that were registered later.
    how = replace(settings, compile=False)
    try:
        for output, y in outputs(model, dataset, context.device, how, should_stop=context.should_stop):
            require_classes("an auxiliary head", output, y)
            # Values that are not finite make the loss fail later, with a clear message.
            same = [torch.equal(widened(left).nan_to_num(), output.nan_to_num()) for _, left in calls]
            if same != [True] or calls[0][0].ndim != 2:
                raise UsageError(
                    "FedAU needs a model that ends in one linear layer: the output of this model's last linear layer is "
                    "not the output of the model"
                )
            features.append(widened(calls.pop()[0]))
            labels.append(y)
    finally:
        hook.remove()
    return Resident(torch.cat(features), torch.cat(labels))
