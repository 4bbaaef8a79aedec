"""An update that makes the sum not finite."""

from __future__ import annotations

from typing import Any

from puf_server.core import scheduler
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config
from tests.tickets import applied


def trained(names: str = "abcd", **changes: Any) -> Federation:
    f = Federation(config(**{"plan": {"min_clients": len(names)}} | changes))
    f.join(*names)
    f.train()
    return f


def test_a_client_whose_update_makes_the_sum_not_finite_is_put_on_hold() -> None:
    f = Federation(config(plan={"min_clients": 2, "start_clients": 3}))
    f.join("a", "b", "m")
    f.submit_all()
    f.apply(scheduler.unfit(f.state, f.config, "m", "round 1: not finite", f.now))
    assert {s.client for s in f.round.assignments} == {"a", "b"}
    f.commit()
    assert not f.state.halted
    assert f.state.members["m"].first_round == 0
    assert {s.client for s in f.round.assignments} == {"a", "b"}


def test_a_target_whose_update_makes_the_sum_not_finite_tries_again_later() -> None:
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
