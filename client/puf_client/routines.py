"""Local work in torch: train, evaluate, measure every sample.

The same seeds give the same bits in every process on the same kind of CPU: `prepare` is the one place that fixes
threads and algorithms, and chance comes from `stream(epoch)` alone.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.sgd import sgd

from puf_client.data.samples import Resident, Samples, batch, count, memory_told, resident, select, stacked_if_tensors
from puf_client.tasks import Task
from puf_common.errors import PufError, UsageError

__all__ = [
    "Abandoned",
    "EvaluationSums",
    "PerSample",
    "Resident",
    "Samples",
    "TrainResult",
    "TrainSettings",
    "evaluate",
    "per_sample",
    "prepare",
    "resident",
    "select",
    "train",
]


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


@dataclass(frozen=True)
class EvaluationSums:
    """Sums rather than means: those of several clients add up."""

    samples: int
    loss_sum: float
    score_sum: float


@dataclass(frozen=True)
class PerSample:
    """What the model does with every sample, in the order of the dataset."""

    losses: NDArray[np.float64]
    scores: NDArray[np.float64]
    confidences: NDArray[np.float64]


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
    samples = count(dataset)
    if samples == 0:
        raise UsageError("there is no sample to train on")
    prepare(device, settings.threads)
    dataset = stacked_if_tensors(dataset, device)
    per_epoch = math.ceil(samples / settings.batch_size)
    # 2.3 - 2 is a little less than 0.3: without the margin its batches would be one short.
    total = max(1, int(settings.epochs) * per_epoch + math.floor(settings.epochs % 1 * per_epoch + 1e-9))
    model.to(device).train()
    optimizer = _OPTIMIZERS[settings.optimizer](list(model.parameters()), settings)
    loss_sum, processed = 0.0, 0
    with memory_told(device, f"training with batches of {settings.batch_size}"):
        for done, chosen in enumerate(_shuffled(samples, settings.batch_size, total, stream)):
            if should_stop is not None and should_stop():
                raise Abandoned
            x, y = batch(dataset, chosen, device)
            loss = task.loss(model(x), y)
            value = loss.item()
            if not math.isfinite(value):
                raise PufError(
                    f"the loss became {value} in batch {done + 1} of {total}: lower the learning rate (now {settings.lr:g})"
                    " or look for values in the data that are not finite"
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += value * len(chosen)
            processed += len(chosen)
            if progress is not None:
                progress(done + 1, total)
    return TrainResult(loss_sum / processed, processed)


def evaluate(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    *,
    device: torch.device,
    batch_size: int = 256,
    should_stop: Callable[[], bool] | None = None,
) -> EvaluationSums:
    """Loss and score, summed over the samples."""
    losses, scores = 0.0, 0.0
    for output, y in _outputs(model, dataset, device, batch_size, should_stop):
        losses += task.sample_losses(output, y).double().sum().item()
        scores += task.sample_scores(output, y).double().sum().item()
    return EvaluationSums(count(dataset), losses, scores)


def per_sample(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    *,
    device: torch.device,
    batch_size: int = 256,
    should_stop: Callable[[], bool] | None = None,
) -> PerSample:
    """Loss, score and confidence of every sample, for membership attacks."""
    columns: tuple[list[NDArray[np.float64]], ...] = ([], [], [])
    for output, y in _outputs(model, dataset, device, batch_size, should_stop):
        for column, measure in zip(columns, (task.sample_losses, task.sample_scores, task.confidences), strict=True):
            column.append(measure(output, y).double().cpu().numpy())
    losses, scores, confidences = (np.concatenate([np.empty(0), *column]) for column in columns)
    return PerSample(losses, scores, confidences)


def _outputs(
    model: nn.Module, dataset: Samples, device: torch.device, batch_size: int, should_stop: Callable[[], bool] | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Output and target batch by batch, with the model in evaluation mode meanwhile."""
    dataset = stacked_if_tensors(dataset, device)
    training = model.training
    model.to(device).eval()
    try:
        with memory_told(device, f"evaluating with batches of {batch_size}"):
            for begin in range(0, count(dataset), batch_size):
                if should_stop is not None and should_stop():
                    raise Abandoned
                x, y = batch(dataset, range(begin, min(begin + batch_size, count(dataset))), device)
                with torch.no_grad():
                    output = model(x)
                yield output, y
    finally:
        model.train(training)


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


class _Optimizer(Protocol):
    def zero_grad(self) -> None: ...
    def step(self) -> Any: ...


class _Sgd:
    """torch's own SGD by its functional form: making a `torch.optim.Optimizer` imports torch's compiler, which takes
    a client about as long as importing torch itself. The bits are the same."""

    def __init__(self, parameters: list[nn.Parameter], settings: TrainSettings) -> None:
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
            maximize=False,
        )
        self.momenta.update((i, momentum) for (i, _, _), momentum in zip(trained, momenta, strict=True))


def _adam(parameters: list[nn.Parameter], settings: TrainSettings) -> _Optimizer:
    return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=settings.weight_decay)


def _adamw(parameters: list[nn.Parameter], settings: TrainSettings) -> _Optimizer:
    return torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)


_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], TrainSettings], _Optimizer]] = {
    "sgd": _Sgd,
    "adam": _adam,
    "adamw": _adamw,
}
