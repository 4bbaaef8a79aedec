"""Requests to be forgotten, from filing to completion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.server.core.builders import Federation, config, header
from tests.tickets import applied, outcome

from puf_common.errors import Forgotten, InvalidArgument, NotFound, NotNow, StaleRound
from puf_server.core import assignments, roster, rounds, tickets
from puf_server.core.state.measurements import Measurement, Sums
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import Part, RoundKind, RoundPhase
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import model_versions

EVERYONE = ("a", "b", "c", "d")


def trained(**changes: object) -> Federation:
    f = Federation(config(**changes))
    f.join(*EVERYONE)
    f.train()
    return f


def states(f: Federation, ticket_id: str) -> list[str]:
    return [step.state.value for step in f.ticket(ticket_id).history]


def test_the_whole_story_in_regular_mode() -> None:
    f = trained()
    ticket = f.file("b")
    assert ticket.state is TicketState.SCHEDULED
    f.answer_evaluation(0.8)
    scales = {s.client: s.scale for s in f.round.assignments}
    assert scales == {"a": 1.0, "b": -2.0 * 40 / 10, "c": 1.0, "d": 1.0}
    assert f.round.denominator == 40
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(ticket.id).state is TicketState.APPLIED
    assert f.state.members["b"].status is MemberStatus.FORGOTTEN
    assert {f.state.models[v].status for v in (1, 2)} == {ModelStatus.WITHDRAWN}
    f.answer_evaluation(0.5)
    f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(0.7)
    f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(0.8)
    done = f.ticket(ticket.id)
    assert states(f, ticket.id) == ["pending", "scheduled", "applied", "recovering", "completed"]
    assert (outcome(done).recovered, applied(done).recovery_rounds, applied(done).method) == (True, 2, "puf-regular")
    assert (applied(done).version_before, applied(done).version_unlearned, outcome(done).version_recovered) == (2, 3, 5)
    assert outcome(done).deleted_versions == (1, 2)
    assert {v for v, m in f.state.models.items() if m.status is ModelStatus.DELETED} == {1, 2}
    assert f.state.models[5].status is ModelStatus.READY
    assert f.state.trained == 2


def test_special_asks_only_the_targets() -> None:
    f = trained()
    f.file("b", mode="special")
    f.answer_evaluation(0.8)
    assert [(s.client, s.scale) for s in f.round.assignments] == [("b", -2.0)]
    assert f.round.denominator == 10


def test_requests_filed_while_the_first_round_is_folded_leave_nothing_behind() -> None:
    f = Federation(config(plan={"min_clients": 4}))
    f.join(*EVERYONE)
    f.submit_all()
    first, second, third = f.file("a"), f.file("b"), f.file("c", mode="special")
    assert f.round.phase is RoundPhase.FOLDING
    f.commit()
    # Their assignments were taken out of the round that was being folded, so nothing of them was ever in a model.
    assert {applied(f.ticket(t.id)).method for t in (first, second, third)} == {"none"}


def test_requests_that_wait_together_and_share_a_mode_are_served_in_one_round() -> None:
    f = trained(plan={"min_clients": 4, "rounds": 3})
    f.apply(replace(f.state, paused=True))
    first, second, third = f.file("a"), f.file("b", kappa=3.0), f.file("c", mode="special")
    f.apply(replace(f.state, paused=False))
    f.answer_evaluation(0.9)
    assert {s.client: s.scale for s in f.round.assignments if s.ticket} == {"a": -2.0 * 30 / 10, "b": -3.0 * 30 / 10}
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(first.id).state is f.ticket(second.id).state is TicketState.APPLIED
    # The third wanted another mode; it is next, before recovery goes on.
    assert f.ticket(third.id).state is TicketState.SCHEDULED
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(third.id).state is TicketState.APPLIED
    f.answer_evaluation(0.9)
    assert {f.ticket(t.id).state for t in (first, second, third)} == {TicketState.COMPLETED}


def test_the_sum_of_kappa_is_capped_and_the_rest_waits() -> None:
    f = trained(forgetting={"max_total_kappa": 5.0, "measure_seconds": 0.0})
    f.apply(replace(f.state, paused=True))
    filed = [f.file(name) for name in ("a", "b", "c")]
    f.apply(replace(f.state, paused=False))
    assert [f.ticket(t.id).state for t in filed] == [TicketState.SCHEDULED, TicketState.SCHEDULED, TicketState.PENDING]


def test_from_filing_on_the_client_gets_no_training_and_what_it_sent_is_dropped() -> None:
    f = Federation(config(plan={"min_clients": 4, "rounds": 5}))
    f.join(*EVERYONE)
    f.run_round(RoundKind.TRAIN)
    stated = header(f.round, f.round.assignments[1])
    f.submit("b")
    f.file("b")
    assert "b" not in {s.client for s in f.round.assignments}
    assert "b/main" not in f.round.received
    assert assignments.work_for(f.state, f.config, "b", f.state.members["b"].session, f.now) is None
    with pytest.raises(StaleRound):
        rounds.expected_assignment(f.state, "b", stated)
    f.run_round(RoundKind.TRAIN)
    f.answer_evaluation(0.5)
    assert f.round.kind is RoundKind.UNLEARN


def test_filing_while_the_round_is_being_folded_outdates_that_sum() -> None:
    f = Federation(config(plan={"min_clients": 4, "rounds": 5}))
    f.join(*EVERYONE)
    f.run_round(RoundKind.TRAIN)
    f.submit_all()
    before = f.round
    f.file("b")
    assert f.round.phase is RoundPhase.FOLDING
    assert f.round.revision == before.revision + 1
    assert "b/main" not in f.round.received


def test_an_unlearning_round_commits_with_all_its_targets_or_not_at_all() -> None:
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    f.apply(replace(f.state, paused=True))
    silent, present = f.file("a"), f.file("b")
    f.apply(replace(f.state, paused=False))
    f.answer_evaluation(0.8)
    version = f.state.version
    for name in ("b", "c", "d"):
        f.submit(name)
    f.wait(61, "b", "c", "d")
    # The silent target is back in the queue; the other is served without it, with another n and attempt.
    assert f.ticket(silent.id).state is TicketState.PENDING
    assert f.state.version == version
    assert {s.client for s in f.round.assignments} == {"b", "c", "d"}
    assert (f.round.attempt, f.round.denominator) == (2, 30)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(present.id).state is TicketState.APPLIED
    assert f.state.members["a"].status is MemberStatus.ACTIVE


def test_a_lone_silent_target_never_turns_the_round_into_plain_averaging() -> None:
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    for name in ("b", "c", "d"):
        f.submit(name)
    f.wait(61, "b", "c", "d")
    assert f.state.round is None
    assert f.state.version == 2
    assert f.ticket(ticket.id).state is TicketState.PENDING
    f.wait(200, "a", "b", "c", "d")
    assert f.ticket(ticket.id).state is TicketState.SCHEDULED


def test_a_target_that_declines_is_tried_again_later_with_its_reason_on_the_ticket() -> None:
    f = trained()
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.apply(rounds.decline(f.state, "a", "a/main", "out of memory", f.now))
    assert f.ticket(ticket.id).state is TicketState.PENDING
    assert "out of memory" in f.ticket(ticket.id).history[-1].note


def test_regular_needs_a_retained_update_so_that_it_does_not_disclose_the_targets() -> None:
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.submit("a")
    f.wait(61, "a")
    assert f.state.round is None
    assert f.ticket(ticket.id).state is TicketState.PENDING


def test_a_pending_request_does_not_wait_behind_a_round_that_cannot_close() -> None:
    f = Federation(config(plan={"min_clients": 4, "rounds": 5, "quorum": 1.0, "absent_seconds": 60}))
    f.join(*EVERYONE)
    f.run_round(RoundKind.TRAIN)
    f.submit("a")
    f.file("b", mode="special")
    f.wait(61, "a", "b")
    assert f.state.job is not None or f.round.kind is RoundKind.UNLEARN


def test_requests_during_recovery_are_served_at_the_next_boundary_and_share_the_baseline() -> None:
    f = trained(plan={"min_clients": 4})
    first = f.file("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.2)
    second = f.file("b")
    assert f.round.kind is RoundKind.RECOVER
    assert "b" not in {s.client for s in f.round.assignments}
    f.run_round(RoundKind.RECOVER)
    assert f.round.kind is RoundKind.UNLEARN
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.79)
    assert f.ticket(first.id).state is f.ticket(second.id).state is TicketState.COMPLETED
    assert applied(f.ticket(second.id)).score_before == applied(f.ticket(first.id)).score_before


def test_recovery_that_never_gets_there_completes_unrecovered() -> None:
    f = trained(forgetting={"max_recovery_rounds": 2, "measure_seconds": 0.0})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    for _ in range(2):
        f.answer_evaluation(0.5)
        f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(0.5)
    assert (f.ticket(ticket.id).state, outcome(f.ticket(ticket.id)).recovered) == (TicketState.COMPLETED, False)


def test_without_hold_outs_recovery_has_a_fixed_length() -> None:
    f = Federation(config(plan={"min_clients": 4}, forgetting={"blind_recovery_rounds": 3, "measure_seconds": 0.0}))
    f.join(*EVERYONE, holdout=0)
    f.train()
    ticket = f.file("a")
    f.run_round(RoundKind.UNLEARN)
    for _ in range(3):
        f.run_round(RoundKind.RECOVER)
    done = f.ticket(ticket.id)
    assert (done.state, outcome(done).recovered, applied(done).recovery_rounds) == (TicketState.COMPLETED, None, 3)


def test_dedicated_evaluators_measure_alone_and_never_train() -> None:
    f = Federation(config(plan={"min_clients": 4}))
    f.join(*EVERYONE)
    f.join("judge", samples=0, holdout=100)
    assert "judge" not in {s.client for s in f.round.assignments}
    f.train()
    f.file("a")
    assert f.state.evaluation is not None
    assert f.state.evaluation.asked == ("judge",)


def test_when_nobody_is_left_the_model_goes_back_to_its_initial_weights() -> None:
    f = trained()
    f.apply(replace(f.state, paused=True))
    filed = [f.file(name) for name in EVERYONE]
    f.apply(replace(f.state, paused=False))
    assert (f.round.kind, f.round.base, f.round.phase) == (RoundKind.RESET, 0, RoundPhase.FOLDING)
    f.commit()
    assert {f.ticket(t.id).state for t in filed} == {TicketState.COMPLETED}
    assert {applied(f.ticket(t.id)).method for t in filed} == {"reset"}
    assert all(m.status is MemberStatus.FORGOTTEN for m in f.state.members.values())


def test_a_client_that_never_contributed_leaves_at_once() -> None:
    f = trained()
    f.join("late")
    version = f.state.version
    ticket = f.file("late")
    assert (ticket.state, applied(ticket).method, f.state.version) == (TicketState.COMPLETED, "none", version)
    assert f.state.members["late"].status is MemberStatus.FORGOTTEN


def test_sample_scope_uploads_two_parts_and_the_client_stays() -> None:
    f = trained()
    ticket = f.file("b", scope="samples", forget_samples=4, retain_samples=6)
    assert f.state.members["b"].samples == 6
    f.answer_evaluation(0.8)
    mine = {s.part: (s.samples, s.scale, s.negated) for s in f.round.assignments if s.client == "b"}
    assert f.round.denominator == 40
    assert mine == {Part.RETAIN: (6, 1.0, False), Part.FORGET: (4, -2.0 * 40 / 4, True)}
    f.run_round(RoundKind.UNLEARN)
    assert f.state.members["b"].status is MemberStatus.ACTIVE
    f.answer_evaluation(0.1)
    assert {(s.client, s.samples) for s in f.round.assignments} == {("a", 10), ("b", 6), ("c", 10), ("d", 10)}
    assert f.ticket(ticket.id).state is TicketState.RECOVERING


def test_sample_scope_in_special_uploads_the_forget_part_alone() -> None:
    f = trained()
    f.file("b", scope="samples", forget_samples=4, retain_samples=6, mode="special")
    f.answer_evaluation(0.8)
    assert [(s.client, s.part, s.scale) for s in f.round.assignments] == [("b", Part.FORGET, -2.0)]


def test_asking_twice_is_one_ticket() -> None:
    f = trained()
    first = f.file("b")
    assert f.file("b").id == first.id
    assert f.file("b", key="another").id == first.id


def test_a_pending_request_can_be_withdrawn_and_training_resumes() -> None:
    f = trained(plan={"min_clients": 2, "absent_seconds": 60, "rounds": 5})
    f.wait(61, "a", "b", "c")
    ticket = f.file("d")
    assert ticket.state is TicketState.PENDING
    f.apply(tickets.withdraw(f.state, "d", ticket.id, f.now)[0])
    assert f.ticket(ticket.id).state is TicketState.WITHDRAWN
    assert "d" in {m.name for m in roster.retained(f.state)}


def test_a_scheduled_request_can_no_longer_be_withdrawn_and_others_tickets_do_not_exist() -> None:
    f = trained()
    ticket = f.file("b")
    with pytest.raises(NotNow):
        tickets.withdraw(f.state, "b", ticket.id, f.now)
    with pytest.raises(NotFound):
        tickets.withdraw(f.state, "a", ticket.id, f.now)


def test_an_absent_targets_ticket_fails_at_its_deadline_and_keeps_it_out_of_training() -> None:
    f = trained(plan={"min_clients": 2, "absent_seconds": 60}, forgetting={"deadline_days": 1.0})
    f.wait(61, "a", "b", "c")
    ticket = f.file("d")
    f.wait(86401, "a", "b", "c")
    assert f.ticket(ticket.id).state is TicketState.FAILED
    assert "d" not in {m.name for m in roster.retained(f.state)}
    assert f.file("d", key="again").state is TicketState.PENDING
    assert f.ticket(ticket.id).state is TicketState.WITHDRAWN


def test_a_late_request_of_a_client_that_is_there_is_served_all_the_same() -> None:
    f = trained(forgetting={"deadline_days": 1.0})
    ticket = f.file("b", received_at=f.now - 10 * 86400)
    assert ticket.state is TicketState.SCHEDULED


@pytest.mark.parametrize(
    "wrong",
    [
        {"kappa": 0.4},
        {"kappa": 4.5},
        {"kappa": float("nan")},
        {"eta_u": 0.0},
        {"eta_u": -1.0},
        {"eta_u": 41.0},
        {"eta_u": float("inf")},
        {"epochs": 6},
        {"scope": "samples", "forget_samples": 0, "retain_samples": 10},
        {"scope": "samples", "forget_samples": 10, "retain_samples": 0},
        {"scope": "samples", "forget_samples": 5, "retain_samples": 6},
        {"key": ""},
    ],
)
def test_what_the_policy_does_not_allow_is_refused_when_filed(wrong: dict[str, object]) -> None:
    f = trained()
    before = f.state
    with pytest.raises(InvalidArgument):
        f.file("b", **wrong)
    assert f.state is before


def test_a_forgotten_identity_cannot_drift_back() -> None:
    f = trained()
    ticket = f.file("b")
    session = f.state.members["b"].session
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    with pytest.raises(Forgotten):
        f.join("b")
    with pytest.raises(Forgotten):
        roster.session_member(f.state, "b", session)
    member = f.state.members["b"]
    assert model_versions.may_fetch(f.state, f.config, member, 3, f.now).version == 3
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
    f.apply(roster.readmit(f.state, "b", f.now))
    with pytest.raises(Forgotten, match="ask to rejoin"):
        f.join("b")
    f.join("b", instance="new", rejoin=True)
    assert f.state.members["b"].membership == 2
    assert f.state.members["b"].first_round == 0


def test_nothing_about_the_presence_of_a_forgotten_client_is_kept() -> None:
    f = trained()
    f.beat("a", "b", activity="training")
    f.file("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert f.state.members["b"].status is MemberStatus.FORGOTTEN
    assert "a" in f.presence.seen
    assert "b" not in {*f.presence.seen, *f.presence.activity}


def test_completion_waits_for_the_leavers_own_measurements_but_not_forever() -> None:
    f = trained(forgetting={"measure_seconds": 60.0})
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    assert f.ticket(ticket.id).state is TicketState.APPLIED
    sums = Sums(samples=10, loss_sum=1.0, score_sum=5.0)
    for version in (2, 3):
        f.apply(tickets.measure(f.state, "b", ticket.id, version, Measurement(forget=sums), f.now)[0])
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
    g = trained(forgetting={"measure_seconds": 60.0})
    other = g.file("b")
    g.answer_evaluation(0.8)
    g.run_round(RoundKind.UNLEARN)
    g.answer_evaluation(0.8)
    g.wait(61, "a", "c", "d")
    assert g.ticket(other.id).state is TicketState.COMPLETED
