"""Samples that are named again after the loss of the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from puf_client.session.reconcile import agree
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_client.unlearning.name_again import name_again
from puf_common.errors import UsageError
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk


class _Server:
    """A server with one withdrawn request."""

    name = "a"

    def __init__(self, taken_over: str) -> None:
        request = tk.UnlearningRequest(request_key="r", scope=tk.SCOPE_SAMPLES, forget_samples=2)
        withdrawn = tk.TICKET_STATE_WITHDRAWN
        self.ticket = tk.Ticket(id="t-1", client="a", state=withdrawn, request=request, taken_over=taken_over)

    def describe(self) -> pb.DescribeReply:
        return pb.DescribeReply(federation_id="f")

    def list_my_tickets(self) -> pb.ListMyTicketsReply:
        return pb.ListMyTicketsReply(tickets=[self.ticket])


def test_samples_of_a_request_that_was_taken_over_can_be_named_again(tmp_path: Path) -> None:
    """The worker refuses to run without them, so the command that it names must accept them."""
    server = _Server(taken_over="t-2")
    name_again(cast(Transport, server), tmp_path, "t-1", ["one", "two"])
    agree(StateDirectory.of("f", "a", tmp_path), [server.ticket])


def test_samples_of_a_withdrawn_request_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is withdrawn"):
        name_again(cast(Transport, _Server(taken_over="")), tmp_path, "t-1", ["one", "two"])
