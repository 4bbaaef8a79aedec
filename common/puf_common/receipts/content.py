"""The content of a receipt: the facts that the server states about one completed ticket.

The signature covers the canonical bytes, so the names and types of the fields are part of the format. Three sources are
kept apart: the server's own record, the other clients' hold-out data, and the target's figures, which the server only
passes on. A field that a newer server adds is ignored when a receipt is read; the signature is checked over the text
that was received.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

__all__ = [
    "FORMAT",
    "KIND",
    "STAGES",
    "AttackFacts",
    "AuditHead",
    "Backup",
    "ClientMeasurement",
    "Cost",
    "Costs",
    "DeletedHistory",
    "Export",
    "FederationFacts",
    "HistoryEntry",
    "MeasuredByClient",
    "MeasuredByOthers",
    "MemberShare",
    "MethodFacts",
    "ModelFacts",
    "ReceiptContent",
    "RoundFacts",
    "Score",
    "Stages",
    "TicketFacts",
    "UnlearnedSamplesFacts",
    "canonical",
]


KIND = "puf-receipt"
FORMAT = 1
# The moments at which a model is described and measured.
STAGES = ("before", "unlearned", "recovered")

# A whole number stays whole, so that the canonical bytes stay the same.
Number = int | float
Interval = tuple[Number, Number]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


T = TypeVar("T")


class Stages(_Facts, Generic[T]):
    """One value for each stage; None where there is no model or no measurement."""

    before: T | None
    unlearned: T | None
    recovered: T | None

    def of(self, stage: str) -> T | None:
        found: T | None = getattr(self, stage)
        return found


class FederationFacts(_Facts):
    id: str
    title: str
    model: str
    task: str


class HistoryEntry(_Facts):
    at: str | None
    state: str
    note: str


class TicketFacts(_Facts):
    """The request. Dates are in UTC (ISO 8601). Sample counts are None for a whole client."""

    id: str
    client: str
    membership: int
    request_key: str
    scope: str
    forget_samples: int | None
    retain_samples: int | None
    reference: str
    filed_by: str
    received_at: str | None
    filed_at: str | None
    deadline_at: str | None
    applied_at: str | None
    completed_at: str | None
    history: tuple[HistoryEntry, ...]


class MethodFacts(_Facts):
    """How the ticket was served. Mode, flip, kappa, eta_u and epochs are None for a method other than PUF."""

    name: str
    mode: str | None
    flip: str | None
    kappa: Number | None
    eta_u: Number | None
    epochs: int | None
    scale: Number
    attempts: int
    discloses: str | None


class RoundFacts(_Facts):
    """`recovered` is None if no client could measure it."""

    applied: int | None
    recovery: int
    recovered: bool | None


class ModelFacts(_Facts):
    version: int
    round: int
    digest: str
    status: str


class DeletedHistory(_Facts):
    """Records that the method had stored about the client."""

    records: int
    bytes: int


class Export(_Facts):
    at: str | None
    version: int
    digest: str


class Backup(_Facts):
    at: str | None
    digest: str
    versions: tuple[int, ...]


class Cost(_Facts):
    """Tensor bytes and samples of some rounds."""

    rounds: int
    bytes_to_clients: int
    bytes_from_clients: int
    samples_trained: int


class Costs(_Facts):
    unlearning: Cost
    recovery: Cost
    requests_served_together: int | None


class Score(_Facts):
    """Accuracy with its interval at 95 %, and mean loss."""

    samples: int
    accuracy: Number
    interval: Interval
    loss: Number


class MemberShare(_Facts):
    """The samples that an attack takes for training data."""

    members: int
    samples: int
    share: Number
    interval: Interval


class AttackFacts(_Facts):
    threshold: Number
    forget: MemberShare
    holdout: MemberShare
    difference: Interval
    verdict: str


class ClientMeasurement(_Facts):
    """The target's figures of one model."""

    version: int
    forget: Score
    holdout: Score | None
    yeom: AttackFacts | None
    song: AttackFacts | None
    verdict: str | None


class UnlearnedSamplesFacts(_Facts):
    """What the target says about the samples that it unlearned. `digest` is None if it knows no ids.

    The digest is SHA-256 over the sorted salted hashes of the samples' ids. Only the client has the salt.
    """

    by: str
    samples: int
    digest: str | None


class MeasuredByOthers(Stages[Score]):
    by: str
    clients: int


class MeasuredByClient(Stages[ClientMeasurement]):
    by: str
    verdict: str | None


class AuditHead(_Facts):
    """The last entry of the audit log when the receipt was made."""

    line: int
    hash: str


class ReceiptContent(_Facts):
    kind: str = KIND
    format: int = FORMAT
    statement: str
    issued_at: str | None
    software: str
    federation: FederationFacts
    ticket: TicketFacts
    method: MethodFacts
    rounds: RoundFacts
    models: Stages[ModelFacts]
    deleted_history: DeletedHistory
    deleted_models: tuple[ModelFacts | None, ...]
    exports: tuple[Export, ...]
    backups: tuple[Backup, ...]
    costs: Costs
    measured_by_others: MeasuredByOthers
    measured_by_client: MeasuredByClient
    audit: AuditHead
    # Absent from the text if it is None, as in receipts of older versions.
    unlearned_samples: UnlearnedSamplesFacts | None = None

    def as_json(self) -> dict[str, Any]:
        """The content as a parsed JSON object."""
        absent = {name for name in _ABSENT_IF_NONE if getattr(self, name) is None}
        found: dict[str, Any] = json.loads(canonical(self.model_dump(exclude=absent)))
        return found


# Fields that were added later. Old facts keep their bytes.
_ABSENT_IF_NONE = ("unlearned_samples",)


def canonical(content: Any) -> bytes:
    """The one spelling that is signed: keys sorted, no spaces, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
