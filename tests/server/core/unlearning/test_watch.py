"""Recovery under adaptive strength waits until the target's gap has stopped rising."""

from __future__ import annotations

import pytest
from tests.server.core.builders import Federation, config
from tests.tickets import applied, outcome

from puf_common.receipts.gap import Gap
from puf_common.receipts.ranks import RankComparison
from puf_server.core import tickets
from puf_server.core.state.measurements import Measurement, Sums
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState

EVERYONE = ("a", "b", "c", "d", "e", "f")
FORGET = Sums(samples=10, loss_sum=5.0, score_sum=8.0)


def unlearned(**forgetting: object) -> tuple[Federation, str]:
    """A federation whose target has had its doses. Its owner measures the models for ten seconds each."""
    f = Federation(config(forgetting={"strength": "auto", "measure_seconds": 10.0, "max_doses": 1, **forgetting}))
    f.join(*EVERYONE, holdout=10, adapts=True)
    f.train()
    ticket = f.file("b")
    f.answer_evaluation(0.8, confidence=0.7)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    return f, ticket.id


def measure(f: Federation, ticket: str, version: int | None, gap: float) -> None:
    assert version is not None
    found = Measurement(forget=FORGET, gap=Gap(value=gap, error=0.02))
    f.apply(tickets.measure(f.state, "b", ticket, version, found, f.now)[0])


def recover(f: Federation) -> None:
    f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(0.8)


def test_recovery_ends_when_the_gap_has_stopped_rising() -> None:
    f, ticket = unlearned()
    for version in (applied(f.ticket(ticket)).version_before, applied(f.ticket(ticket)).version_unlearned):
        measure(f, ticket, version, 0.4)
    # Over two rounds the gap rises by 0.1, 0.06, 0.02, 0.01.
    for gap in (-0.30, -0.24, -0.20, -0.18, -0.18, -0.17):
        recover(f)
        assert f.ticket(ticket).state is TicketState.RECOVERING
        assert f.state.round is None
        assert f.ticket(ticket).version_recovered == f.state.version
        measure(f, ticket, f.state.version, gap)
    done = f.ticket(ticket)
    assert done.state is TicketState.COMPLETED
    assert applied(done).recovery_rounds == 6
    assert outcome(done).version_recovered == f.state.version
    # Of the models in between only the gaps stay.
    kept = (applied(done).version_before, applied(done).version_unlearned, f.state.version)
    assert set(applied(done).measurements) == set(kept)


def test_an_owner_that_is_not_there_is_waited_for_once() -> None:
    f, ticket = unlearned()
    recover(f)
    assert f.state.round is None
    f.wait(11, *(name for name in EVERYONE if name != "b"))
    recover(f)
    assert f.ticket(ticket).state is TicketState.COMPLETED


def test_an_owner_that_goes_away_is_waited_for_once() -> None:
    f, ticket = unlearned()
    measure(f, ticket, applied(f.ticket(ticket)).version_before, 0.4)
    measure(f, ticket, applied(f.ticket(ticket)).version_unlearned, -0.4)
    recover(f)
    measure(f, ticket, f.state.version, -0.2)
    recover(f)
    f.wait(11, *(name for name in EVERYONE if name != "b"))
    assert f.ticket(ticket).state is TicketState.COMPLETED


def test_a_gap_that_rises_for_ever_ends_after_twelve_rounds() -> None:
    f, ticket = unlearned()
    for version in (applied(f.ticket(ticket)).version_before, applied(f.ticket(ticket)).version_unlearned):
        measure(f, ticket, version, 0.4)
    for number in range(12):
        recover(f)
        measure(f, ticket, f.state.version, -0.9 + 0.1 * number)
    assert f.ticket(ticket).state is TicketState.COMPLETED
    assert applied(f.ticket(ticket)).recovery_rounds == 12


def test_a_fixed_strength_is_not_watched() -> None:
    f = Federation(config(forgetting={"measure_seconds": 0.0}))
    f.join(*EVERYONE)
    f.train()
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
    assert applied(f.ticket(ticket.id)).watch is None


@pytest.mark.parametrize("known", [True, False])
def test_another_method_follows_if_the_data_is_still_known(known: bool) -> None:
    f, ticket = unlearned(escalate="retrain")

    def ranked(version: int | None, auc: float) -> None:
        assert version is not None
        ranks = RankComparison(auc=auc, forget_samples=400, unseen_samples=400)
        found = Measurement(forget=FORGET, own=ranks, gap=Gap(value=auc - 0.5, error=0.02))
        f.apply(tickets.measure(f.state, "b", ticket, version, found, f.now)[0])

    ranked(applied(f.ticket(ticket)).version_before, 0.9)
    ranked(applied(f.ticket(ticket)).version_unlearned, 0.5)
    for _ in range(3):
        recover(f)
        ranked(f.state.version, 0.8 if known else 0.5)
    if not known:
        assert f.ticket(ticket).state is TicketState.COMPLETED
        assert f.ticket(ticket).escalated is None
        return
    assert f.ticket(ticket).state is TicketState.SCHEDULED
    assert f.ticket(ticket).escalated == "retrain"
    before = applied(f.ticket(ticket)).version_before
    while f.state.job is not None:
        assert "b" not in {a.client for a in f.round.assignments}
        f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    if f.ticket(ticket).state is not TicketState.COMPLETED:
        f.wait(11, *(name for name in EVERYONE if name != "b"))
    done = f.ticket(ticket)
    assert done.state is TicketState.COMPLETED
    assert applied(done).method == "retrain"
    assert applied(done).version_before == before
    assert len(applied(done).doses) == 1


def test_no_method_follows_a_reset() -> None:
    """All other clients ask, too, and the model goes back to its initial weights: it knows no client's data."""
    f, ticket = unlearned(escalate="retrain")
    for version, auc in ((applied(f.ticket(ticket)).version_before, 0.9), (None, 0.8)):
        if version is None:
            recover(f)
        ranks = RankComparison(auc=auc, forget_samples=400, unseen_samples=400)
        found = Measurement(forget=FORGET, own=ranks, gap=Gap(value=auc - 0.5, error=0.02))
        f.apply(tickets.measure(f.state, "b", ticket, version or f.state.version, found, f.now)[0])
    others = [f.file(name).id for name in EVERYONE if name != "b"]
    f.run_round(RoundKind.RESET)
    f.wait(3600)
    assert {f.ticket(t).state for t in (ticket, *others)} == {TicketState.COMPLETED}
    assert f.ticket(ticket).escalated is None
