"""Training: passes over the samples in an order and with a chance of their own, and ordinary descent along them."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from puf_client.data.samples import Samples, batch, count, memory_told, stacked_if_tensors
from puf_client.tasks import Task
from puf_common.errors import PufError, UsageError

__all__ = ["Abandoned", "Batch", "Sgd", "TrainResult", "TrainSettings", "descent", "passes", "prepare", "train"]


class Abandoned(Exception):
    """The caller's `should_stop` said so between two batches. Nothing failed."""


@dataclass(frozen=True)
class TrainSettings:
    """One piece of local training. The optimizer starts afresh in every piece."""

    lr: float
    optimizer: str = "sgd"
    """"sgd", "adam" or "adamw" as torch defines them."""
    momentum: float = 0.0
    """Of sgd; the others ignore it."""
    weight_decay: float = 0.0
    """As torch means it: added to the gradient in sgd and adam, decoupled from it in adamw. For sgd without momentum
    the two are the same, w - lr * weight_decay * w."""
    batch_size: int = 32
    """The last, smaller batch is kept."""
    epochs: float = 1.0
    """May end in a fraction: of the last epoch's shuffled batches the first floor(fraction * batches) are taken. At
    least one batch is."""
    threads: int = 1
    channels_last: bool = False
    """Images and convolutions with channels last in memory: other kernels, faster ones where there are tensor cores."""
    amp: bool = False
    """Forward passes in bfloat16 where torch's autocast finds it safe. It needs no scaling of the loss."""
    compile: bool = False
    """Lets torch compile the model, once for all rounds. It takes a minute and pays off on GPUs."""

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
    """Mean over the samples as they were trained on."""
    samples_processed: int


def prepare(device: torch.device, threads: int) -> None:
    """Makes torch repeat itself to the bit. On CUDA, where some operations cannot, as far as they can."""
    cuda = device.type == "cuda"
    if cuda:
        # cuBLAS reads it when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    # What use_deterministic_algorithms switches, without importing torch's compiler to tell it, too.
    torch.set_deterministic_debug_mode("warn" if cuda else "error")
    # It also makes torch fill memory that nobody reads, at a fifth of a small model's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def train(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    settings: TrainSettings,
    *,
    device: torch.device,
    stream: Callable[[int], int],
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> TrainResult:
    """Trains the model in place, on the device.

    Order of the samples, dropout and augmentation of epoch e (from 0) depend on `stream(e)` alone. `progress` is told
    batches done and batches in all.
    """
    model.to(device).train()
    forward = forward_of(model, settings, device)
    step = descent(model, settings, lambda now: task.loss(forward(now.x), now.y), device)
    return passes(dataset, settings, step, device=device, stream=stream, progress=progress, should_stop=should_stop)


def descent(
    model: nn.Module, settings: TrainSettings, loss_of: Callable[[Batch], Tensor], device: torch.device
) -> Callable[[Batch], float]:
    """The step that makes `loss_of` small by moving the model with the settings' optimizer."""
    model.to(device).train()
    optimizer = _OPTIMIZERS[settings.optimizer](list(model.parameters()), settings)

    def step(now: Batch) -> float:
        loss = loss_of(now)
        value = now.finite(loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return value

    return step


@dataclass(frozen=True)
class Batch:
    """What a step of a routine sees."""

    x: Tensor
    y: Tensor
    chosen: list[int]
    """Positions in the dataset."""
    epoch: int
    number: int
    """From 1, over all epochs."""
    total: int
    lr: float

    def finite(self, loss: Tensor) -> float:
        """The loss as a number. One that is none must not move a model."""
        value = loss.item()
        if not math.isfinite(value):
            raise PufError(
                f"the loss became {value} in batch {self.number} of {self.total}: lower the learning rate "
                f"(now {self.lr:g}) or look for values in the data that are not finite"
            )
        return value


def passes(
    dataset: Samples,
    settings: TrainSettings,
    step: Callable[[Batch], float],
    *,
    device: torch.device,
    stream: Callable[[int], int],
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    enough: Callable[[], bool] | None = None,
) -> TrainResult:
    """Takes `step`, which returns the batch's mean loss, for every batch of the settings' epochs.

    All routines go through here. `enough` is asked after each step and ends the work early, as done; `should_stop`
    is asked before and abandons it.
    """
    samples = count(dataset)
    if samples == 0:
        raise UsageError("there is no sample to train on")
    prepare(device, settings.threads)
    dataset = stacked_if_tensors(dataset, device)
    per_epoch = math.ceil(samples / settings.batch_size)
    # 2.3 - 2 is a little less than 0.3: without the margin its batches would be one short.
    total = max(1, int(settings.epochs) * per_epoch + math.floor(settings.epochs % 1 * per_epoch + 1e-9))
    loss_sum, processed = 0.0, 0
    with memory_told(device, f"training with batches of {settings.batch_size}"):
        for done, chosen in enumerate(_shuffled(samples, settings.batch_size, total, stream)):
            if should_stop is not None and should_stop():
                raise Abandoned
            x, y = batch(dataset, chosen, device)
            value = step(Batch(x, y, chosen, done // per_epoch, done + 1, total, settings.lr))
            loss_sum += value * len(chosen)
            processed += len(chosen)
            if progress is not None:
                progress(done + 1, total)
            if enough is not None and enough():
                break
    return TrainResult(loss_sum / processed, processed)


def _shuffled(samples: int, batch_size: int, total: int, stream: Callable[[int], int]) -> Iterator[list[int]]:
    """The first `total` batches over as many epochs as that takes, each epoch in its own order."""
    per_epoch = math.ceil(samples / batch_size)
    for epoch in range(math.ceil(total / per_epoch)):
        seed = stream(epoch)
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed)).tolist()
        # For dropout and augmentation, whichever library the user's own takes its chance from.
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        for begin in range(0, min(per_epoch, total - epoch * per_epoch) * batch_size, batch_size):
            yield order[begin : begin + batch_size]


def forward_of(model: nn.Module, settings: TrainSettings, device: torch.device) -> Callable[[Tensor], Any]:
    """The model as the settings want it computed. Its weights, and what travels of them, stay as they are."""
    call: Callable[[Tensor], Any] = model
    if settings.compile:
        if model not in _COMPILED:
            _COMPILED[model] = torch.compile(model)
        call = _COMPILED[model]
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)
    if not settings.amp and not settings.channels_last:
        return call

    def forward(x: Tensor) -> Any:
        if settings.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.amp):
            return call(x)

    return forward


# Compiling takes a minute: once for a model, however many rounds.
_COMPILED: WeakKeyDictionary[nn.Module, Callable[[Tensor], Any]] = WeakKeyDictionary()


class _Optimizer(Protocol):
    def zero_grad(self) -> None: ...
    def step(self) -> Any: ...


class Sgd:
    """torch's own SGD by its functional form: making a `torch.optim.Optimizer` imports torch's compiler, which takes
    a client about as long as importing torch itself. The bits are the same."""

    def __init__(self, parameters: list[nn.Parameter], settings: TrainSettings, *, maximize: bool = False) -> None:
        self.maximize = maximize
        self.parameters = [p for p in parameters if p.requires_grad]
        self.settings = settings
        self.momenta: dict[int, Tensor | None] = {}

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
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


def _adam(parameters: list[nn.Parameter], settings: TrainSettings) -> _Optimizer:
    return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=settings.weight_decay)


def _adamw(parameters: list[nn.Parameter], settings: TrainSettings) -> _Optimizer:
    return torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)


_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], TrainSettings], _Optimizer]] = {
    "sgd": Sgd,
    "adam": _adam,
    "adamw": _adamw,
}
