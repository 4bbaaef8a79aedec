"""`Job`: one update that a training loop computes by ordinary descent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.routines.context import Abandoned, RoutineContext
from puf_client.routines.dose import Dose
from puf_client.routines.registry import RoutineInputs
from puf_client.routines.train import TrainSettings, batches
from puf_client.session.assignment import Assignment, Part
from puf_common.errors import InvalidUpdate, UsageError
from puf_common.logging import get_logger

log = get_logger("puf_client.api.job")


class Job:
    """One update that the server expects. The session's model has the base weights and is in training mode.

    The loop trains by ordinary descent, also in a round of unlearning: `submit` computes the difference to the base
    weights and applies the scale that the server assigned.
    """

    def __init__(
        self, work: Assignment, inputs: RoutineInputs, context: RoutineContext, dose: Dose | None = None
    ) -> None:
        assert work.indices is not None
        self._work, self._inputs, self._context, self._dose = work, inputs, context, dose
        self.indices: NDArray[np.intp] = work.indices
        """Positions in `data.train` of the samples that this job may use."""
        self.settings: TrainSettings = inputs.settings
        """Learning rate, epochs, batch size and optimizer of this job, from the federation's recipe."""
        self._taken = self._total = self._processed = 0
        self._ended = False
        inputs.model.to(context.device).train()
        shift = dose.shift if dose is not None else None
        self._hook = inputs.model.register_forward_hook(_adds(shift)) if shift is not None else None

    @property
    def round(self) -> int:
        return self._work.round

    @property
    def part(self) -> Part:
        """ "main": all current samples; "forget": those that a request names; "retain": those that it leaves."""
        return self._work.part

    @property
    def unlearns(self) -> bool:
        """Whether the samples of this job are the ones to forget. The loop trains as usual."""
        return self._work.unlearns

    @property
    def abandoned(self) -> bool:
        """Whether the server no longer wants the update. `batches` then ends, and `submit` sends nothing."""
        return self._work.abandoned()

    @property
    def ended(self) -> bool:
        """Whether the job was submitted or declined."""
        return self._ended

    def seed(self, epoch: int) -> int:
        """Returns the seed of one epoch's random choices. It is the same for every attempt, in every process."""
        return self._work.stream(epoch)

    def optimizer(self) -> torch.optim.Optimizer:
        """Returns a new optimizer for the model's parameters, with the recipe's kind and this job's learning rate."""
        s = self.settings
        parameters = [p for p in self._inputs.model.parameters() if p.requires_grad]
        if s.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)
        kind = torch.optim.Adam if s.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=s.lr, weight_decay=s.weight_decay)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the (x, y) of all epochs, on the session's device, from the samples of this job only.

        The order follows from the federation's seed, and torch's, numpy's and Python's random generators are seeded for
        every epoch. The last epoch may be a fraction. Ends early if the server no longer wants the update.
        """
        if self._taken:
            raise UsageError("job.batches() already covers all epochs: call it once in a job")
        try:
            for batch in batches(self._inputs.samples, self.settings, self._context):
                self._taken, self._total = batch.number, batch.total
                self._processed += len(batch.chosen)
                yield batch.x, batch.y
        except Abandoned:
            return

    def submit(
        self,
        *unnamed: Never,
        indices: Sequence[int] | NDArray[np.intp] | None = None,
        train_loss: float = math.nan,
    ) -> bool:
        """Sends the model's update. Returns False if the server no longer wants it.

        A loop that did not take its samples from `batches` states their positions: `indices`. Raises `InvalidUpdate`,
        before anything is sent, if they are not the samples of this job. `train_loss` is shown to operators.
        """
        if unnamed:
            raise UsageError("submit takes no model: it sends the model that connect(..., model=model) was given")
        if self._ended:
            raise UsageError(f"the job of round {self.round} was already submitted or declined")
        if self.abandoned:
            self._end()
            return False
        used = self._from_batches() if indices is None else indices
        try:
            self._unhook()
            dose = self._dose.choose() if self._dose is not None else None
        except Abandoned:
            self._end()
            return False
        processed = self._processed or len(used)
        taken = self._work.submit(
            self._inputs.model, indices=used, train_loss=train_loss, samples_processed=processed, dose=dose
        )
        self._end()
        log.info("trained", round=self.round, part=self.part, samples=len(used), taken=taken)
        return taken

    def decline(self, reason: str) -> None:
        """Tells the server that this client sends no update, so that the round does not wait for it."""
        if not self._ended:
            self._end()
            self._work.decline(reason[:300])

    def _from_batches(self) -> NDArray[np.intp]:
        """Returns the samples of a loop that took all batches."""
        if not self._taken:
            raise InvalidUpdate(
                "state which samples the loop trained on: take them from job.batches(), or train on job.indices and call "
                "job.submit(indices=job.indices)"
            )
        if self._taken < self._total:
            raise InvalidUpdate(
                f"the loop took {self._taken} of {self._total} batches: take all batches of job.batches(), or call "
                "job.decline(reason)"
            )
        return self.indices

    def _end(self) -> None:
        self._ended = True
        self._unhook()

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _adds(shift: Tensor) -> Any:
    """Returns a hook that adds the log of the label mix to the logits: what the mix alone teaches is not unlearned."""

    def hook(model: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + shift if model.training else output

    return hook
