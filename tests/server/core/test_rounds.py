"""Rounds open, collect, close, repeat and commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from puf_common.errors import Conflict, InvalidUpdate, StaleRound
from puf_server.core import rounds, scheduler
from puf_server.core.state.rounds import Part, ReceivedUpdate, RoundKind, RoundPhase
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config, header


def test_no_round_before_enough_clients() -> None:
    f = Federation(config(plan={"min_clients": 3}))
    f.join("a", "b")
    assert f.state.round is None
    f.join("c")
    assert {s.client for s in f.round.assignments} == {"a", "b", "c"}


def test_a_round_closes_when_all_have_answered_and_the_federation_idles_at_the_end() -> None:
    f = Federation(config())
    f.join("a", "b")
    f.submit("a")
    assert f.round.phase is RoundPhase.COLLECTING
    f.submit("b")
    assert f.round.phase is RoundPhase.FOLDING
    f.commit()
    f.run_round(RoundKind.TRAIN)
    assert f.state.round is None
    assert (f.state.trained, f.state.version, f.state.number) == (2, 2, 2)
    assert (f.state.members["a"].first_round, f.state.members["a"].last_round) == (1, 2)


def test_learning_rate_decays_by_round() -> None:
    f = Federation(config(recipe={"lr": 0.1, "lr_decay": 0.5}))
    f.join("a", "b")
    assert f.round.lr == 0.1
    f.run_round(RoundKind.TRAIN)
    assert f.round.lr == 0.05


def test_the_same_update_twice_is_one_and_another_is_a_conflict() -> None:
    f = Federation(config())
    f.join("a", "b")
    assert f.submit("a", digest="aa") is False
    assert f.submit("a", digest="aa") is True
    with pytest.raises(Conflict):
        f.submit("a", digest="bb")


def test_a_late_update_is_refused_with_the_current_round() -> None:
    f = Federation(config())
    f.join("a", "b")
    late = header(f.round, f.round.assignments[0])
    f.run_round(RoundKind.TRAIN)
    with pytest.raises(StaleRound) as caught:
        rounds.expected_assignment(f.state, "a", late)
    assert caught.value.facts["current_round"] == "2"


class TestTheSameUpdateAfterItsCommit:
    """A client whose OK was lost sends its update again. It must learn that the update was counted."""

    def counted(self, f: Federation, digest: str = "aa", **changes: Any) -> bool:
        sent = rounds.UpdateHeader(
            membership=1, number=1, attempt=1, part=Part.MAIN, base=0, samples=10, applied_scale=1.0
        )
        return rounds.was_counted(f.state, "a", replace(sent, **changes), digest)

    def test_is_a_duplicate_and_changes_nothing(self) -> None:
        f = Federation(config())
        f.join("a", "b")
        sent = header(f.round, f.round.assignments[0])
        assert not self.counted(f)
        f.run_round(RoundKind.TRAIN)
        assert self.counted(f)
        update = ReceivedUpdate(digest="aa", samples=10, nbytes=8, train_loss=None, samples_processed=1, at=f.now)
        assert rounds.receive(f.state, "a", sent, update) == (f.state, True)

    def test_only_the_same_bytes_of_the_same_assignment_were_counted(self) -> None:
        f = Federation(config())
        f.join("a", "b")
        f.run_round(RoundKind.TRAIN)
        assert not self.counted(f, digest="bb")
        assert not self.counted(f, number=2)
        assert not self.counted(f, attempt=2)
        assert not self.counted(f, membership=2)

    def test_an_update_that_did_not_enter_the_sum_was_not_counted(self) -> None:
        f = Federation(config())
        f.join("a", "b", "c")
        f.submit("a")
        f.file("a")
        f.run_round(RoundKind.TRAIN)
        assert not self.counted(f)

    def test_only_the_newest_round_of_a_client_is_kept(self) -> None:
        f = Federation(config())
        f.join("a", "b")
        f.run_round(RoundKind.TRAIN)
        f.run_round(RoundKind.TRAIN)
        assert not self.counted(f, number=1)
        assert self.counted(f, number=2)
        assert len(f.state.members["a"].counted) == 1

    def test_a_forgotten_client_leaves_no_digest(self) -> None:
        f = Federation(config())
        f.join("a", "b", "c")
        f.train()
        f.file("a")
        f.answer_evaluation(0.5)
        f.run_round(RoundKind.UNLEARN)
        assert f.state.members["a"].counted == ()
        assert f.state.members["b"].counted

    def test_a_completed_request_for_samples_leaves_no_digest(self) -> None:
        f = Federation(config())
        f.join("a", "b", "c")
        f.train()
        ticket = f.file("a", scope="samples", forget_samples=3, retain_samples=7)
        f.answer_evaluation(0.5)
        f.run_round(RoundKind.UNLEARN)
        assert {c.part for c in f.state.members["a"].counted} == {Part.RETAIN, Part.FORGET}
        f.answer_evaluation(0.5)
        assert f.ticket(ticket.id).state is TicketState.COMPLETED
        assert f.state.members["a"].counted == ()


@pytest.mark.parametrize(
    ("base", "samples", "scale", "error"),
    [(1, 10, 1.0, StaleRound), (0, 11, 1.0, InvalidUpdate), (0, 0, 1.0, InvalidUpdate), (0, 10, -2.0, InvalidUpdate)],
)
def test_headers_that_do_not_fit_are_refused(base: int, samples: int, scale: float, error: type[Exception]) -> None:
    f = Federation(config())
    f.join("a", "b")
    update = ReceivedUpdate(digest="aa", samples=samples, nbytes=8, train_loss=None, samples_processed=1, at=f.now)
    stated = header(f.round, f.round.assignments[0])
    with pytest.raises(error):
        rounds.receive(f.state, "a", replace(stated, base=base, samples=samples, applied_scale=scale), update)


def test_absent_clients_are_not_waited_for_once_there_is_quorum() -> None:
    f = Federation(config(plan={"min_clients": 3, "quorum": 0.6, "absent_seconds": 60}))
    f.join("a", "b", "c")
    f.submit("a")
    f.wait(61, "a", "b")
    assert f.round.phase is RoundPhase.COLLECTING
    f.submit("b")
    assert f.round.phase is RoundPhase.FOLDING
    f.commit()
    assert f.state.members["c"].first_round == 0


def test_a_client_that_trains_for_an_hour_is_not_absent() -> None:
    f = Federation(config(plan={"absent_seconds": 60}))
    f.join("a", "b")
    f.submit("a")
    for _ in range(360):
        f.wait(10, "a", "b")
    assert f.round.phase is RoundPhase.COLLECTING
    f.submit("b")
    assert f.round.phase is RoundPhase.FOLDING


def test_deadline_closes_on_quorum_and_repeats_below_it() -> None:
    f = Federation(config(plan={"min_clients": 4, "quorum": 0.5, "deadline_seconds": 100}))
    f.join("a", "b", "c", "d")
    f.submit("a")
    f.wait(100, "a", "b", "c", "d")
    assert f.round.phase is RoundPhase.COLLECTING
    assert (f.round.attempt, f.round.repeats, set(f.round.received)) == (1, 1, {"a/main"})
    f.submit("b")
    f.wait(100, "a", "b", "c", "d")
    assert f.round.phase is RoundPhase.FOLDING


def test_a_repeated_round_replaces_absent_clients() -> None:
    f = Federation(config(plan={"min_clients": 4, "participation": 0.5, "quorum": 1.0, "absent_seconds": 60}))
    f.join("a", "b", "c", "d")
    chosen = [s.client for s in f.round.assignments]
    others = [n for n in "abcd" if n not in chosen]
    f.submit(chosen[0])
    f.wait(61, chosen[0], *others)
    assert chosen[1] not in {s.client for s in f.round.assignments}
    assert f.round.attempt == 1
    assert f"{chosen[0]}/main" in f.round.received


def test_partial_participation_draws_the_same_cohort_for_the_same_seed() -> None:
    cohorts = []
    for order in ("abcdef", "fedcba"):
        f = Federation(config(plan={"min_clients": 6, "participation": 0.5, "rounds": 4}))
        f.join(*order)
        drawn = []
        while f.state.round is not None:
            drawn.append(tuple(s.client for s in f.round.assignments))
            f.run_round(RoundKind.TRAIN)
        cohorts.append(drawn)
    assert cohorts[0] == cohorts[1]
    assert all(len(c) == 3 for c in cohorts[0])
    assert len(set(cohorts[0])) > 1


def test_declined_work_is_not_waited_for() -> None:
    f = Federation(config(plan={"quorum": 0.5}))
    f.join("a", "b")
    f.submit("a")
    f.apply(rounds.decline(f.state, "b", "b/main", "out of memory", f.now))
    assert f.round.phase is RoundPhase.FOLDING


def test_a_client_that_comes_back_with_more_samples_can_still_fill_its_assignment() -> None:
    f = Federation(config(plan={"rounds": 3, "quorum": 1.0}))
    f.join("a", "b")
    f.join("b", samples=12)
    assert {s.client: s.samples for s in f.round.assignments} == {"a": 10, "b": 12}
    f.submit("a")
    # The received update keeps its count.
    f.join("a", samples=30)
    assert {s.client: s.samples for s in f.round.assignments} == {"a": 10, "b": 12}
    f.submit("b")
    f.commit()
    assert {s.client: s.samples for s in f.round.assignments} == {"a": 30, "b": 12}


def test_a_training_round_needs_min_clients_also_after_clients_have_left() -> None:
    plan = {"min_clients": 2, "rounds": 3, "quorum": 1.0}
    f = Federation(config(plan=plan, forgetting={"blind_recovery_rounds": 0}))
    f.join("a", "b", holdout=0)
    f.run_round(RoundKind.TRAIN)
    f.submit("b")
    ticket = f.file("a")
    # The second round would have one update.
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
    assert f.state.round is None
    assert f.state.trained == 1
    assert scheduler.waiting_for(f.state, f.presence, f.config, f.now) == "waiting for 1 more client to join"
    f.join("c", holdout=0)
    assert {s.client for s in f.round.assignments} == {"b", "c"}


def test_a_round_that_too_many_clients_have_left_does_not_commit() -> None:
    f = Federation(config(plan={"min_clients": 4, "quorum": 0.5}))
    f.join("a", "b", "c", "d")
    f.submit("d")
    f.file("a")
    f.file("b")
    assert {s.client for s in f.round.assignments} == {"c", "d"}
    f.file("c")
    # A round of the plan has the updates of at least two clients.
    assert f.state.round is None
    assert f.state.version == 0


def test_an_unlearning_round_needs_min_retained_also_after_clients_have_left() -> None:
    f = Federation(config(plan={"min_clients": 3}, forgetting={"min_retained": 2, "blind_recovery_rounds": 0}))
    f.join("a", "b", "c", holdout=0)
    f.train()
    f.file("a")
    f.run_round(RoundKind.UNLEARN)
    second = f.file("b")
    # One retained update would disclose that of the target.
    assert f.ticket(second.id).state is TicketState.PENDING
    assert f.state.round is None
    f.join("d", holdout=0)
    assert f.round.kind is RoundKind.UNLEARN
