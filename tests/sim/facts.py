"""What the checker has seen so far: acknowledged updates, forgotten clients, the origin of every model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puf_server.core.config import FederationConfig
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Mode, Ticket, TicketState
from tests.sim.weights import Contribution, Weights

if TYPE_CHECKING:
    from puf_server.core.rounds import UpdateHeader
    from tests.sim.disk import SimStore

_S = TicketState


class Violation(AssertionError):
    """A promise of the service is broken."""


@dataclass(frozen=True)
class Acked:
    client: str
    membership: int
    number: int
    attempt: int
    part: str
    digest: str


def _acked(name: str, h: UpdateHeader, digest: str) -> Acked:
    return Acked(name, h.membership, h.number, h.attempt, str(h.part), digest)


class Facts:
    def __init__(self) -> None:
        self.store: SimStore
        # Samples that each request names, by (client, request key). Clients state them.
        self.named: dict[tuple[str, str], frozenset[int]] = {}
        self.lineage: dict[int, Weights] = {}
        self.commits: list[str] = []
        self.steps = 0
        self._last: State | None = None
        self._acked: dict[Acked, str] = {}
        # Every update in a committed sum.
        self._summed: set[Acked] = set()
        self._attempts: dict[tuple[int, int], tuple[object, ...]] = {}
        self._scales: dict[tuple[int, int, str], tuple[object, ...]] = {}
        self._applied: Counter[str] = Counter()
        self._audited: Counter[tuple[str, str]] = Counter()
        # Retained updates that the unlearning round needed when it closed.
        self._others = 0
        # Forgotten memberships, with the version that forgot them.
        self._forgotten: dict[tuple[str, int], int] = {}
        # Requests for samples that their owners withdrew.
        self._taken_back: set[tuple[str, str]] = set()
        self._keys: dict[str, str] = {}
        # Tickets that were completed before a backup was restored.
        self._reopened: set[str] = set()

    def acknowledged_again(self, name: str, h: UpdateHeader, digest: str) -> None:
        """The server says that a committed round has counted the update."""
        key = _acked(name, h, digest)
        require(key in self._summed, f"{key} was acknowledged and is in no sum")

    def acknowledged(self, name: str, h: UpdateHeader, digest: str) -> None:
        key = _acked(name, h, digest)
        current = self._last.round if self._last is not None else None
        received = current.received.get(f"{name}/{h.part}") if current is not None else None
        kept = current is not None and (current.number, current.attempt) == (h.number, h.attempt)
        # The transaction that recorded it may have closed its round as well.
        self._acked[key] = "" if kept and received is not None and received.digest == key.digest else "void"

    def _counted(self, number: int, attempt: int, got: dict[tuple[str, int, str], Contribution]) -> None:
        for (name, membership, part), entered in got.items():
            self._summed.add(Acked(name, membership, number, attempt, part, entered.digest))
        for key, fate in self._acked.items():
            if (key.number, key.attempt) == (number, attempt):
                counted = got.get((key.client, key.membership, key.part))
                if counted is not None and counted.digest == key.digest:
                    require(not fate, f"{key} counts, but was {fate}")
                    self._acked[key] = "counted"
                else:
                    require(bool(fate), f"{key} was acknowledged and is not in the sum")

    def _void(self, number: int, attempt: int) -> None:
        for key, fate in self._acked.items():
            if (key.number, key.attempt) == (number, attempt) and not fate:
                self._acked[key] = "void"

    def _settle(self, name: str, membership: int, number: int, attempt: int, fate: str, part: str = "") -> None:
        """Notes what became of a client's acknowledged updates in an attempt, or of that of one part."""
        for key, known in self._acked.items():
            who = (key.client, key.membership, key.number, key.attempt)
            if who == (name, membership, number, attempt) and not known and part in ("", key.part):
                self._acked[key] = fate

    def taken_back(self, ticket: Ticket) -> None:
        """Its owner withdrew a request. A request that another one took over still protects its samples."""
        self._taken_back.add((ticket.client, ticket.request.key))
        self._keys[ticket.id] = ticket.request.key

    def not_taken_back(self, name: str, ticket_id: str) -> None:
        """The server refused to withdraw it."""
        self._taken_back.discard((name, self._keys.get(ticket_id, "")))

    def withdrawn(self, name: str, key: str) -> bool:
        """Whether a request was withdrawn, or a later one for the same samples."""
        ids = self.named[name, key]
        return any((name, k) in self._taken_back for (n, k), same in self.named.items() if n == name and same == ids)

    def _unserved(self, state: State, ticket: Ticket) -> bool:
        """Whether no request that includes this one has been applied, and one that does waits or has failed.

        A later request is an ordinary one after the owner withdrew this one.
        """
        if ticket.state is _S.WITHDRAWN and (ticket.client, ticket.request.key) in self._taken_back:
            return False
        found = [t.state for t in state.tickets.values() if self._includes(t, ticket)]
        waits = (_S.PENDING, _S.SCHEDULED, _S.FAILED)
        return any(s in waits for s in found) and all(s in waits or s is _S.WITHDRAWN for s in found)

    def _includes(self, other: Ticket, ticket: Ticket) -> bool:
        if (other.client, other.membership) != (ticket.client, ticket.membership):
            return False
        if other.whole_client or ticket.whole_client:
            return other.whole_client
        return self.ids_of(other) >= self.ids_of(ticket)

    def ids_of(self, ticket: Ticket) -> frozenset[int]:
        """The samples that a ticket names."""
        return self.named[ticket.client, ticket.request.key]

    def out_of_training(self, name: str) -> frozenset[int]:
        """The samples that a client asked to be forgotten."""
        asked = (ids for (n, key), ids in self.named.items() if n == name and not self.withdrawn(n, key))
        return frozenset().union(*asked)


def asked_out(state: State) -> set[str]:
    """Clients with an open request. A failed request for a whole client stays open until it is withdrawn."""
    return {
        t.client
        for t in state.tickets.values()
        if t.membership == state.members[t.client].membership
        and (
            t.state in (_S.PENDING, _S.SCHEDULED)
            or (t.state is _S.FAILED and t.whole_client)
        )
    }  # fmt: skip


def too_few_retained(state: State, config: FederationConfig, ticket: Ticket) -> bool:
    """Whether the policy makes a request wait for clients: a Regular round needs `min_retained` of them."""
    out = asked_out(state)
    left = sum(m.trains and m.name not in out for m in state.members.values())
    regular = ticket.request.mode is Mode.REGULAR and config.forgetting.method == "puf" and not ticket.fallback
    return ticket.state is _S.PENDING and regular and 0 < left < config.forgetting.min_retained


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)
