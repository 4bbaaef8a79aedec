"""What every routine gets beside model, samples, task and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

Progress: TypeAlias = Callable[[int, int], None]


class Abandoned(Exception):
    """`should_stop` returned True between two batches. This is not a failure."""


@dataclass(frozen=True)
class RoutineContext:
    """Where a routine runs, where its random numbers come from, and how it reports and stops."""

    device: torch.device
    stream: Callable[[int], int]
    """Seed of an epoch, counted from 0. All random choices of the epoch follow from it."""
    progress: Progress | None = None
    """Called with the number of finished batches and the number of all batches."""
    should_stop: Callable[[], bool] | None = None
    """Called before every batch. If it returns True, the routine raises `Abandoned`."""
