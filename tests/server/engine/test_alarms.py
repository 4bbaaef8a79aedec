"""A failed request is an error in the log and a row of its own in the status."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.forgotten import OnDisk, trained_state

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli import tables
from puf_server.core.state.tickets import TicketState


def test_a_ticket_that_fails_is_an_error_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with OnDisk(trained_state(tmp_path / "state")) as f:
        later = f.engine.clock() + 40 * 86400.0
        # No worker is alive.
        f.engine.clock = lambda: later - 39 * 86400.0
        request = tk.UnlearningRequest(request_key="k", scope=tk.SCOPE_CLIENT)
        ticket = f.handlers.tickets.file_unlearning("cleo", fed.FileUnlearningRequest(request=request)).ticket
        f.engine.clock = lambda: later
        with caplog.at_level(logging.ERROR):
            f.engine.tick()
        assert f.engine.state.tickets[ticket.id].state is TicketState.FAILED
        (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert "HAS FAILED" in record.getMessage()
        assert ticket.id in record.getMessage()


def test_the_status_names_what_the_operator_must_look_into(capsys: pytest.CaptureFixture[str]) -> None:
    tables.status(op.StatusReply(title="t"))
    assert "FAILED" not in capsys.readouterr().out
    tables.status(op.StatusReply(title="t", tickets_failed=1, tickets_overdue=2, trouble="the disk is full"))
    told = capsys.readouterr().out
    assert "1 request to be forgotten failed" in told
    assert "2 requests to be forgotten not applied at the deadline" in told
    assert "the disk is full" in told
