"""Rapid retraining (Liu et al. 2022): descent scaled by a diagonal curvature, the empirical Fisher information.

    g = mean_i g_i        Gamma = mean_i g_i * g_i, then averaged over blocks of b neighbours in each tensor
    m <- beta1 * m + (1 - beta1) * g        v <- beta2 * v + (1 - beta2) * Gamma^2
    w <- w - lr * m_hat / (sqrt(v_hat) + eps)        m_hat = m / (1 - beta1^t), v_hat = v / (1 - beta2^t)

The square of a batch's gradient differs from the mean of the samples' squared gradients. `torch.func` therefore computes
the gradient of every sample, for a whole batch together. Moments begin at 0 in every assignment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.forward import PLAIN, Acceleration, arranged, widened
from puf_client.routines.train import Batch, TrainResult, TrainSettings, passes
from puf_client.tasks import Task
from puf_common.errors import UsageError

# The gradients of a batch are computed in blocks of at most so many numbers.
_NUMBERS = 1 << 26


@dataclass(frozen=True)
class CurvatureOptions:
    """Options of the routine. The settings give learning rate (published: 0.001) and epochs; their optimizer is not used."""

    beta1: float = 0.9
    beta2: float = 0.999
    block: int = 3
    """b: number of neighbours that share one curvature."""
    eps: float = 1e-4
    """Bounds the step where the gradients of all samples are small, because the curvature is then even smaller. No value
    is published. With the usual 1e-8 the steps are too long to learn the digits."""

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise UsageError(f"curvature: betas must be at least 0 and below 1, not {self.beta1:g} and {self.beta2:g}")
        if self.block < 1 or not 0 < self.eps < math.inf:
            raise UsageError(f"curvature: block must be at least 1 and eps above 0, not {self.block} and {self.eps:g}")


def descend_by_curvature(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    settings: TrainSettings,
    options: CurvatureOptions,
    context: RoutineContext,
) -> TrainResult:
    """Trains the model in place. Raises for models with batch normalisation."""
    mixing = next((name for name, module in model.named_modules() if isinstance(module, _BatchNorm)), None)
    if mixing is not None:
        raise UsageError(
            f"rapid retraining needs the gradient of every sample, and batch normalisation ({mixing}) mixes samples: use "
            "group or layer normalisation, or another method"
        )
    model.to(context.device).train()
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)
    moments = Moments(options, settings.lr)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def step(now: Batch) -> float:
        loss, gradients, fisher = gradient_and_fisher(model, task, trained, now.x, now.y, settings)
        value = now.finite(loss)
        moments.step(trained, gradients, fisher)
        return value

    return passes(dataset, settings, step, context)


def gradient_and_fisher(
    model: nn.Module, task: Task, trained: Mapping[str, Tensor], x: Tensor, y: Tensor, how: Acceleration = PLAIN
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Returns the mean loss, the mean gradient, and the mean of the samples' squared gradients."""
    x = arranged(x, how)

    def loss_of(weights: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=how.amp):
            output = widened(functional_call(model, weights, (one_x[None],)))
        return task.loss(output, one_y[None])

    of_every_sample = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0), randomness="different")
    if how.compile:  # torch finds what it compiled for this code and this model in an earlier batch
        of_every_sample = torch.compile(of_every_sample)
    weights = {name: p.detach() for name, p in trained.items()}
    loss = torch.zeros((), device=x.device)
    gradients = {name: torch.zeros_like(p) for name, p in weights.items()}
    fisher = {name: torch.zeros_like(p) for name, p in weights.items()}
    at_once = max(1, _NUMBERS // max(1, sum(p.numel() for p in weights.values())))
    for begin in range(0, len(x), at_once):
        try:
            found, losses = of_every_sample(weights, x[begin : begin + at_once], y[begin : begin + at_once])
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise UsageError(
                "rapid retraining needs the gradient of every sample, which torch cannot compute for this model: "
                f"{' '.join(str(error).split())}"
            ) from error
        loss += losses.detach().sum()
        for name, each in found.items():
            gradients[name] += each.sum(0)
            fisher[name] += each.square().sum(0)
    for sums in (gradients, fisher):
        for total in sums.values():
            total /= len(x)
    return loss / len(x), gradients, fisher


class Moments:
    """m and v of every tensor, and the step that follows from them."""

    def __init__(self, options: CurvatureOptions, lr: float) -> None:
        self.options = options
        self.lr = lr
        self.t = 0
        self.m: dict[str, Tensor] = {}
        self.v: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
    ) -> None:
        o = self.options
        self.t += 1
        for name, w in weights.items():
            gamma = block_mean(fisher[name], o.block)
            m = self.m.setdefault(name, torch.zeros_like(w, requires_grad=False))
            v = self.v.setdefault(name, torch.zeros_like(w, requires_grad=False))
            m.mul_(o.beta1).add_(gradients[name], alpha=1 - o.beta1)
            v.mul_(o.beta2).addcmul_(gamma, gamma, value=1 - o.beta2)
            root = (v / (1 - o.beta2**self.t)).sqrt_()
            w.addcdiv_(m / (1 - o.beta1**self.t), root.add_(o.eps), value=-self.lr)


def block_mean(values: Tensor, block: int) -> Tensor:
    """Returns the values with each replaced by the mean of its block. The last block of a tensor may be smaller."""
    flat = values.flatten()
    whole = len(flat) // block * block
    parts = [flat[:whole].view(-1, block).mean(1).repeat_interleave(block)]
    if whole < len(flat):
        parts.append(flat[whole:].mean().expand(len(flat) - whole))
    return torch.cat(parts).view_as(values)
