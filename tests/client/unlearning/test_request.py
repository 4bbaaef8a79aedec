"""Repeated requests for samples, and the state directory after a failed filing."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_client.unlearning.request import Plan, _samples, file
from puf_common.errors import NotNow, PufError, Unavailable, UsageError
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

IDS = [f"patient-{i}" for i in range(10)]


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory.of("fed-1", "clinic-7", tmp_path)


def filed(state: StateDirectory, chosen: list[int], ticket_state: tk.TicketState, ticket_id: str = "t-1") -> tk.Ticket:
    """A request that both the server and the state directory know."""
    ids = [IDS[i] for i in chosen]
    key = state.request_key(ids)
    state.prepare(key, ids)
    state.filed(key, ticket_id)
    request = tk.UnlearningRequest(request_key=key, scope=tk.SCOPE_SAMPLES, forget_samples=len(ids))
    return tk.Ticket(id=ticket_id, client="clinic-7", state=ticket_state, request=request)


@pytest.mark.parametrize("ended", [tk.TICKET_STATE_FAILED, tk.TICKET_STATE_WITHDRAWN])
def test_a_failed_or_taken_over_request_is_replaced_by_the_next_one(
    state: StateDirectory, ended: tk.TicketState
) -> None:
    first = filed(state, [0, 1, 2], ended)
    wanted = _samples(tk.UnlearningRequest(), state, IDS, [0, 1, 2], [first])
    assert wanted.ticket is None
    assert wanted.request.replaces == "t-1"
    assert wanted.request.request_key == f"{first.request.request_key}-1"
    assert (wanted.request.forget_samples, wanted.request.retain_samples) == (3, 7)


def test_after_a_withdrawal_the_request_is_new(state: StateDirectory) -> None:
    first = filed(state, [0, 1, 2], tk.TICKET_STATE_WITHDRAWN)
    state.withdraw(first.request.request_key)
    wanted = _samples(tk.UnlearningRequest(), state, IDS, [0, 1, 2], [first])
    assert wanted.request.replaces == ""


def test_other_samples_do_not_replace_a_failed_request(state: StateDirectory) -> None:
    first = filed(state, [0, 1, 2], tk.TICKET_STATE_FAILED)
    wanted = _samples(tk.UnlearningRequest(), state, IDS, [5], [first])
    assert wanted.request.replaces == ""
    assert (wanted.request.forget_samples, wanted.request.retain_samples) == (1, 6)
    with pytest.raises(UsageError, match="already forgotten"):
        _samples(tk.UnlearningRequest(), state, IDS, [2, 3], [first])


class Answering:
    """A server that always raises the same error."""

    name = "clinic-7"

    def __init__(self, error: PufError) -> None:
        self._error = error

    def file_unlearning(self, request: pb.FileUnlearningRequest) -> pb.FileUnlearningReply:
        raise self._error


@pytest.mark.parametrize("error", [Unavailable("the connection was closed"), PufError("internal"), NotNow("wait")])
def test_the_samples_of_a_request_are_known_after_every_error(state: StateDirectory, error: PufError) -> None:
    """After a refusal a delayed copy of the message can still be filed."""
    request = tk.UnlearningRequest(request_key="r1", scope=tk.SCOPE_SAMPLES, forget_samples=1)
    with pytest.raises(PufError):
        file(Plan(request, (IDS[0],)), state, cast(Transport, Answering(error)))
    assert state.exclusion("r1") is not None
    assert not state.excluded(IDS).any()
