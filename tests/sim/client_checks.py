"""What must hold on the clients' disks at the end: exclusions, receipts and tickets agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from puf_common.config.exit_codes import Exit
from puf_common.receipts import signed_receipt
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from tests.sim.checker import Checker
from tests.sim.client import Client
from tests.sim.facts import require

_OVER = (TicketState.WITHDRAWN, TicketState.FAILED)


def check_clients(state: State, checker: Checker, clients: Iterable[Client]) -> None:
    _no_request_twice(state, checker)
    for client in clients:
        _exclusions(state, checker, client)
        _receipts(state, client)
        _asked_again(client)
        _announced(state, client)


def _no_request_twice(state: State, checker: Checker) -> None:
    standing = Counter(
        (t.client, t.membership, checker.named[t.client, t.request.key])
        for t in state.tickets.values()
        # Receipts of two histories may open a request each.
        if not t.whole_client and t.state not in _OVER and not t.reopened
    )
    for (name, _, ids), times in standing.items():
        require(times == 1, f"{name} has {times} requests for the samples {sorted(ids)}")


def _exclusions(state: State, checker: Checker, client: Client) -> None:
    """The client knows which samples each of its requests names, unless it lost its disk."""
    disk = client.state
    for ticket in state.tickets.values() if not client.lost else ():
        key = ticket.request.key
        if ticket.client != client.name or ticket.whole_client or checker.withdrawn(client.name, key):
            continue
        known = disk.exclusion(key)
        require(known is not None, f"{client.name} does not know which samples {ticket.id} names")
        assert known is not None
        hashes = {disk.salted(client.sample_ids[i]) for i in checker.named[client.name, key]}
        require(known.hashes == hashes, f"{client.name} excludes other samples than those of {ticket.id}")
        # A later request may name the same samples.
        excluded = frozenset[str]().union(*(e.hashes for e in disk.exclusions() if e.effective))
        require(hashes <= excluded or disk.unsettled(), f"{client.name} would train on samples of {ticket.id}")


def _receipts(state: State, client: Client) -> None:
    """Every receipt on a client's disk is valid, and about a ticket that is completed or open again."""
    for file in client.state.receipts():
        receipt = signed_receipt.read(file)
        require(receipt.client == client.name, f"{client.name} has a receipt of {receipt.client}")
        ticket = state.tickets.get(receipt.ticket)
        if ticket is None:
            # The state was restored from a backup from before the client joined.
            continue
        told = receipt.content.ticket
        same = (ticket.client, ticket.membership, ticket.request.key) == (
            told.client,
            told.membership,
            told.request_key,
        )
        require(same, f"the receipt of {ticket.id} is about another request")
        # The operator left the receipt of a withdrawn request out of a restore.
        completed = ticket.state in (TicketState.COMPLETED, TicketState.WITHDRAWN)
        require(completed or ticket.reopened, f"{client.name} has a receipt of {ticket.id}, which is {ticket.state}")


def _asked_again(client: Client) -> None:
    """The command of a completed request finds its ticket again and has the receipt."""
    if client.again is None:
        return
    ticket_id, code = client.again
    require(code == Exit.OK, f"the command of {ticket_id} was run again and ended with {code}")
    has = any(signed_receipt.read(file).ticket == ticket_id for file in client.state.receipts())
    require(has, f"{client.name} has no receipt of {ticket_id}")


def _announced(state: State, client: Client) -> None:
    """The roster has the number of samples that a running worker trains on."""
    member, worker = state.members.get(client.name), client.worker
    if member is None or worker is None or not worker.alive or not member.session:
        return
    left = int((~client.state.excluded(client.sample_ids)).sum())
    require(member.samples == left, f"{client.name} trains on {left} samples, the roster has {member.samples}")
