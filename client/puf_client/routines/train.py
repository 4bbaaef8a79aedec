"""Training: ordinary descent, and the loop over epochs and batches that all routines share."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from puf_client.data.samples import Samples, batch, count, explain_out_of_memory, stacked_if_tensors
from puf_client.routines.context import Abandoned, RoutineContext
from puf_client.routines.forward import Acceleration, forward_of
from puf_client.tasks import Task
from puf_common.errors import PufError, UsageError
from puf_common.models.networks import GENERATOR
from puf_common.receipts.gap import DoseReport


@dataclass(frozen=True)
class TrainSettings(Acceleration):
    """How to train in one assignment. Every assignment starts with a new optimizer."""

    lr: float
    optimizer: str = "sgd"
    """"sgd", "adam" or "adamw", as torch defines them."""
    momentum: float = 0.0
    """Momentum of sgd. The other optimizers ignore it."""
    weight_decay: float = 0.0
    """As in torch: added to the gradient in sgd and adam, decoupled from the gradient in adamw. For sgd without momentum
    both are w - lr * weight_decay * w."""
    batch_size: int = 32
    """The last batch of an epoch may be smaller."""
    epochs: float = 1.0
    """May have a fraction: the last epoch then has the first floor(fraction * batches) of its shuffled batches. There is
    at least one batch."""
    threads: int = 1

    def __post_init__(self) -> None:
        if self.optimizer not in _OPTIMIZERS:
            raise UsageError(f"optimizer {self.optimizer!r} must be one of {', '.join(_OPTIMIZERS)}")
        if not (0 < self.lr < math.inf and 0 < self.epochs < math.inf):
            raise UsageError(f"learning rate and epochs must be above 0, not {self.lr:g} and {self.epochs:g}")
        if self.batch_size < 1 or self.threads < 1:
            raise UsageError(f"batch size and threads must be at least 1, not {self.batch_size} and {self.threads}")


@dataclass(frozen=True)
class TrainResult:
    loss: float
    """Mean over the samples, each at the time it was trained on."""
    samples_processed: int
    dose: DoseReport | None = None
    """The chosen strength, of the routine "dose" only."""


def prepare(device: torch.device, threads: int) -> None:
    """Makes torch computations repeatable to the bit. On CUDA some operations remain nondeterministic."""
    cuda = device.type == "cuda"
    if cuda:
        # cuBLAS reads this when it creates its first handle.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    # Sets the same switch as use_deterministic_algorithms, without importing torch's compiler.
    torch.set_deterministic_debug_mode("warn" if cuda else "error")
    # Filling uninitialised memory costs a fifth of a small model's time, and no operation reads it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def train(
    model: nn.Module, dataset: Samples, task: Task, settings: TrainSettings, context: RoutineContext
) -> TrainResult:
    """Trains the model in place, on the device.

    The order of the samples, dropout and augmentation of epoch e depend only on `context.stream(e)`.
    """
    forward = forward_of(model, settings, context.device)
    step = descent(model, settings, lambda now: task.loss(forward(now.x), now.y), context.device)
    return passes(dataset, settings, step, context)


def descent(
    model: nn.Module, settings: TrainSettings, loss_of: Callable[[Batch], Tensor], device: torch.device
) -> Callable[[Batch], float]:
    """Returns a step function that reduces `loss_of` with the settings' optimizer."""
    moved(model, device).train()
    optimizer = _OPTIMIZERS[settings.optimizer](list(model.parameters()), settings)

    def step(now: Batch) -> float:
        loss = loss_of(now)
        value = now.finite(loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return value

    return step


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Returns the model, on the device. `Module.to` visits every tensor, also if there is nothing to move."""
    there = all(tensor.device == device for tensor in chain(model.parameters(), model.buffers()))
    return model if there else model.to(device)


@dataclass(frozen=True)
class Batch:
    x: Tensor
    y: Tensor
    chosen: list[int]
    """Positions of the samples in the dataset."""
    epoch: int
    number: int
    """From 1, over all epochs."""
    total: int
    lr: float

    def finite(self, loss: Tensor) -> float:
        """Returns the loss as a number. Raises if it is not finite, before it can change the model."""
        value = loss.item()
        if not math.isfinite(value):
            raise PufError(
                f"the loss became {value} in batch {self.number} of {self.total}: lower the learning rate "
                f"(now {self.lr:g}), or look for values in the data that are not finite"
            )
        return value


def passes(
    dataset: Samples,
    settings: TrainSettings,
    step: Callable[[Batch], float],
    context: RoutineContext,
    *,
    enough: Callable[[], bool] | None = None,
) -> TrainResult:
    """Calls `step`, which returns the mean loss of a batch, for every batch of the settings' epochs.

    `enough` is called after each step. If it returns True, the routine ends early and counts as finished.
    """
    loss_sum, processed = 0.0, 0
    with explain_out_of_memory(context.device, f"training with batches of {settings.batch_size}"):
        for now in batches(dataset, settings, context):
            value = step(now)
            loss_sum += value * len(now.chosen)
            processed += len(now.chosen)
            if context.progress is not None:
                context.progress(now.number, now.total)
            if enough is not None and enough():
                break
    return TrainResult(loss_sum / processed, processed)


def batches(dataset: Samples, settings: TrainSettings, context: RoutineContext) -> Iterator[Batch]:
    """Yields the batches of the settings' epochs. Raises `Abandoned` before a batch that the server no longer wants."""
    device = context.device
    samples = count(dataset)
    if samples == 0:
        raise UsageError("there is no sample to train on")
    prepare(device, settings.threads)
    dataset = stacked_if_tensors(dataset, device)
    per_epoch = math.ceil(samples / settings.batch_size)
    # In floating point, 2.3 - 2 is less than 0.3. Without the margin one batch would be missing.
    total = max(1, int(settings.epochs) * per_epoch + math.floor(settings.epochs % 1 * per_epoch + 1e-9))
    for done, chosen in enumerate(_shuffled(samples, settings.batch_size, total, context)):
        if context.should_stop is not None and context.should_stop():
            raise Abandoned
        x, y = batch(dataset, chosen, device)
        yield Batch(x, y, chosen, done // per_epoch, done + 1, total, settings.lr)


def _shuffled(samples: int, batch_size: int, total: int, context: RoutineContext) -> Iterator[list[int]]:
    """Yields the first `total` batches. Every epoch has its own order."""
    per_epoch = math.ceil(samples / batch_size)
    for epoch in range(math.ceil(total / per_epoch)):
        seed = context.stream(epoch)
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed)).tolist()
        seed_generators(seed, context.device)
        for begin in range(0, min(per_epoch, total - epoch * per_epoch) * batch_size, batch_size):
            yield order[begin : begin + batch_size]


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds every generator that dropout and the user's augmentation may use. No thread builds a model meanwhile."""
    with GENERATOR:
        if device.type == "cpu":
            # torch.manual_seed also notes the seed for every kind of device that is not in use, each with its call stack.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


class _Optimizer(Protocol):
    def zero_grad(self) -> None: ...
    def step(self) -> Any: ...


class Sgd:
    """torch's SGD with the same bits. `torch.optim.Optimizer` would import torch's compiler, which takes about as long as
    importing torch."""

    def __init__(self, parameters: list[nn.Parameter], settings: TrainSettings, *, maximize: bool = False) -> None:
        self.maximize = maximize
        self.parameters = [p for p in parameters if p.requires_grad]
        self.settings = settings
        self.momenta: dict[int, Tensor | None] = {}
        # Without momentum and decay a step is one sum for each parameter.
        self.plain = not (settings.momentum or settings.weight_decay or maximize)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        if self.plain:
            moving: list[Tensor] = [p for p in self.parameters if p.grad is not None]
            if moving:
                # One call for all of them: for a small model the calls take longer than the sums.
                torch._foreach_add_(moving, [p.grad for p in moving if p.grad is not None], alpha=-self.settings.lr)
            return
        trained = [(i, p, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        momenta = [self.momenta.get(i) for i, _, _ in trained]
        sgd(
            [p for _, p, _ in trained],
            [gradient for _, _, gradient in trained],
            momenta,
            lr=self.settings.lr,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=self.maximize,
        )
        self.momenta.update((i, momentum) for (i, _, _), momentum in zip(trained, momenta, strict=True))


_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], TrainSettings], _Optimizer]] = {
    "sgd": Sgd,
    "adam": lambda parameters, s: torch.optim.Adam(parameters, lr=s.lr, weight_decay=s.weight_decay),
    "adamw": lambda parameters, s: torch.optim.AdamW(parameters, lr=s.lr, weight_decay=s.weight_decay),
}
