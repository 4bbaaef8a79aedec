"""What the operator does to a federation as a whole."""

from __future__ import annotations

import pytest

from puf_common.errors import InvalidArgument
from puf_server.core import operations
from tests.server.core.builders import Federation, config


def test_a_paused_federation_opens_no_round_until_it_is_resumed() -> None:
    f = Federation(config())
    f.apply(operations.pause(f.state, f.now))
    f.join("a", "b")
    assert f.state.round is None
    assert operations.pause(f.state, f.now) is f.state
    f.apply(operations.resume(f.state, f.now))
    assert f.round.number == 1
    assert operations.resume(f.state, f.now) is f.state


def test_added_rounds_count_from_what_is_planned_or_trained() -> None:
    f = Federation(config())
    assert operations.extend(f.state, 3, f.now).planned == 5


@pytest.mark.parametrize("rounds", [-3, 0, 1_000_001])
def test_a_number_of_rounds_that_cannot_be_added_is_an_invalid_argument(rounds: int) -> None:
    f = Federation(config())
    with pytest.raises(InvalidArgument, match=f"not {rounds}"):
        operations.extend(f.state, rounds, f.now)
