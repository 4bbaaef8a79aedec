"""FUKD: sums of what clients contributed rebuild the model, and can be taken out of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_client.routines.distill import DistillOptions
from puf_client.routines.inputs import options_from
from puf_server.core.methods.fukd import FukdOptions, accumulate, erase


def test_the_worked_erasure() -> None:
    total = None
    for update in ([0.4, 0.0], [0.2, -0.2]):
        total = accumulate(total, np.array(update, "f4"), 1 / 4)
    assert total is not None
    assert erase(np.array([1, 1], "f4"), [total]) == pytest.approx([0.85, 1.05])


@settings(max_examples=50)
@given(
    rounds=st.lists(
        st.lists(st.tuples(st.integers(1, 500), st.floats(-2, 2, width=32)), min_size=3, max_size=3), max_size=6
    )
)
def test_the_initial_model_and_all_sums_are_the_model(rounds: list[list[tuple[int, float]]]) -> None:
    initial = np.array([0.5, -1.0])
    model, sums = initial.copy(), [np.zeros(2) for _ in range(3)]
    for contributions in rounds:
        n = sum(samples for samples, _ in contributions)
        for k, (samples, value) in enumerate(contributions):
            update = np.array([value, -2 * value], "f4")
            model = model + samples / n * update.astype("f8")
            sums[k] = accumulate(sums[k], update, samples / n)
    assert initial + np.sum(sums, axis=0) == pytest.approx(model, abs=1e-9)
    # Linear: one after the other is both at once, and without everybody the initial model is left.
    assert erase(erase(model, sums[:1]), sums[1:2]) == pytest.approx(erase(model, sums[:2]), abs=1e-12)
    assert erase(model, sums) == pytest.approx(initial, abs=1e-9)


def test_nobody_to_erase_is_the_model_itself() -> None:
    model = np.array([0.1, 3e7], "f4")
    assert np.array_equal(erase(model, []).astype("f4"), model)


def test_the_clients_routine_understands_the_methods_options() -> None:
    assert options_from(DistillOptions, FukdOptions(temperature=2).routine()) == DistillOptions(temperature=2)
    assert FukdOptions().temperature == DistillOptions().temperature
