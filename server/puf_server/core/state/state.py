"""The state of one federation.

Records are frozen values. A change makes a new record, and unchanged records stay the same object, so that the store sees
by identity what to write.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditNote:
    """An entry for the audit log. It is written in the same transaction as the change."""

    event: str
    at: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    version: int = 0
    # The number of the last committed round.
    number: int = 0
    # Attempts opened for the round after `number`.
    attempt: int = 0
    # Committed and planned training rounds. Unlearning and recovery rounds are not counted.
    trained: int = 0
    planned: int = 0
    # Committed rounds that lower the learning rate: training, recovery and PUF. Steps of other methods are not counted.
    decays: int = 0
    # The name of the random streams: the method that made the model last; empty before the first request.
    streams: str = ""
    paused: bool = False
    # Why the federation stopped by itself; empty if it did not.
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
    # What methods need about past updates, by key.
    history: Mapping[str, HistoryRecord] = field(default_factory=dict)
    # The shard of each name. It stays when the name is forgotten.
    leases: Mapping[str, int] = field(default_factory=dict)
    # The operator has stopped the federation. Not stored: a start ends it.
    stopping: bool = False
    # Audit entries that are not written yet.
    notes: tuple[AuditNote, ...] = ()

    @property
    def newest(self) -> int:
        """The highest version number in use. A job in progress makes versions above `version`."""
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
