"""Values that clients supply."""

from __future__ import annotations

import math

import pytest

from puf_common.errors import InvalidArgument
from puf_server.core import validation
from puf_server.core.state.measurements import Sums


def test_sums_of_any_number_of_clients_stay_finite() -> None:
    worst = validation.sums(1 << 48, 1e9 * (1 << 48), 0.0, ())
    total = Sums(samples=0, loss_sum=0.0, score_sum=0.0)
    for _ in range(10_000):
        total = total + worst
    assert math.isfinite(total.loss_sum)
    assert total.samples < 2**63


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, -1.0, 2e9])
def test_a_day_of_receipt_lies_in_the_last_ten_years(at: float) -> None:
    with pytest.raises(InvalidArgument):
        validation.day(at, 1.8e9)
    assert validation.day(1.79e9, 1.8e9) == 1.79e9
