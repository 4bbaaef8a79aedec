"""Rapid retraining: how far back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_client.routines.curvature import CurvatureOptions
from puf_client.routines.inputs import options_from
from puf_common.errors import NotNow
from puf_server.core.methods.rapid import RapidOptions, rollback

FIRST = {"2": 3, "5": 1}


def test_the_earliest_target_decides() -> None:
    assert rollback(FIRST, {"2"}) == 2
    assert rollback(FIRST, {"2", "5"}) == 0


def test_who_never_took_part_takes_nothing_back() -> None:
    assert rollback(FIRST, {"7"}) is None
    assert rollback(FIRST, {"7", "2"}) == 2


def test_only_checkpoints_that_are_kept_can_be_gone_back_to() -> None:
    assert rollback({"a": 9}, {"a"}, kept={0, 5, 10}) == 5
    with pytest.raises(NotNow, match="no checkpoint from before round 3 is kept"):
        rollback(FIRST, {"2"}, kept={3, 4})


@given(first=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1), data=st.data())
def test_no_target_had_a_part_in_it_and_a_later_one_had(first: dict[str, int], data: st.DataObject) -> None:
    targets = data.draw(st.sets(st.sampled_from(sorted(first)), min_size=1))
    chosen = rollback(first, targets)
    assert chosen is not None
    assert all(first[t] > chosen for t in targets)
    assert any(first[t] == chosen + 1 for t in targets)


def test_the_clients_routine_understands_the_methods_options() -> None:
    assert options_from(CurvatureOptions, RapidOptions().routine()) == CurvatureOptions()
