"""A client stops if it would train on samples that a request names."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_client.session.reconcile import agree
from puf_client.state.directory import StateDirectory
from puf_common.errors import Mismatch
from puf_common.v1 import tickets_pb2 as tk


def ticket(state: tk.TicketState, taken_over: str = "") -> tk.Ticket:
    request = tk.UnlearningRequest(request_key="r", scope=tk.SCOPE_SAMPLES, forget_samples=3)
    return tk.Ticket(id="t-1", client="a", state=state, request=request, taken_over=taken_over)


def test_samples_of_a_request_that_was_taken_over_stay_excluded(tmp_path: Path) -> None:
    state = StateDirectory.of("f", "a", tmp_path)
    # The client withdrew this request, so its samples are not excluded.
    agree(state, [ticket(tk.TICKET_STATE_WITHDRAWN)])
    for standing in (
        ticket(tk.TICKET_STATE_PENDING),
        ticket(tk.TICKET_STATE_COMPLETED),
        ticket(tk.TICKET_STATE_WITHDRAWN, taken_over="t-2"),
    ):
        with pytest.raises(Mismatch, match="puf-client data exclude t-1"):
            agree(state, [standing])
    state.prepare("r", ["one", "two", "three"])
    agree(state, [ticket(tk.TICKET_STATE_WITHDRAWN, taken_over="t-2")])


def test_a_withdrawal_that_a_restored_server_lost_is_taken_back(tmp_path: Path) -> None:
    state = StateDirectory.of("f", "a", tmp_path)
    state.prepare("r", ["one", "two", "three"])
    state.filed("r", "t-1")
    state.withdraw("r")
    agree(state, [ticket(tk.TICKET_STATE_WITHDRAWN)])
    assert not state.excluded(["one"]).any()
    agree(state, [ticket(tk.TICKET_STATE_PENDING)])
    assert state.excluded(["one"]).all()
    # The owner withdraws it again.
    agree(state, [ticket(tk.TICKET_STATE_WITHDRAWN)])
    assert not state.excluded(["one"]).any()


def test_samples_of_a_withdrawn_request_that_a_restored_server_gave_to_another_stay_excluded(tmp_path: Path) -> None:
    state = StateDirectory.of("f", "a", tmp_path)
    state.prepare("r", ["one"])
    state.filed("r", "t-1")
    state.withdraw("r")
    agree(state, [ticket(tk.TICKET_STATE_PENDING)])
    agree(state, [ticket(tk.TICKET_STATE_WITHDRAWN, taken_over="t-2")])
    assert state.excluded(["one"]).all()
