"""Requests to be forgotten, one ticket each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from puf_server.core.state.measurements import Evidence, Sums

__all__ = ["Ticket", "TicketEvent", "TicketState"]


class TicketState(StrEnum):
    PENDING = "pending"
    SCHEDULED = "scheduled"
    APPLIED = "applied"
    RECOVERING = "recovering"
    COMPLETED = "completed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketEvent:
    """One entry of a ticket's history."""

    state: TicketState
    at: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A request to be forgotten."""

    id: str
    client: str
    membership: int
    request_key: str
    scope: str
    mode: str
    flip: str
    kappa: float | None
    eta_u: float | None
    epochs: int
    forget_samples: int
    retain_samples: int
    reference: str
    filed_at: float
    received_at: float
    deadline_at: float
    state: TicketState = TicketState.PENDING
    history: tuple[TicketEvent, ...] = ()
    method: str = ""
    attempts: int = 0
    # After a missed attempt the next one waits until then.
    not_before: float = 0.0
    applied_round: int = 0
    applied_at: float = 0.0
    completed_at: float = 0.0
    scale: float = 0.0
    version_before: int | None = None
    version_unlearned: int | None = None
    version_recovered: int | None = None
    recovery_rounds: int = 0
    recovered: bool | None = None
    score_before: Sums | None = None
    score_unlearned: Sums | None = None
    score_recovered: Sums | None = None
    score_clients: int = 0
    # What the owner measured on the data being forgotten, by model version.
    measurements: Mapping[int, Sums] = field(default_factory=dict)
    evidence: Mapping[int, Evidence] = field(default_factory=dict)
    deleted_versions: tuple[int, ...] = ()
    # "client" or "operator".
    filed_by: str = "client"
    # The request for the whole client that took this one over; empty: its owner withdrew it, or nobody did.
    taken_over: str = ""
    # Why the fallback serves this ticket instead of the federation's method; empty: it does not.
    fallback: str = ""
    # Records about the client that were kept for the method and deleted when it was forgotten, and their bytes.
    deleted_records: int = 0
    deleted_bytes: int = 0
    # Was completed once, in a later state than this one: until it is applied again, every newer model knows its client.
    reopened: bool = False
    # Announced samples that it takes out of the federation, for the budget of forgetting.
    weight: int = 0
    # Why it is not served until the operator allows it; empty when it is.
    on_hold: str = ""

    @property
    def open(self) -> bool:
        return self.state not in (TicketState.COMPLETED, TicketState.FAILED, TicketState.WITHDRAWN)

    @property
    def waiting(self) -> bool:
        return self.state in (TicketState.PENDING, TicketState.SCHEDULED)

    @property
    def recovering(self) -> bool:
        return self.state in (TicketState.APPLIED, TicketState.RECOVERING)

    @property
    def keeps_out(self) -> bool:
        """Filed and not applied: its client does no ordinary training. A failed request for everything keeps it out too."""
        return self.waiting or (self.state is TicketState.FAILED and self.scope == "client")
