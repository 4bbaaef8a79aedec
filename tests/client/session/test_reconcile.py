"""When a client does not go on: it would train on samples that somebody asked to be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_client.session.reconcile import require_exclusions
from puf_client.state.directory import StateDirectory
from puf_common.errors import Mismatch
from puf_common.v1 import tickets_pb2 as tk


def ticket(state: tk.TicketState, taken_over: str = "") -> tk.Ticket:
    request = tk.UnlearningRequest(request_key="r", scope=tk.SCOPE_SAMPLES, forget_samples=3)
    return tk.Ticket(id="t-1", client="a", state=state, request=request, taken_over=taken_over)


def test_a_request_that_another_took_over_still_keeps_its_samples_out(tmp_path: Path) -> None:
    state = StateDirectory.of("f", "a", tmp_path)
    # Its owner asked for them back: nothing to keep out.
    require_exclusions(state, [ticket(tk.TICKET_STATE_WITHDRAWN)])
    for standing in (
        ticket(tk.TICKET_STATE_PENDING),
        ticket(tk.TICKET_STATE_COMPLETED),
        ticket(tk.TICKET_STATE_WITHDRAWN, taken_over="t-2"),
    ):
        with pytest.raises(Mismatch, match="puf-client data exclude t-1"):
            require_exclusions(state, [standing])
    state.prepare("r", ["one", "two", "three"])
    require_exclusions(state, [ticket(tk.TICKET_STATE_WITHDRAWN, taken_over="t-2")])
