"""A model that collapsed, its release, and the rollback of an unlearning."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.core.builders import Federation, config
from tests.tickets import outcome

from puf_common.errors import NotNow
from puf_server.core import scheduler
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import rollback


def trained(names: str = "abcd", **changes: Any) -> Federation:
    f = Federation(config(**{"plan": {"min_clients": len(names)}} | changes))
    f.join(*names)
    f.train()
    return f


def collapsed(score: float = 0.3) -> tuple[Federation, str]:
    f = trained(forgetting={"max_recovery_rounds": 1, "measure_seconds": 0.0})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.1)
    f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(score)
    return f, ticket.id


def test_a_collapsed_model_waits_for_operator_approval() -> None:
    f, ticket = collapsed()
    assert f.ticket(ticket).state is TicketState.RECOVERING
    assert f.state.models[f.state.version].status is ModelStatus.UNLEARNED
    said = scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    assert "30.0%" in said
    assert said.startswith("model on hold: ")
    f.wait(10 * 86400.0, *"bcd")
    assert f.ticket(ticket).state is TicketState.RECOVERING
    f.apply(rollback.release(f.state, f.now))
    assert (f.ticket(ticket).state, outcome(f.ticket(ticket)).recovered) == (TicketState.COMPLETED, False)
    assert f.state.models[f.state.version].status is ModelStatus.READY
    with pytest.raises(NotNow, match="no model is on hold"):
        rollback.release(f.state, f.now)


def test_half_of_the_score_is_not_a_collapse() -> None:
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
    # The client comes back and is forgotten.
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
