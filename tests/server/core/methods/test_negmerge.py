"""NegMerge: one negated update per target."""

from __future__ import annotations

from puf_server.core.state.rounds import RoundKind
from tests.server.core.test_methods import trained
from tests.tickets import applied


def test_the_merged_update_enters_negated_and_scaled() -> None:
    f = trained(method="negmerge", method_options={"runs": "3", "strength": "1.5", "epochs": "2"})
    ticket = f.file("b")
    [assignment] = f.round.assignments
    assert (assignment.client, assignment.routine, assignment.scale, assignment.negated) == ("b", "merge", -1.5, True)
    # The epochs of all runs together.
    assert (assignment.epochs, assignment.options) == (6.0, {"runs": 3.0, "spread": 2.0})
    assert f.round.denominator == 10
    f.run_round(RoundKind.UNLEARN)
    assert applied(f.ticket(ticket.id)).scale == -1.5
