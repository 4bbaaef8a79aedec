"""Tasks: the loss for training, and the values that are measured for each sample.

Every method takes the model's output for a batch and the batch's targets. Only `loss` is differentiated. The
functions of the built-in tasks give equal bits in every run, also on a GPU.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from puf_common.config import plugins
from puf_common.errors import UsageError


class Task(Protocol):
    """The loss that training minimises, and what is measured for each sample."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean loss over the batch, which training minimises."""

    def sample_losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns one loss per sample."""

    def sample_scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns one score per sample from 0 to 1, larger is better: 1 if correct, a Dice score, ..."""

    def confidences(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the probability of the true target for each sample. Membership attacks use it."""


class Classification:
    """One of several classes per sample: output (batch, classes), target (batch) of class numbers."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target)

    def sample_losses(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction="none")

    def sample_scores(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(1) == target).float()

    def confidences(self, output: Tensor, target: Tensor) -> Tensor:
        return output.softmax(1).gather(1, target[:, None]).squeeze(1)


class Segmentation:
    """A class per pixel: cross entropy plus soft Dice to train, Dice of the foreground to score.

    Output is (batch, classes, *pixels) with class 0 as background, or (batch, 1, *pixels) for one foreground class;
    target is (batch, *pixels) of class numbers, with or without a channel dimension of 1. Pixels may be voxels.
    """

    smooth = 1.0

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.sample_losses(output, target).mean()

    def sample_losses(self, output: Tensor, target: Tensor) -> Tensor:
        logs, truth = self._logs_and_truth(output, target)
        entropy = -(logs * truth).sum(1).mean(1)
        foreground, known = logs[:, 1:].exp(), truth[:, 1:]
        overlap = 2 * (foreground * known).sum(2) + self.smooth
        dice = overlap / (foreground.sum(2) + known.sum(2) + self.smooth)
        return entropy + 1 - dice.mean(1)

    def sample_scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns Dice, averaged over the foreground classes in target or prediction; 1 if both have no foreground."""
        logs, truth = self._logs_and_truth(output, target)
        seen = _one_hot(logs.argmax(1), logs.shape[1], logs.dtype)[:, 1:]
        known = truth[:, 1:]
        sizes = seen.sum(2) + known.sum(2)
        dice = 2 * (seen * known).sum(2) / sizes.clamp(min=1)
        present = sizes > 0
        mean = (dice * present).sum(1) / present.sum(1).clamp(min=1)
        return torch.where(present.any(1), mean, torch.ones_like(mean))

    def confidences(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the probability of the true class, averaged over the pixels."""
        logs, truth = self._logs_and_truth(output, target)
        return (logs.exp() * truth).sum(1).mean(1)

    def _logs_and_truth(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Returns log probabilities and one-hot targets, both (batch, classes, pixels)."""
        target = target.squeeze(1) if target.ndim == output.ndim and target.shape[1] == 1 else target
        if target.shape != (output.shape[0], *output.shape[2:]):
            raise UsageError(
                f"segmentation: output {tuple(output.shape)} needs a target of class numbers of shape "
                f"{(output.shape[0], *output.shape[2:])}, not {tuple(target.shape)}"
            )
        scores = output.flatten(2)
        if scores.shape[1] == 1:
            logs = torch.cat([functional.logsigmoid(-scores), functional.logsigmoid(scores)], 1)
        else:
            logs = scores.log_softmax(1)
        return logs, _one_hot(target.flatten(1).long(), logs.shape[1], logs.dtype)


def _one_hot(classes: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Returns (batch, count, pixels) from (batch, pixels) by comparison. Scattering is not deterministic on all devices."""
    return (classes[:, None] == torch.arange(count, device=classes.device)[None, :, None]).to(dtype)


def task_named(spec: str) -> Task:
    """Returns a built-in task, or an instance of the user's package.module:Class."""
    if spec in BUILT_IN:
        return BUILT_IN[spec]()
    if ":" not in spec:
        raise UsageError(
            f"there is no built-in task {spec!r}; use {', '.join(BUILT_IN)}, or package.module:Class for your task"
        )
    task = plugins.call(plugins.load(spec))
    missing = [name for name in _METHODS if not callable(getattr(task, name, None))]
    if missing:
        raise UsageError(f"task {spec} lacks {', '.join(missing)}; a task has {', '.join(_METHODS)}")
    return cast(Task, task)


BUILT_IN: dict[str, type[Task]] = {"classification": Classification, "segmentation": Segmentation}
_METHODS = ("loss", "sample_losses", "sample_scores", "confidences")
