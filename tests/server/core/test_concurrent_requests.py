"""Requests that arrive during another unlearning, twice at once, or late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.rounds import RoundKind, RoundPhase
from puf_server.core.state.tickets import TicketState
from tests.forgotten import EVERYONE, OnDisk, trained_state
from tests.server.core.builders import Federation, config

DAY = 86400.0


def unlearning() -> tuple[Federation, str]:
    """The unlearning round of b is open."""
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    assert f.round.kind is RoundKind.UNLEARN
    return f, ticket.id


@pytest.mark.parametrize("sent", [False, True])
def test_a_request_during_the_unlearning_round_of_another_client(sent: bool) -> None:
    f, first = unlearning()
    frozen = f.round.denominator
    if sent:
        f.submit("c")
    second = f.file("c").id
    # The open round does not serve it: the client contributes zero, and the frozen n stays.
    assert f.ticket(second).state is TicketState.PENDING
    assert f.round.denominator == frozen == 40
    assert "c" not in {s.client for s in f.round.assignments}
    assert "c/main" not in f.round.received
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(first).state is TicketState.APPLIED
    assert f.state.members["c"].status is MemberStatus.ACTIVE
    # It is served next, before the recovery of the other client ends.
    if f.state.evaluation is not None:
        f.answer_evaluation(0.1)
    assert f.ticket(second).state is TicketState.SCHEDULED
    assert {s.client for s in f.round.assignments if s.negated} == {"c"}
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(second).state is TicketState.APPLIED


def test_a_request_while_that_round_is_folded() -> None:
    f, first = unlearning()
    for assignment in f.round.missing:
        f.submit(assignment.client)
    assert f.round.phase is RoundPhase.FOLDING
    revision = f.round.revision
    second = f.file("c").id
    # The sum contains c: it is outdated and will be computed again.
    assert f.round.revision > revision
    assert "c/main" not in f.round.received
    assert f.round.phase is RoundPhase.FOLDING
    f.commit()
    assert f.ticket(first).state is TicketState.APPLIED
    assert f.ticket(second).waiting


def test_the_same_request_from_two_processes_at_once_is_one_ticket(tmp_path: Path) -> None:
    with OnDisk(trained_state(tmp_path / "state")) as f:
        f.join(*EVERYONE)
        request = tk.UnlearningRequest(request_key="k", scope=tk.SCOPE_CLIENT)
        with ThreadPoolExecutor(8) as pool:
            replies = list(
                pool.map(
                    lambda _: f.handlers.tickets.file_unlearning("anna", fed.FileUnlearningRequest(request=request)),
                    range(16),
                )
            )
        assert len({r.ticket.id for r in replies}) == 1
        assert sorted(r.duplicate for r in replies) == [False] + [True] * 15
        assert f.events().count("ticket.filed") == 1


@pytest.mark.parametrize("during", ["idle", "a round"])
def test_requests_of_all_clients_at_once_and_each_twice(during: str, tmp_path: Path) -> None:
    """Every client has one ticket, and the model goes back to its initial weights."""
    with OnDisk(trained_state(tmp_path / "state")) as f:
        f.join(*EVERYONE)
        if during == "a round":
            f.engine.call(lambda state, _: (replace(state, planned=state.planned + 1), None))
            assert f.engine.state.round is not None
        before = f.engine.state.models[0].digest

        def ask(name: str) -> fed.FileUnlearningReply:
            request = tk.UnlearningRequest(request_key=f"k-{name}", scope=tk.SCOPE_CLIENT)
            return f.handlers.tickets.file_unlearning(name, fed.FileUnlearningRequest(request=request))

        with ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(ask, [*EVERYONE, *EVERYONE]))
        assert len({r.ticket.id for r in replies}) == len(EVERYONE)
        assert sum(r.duplicate for r in replies) == len(EVERYONE)
        assert f.events().count("ticket.filed") == len(EVERYONE)
        f.work()
        f.engine.tick()
        state = f.engine.state
        assert {t.state for t in state.tickets.values()} == {TicketState.COMPLETED}
        assert {m.status for m in state.members.values()} == {MemberStatus.FORGOTTEN}
        assert state.models[state.version].digest == before


@pytest.mark.parametrize(("received", "days"), [(None, 30.0), (1000.0 - 10 * DAY, 20.0), (1000.0 - 40 * DAY, -10.0)])
def test_the_deadline_counts_thirty_days_from_receipt(received: float | None, days: float) -> None:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    ticket = f.file("b", received_at=received)
    assert ticket.deadline_at == f.now + days * DAY
    # An alive client is served, overdue or not.
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(ticket.id).state is TicketState.APPLIED
