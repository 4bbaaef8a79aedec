"""Unlearning jobs: from waiting tickets to an unlearned model."""

from __future__ import annotations

from dataclasses import replace

from tests.server.core.builders import Federation, config
from tests.tickets import applied, outcome

from puf_server.core import rounds
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import Part, RoundKind, RoundPhase
from puf_server.core.state.tickets import TicketState, UnlearnedSamples

EVERYONE = ("a", "b", "c", "d")


def trained(**changes: object) -> Federation:
    f = Federation(config(**changes))
    f.join(*EVERYONE)
    f.train()
    return f


def states(f: Federation, ticket_id: str) -> list[str]:
    return [step.state.value for step in f.ticket(ticket_id).history]


def test_a_request_in_regular_mode_from_filing_to_completion() -> None:
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


def test_requests_during_the_first_fold_leave_no_update_in_a_model() -> None:
    f = Federation(config(plan={"min_clients": 1, "start_clients": 4}))
    f.join(*EVERYONE)
    f.submit_all()
    first, second, third = f.file("a"), f.file("b"), f.file("c", mode="special")
    assert f.round.phase is RoundPhase.FOLDING
    f.commit()
    # Their assignments left the round that was being folded: no model ever contained them.
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
    # The third has another mode. It is next, before recovery continues.
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
    # The silent target waits again. The other is served without it, with another n and attempt.
    assert f.ticket(silent.id).state is TicketState.PENDING
    assert f.state.version == version
    assert {s.client for s in f.round.assignments} == {"b", "c", "d"}
    assert (f.round.attempt, f.round.denominator) == (2, 30)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(present.id).state is TicketState.APPLIED
    assert f.state.members["a"].status is MemberStatus.ACTIVE


def test_a_silent_target_does_not_make_the_round_an_ordinary_one() -> None:
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


def test_a_target_that_declines_for_good_ends_its_request_with_the_reason() -> None:
    f = trained()
    f.state = replace(f.state, paused=True)
    first, second = f.file("a"), f.file("b")
    f.apply(replace(f.state, paused=False))
    f.answer_evaluation(0.8)
    f.apply(rounds.decline(f.state, "a", "a/main", "no routine", f.now, for_good=True))
    done = f.ticket(first.id)
    assert done.state is TicketState.FAILED
    assert done.history[-1].note == "a cannot do its work for this request: no routine"
    # Other targets are served without it, and it is not asked again.
    assert {s.client for s in f.round.assignments} == {"b", "c", "d"}
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(second.id).state is TicketState.APPLIED
    f.wait(1e6, *EVERYONE[:1], *EVERYONE[2:])
    assert f.ticket(first.id).state is TicketState.FAILED


def test_the_fallback_serves_a_target_that_declined_for_good() -> None:
    f = trained(forgetting={"fallback": "not"})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.apply(rounds.decline(f.state, "a", "a/main", "no routine", f.now, for_good=True))
    assert f.ticket(ticket.id).fallback == "declined"
    f.answer_evaluation(0.8)
    f.commit()
    assert applied(f.ticket(ticket.id)).method == "not (fallback: declined)"
    assert applied(f.ticket(ticket.id)).unlearned is None


def test_the_fallback_does_not_serve_samples_of_a_target_that_declined_for_good() -> None:
    f = trained(forgetting={"fallback": "retrain"})
    ticket = f.file("a", scope="samples", forget_samples=4, retain_samples=6)
    f.answer_evaluation(0.8)
    f.apply(rounds.decline(f.state, "a", "a/forget", "no such part", f.now, for_good=True))
    assert f.ticket(ticket.id).state is TicketState.FAILED
    assert "no such part" in f.ticket(ticket.id).history[-1].note


def test_an_applied_ticket_has_what_its_target_said_about_the_unlearned_samples() -> None:
    f = trained()
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    for assignment in f.round.assignments:
        f.submit(assignment.client)
    key = "a/main"
    current = f.round
    said = replace(current.received[key], unlearned_samples=10, unlearned_digest="ab")
    f.state = replace(f.state, round=replace(current, received={**current.received, key: said}))
    f.commit()
    assert applied(f.ticket(ticket.id)).unlearned == UnlearnedSamples(samples=10, digest="ab")


def test_regular_needs_a_retained_update() -> None:
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.submit("a")
    f.wait(61, "a")
    assert f.state.round is None
    assert f.ticket(ticket.id).state is TicketState.PENDING


def test_a_pending_request_does_not_wait_for_a_round_that_cannot_close() -> None:
    f = Federation(config(plan={"min_clients": 4, "rounds": 5, "quorum": 1.0, "absent_seconds": 60}))
    f.join(*EVERYONE)
    f.run_round(RoundKind.TRAIN)
    f.submit("a")
    f.file("b", mode="special")
    f.wait(61, "a", "b")
    assert f.state.job is not None or f.round.kind is RoundKind.UNLEARN


def test_dedicated_evaluators_measure_alone_and_never_train() -> None:
    f = Federation(config(plan={"min_clients": 4}))
    f.join(*EVERYONE)
    f.join("judge", samples=0, holdout=100)
    assert "judge" not in {s.client for s in f.round.assignments}
    f.train()
    f.file("a")
    assert f.state.evaluation is not None
    assert f.state.evaluation.asked == ("judge",)


def test_without_retained_clients_the_model_goes_back_to_its_initial_weights() -> None:
    f = trained()
    f.apply(replace(f.state, paused=True))
    filed = [f.file(name) for name in EVERYONE]
    f.apply(replace(f.state, paused=False))
    assert (f.round.kind, f.round.base, f.round.phase) == (RoundKind.RESET, 0, RoundPhase.FOLDING)
    f.commit()
    assert {f.ticket(t.id).state for t in filed} == {TicketState.COMPLETED}
    assert {applied(f.ticket(t.id)).method for t in filed} == {"reset"}
    assert all(m.status is MemberStatus.FORGOTTEN for m in f.state.members.values())


def test_a_request_of_a_client_without_updates_completes_at_once() -> None:
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


def test_sample_scope_in_special_uploads_only_the_forget_part() -> None:
    f = trained()
    f.file("b", scope="samples", forget_samples=4, retain_samples=6, mode="special")
    f.answer_evaluation(0.8)
    assert [(s.client, s.part, s.scale) for s in f.round.assignments] == [("b", Part.FORGET, -2.0)]


def test_special_can_wait_for_a_second_target() -> None:
    f = trained(forgetting={"special_min_targets": 2})
    first = f.file("a", mode="special")
    f.apply(f.state)
    assert f.ticket(first.id).state is TicketState.PENDING
    second = f.file("b", mode="special")
    f.answer_evaluation(0.8)
    assert {s.ticket for s in f.round.assignments} == {first.id, second.id}


def test_special_does_not_continue_with_too_few_targets() -> None:
    f = trained(forgetting={"special_min_targets": 2})
    first, second = f.file("a", mode="special"), f.file("b", mode="special")
    f.wait(f.config.plan.absent_seconds + 1, "a", "c", "d")
    f.answer_evaluation(0.8)
    assert f.state.round is None
    assert {f.ticket(t.id).state for t in (first, second)} == {TicketState.PENDING}
