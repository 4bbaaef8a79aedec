"""Losses, scores and confidences of a model, one of each per sample. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puf_common.receipts.gap import ClassTable, table

# A hold-out of this size is compared with alone.
ENOUGH_OWN = 200


@dataclass(frozen=True)
class PerSample:
    """Values of every sample, in the order of the dataset."""

    losses: NDArray[np.float64]
    scores: NDArray[np.float64]
    confidences: NDArray[np.float64]
    # The class of every sample, and the number of classes. A task without classes has class 0 only.
    labels: NDArray[np.int64]
    classes: int = 1

    @property
    def by_class(self) -> ClassTable:
        """The confidences, summed by class."""
        return table(self.confidences, self.labels, self.classes)


def unseen(others: ClassTable | None, own: PerSample | None) -> ClassTable:
    """Returns the hold-outs to compare with: the client's own if it is large, else those of all clients together.

    A large own hold-out is the better one where clients' data differ.
    """
    mine = own.by_class if own is not None else None
    if others is None or (mine is not None and mine.samples >= ENOUGH_OWN):
        assert mine is not None
        return mine
    return others + mine if mine is not None and mine.classes == others.classes else others
