"""Adaptive strength: when doses are given, how large they may be, and when they end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_common.errors import InvalidArgument, InvalidUpdate
from puf_common.receipts.gap import DoseReport, Gap
from puf_server.core import rounds
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import Part, RoundKind
from puf_server.core.state.tickets import RecoveryEnd, Strength, TicketState
from tests.server.core.builders import Federation, config, header
from tests.tickets import applied, outcome

EVERYONE = ("a", "b", "c", "d", "e", "f")


def trained(adapts: bool = True, holdout: int = 10, samples: int = 10, **changes: object) -> Federation:
    forgetting = {"strength": "auto"} | changes.pop("forgetting", {})  # type: ignore[operator]
    f = Federation(config(forgetting=forgetting, **changes))
    f.join(*EVERYONE, holdout=holdout, samples=samples, adapts=adapts)
    f.train()
    return f


def dose(f: Federation, gap: float, kappa: float = 0.0, name: str = "b") -> None:
    """One round with a dose of `name`."""
    assert f.round.kind is RoundKind.UNLEARN
    for assignment in f.round.missing:
        mine = assignment.client == name and assignment.negated
        f.submit(assignment.client, assignment.part, gap=gap if mine else 0.0, kappa=kappa if mine else 0.0)
    f.commit()


def test_a_request_without_a_strength_is_served_in_doses() -> None:
    f = trained()
    ticket = f.file("b")
    assert (ticket.request.strength, ticket.request.kappa, ticket.request.epochs) == (Strength.AUTO, None, 3)
    f.answer_evaluation(0.8, confidence=0.7)
    target = next(a for a in f.round.assignments if a.client == "b")
    assert (target.routine, target.epochs, target.negated) == ("dose", 3.0, True)
    # kappa = 1 is n / n_b; the target multiplies its own kappa.
    assert target.scale == -60 / 10
    assert (target.options["min_kappa"], target.options["max_kappa"]) == (0.125, 8.0)
    assert target.unseen is not None
    assert target.unseen.samples == 50
    assert {a.routine for a in f.round.assignments if a.client != "b"} == {"train"}
    before = f.state.version
    # The first dose has to lower p by 0.3 + 0.15 * 0.3: more than one round may, so it is no hold.
    dose(f, gap=0.3, kappa=2.5)
    assert (f.state.version, f.ticket(ticket.id).state) == (before, TicketState.SCHEDULED)
    f.answer_evaluation(0.7, confidence=0.65)
    target = next(a for a in f.round.assignments if a.client == "b")
    assert f.round.base == f.state.newest
    assert target.options["first_gap"] == 0.3
    # Holds: 0.1 + 0.045 is at most 0.2.
    for _ in range(3):
        assert f.ticket(ticket.id).state is TicketState.SCHEDULED
        dose(f, gap=0.1)
        if f.state.evaluation is not None and f.state.job is not None:
            f.answer_evaluation(0.7, confidence=0.65)
    done = f.ticket(ticket.id)
    assert done.state is TicketState.APPLIED
    assert applied(done).method == "puf-auto"
    assert [d.kappa for d in applied(done).doses] == [2.5, 0.125, 0.125, 0.125]
    assert [d.gap.value for d in applied(done).doses] == [0.3, 0.1, 0.1, 0.1]
    assert [d.hold for d in applied(done).doses] == [False, True, True, True]
    assert any("temporary drop" in e.note for e in done.history)
    assert f.state.members["b"].status is MemberStatus.FORGOTTEN
    # Only the last model of the job remains.
    made = [v for v, m in f.state.models.items() if v > before and m.status is not ModelStatus.DELETED]
    assert made == [f.state.version]
    f.answer_evaluation(0.79)
    for _ in range(2):
        # Two recovery rounds at least, although the score is that of before.
        assert f.round.lr == f.config.recipe.lr
        f.run_round(RoundKind.RECOVER)
        f.answer_evaluation(0.79)
    assert outcome(f.ticket(ticket.id)).ended is RecoveryEnd.EQUAL


def test_a_small_gap_ends_after_three_holds() -> None:
    f = trained()
    ticket = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    for _ in range(3):
        dose(f, gap=0.02)
        if f.state.job is not None:
            f.answer_evaluation(0.8, confidence=0.7)
    assert len(applied(f.ticket(ticket.id)).doses) == 3
    assert f.ticket(ticket.id).state is TicketState.APPLIED


def test_doses_end_at_the_policys_number() -> None:
    f = trained(forgetting={"max_doses": 2})
    ticket = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    dose(f, gap=0.9)
    f.answer_evaluation(0.8, confidence=0.7)
    dose(f, gap=0.9)
    assert len(applied(f.ticket(ticket.id)).doses) == 2


def test_doses_end_when_the_model_collapses() -> None:
    f = trained()
    ticket = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    dose(f, gap=0.9)
    f.answer_evaluation(0.3, confidence=0.2)
    dose(f, gap=0.9)
    assert len(applied(f.ticket(ticket.id)).doses) == 2


def test_several_targets_share_the_limit_and_end_together() -> None:
    f = trained(holdout=15)
    first = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    # The second request arrives while the first is being served and waits for the recovery.
    second = f.file("c")
    for _ in range(3):
        dose(f, gap=0.02)
        if f.state.job is not None and f.state.evaluation is not None:
            f.answer_evaluation(0.8, confidence=0.7)
    assert f.ticket(first.id).state is TicketState.APPLIED
    assert f.ticket(second.id).state is TicketState.SCHEDULED


def test_two_targets_in_one_job() -> None:
    f = trained(holdout=15)
    f.apply(replace(f.state, paused=True))
    first, second = f.file("b"), f.file("c")
    f.apply(replace(f.state, paused=False))
    f.answer_evaluation(0.8, confidence=0.7, samples=15)
    assert {a.client for a in f.round.assignments if a.negated} == {"b", "c"}
    assert {a.options["max_kappa"] for a in f.round.assignments if a.negated} == {4.0}
    while f.state.job is not None:
        dose(f, gap=0.6 if f.state.job.step < 2 else 0.0)
        if f.state.job is not None:
            f.answer_evaluation(0.8, confidence=0.7, samples=15)
    assert [len(applied(f.ticket(t.id)).doses) for t in (first, second)] == [5, 5]


def test_samples_get_smaller_doses() -> None:
    f = trained(samples=30)
    f.file("b", scope="samples", forget_samples=10, retain_samples=20)
    f.answer_evaluation(0.8, confidence=0.7)
    parts = {a.part: a for a in f.round.assignments if a.client == "b"}
    assert parts[Part.FORGET].options["max_kappa"] == 2.0
    assert (parts[Part.RETAIN].routine, parts[Part.RETAIN].negated) == ("train", False)


@pytest.mark.parametrize(
    ("adapts", "holdout", "samples", "why"),
    [
        (False, 10, 10, "cannot choose doses"),
        (True, 8, 10, "fewer than 45 samples"),
        (True, 10, 9, "fewer than 10 samples"),
    ],
)
def test_a_fixed_strength_serves_where_none_can_be_measured(adapts: bool, holdout: int, samples: int, why: str) -> None:
    f = trained(adapts=adapts, holdout=holdout, samples=samples)
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    [target] = [a for a in f.round.assignments if a.negated]
    assert (target.routine, target.scale, target.epochs) == ("train", -2.0 * 6, 1.0)
    f.run_round(RoundKind.UNLEARN)
    done = f.ticket(ticket.id)
    assert done.fixed is not None
    assert why in done.fixed.because
    assert any(why in e.note for e in done.history)
    assert applied(done).method == "puf-regular"


def test_a_model_that_no_client_measured_gets_no_dose() -> None:
    f = trained()
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    assert {a.routine for a in f.round.assignments} == {"train"}
    assert f.ticket(ticket.id).fixed is not None


def test_doses_end_where_a_later_model_was_not_measured() -> None:
    f = trained()
    ticket = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    dose(f, gap=0.9)
    f.answer_evaluation(0.8)
    assert f.round.assignments == ()
    f.commit()
    assert len(applied(f.ticket(ticket.id)).doses) == 1


def test_special_and_named_strengths_stay_fixed() -> None:
    f = trained()
    assert f.file("b", mode="special").request.strength is Strength.FIXED
    assert f.file("c", kappa=1.5).request.strength is Strength.FIXED
    with pytest.raises(InvalidArgument, match="adaptive strength works with mode regular"):
        f.file("d", mode="special", strength="auto")


def test_a_target_that_goes_away_starts_again_from_the_federations_model() -> None:
    f = trained()
    ticket = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    before = f.state.version
    dose(f, gap=0.9)
    f.answer_evaluation(0.8, confidence=0.7)
    f.wait(1000, *(name for name in EVERYONE if name != "b"))
    assert (f.ticket(ticket.id).state, f.state.job) == (TicketState.PENDING, None)
    f.wait(10_000, *EVERYONE)
    f.answer_evaluation(0.8, confidence=0.7)
    assert f.round.base == before
    assert f.state.job is not None
    assert f.state.job.doses == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(0.01, 100)), min_size=1, max_size=12),
    st.integers(1, 6),
    st.floats(0.125, 8.0),
)
def test_a_lying_target_cannot_exceed_the_bounds(
    answers: list[tuple[float, float]], most_doses: int, largest: float
) -> None:
    f = trained(forgetting={"max_doses": most_doses, "max_dose": largest})
    ticket = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    given_doses = 0
    for gap, kappa in answers:
        if f.state.job is None:
            break
        evaluated = f.state.models[f.round.base].score
        assert evaluated is not None, "no dose without a measurement"
        assert {a.routine for a in f.round.assignments if not a.negated} == {"train"}
        assert all(a.scale == 1.0 for a in f.round.assignments if not a.negated)
        most = min(largest, 8.0 if given_doses == 0 else 2.0)
        if not 0.125 <= kappa <= most:
            with pytest.raises(InvalidUpdate, match="allowed is"):
                f.submit("b", gap=gap, kappa=kappa)
            kappa = most
        dose(f, gap=gap, kappa=kappa)
        given_doses += 1
        if f.state.job is not None:
            f.answer_evaluation(0.8, confidence=0.7)
    assert given_doses <= most_doses
    doses = applied(f.ticket(ticket.id)).doses if f.ticket(ticket.id).applied else ()
    assert all(d.kappa <= largest for d in doses)


def test_an_ordinary_update_with_a_chosen_strength_is_refused() -> None:
    f = trained(forgetting={"strength": "fixed"})
    f.file("b")
    f.answer_evaluation(0.8)
    from dataclasses import replace

    current = f.round
    [target] = [a for a in current.assignments if a.negated]
    stated = replace(header(current, target), dose=DoseReport(kappa=4.0, gap=Gap(value=0.1, error=0.1)))
    with pytest.raises(InvalidUpdate, match="if and only if"):
        rounds.check_header(current, target, stated)
