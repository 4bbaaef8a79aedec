"""Rapid retraining: the checkpoint and the rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_client.routines.curvature import CurvatureOptions
from puf_client.routines.inputs import options_from
from puf_common.errors import NotNow
from puf_server.core.methods.rapid_retraining import RapidOptions, rollback
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind
from tests.server.core.builders import Federation, config
from tests.tickets import applied

FIRST = {"2": 3, "5": 1}


def test_the_earliest_target_decides() -> None:
    assert rollback(FIRST, {"2"}) == 2
    assert rollback(FIRST, {"2", "5"}) == 0


def test_a_target_that_never_took_part_needs_no_rollback() -> None:
    assert rollback(FIRST, {"7"}) is None
    assert rollback(FIRST, {"7", "2"}) == 2


def test_the_rollback_needs_an_existing_checkpoint() -> None:
    assert rollback({"a": 9}, {"a"}, kept={0, 5, 10}) == 5
    with pytest.raises(NotNow, match="no checkpoint from before round 3 exists"):
        rollback(FIRST, {"2"}, kept={3, 4})


@given(first=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1), data=st.data())
def test_the_checkpoint_is_the_newest_without_any_target(first: dict[str, int], data: st.DataObject) -> None:
    targets = data.draw(st.sets(st.sampled_from(sorted(first)), min_size=1))
    chosen = rollback(first, targets)
    assert chosen is not None
    assert all(first[t] > chosen for t in targets)
    assert any(first[t] == chosen + 1 for t in targets)


def test_the_clients_routine_understands_the_methods_options() -> None:
    assert options_from(CurvatureOptions, RapidOptions().routine()) == CurvatureOptions()


def test_retraining_begins_before_the_targets_first_round_and_runs_as_many_rounds_as_since() -> None:
    f = Federation(config(plan={"rounds": 4, "keep_models": 1}, forgetting={"method": "rapid"}))
    f.join("a", "b", holdout=0)
    f.run_round(RoundKind.TRAIN)
    f.join("c", holdout=0)
    f.run_round(RoundKind.TRAIN)
    f.train()
    first = f.state.members["c"].first_round
    # This method needs all models, so none is deleted.
    assert all(m.status is ModelStatus.READY for m in f.state.models.values())
    ticket = f.file("c")
    assert f.round.base == first - 1
    for number in range(first, 5):
        # Its own streams: those of Retrain are the rounds' own numbers.
        assert f.round.step.stream != number
        assert f.round.lr == 1e-3
        assert {(s.client, s.routine, s.options["block"]) for s in f.round.assignments} == {
            ("a", "curvature", 3.0),
            ("b", "curvature", 3.0),
        }
        assert f.round.step.last == (number == 4)
        f.run_round(RoundKind.UNLEARN)
    assert applied(f.ticket(ticket.id)).method == "rapid"
    assert [v for v, m in f.state.models.items() if m.status is ModelStatus.READY and 0 < v < first] == [1, 2][
        : first - 1
    ]


def test_a_target_that_keeps_samples_retrains_on_them() -> None:
    f = Federation(config(forgetting={"method": "rapid", "method_options": {"rounds": "1"}}))
    f.join("a", "b", holdout=0)
    f.train()
    f.file("b", scope="samples", forget_samples=4, retain_samples=6)
    assert f.round.base == 0
    assert [(s.client, s.part, s.samples) for s in f.round.assignments] == [("a", "main", 10), ("b", "retain", 6)]
    assert f.round.step.last
