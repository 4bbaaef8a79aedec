"""Requests for samples that failed or were taken over. Their samples stay out of training until withdrawal."""

from __future__ import annotations

from typing import Any

import pytest

from puf_common.errors import InvalidArgument, NotNow
from puf_server.core import tickets
from puf_server.core.assignments import Train, work_for
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import Ticket, TicketState
from tests.server.core.builders import Federation, config

FIRST: dict[str, Any] = {"scope": "samples", "forget_samples": 3, "retain_samples": 7, "key": "first"}
DAYS = 31 * 86400.0


def failed() -> Federation:
    """b asked for three of its ten samples and was absent until the deadline."""
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    f.now += 1000.0
    f.beat("a", "c", "d")
    ticket = f.file("b", **FIRST)
    f.wait(DAYS, "a", "c", "d")
    assert f.ticket(ticket.id).state is TicketState.FAILED
    return f


def state_of(f: Federation, ticket_id: str) -> TicketState:
    return f.ticket(ticket_id).state


def test_a_request_for_other_samples_leaves_it_as_it_is() -> None:
    f = failed()
    other = f.file("b", scope="samples", forget_samples=2, retain_samples=5, key="second")
    assert (state_of(f, "t-0"), other.id) == (TicketState.FAILED, "t-1")
    assert f.state.members["b"].samples == 5


def test_a_request_for_the_whole_client_includes_it() -> None:
    f = failed()
    f.file("b", key="everything")
    assert state_of(f, "t-0") is TicketState.WITHDRAWN


def test_asking_for_the_same_samples_again_replaces_the_failed_request() -> None:
    f = failed()
    assert f.state.members["b"].samples == 7
    again = f.file("b", **{**FIRST, "key": "first-1", "replaces": "t-0"})
    assert (state_of(f, "t-0"), again.state) == (TicketState.WITHDRAWN, TicketState.PENDING)
    assert "asked again as t-1" in f.ticket("t-0").history[-1].note
    # The samples count once.
    assert f.state.members["b"].samples == 7


def test_the_new_request_is_served() -> None:
    f = failed()
    again = f.file("b", **{**FIRST, "key": "first-1", "replaces": "t-0"})
    f.join("b", samples=7)
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(again.id).state is TicketState.APPLIED


def test_samples_of_a_request_that_was_taken_over_can_be_asked_for_again() -> None:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    f.now += 1000.0
    f.beat("a", "c", "d")
    f.file("b", **FIRST)
    whole = f.file("b", key="everything")
    assert state_of(f, "t-0") is TicketState.WITHDRAWN
    f.apply(tickets.withdraw(f.state, "b", whole.id, f.now)[0])
    # The client keeps the samples out of training, and announces the rest.
    assert f.state.members["b"].samples == 7
    again = f.file("b", **{**FIRST, "key": "first-1", "replaces": "t-0"})
    assert again.state is TicketState.PENDING
    assert f.state.members["b"].samples == 7


@pytest.mark.parametrize(
    ("request_", "error", "told"),
    [
        ({"replaces": "t-9"}, NotNow, "no request for samples"),
        ({"replaces": "t-0", "forget_samples": 2, "retain_samples": 8}, InvalidArgument, "was about 3 samples"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_and_nothing_changes(
    request_: dict[str, Any], error: type[Exception], told: str
) -> None:
    f = failed()
    before = f.state
    with pytest.raises(error, match=told):
        f.file("b", **{**FIRST, "key": "first-1", **request_})
    assert f.state is before


def taken_over() -> tuple[Federation, Ticket]:
    """b asked for three of its ten samples, and then to be forgotten as a whole, while it was absent."""
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    f.now += 1000.0
    f.beat("a", "c", "d")
    f.file("b", **FIRST)
    return f, f.file("b", key="everything")


def test_samples_of_a_request_that_was_taken_over_are_unlearned_with_the_whole_client() -> None:
    f, whole = taken_over()
    assert (whole.took_over, whole.taken_samples) == (("t-0",), 3)
    f.join("b", samples=7)
    f.answer_evaluation(0.8)
    assert f.state.round is not None
    (target,) = [a for a in f.state.round.assignments if a.ticket == whole.id]
    assert (target.samples, target.taken) == (10, 3)
    work = work_for(f.state, f.config, "b", f.state.members["b"].session, f.now)
    assert isinstance(work, Train)
    assert work.taken_requests == ("first",)
    # A client that joins again with the same count changes nothing.
    f.join("b", samples=7)
    assert f.state.round.attempt == 1


def test_samples_of_a_failed_request_are_unlearned_with_the_whole_client() -> None:
    f = failed()
    assert f.file("b", key="everything").took_over == ("t-0",)


def test_a_request_that_was_asked_again_is_not_taken_over_twice() -> None:
    f, whole = taken_over()
    f.apply(tickets.withdraw(f.state, "b", whole.id, f.now)[0])
    f.file("b", **{**FIRST, "key": "first-1", "replaces": "t-0"})
    second = f.file("b", key="everything-1")
    assert (second.took_over, second.taken_samples) == (("t-2",), 3)


def test_samples_of_a_withdrawn_request_for_the_whole_client_are_taken_over_again() -> None:
    f, whole = taken_over()
    f.apply(tickets.withdraw(f.state, "b", whole.id, f.now)[0])
    assert f.file("b", key="everything-1").took_over == ("t-0",)
