"""What one client may weigh, how much may be forgotten, and what happens to a model that collapsed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from puf_common.errors import InvalidArgument, NotNow, TooMuch
from puf_server.core import roster, scheduler, tickets, update_bounds, validation
from puf_server.core.state.measurements import Sums
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind, RoundRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import rollback
from tests.server.core.builders import Federation, config
from tests.tickets import applied, outcome

HOUR, DAY = 3600.0, 86400.0


def trained(names: str = "abcd", **changes: Any) -> Federation:
    f = Federation(config(**{"plan": {"min_clients": len(names)}} | changes))
    f.join(*names)
    f.train()
    return f


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["abm", "mab"])
def test_a_client_that_announces_nearly_everything_waits_for_the_operators_word(order: str) -> None:
    f = Federation(config(plan={"min_clients": 2, "start_clients": 3}))
    for name in order:
        f.join(name, samples=1000 if name == "m" else 10)
    assert f.state.members["m"].outweighs
    assert "clients on hold: m" in scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    # The others go on meanwhile.
    assert {s.client for s in f.round.assignments} == {"a", "b"}
    f.apply(roster.approve(f.state, "m", f.now))
    f.run_round(RoundKind.TRAIN)
    assert {s.client for s in f.round.assignments} == {"a", "b", "m"}


def test_two_clients_are_too_few_to_compare() -> None:
    f = Federation(config())
    f.join("a", samples=1)
    f.join("b", samples=1000)
    assert {s.client for s in f.round.assignments} == {"a", "b"}


def test_who_outweighs_the_rest_is_weighed_again_when_others_come_and_go() -> None:
    f = Federation(config(plan={"min_clients": 2, "start_clients": 9}))
    f.join("a", "b", samples=10)
    f.join("m", samples=100)
    assert f.state.members["m"].outweighs
    f.join("c", samples=100)
    assert not f.state.members["m"].outweighs
    f.join("m", samples=1000)
    assert f.state.members["m"].outweighs


def test_the_number_of_clients_is_bounded_and_old_ones_still_come_in() -> None:
    f = Federation(config(limits={"max_clients": 2}))
    f.join("a", "b")
    with pytest.raises(TooMuch, match="2 clients"):
        f.join("c")
    f.join("a")


# -- norms -------------------------------------------------------------------------------------------------------------


def record(number: int, norm: float | None, buffers: float | None = None) -> RoundRecord:
    return RoundRecord(
        number=number, attempt=1, kind=RoundKind.TRAIN, base=0, version=number, expected=1, contributions=1, opened_at=0.0,
        committed_at=0.0, nbytes_up=0, nbytes_down=0, samples_processed=0, train_loss=None, norm=norm,
        buffer_norm=buffers,
    )  # fmt: skip


def after(*records: RoundRecord) -> State:
    return State(number=len(records), records={r.number: r for r in records})


def test_an_update_may_have_ten_times_the_norm_of_recent_rounds() -> None:
    f = Federation(config(limits={"norm_rounds": 2, "max_norm": 1000.0}))
    f.join("a", "b")
    assignment = f.round.assignments[0]

    def most(*records: RoundRecord, epochs: float = 1.0) -> update_bounds.Norms:
        return update_bounds.allowed(after(*records), f.config, replace(assignment, epochs=epochs))

    assert most() == update_bounds.Norms(1000.0, 1e12)
    assert most(record(1, 2.0, 3.0)) == update_bounds.Norms(20.0, 30.0)
    # The largest of the recent ones; older rounds, and rounds without ordinary updates, do not count.
    assert most(record(1, 50.0), record(2, 3.0), record(3, 2.0)).parameters == 30.0
    assert most(record(1, 2.0), record(2, None)).parameters == 20.0
    # A round in which nobody moved says nothing.
    assert most(record(1, 0.0)).parameters == 1000.0
    # A target that trains longer goes further.
    assert most(record(1, 2.0), epochs=3.0).parameters == 60.0
    assert most(record(1, 500.0)).parameters == 1000.0


class LookUpsOnly(dict[int, RoundRecord]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all records were read")


def test_only_recent_rounds_are_read() -> None:
    f = Federation(config(limits={"norm_rounds": 2}))
    f.join("a", "b")
    records = {n: record(n, float(n)) for n in range(1, 100)}
    state = State(number=99, records=LookUpsOnly(records))
    assert update_bounds.allowed(state, f.config, f.round.assignments[0]).parameters == 990.0


def test_a_round_leaves_the_median_of_its_ordinary_updates_behind() -> None:
    f = trained("abc")
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.submit_all()
    large = {key: replace(u, norm=99.0 if key.startswith("a") else 2.0) for key, u in f.round.received.items()}
    f.state = replace(f.state, round=replace(f.round, received=large))
    f.commit()
    assert applied(f.ticket(ticket.id)).round == 3
    assert f.state.records[3].norm == 2.0


def test_a_client_whose_update_makes_no_model_is_left_out_and_held() -> None:
    f = Federation(config(plan={"min_clients": 3}))
    f.join("a", "b", "m")
    f.submit_all()
    f.apply(scheduler.unfit(f.state, f.config, "m", "round 1: not finite", f.now))
    assert {s.client for s in f.round.assignments} == {"a", "b"}
    f.commit()
    assert not f.state.halted
    assert f.state.members["m"].first_round == 0
    assert {s.client for s in f.round.assignments} == {"a", "b"}


def test_a_target_whose_update_makes_no_model_tries_again_and_the_other_is_served() -> None:
    f = trained("abcm")
    first, second = f.file("a"), f.file("m")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert applied(f.ticket(first.id)).round == 3
    assert f.round.tickets == (second.id,)
    f.submit_all()
    f.apply(scheduler.unfit(f.state, f.config, "m", "round 4: not finite", f.now))
    assert f.ticket(second.id).state is TicketState.PENDING
    assert (f.ticket(second.id).not_before or 0.0) > f.now
    assert not f.state.halted


# -- the budget of forgetting ------------------------------------------------------------------------------------------


def test_requests_beyond_the_budget_are_kept_and_wait_for_the_operators_word() -> None:
    f = trained(limits={"forget_share": 0.5})
    first, second, third = (f.file(name) for name in "abc")
    assert [bool(t.on_hold) for t in (first, second, third)] == [False, False, True]
    assert (third.request.weight, third.state) == (10, TicketState.PENDING)
    assert "75%" in (third.on_hold or "")
    assert third.id in scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    f.answer_evaluation(0.8)
    for ticket in (first, second):
        assert f.run_round(RoundKind.UNLEARN).tickets == (ticket.id,)
    assert f.ticket(third.id).state is TicketState.PENDING
    # Kept out of training all the same.
    assert "c" in f.state.kept_out()
    f.answer_evaluation(0.9)
    f.apply(tickets.approve(f.state, third.id, f.now))
    assert f.ticket(third.id).state is TicketState.SCHEDULED


def test_the_budget_fills_again_with_time_and_withdrawn_requests_leave_it() -> None:
    f = trained(limits={"forget_share": 0.3, "forget_days": 7.0})
    first = f.file("a")
    assert f.file("b").on_hold
    state, _ = tickets.withdraw(f.state, "b", f.state.tickets["t-1"].id, f.now)
    state, _ = tickets.withdraw(state, "a", first.id, f.now) if first.state is TicketState.PENDING else (state, first)
    f.state = state
    f.now += 8 * DAY
    f.beat(*"abcd")
    assert not f.file("c", key="later").on_hold


def test_samples_count_for_what_they_are() -> None:
    f = trained("ab", limits={"forget_share": 0.2})
    ticket = f.file("a", scope="samples", forget_samples=4, retain_samples=6)
    assert (ticket.request.weight, ticket.on_hold) == (4, None)
    assert f.file("b").on_hold


def test_the_operators_own_request_is_the_operators_word() -> None:
    f = trained("ab", limits={"forget_share": 0.1})
    assert not f.file("a", by="operator").on_hold


def test_everybody_leaving_resets_the_model_only_with_the_operators_word() -> None:
    f = trained("ab", limits={"forget_share": 0.5})
    f.file("a")
    last = f.file("b")
    assert last.on_hold
    f.answer_evaluation(0.8)
    assert f.state.round is None
    f.apply(tickets.approve(f.state, last.id, f.now))
    assert f.round.kind is RoundKind.RESET


def test_a_client_that_never_contributed_is_not_counted() -> None:
    f = trained("ab", limits={"forget_share": 0.1})
    f.join("c")
    assert not f.file("c").on_hold


def test_requests_per_hour_are_bounded_withdrawn_ones_included() -> None:
    f = trained("ab", limits={"tickets_per_hour": 2}, forgetting={"measure_seconds": 0.0})
    f.state = replace(f.state, paused=True)
    for key in ("one", "two"):
        ticket = f.file("a", key=key)
        f.state = tickets.withdraw(f.state, "a", ticket.id, f.now)[0]
    with pytest.raises(TooMuch, match="within an hour"):
        f.file("a", key="three")
    # Others, the operator, and a request that stands already are not concerned.
    f.file("b")
    f.now += HOUR + 1
    f.beat("a")
    f.file("a", key="three")


# -- a model that collapsed --------------------------------------------------------------------------------------------


def collapsed(score: float = 0.3) -> tuple[Federation, str]:
    f = trained(forgetting={"max_recovery_rounds": 1, "measure_seconds": 0.0})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.1)
    f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(score)
    return f, ticket.id


def test_a_model_that_collapsed_is_held_for_the_operator() -> None:
    f, ticket = collapsed()
    assert f.ticket(ticket).state is TicketState.RECOVERING
    assert f.state.models[f.state.version].status is ModelStatus.UNLEARNED
    said = scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    assert "30.0%" in said
    assert said.startswith("model on hold: ")
    f.wait(10 * DAY, *"bcd")
    assert f.ticket(ticket).state is TicketState.RECOVERING
    f.apply(rollback.release(f.state, f.now))
    assert (f.ticket(ticket).state, outcome(f.ticket(ticket)).recovered) == (TicketState.COMPLETED, False)
    assert f.state.models[f.state.version].status is ModelStatus.READY
    with pytest.raises(NotNow, match="no model is on hold"):
        rollback.release(f.state, f.now)


def test_half_of_the_score_is_no_collapse() -> None:
    f, ticket = collapsed(0.4)
    assert f.ticket(ticket).state is TicketState.COMPLETED


def test_a_rollback_installs_the_model_from_before_and_opens_the_ticket_again() -> None:
    f, ticket = collapsed()
    assert f.state.members["a"].status is MemberStatus.FORGOTTEN
    f.apply(rollback.begin(f.state, f.config, f.now))
    assert (f.round.kind, f.round.base, f.round.assignments) == (RoundKind.ROLLBACK, 2, ())
    f.commit()
    again = f.ticket(ticket)
    assert (again.state, again.applied, again.outcome) == (TicketState.PENDING, None, None)
    assert f.state.members["a"].status is MemberStatus.ACTIVE
    assert "a" in f.state.kept_out()
    assert f.state.recovery is None
    statuses = {v: m.status for v, m in f.state.models.items()}
    assert statuses[f.state.version] is ModelStatus.READY
    assert statuses[3] is statuses[4] is ModelStatus.WITHDRAWN
    # The client comes back and is forgotten after all.
    f.join("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    assert f.ticket(ticket).state is TicketState.COMPLETED
    assert statuses.keys() < f.state.models.keys()
    assert f.state.models[3].status is ModelStatus.DELETED


def test_after_completion_nothing_can_be_rolled_back() -> None:
    f, _ = collapsed(0.8)
    with pytest.raises(NotNow, match="nothing can be rolled back"):
        rollback.begin(f.state, f.config, f.now)


# -- Special -----------------------------------------------------------------------------------------------------------


def test_special_can_be_made_to_wait_for_company() -> None:
    f = trained(forgetting={"special_min_targets": 2})
    first = f.file("a", mode="special")
    f.apply(f.state)
    assert f.ticket(first.id).state is TicketState.PENDING
    second = f.file("b", mode="special")
    f.answer_evaluation(0.8)
    assert {s.ticket for s in f.round.assignments} == {first.id, second.id}


def test_special_does_not_go_on_alone_when_company_leaves() -> None:
    f = trained(forgetting={"special_min_targets": 2})
    first, second = f.file("a", mode="special"), f.file("b", mode="special")
    f.wait(f.config.plan.absent_seconds + 1, "a", "c", "d")
    f.answer_evaluation(0.8)
    assert f.state.round is None
    assert {f.ticket(t.id).state for t in (first, second)} == {TicketState.PENDING}


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_sums_of_any_number_of_clients_stay_finite() -> None:
    worst = validation.sums(1 << 48, 1e9 * (1 << 48), 0.0, ())
    total = Sums(samples=0, loss_sum=0.0, score_sum=0.0)
    for _ in range(10_000):
        total = total + worst
    assert math.isfinite(total.loss_sum)
    assert total.samples < 2**63


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, -1.0, 2e9])
def test_a_day_is_in_this_decade(at: float) -> None:
    with pytest.raises(InvalidArgument):
        validation.day(at, 1.8e9)
    assert validation.day(1.79e9, 1.8e9) == 1.79e9
