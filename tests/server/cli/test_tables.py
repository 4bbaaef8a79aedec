"""What operators see in a terminal."""

from __future__ import annotations

import pytest

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli import tables
from puf_server.cli.tables import hint


def test_a_sentence_is_not_repeated_in_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    reply = op.StatusReply(waiting_for="waiting for 3 more clients to join")
    reply.position.phase = fed.PHASE_WAITING
    tables.status(reply)
    shown = capsys.readouterr().out
    assert shown.count("waiting for") == 1
    assert "next" not in shown


@pytest.mark.parametrize(
    ("waiting_for", "command"),
    [
        ("halted: the sum is not finite", "puf-server resume"),
        ("paused by the operator", "puf-server resume"),
        ("waiting for 2 more clients to join; clients on hold: anna", "puf-server clients approve NAME"),
        ("paused by the operator; tickets on hold: t-1", "puf-server tickets approve TICKET"),
        ("model on hold: the accuracy fell", "puf-server rollback"),
        ("round 3 (train): waiting for anna", ""),
    ],
)
def test_status_names_the_next_command(waiting_for: str, command: str) -> None:
    found = hint(op.StatusReply(waiting_for=waiting_for))
    assert command in found
    assert bool(found) is bool(command)


def test_states_of_tickets_are_in_lower_case_as_all_other_states(capsys: pytest.CaptureFixture[str]) -> None:
    ticket = tk.Ticket(id="t-1", client="anna", state=tk.TICKET_STATE_PENDING)
    tables.show("tickets", [ticket])
    shown = capsys.readouterr().out
    assert "pending" in shown
    assert "PENDING" not in shown
