"""The arithmetic of the adapters, without the frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from puf_common.errors import InvalidUpdate
from puf_embedded.arithmetic import buffers_of, digest, scaled, stretched, weighted_mean, with_buffers
from puf_flare.combine import Contribution, combined, negated

BASE: dict[str, Any] = {
    "w": np.array([1.0, 2.0], np.float32),
    "bn.running_mean": np.array([5.0], np.float32),
    "bn.num_batches_tracked": np.array(7, np.int64),
}
TRAINED: dict[str, Any] = {
    "w": np.array([1.5, 1.0], np.float32),
    "bn.running_mean": np.array([9.0], np.float32),
    "bn.num_batches_tracked": np.array(8, np.int64),
}
BUFFERS = frozenset({"bn.running_mean", "bn.num_batches_tracked"})


def test_known_buffers_and_integers_are_buffers() -> None:
    assert buffers_of(BASE) == BUFFERS
    assert buffers_of(BASE, ["w"]) == {"w"}
    with pytest.raises(InvalidUpdate, match="missing is named as a buffer"):
        buffers_of(BASE, ["missing"])


def test_a_target_sends_the_negated_update_and_the_buffers_it_received() -> None:
    sent = scaled(BASE, TRAINED, -4.0, BUFFERS)
    assert sent["w"].tolist() == [-1.0, 6.0]
    assert sent["w"].dtype == np.float32
    assert sent["bn.running_mean"] is BASE["bn.running_mean"]


def test_the_mean_with_a_negated_update_is_puf_regular() -> None:
    """w - kappa * Delta_u + sum over retained (n_i / n) Delta_i, as in puf_server.core.methods.puf."""
    other = {**TRAINED, "w": np.array([3.0, 3.0], np.float32)}
    n, n_u, kappa = 40, 10, 2.0
    target = scaled(BASE, TRAINED, -kappa * n / n_u, BUFFERS)
    found = weighted_mean([(n_u, target), (n - n_u, other)])["w"]
    expected = BASE["w"] - kappa * (TRAINED["w"] - BASE["w"]) + 0.75 * (other["w"] - BASE["w"])
    np.testing.assert_allclose(found, expected)


def test_missing_updates_do_not_make_the_negation_stronger() -> None:
    """The inner mean divides by the 20 samples that came; the plan by all 40."""
    target = scaled(BASE, TRAINED, -8.0, BUFFERS)
    other = {**TRAINED, "w": np.array([3.0, 3.0], np.float32)}
    moved = [(10, stretched(BASE, x, 20 / 40, BUFFERS)) for x in (target, other)]
    expected = BASE["w"] - 2.0 * (TRAINED["w"] - BASE["w"]) + 0.25 * (other["w"] - BASE["w"])
    np.testing.assert_allclose(weighted_mean(moved)["w"], expected)


def test_buffers_of_a_target_do_not_move_the_mean_of_the_others() -> None:
    retained = [(10.0, TRAINED), (30.0, {**TRAINED, "bn.running_mean": np.array([1.0], np.float32)})]
    target = with_buffers(scaled(BASE, TRAINED, -4.0, BUFFERS), BASE, retained, BUFFERS)
    assert weighted_mean([*retained, (20.0, target)])["bn.running_mean"].tolist() == [3.0]
    alone = with_buffers(TRAINED, BASE, [], BUFFERS)
    assert alone["bn.running_mean"].tolist() == [5.0]


def test_models_with_other_arrays_are_refused() -> None:
    with pytest.raises(InvalidUpdate, match="one of the models only"):
        scaled(BASE, {"w": BASE["w"]}, 1.0, BUFFERS)
    with pytest.raises(InvalidUpdate, match="shape"):
        scaled(BASE, {**TRAINED, "w": np.zeros(3, np.float32)}, 1.0, BUFFERS)


def test_the_digest_depends_on_every_value() -> None:
    assert digest(BASE) == digest({name: value.copy() for name, value in BASE.items()})
    assert digest(BASE) != digest({**BASE, "w": np.nextafter(BASE["w"], np.float32(9))})


def difference(*values: float) -> dict[str, Any]:
    return {"w": np.array(values[:2], np.float32), "bn.running_mean": np.array(values[2:], np.float32)}


def test_a_flare_round_with_a_leaving_site_is_puf_regular() -> None:
    parts = [
        Contribution("site-1", difference(1, 2, 3), 30),
        Contribution("site-2", negated(difference(4, 8, 9), 2.0), 10, negated=True),
    ]
    found = combined(parts)
    assert found["w"].tolist() == [0.75 - 8.0, 1.5 - 16.0]
    assert found["bn.running_mean"].tolist() == [3.0]


def test_in_flare_special_only_targets_count() -> None:
    parts = [
        Contribution("site-1", difference(1, 2, 3), 30),
        Contribution("site-2", negated(difference(4, 8, 9), 0.5), 10, negated=True),
    ]
    found = combined(parts, special=True)
    assert found["w"].tolist() == [-2.0, -4.0]
    assert found["bn.running_mean"].tolist() == [0.0]


def test_an_ordinary_flare_round_is_the_weighted_mean() -> None:
    parts = [Contribution("a", difference(1, 2, 3), 30), Contribution("b", difference(5, 6, 7), 10)]
    assert combined(parts, special=True)["w"].tolist() == [2.0, 3.0]


def test_flare_rounds_without_updates_or_weights_are_refused() -> None:
    with pytest.raises(InvalidUpdate, match="nothing to sum"):
        combined([])
    with pytest.raises(InvalidUpdate, match="states no samples"):
        combined([Contribution("a", difference(1, 2, 3), 0)])
