"""Searches for a history in which a fault that was put into the code shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.sim import client_mutants as client
from tests.sim import core_mutants as core
from tests.sim.client_mutants import Mutation
from tests.sim.run import run
from tests.sim.scenario import draw, restless
from tests.sim.world import Outcome

__all__ = ["ALL", "caught"]

ALL: tuple[Mutation, ...] = core.MUTATIONS + client.MUTATIONS
# Some faults in the code show only after a rare event. More of these events make the search shorter.
OFTEN: Mapping[Mutation, Mapping[str, float]] = {
    core.fold_ignores_revision: {"slow_fold": 0.5},
    core.broken_uploads_are_never_dropped: {"cut_stream": 0.3, "withdraw": 0.0},
    core.restored_models_are_released_by_a_request_that_takes_over: {
        "restore": 0.5,
        "leave_after_restore": 0.9,
        "withdraw": 0.0,
    },
    client.the_new_count_is_not_announced: {"restore": 0.5, "crash_client": 0.0, "leave": 0.0},
    client.the_request_is_stored_after_filing: {"crash_owner": 0.9, "drop_reply": 0.3},
}


def caught(mutate: Mutation, histories: int) -> tuple[int, Outcome] | None:
    """The first history that fails and its place; None if none of so many does."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for number in range(histories):
            drawn = (restless if number % 2 else draw)(number // 2)
            outcome = run(replace(drawn, faults={**drawn.faults, **OFTEN.get(mutate, {})}))
            if outcome.failure.startswith(("TypeError", "AttributeError")):
                raise AssertionError(f"{mutate.__name__} does not fit the code it replaces: {outcome.failure}")
            if outcome.failure:
                return number + 1, outcome
    return None
