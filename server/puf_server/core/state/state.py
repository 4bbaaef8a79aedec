"""The state of one federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from puf_server.core.state.jobs import Recovery, UnlearningJob
from puf_server.core.state.measurements import Evaluation
from puf_server.core.state.members import Member
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.rounds import HistoryRecord, Round, RoundRecord
from puf_server.core.state.tickets import Ticket

__all__ = ["AuditNote", "State"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditNote:
    """A line for the audit log, written in the transaction that persists the change it tells of."""

    event: str
    at: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    # Persistent.
    version: int = 0
    # The last committed round, t.
    number: int = 0
    # Attempts opened for the round after `number`.
    attempt: int = 0
    # Training rounds committed and planned; unlearning and recovery rounds come on top.
    trained: int = 0
    planned: int = 0
    paused: bool = False
    # Why the federation stopped by itself; empty when it did not.
    halted: str = ""
    evaluations: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    round: Round | None = None
    evaluation: Evaluation | None = None
    job: UnlearningJob | None = None
    recovery: Recovery | None = None
    tickets: Mapping[str, Ticket] = field(default_factory=dict)
    models: Mapping[int, ModelVersion] = field(default_factory=dict)
    records: Mapping[int, RoundRecord] = field(default_factory=dict)
    # What the federation's method has to remember, by key; empty for most methods.
    history: Mapping[str, HistoryRecord] = field(default_factory=dict)
    # Which part of a split data set a name was given; kept when it is forgotten.
    leases: Mapping[str, int] = field(default_factory=dict)
    # Volatile.
    stopping: bool = False
    # Lines not written yet.
    notes: tuple[AuditNote, ...] = ()

    @property
    def newest(self) -> int:
        """The highest version number in use; above `version` while an job is on its way."""
        return max(self.models, default=0)

    def note(self, event: str, now: float, **facts: Any) -> State:
        return replace(self, notes=(*self.notes, AuditNote(event=event, at=now, facts=facts)))

    def with_member(self, member: Member) -> State:
        return replace(self, members={**self.members, member.name: member})

    def with_ticket(self, ticket: Ticket) -> State:
        return replace(self, tickets={**self.tickets, ticket.id: ticket})

    def with_model(self, model: ModelVersion) -> State:
        return replace(self, models={**self.models, model.version: model})

    def kept_out(self) -> set[str]:
        """Clients that a ticket keeps out of ordinary training."""
        return {
            t.client
            for t in self.tickets.values()
            if t.keeps_out and (m := self.members.get(t.client)) is not None and m.membership == t.membership
        }
