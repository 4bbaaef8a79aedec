"""Whether a client may join: it presents its receipts, and does not join again after it was forgotten."""

from __future__ import annotations

import time

from puf_client.session.reconcile import reconciled
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_common.errors import Forgotten
from puf_common.v1 import federation_pb2 as pb


def refuse_forgotten(
    transport: Transport, description: pb.DescribeReply, state: StateDirectory, *, rejoin: bool = False
) -> None:
    """Raises `Forgotten` if this client was forgotten and does not ask for a new membership."""
    reopened = reconciled(transport, state)
    forgotten = state.forgotten
    if forgotten is None:
        return
    if reopened:
        raise Forgotten(
            f"{transport.name} was forgotten by {description.title}, but the server was restored from an older backup "
            "and knows the client again: run `puf-client --unlearn` with this client's data to have it forgotten again"
        )
    if not rejoin:
        day = time.strftime("%Y-%m-%d", time.localtime(float(str(forgotten["at"]))))
        raise Forgotten(
            f"{transport.name} was forgotten by {description.title} on {day}; to return, the operator "
            f"runs `puf-server clients readmit {transport.name}`, then this client runs `puf-client run --rejoin`"
        )
