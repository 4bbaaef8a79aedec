"""Searches for a history in which a fault that was put into the code shows."""

from __future__ import annotations

import pytest

from tests.sim.client_mutants import MUTATIONS as CLIENT
from tests.sim.client_mutants import Mutation
from tests.sim.core_mutants import MUTATIONS as CORE
from tests.sim.scenario import draw, restless
from tests.sim.world import Outcome, run

__all__ = ["ALL", "caught"]

ALL: tuple[Mutation, ...] = CORE + CLIENT


def caught(mutate: Mutation, histories: int) -> tuple[int, Outcome] | None:
    """The first history that fails and its place; None if none of so many does."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for number in range(histories):
            outcome = run((restless if number % 2 else draw)(number // 2))
            if outcome.failure:
                return number + 1, outcome
    return None
