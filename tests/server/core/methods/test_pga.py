"""The ball of PGA, in the method's worked numbers and by its invariants."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_client.routines.ascent import AscentOptions
from puf_client.routines.inputs import options_from
from puf_common.errors import UsageError
from puf_server.core.methods.pga import PgaOptions, in_ball, length, reference

W, LOCAL = np.array([1, 1], "f4"), np.array([4, -2], "f4")


@pytest.mark.parametrize(("share", "expected"), [(1 / 4, (0, 2)), (0.4, (-1, 3)), (0.0, (1, 1))])
def test_the_reference_is_the_mean_of_the_others(share: float, expected: tuple[float, float]) -> None:
    assert reference(W, LOCAL, share) == pytest.approx(expected)


@given(
    w=st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3),
    local=st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3),
    share=st.floats(0, 0.95),
)
def test_reference_and_target_average_to_the_model(w: list[float], local: list[float], share: float) -> None:
    model, own = np.array(w, "f4"), np.array(local, "f4")
    again = (1 - share) * reference(model, own, share) + share * own.astype("f8")
    assert np.allclose(again, model, atol=1e-9, rtol=1e-12)


def test_a_target_alone_has_no_reference() -> None:
    with pytest.raises(UsageError, match="needs others beside the target: its share of the last round is 1"):
        reference(W, LOCAL, 1.0)


def test_a_length_is_that_of_all_blocks_together() -> None:
    assert length([np.array([3.0]), np.array([0.0, 4.0], "f4")]) == 5
    assert length([]) == 0


def test_the_ball_is_looked_at_with_what_float32_may_lose() -> None:
    assert in_ball(1.00005, 1.0)
    assert not in_ball(1.001, 1.0)
    assert in_ball(0, 0)


def test_the_clients_routine_understands_the_methods_options() -> None:
    told = PgaOptions(delta_l2=2.5, squared_radius=True, batch_size=128).routine(0.25)
    understood = options_from(AscentOptions, told)
    assert (understood.share, understood.delta_l2, understood.squared_radius) == (0.25, 2.5, True)
    assert understood.batch_size == 128
    assert options_from(AscentOptions, PgaOptions().routine(0.1)) == AscentOptions(share=0.1)
    assert (
        set(told) | {"random_models"} == {f.name for f in fields(AscentOptions)} == set(get_type_hints(AscentOptions))
    )
