"""Selects the samples of an assignment. Samples that a request excludes never reach a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from puf_client.routines.registry import WITH_RETAINED_SAMPLES
from puf_client.session.assignment import Assignment
from puf_client.state.directory import StateDirectory


def trainable(state: StateDirectory, ids: Sequence[str]) -> NDArray[np.intp]:
    """Returns the positions of the samples that no request excludes."""
    return np.flatnonzero(~state.excluded(ids))


def selected(state: StateDirectory, ids: Sequence[str], assignment: Assignment) -> NDArray[np.intp]:
    """Returns the positions of the assignment's samples: all trainable ones, or those that a request names."""
    if assignment.part != "forget":
        return trainable(state, ids)
    named = state.forget_indices(ids, assignment.forget_request)
    return np.union1d(named, trainable(state, ids)) if assignment.routine in WITH_RETAINED_SAMPLES else named
