"""The gap between forget data and unseen data, with worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import by_class

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import BINS
from puf_common.receipts.gap import FEWEST, ClassTable, Gap, fraction_left, gap, table

# 50 samples of class 0 with p = 0.5, 50 of class 1 with p = 0.9.
UNSEEN = by_class((50, 50), (25.0, 45.0), (12.5, 40.5))


def test_unseen_data_is_weighted_with_the_label_mix_of_the_forget_data() -> None:
    # Three of class 0, one of class 1: 0.75 * 0.5 + 0.25 * 0.9 = 0.6.
    found = gap([0.8, 0.8, 0.8, 0.8], [0, 0, 0, 1], UNSEEN)
    assert found is not None
    assert found.value == pytest.approx(0.2)
    assert found.error == pytest.approx(0.0, abs=1e-3)


def test_the_standard_error_has_both_sides() -> None:
    # Class 0: p is 0 or 1 with equal chance, so its variance is 0.25 and that of its mean 0.25 * 50 / 49 / 50.
    unseen = by_class((50,), (25.0,), (25.0,))
    found = gap([0.4, 0.6] * 8, [0] * 16, unseen)
    assert found is not None
    assert found.value == pytest.approx(0.0)
    assert found.error == pytest.approx(math.sqrt(0.01 / 16 + 12.5 / 49 / 50))


def test_classes_without_hold_out_samples_are_left_out_on_both_sides() -> None:
    unseen = by_class((50, 0), (25.0, 0.0), (12.5, 0.0))
    found = gap([0.7, 0.1], [0, 1], unseen)
    assert found is not None
    assert found.value == pytest.approx(0.2)


def test_few_hold_out_samples_allow_no_gap() -> None:
    few = by_class((FEWEST - 1,), (1.0,), (1.0,))
    assert gap([0.5], [0], few) is None
    assert gap([0.5], [1], by_class((50, 0), (25.0, 0.0), (12.5, 0.0))) is None


def test_a_table_counts_by_class_or_as_one() -> None:
    found = table([0.25, 0.5, 0.75], [0, 2, 2], 3)
    assert (found.counts, found.sums, found.squares) == ((1, 0, 2), (0.25, 0.0, 1.25), (0.0625, 0.0, 0.8125))
    assert table([0.25, 0.5], [0, 0], 1).counts == (2,)
    assert table([0.25, 0.5], [0, 4000], 5000).counts == (2,)
    assert table([np.nan, 2.0], [0, 0], 1).sums == (1.0,)


@pytest.mark.parametrize(
    ("counts", "sums", "squares"),
    [
        ((1,), (2.0,), (0.5,)),
        ((1,), (0.5,), (-0.5,)),
        ((1,), (float("nan"),), (0.5,)),
        ((-1,), (0.0,), (0.0,)),
        ((1, 2), (0.5,), (0.5,)),
        ((), (), ()),
    ],
)
def test_sums_that_cannot_be_are_refused(
    counts: tuple[int, ...], sums: tuple[float, ...], squares: tuple[float, ...]
) -> None:
    with pytest.raises(InvalidArgument):
        by_class(counts, sums, squares)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), min_size=2, max_size=6), st.randoms())
def test_tables_add_to_the_same_bits_in_every_order(clients: list[list[float]], order: object) -> None:
    tables = [table(values, [0] * len(values), 1) for values in clients]
    forward, backward = tables[0], tables[-1]
    for one in tables[1:]:
        forward = forward + one
    for one in reversed(tables[:-1]):
        backward = backward + one
    assert forward == backward


def test_the_fraction_left_has_a_standard_error() -> None:
    found = fraction_left(Gap(value=0.4, error=0.04), Gap(value=0.1, error=0.03))
    assert found is not None
    assert found.value == pytest.approx(0.25)
    assert found.error == pytest.approx(math.hypot(0.03, 0.25 * 0.04) / 0.4)
    assert fraction_left(Gap(value=0.05, error=0.04), Gap(value=0.1, error=0.03)) is None
    assert fraction_left(None, Gap(value=0.1, error=0.03)) is None


@pytest.mark.parametrize(("value", "error"), [(1.5, 0.1), (0.5, -0.1), (float("nan"), 0.1), (0.5, float("inf"))])
def test_a_gap_that_cannot_be_is_refused(value: float, error: float) -> None:
    with pytest.raises(InvalidArgument):
        Gap(value=value, error=error)


@pytest.mark.parametrize("value", [1e303, -1e303, math.inf, math.nan])
def test_a_table_refuses_sums_that_are_no_probabilities(value: float) -> None:
    with pytest.raises(InvalidArgument, match="class table"):
        ClassTable(bins=(1,) * BINS, sums=(value,), squares=(0.0,))
