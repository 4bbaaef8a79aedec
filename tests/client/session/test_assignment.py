"""What an assignment gives to a training loop, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from puf_client.session.assignment import Assignment
from puf_client.session.update import LocalUpdate
from puf_common.errors import InvalidUpdate
from puf_common.seeds import derive
from puf_common.v1 import federation_pb2 as pb
from tests.client.session.arrays import MANIFEST, model, payload_of


def _task(
    work: pb.TrainWork, recipe: pb.Recipe, announced: int = 10, indices: NDArray[np.intp] | None = None
) -> Assignment:
    def deliver(work: pb.TrainWork, update: LocalUpdate) -> bool:
        return update.samples == 10

    return Assignment(
        message=work,
        client="clinic-7",
        recipe=recipe,
        manifest=MANIFEST,
        payload=memoryview(payload_of(model(1))).toreadonly(),
        announced=announced,
        deliver=deliver,
        refuse=lambda work, reason: None,
        indices=indices,
    )


@given(st.integers(0, 2**63 - 1), st.integers(1, 999), st.sampled_from(["main", "retain", "forget"]), st.integers(0, 9))
def test_seeds_depend_on_round_client_part_and_epoch_only(seed: int, number: int, part: str, attempt: int) -> None:
    key = pb.WorkKey(round=number, attempt=attempt, part=f"PART_{part.upper()}")
    task = _task(pb.TrainWork(key=key), pb.Recipe(seed=seed))
    assert task.stream(3) == derive(seed, "train", number, "clinic-7", part, 3)


def test_an_assignment_can_use_the_seeds_of_another_round() -> None:
    recipe = pb.Recipe(seed=3)
    own = _task(pb.TrainWork(key=pb.WorkKey(round=9, part=pb.PART_MAIN)), recipe)
    replayed = _task(pb.TrainWork(key=pb.WorkKey(round=9, part=pb.PART_MAIN), stream_round=2), recipe)
    assert own.stream(0) == derive(3, "train", 9, "clinic-7", "main", 0)
    assert replayed.stream(0) == derive(3, "train", 2, "clinic-7", "main", 0)
    assert (own.routine, replayed.routine) == ("train", "train")


def test_weights_cannot_be_changed_by_a_loop() -> None:
    task = _task(pb.TrainWork(key=pb.WorkKey(part=pb.PART_MAIN)), pb.Recipe())
    with pytest.raises(ValueError, match="read-only"):
        task.weights["w"][...] = 0


def test_a_sample_count_other_than_the_required_one_is_refused_before_sending() -> None:
    task = _task(pb.TrainWork(key=pb.WorkKey(round=4, part=pb.PART_MAIN), samples=10), pb.Recipe())
    with pytest.raises(InvalidUpdate, match="10 samples"):
        task.submit(model(2), samples=9)
    assert task.submit(model(2))
    assert task.submit(model(2), samples=10)
    # The number is never filled in: a loop that announced another one is refused, too.
    with pytest.raises(InvalidUpdate, match="10 samples"):
        _task(pb.TrainWork(key=pb.WorkKey(part=pb.PART_MAIN), samples=10), pb.Recipe(), announced=7).submit(model(2))


@pytest.mark.parametrize("used", [[0, 1], [0, 1, 2, 3], [0, 1, 4], [0, 1, 1], None])
def test_an_update_of_other_samples_than_the_assigned_ones_is_refused(used: list[int] | None) -> None:
    task = _task(pb.TrainWork(key=pb.WorkKey(part=pb.PART_MAIN)), pb.Recipe(), indices=np.array([0, 1, 2]))
    with pytest.raises(InvalidUpdate, match=r"samples (were trained|at the positions job\.indices)"):
        task.submit(model(2), indices=used)
    # Their order does not matter.
    assert not task.submit(model(2), indices=[2, 0, 1])
