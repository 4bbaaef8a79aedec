"""PGA (Halimi et al. 2022): the target ascends its own loss and stays close to a model without its contribution.

    w_ref = (w - p * w_u) / (1 - p)      the average of the other clients in the round that made w
    w <- P(w + lr * momentum(clip(g)))   P projects onto the ball of radius delta around w_ref

w is the global model, w_u the target's last local model, p its share of the samples in that round. p = 1 / N gives the
published form for equal weights. Distances and clipping use the L2 norm over all parameters together. Public versions mix
distances with squared distances and clip each tensor; here the radius is a plain L2 distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.forward import forward_of
from puf_client.routines.train import Batch, Sgd, TrainResult, TrainSettings, passes
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.models.module_tensors import trained
from puf_common.seeds import derive


@dataclass(frozen=True)
class AscentOptions:
    """Options of the routine. The settings give learning rate and epochs (published: 0.01 and at most 5)."""

    share: float
    """p: the target's samples divided by all samples of the round that made the global model."""
    last_round: int = 0
    """The round that made the global model. This client's local model must be from that round."""
    delta_l2: float = 0.0
    """Radius of the ball. 0: a third of the mean distance from w_ref to random models."""
    squared_radius: bool = False
    """Derives the radius as sqrt(mean d^2 / 3), as the method's public code does: about 0.577 of the mean distance."""
    random_models: int = 10
    clip: float = 5.0
    """Largest norm of a gradient over all parameters. 0: no clipping."""
    momentum: float = 0.9
    stop_distance: float = 6.5
    """The routine ends when the L2 distance from w to w_u exceeds this. 0: no early end. Published: 9.0 for IID data,
    6.5 otherwise, tuned between 2.2 and 10 for one network."""
    batch_size: int = 0
    """0: the batch size of the settings. Published: 512 or 1024."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise UsageError(
                f"the target's share must be at least 0 and below 1, not {self.share:g}: "
                "without other clients there is no reference model"
            )
        if self.random_models < 1 or self.batch_size < 0:
            raise UsageError(
                "ascent: random_models must be at least 1 and batch_size at least 0, "
                f"not {self.random_models} and {self.batch_size}"
            )
        for name in ("delta_l2", "clip", "momentum", "stop_distance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"ascent: {name} must be 0 or more, not {getattr(self, name):g}")


def ascend(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    settings: TrainSettings,
    options: AscentOptions,
    context: RoutineContext,
    *,
    last: nn.Module,
    fresh: Callable[[int], nn.Module] | None = None,
) -> TrainResult:
    """Changes the model in place from the global weights to the unlearned weights.

    `last` is this client's local model at the end of the round that made the global model. `fresh` builds a random model
    from a seed; a derived radius needs it. Buffers keep the global values, so that they carry none of the target's data.
    """
    device = context.device
    model.to(device).train()
    weights = trained(model)
    own = [p.detach().to(device) for p in trained(last)]
    centre = reference(weights, own, options.share)
    radius = options.delta_l2
    if not radius:
        if fresh is None:
            raise UsageError("the ball has no radius: set delta_l2, or pass a function that builds random models")
        seeds = (derive(context.stream(0), "random model", i) for i in range(options.random_models))
        radius = radius_of(centre, [fresh(seed) for seed in seeds], options)
    buffers = [b.clone() for b in model.buffers()]
    settings = replace(
        settings,
        optimizer="sgd",
        momentum=options.momentum,
        weight_decay=0.0,
        batch_size=options.batch_size or settings.batch_size,
    )
    optimizer = Sgd(weights, settings, maximize=True)
    _set(weights, centre)
    forward = forward_of(model, settings, device)

    def step(now: Batch) -> float:
        loss = task.loss(forward(now.x), now.y)
        value = now.finite(loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if options.clip:
            gradients = [p.grad for p in weights if p.grad is not None]
            _set(gradients, clip(gradients, options.clip))
        optimizer.step()
        # The projection does not change the momentum, which belongs to the gradient.
        _set(weights, project(weights, centre, radius))
        return value

    result = passes(dataset, settings, step, context, enough=lambda: 0 < options.stop_distance < distance(weights, own))
    _set(list(model.buffers()), buffers)
    return result


@torch.no_grad()
def reference(weights: Sequence[Tensor], own: Sequence[Tensor], share: float) -> list[Tensor]:
    """Returns w_ref, the mean of the other clients: (1 - p) * w_ref + p * w_u = w."""
    return [((w.double() - share * u.double()) / (1 - share)).to(w.dtype) for w, u in zip(weights, own, strict=True)]


@torch.no_grad()
def distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return math.sqrt(sum((x.double() - y.double()).square().sum().item() for x, y in zip(a, b, strict=True)))


@torch.no_grad()
def clip(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Returns g * min(1, limit / |g|)."""
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
    return [g * (limit / norm) for g in gradients] if norm > limit else list(gradients)


@torch.no_grad()
def project(weights: Sequence[Tensor], centre: Sequence[Tensor], radius: float) -> list[Tensor]:
    """Returns the nearest point in the ball."""
    away = distance(weights, centre)
    if away <= radius:
        return list(weights)
    return [
        (c.double() + (radius / away) * (w.double() - c.double())).to(w.dtype)
        for w, c in zip(weights, centre, strict=True)
    ]


def radius_of(centre: Sequence[Tensor], random_models: Sequence[nn.Module], options: AscentOptions) -> float:
    """Returns delta from the distances d to random models: mean(d) / 3, or sqrt(mean(d^2) / 3)."""
    distances = [
        distance(centre, [p.to(c.device) for p, c in zip(trained(m), centre, strict=True)]) for m in random_models
    ]
    if options.squared_radius:
        return math.sqrt(sum(d * d for d in distances) / len(distances) / 3)
    return sum(distances) / len(distances) / 3


@torch.no_grad()
def _set(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        if tensor is not value:
            tensor.copy_(value)
