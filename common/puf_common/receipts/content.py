"""The content of a receipt: the facts that the server states about one completed ticket.

The signature covers the canonical bytes, so the names and types of the fields are part of the format. Three sources are
kept apart: the server's own record, the other clients' hold-out data, and the target's figures, which the server only
passes on. A field that a newer server adds is ignored when a receipt is read; the signature is checked over the text
that was received.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

__all__ = [
    "FORMAT",
    "KIND",
    "STAGES",
    "AttackFacts",
    "AuditHead",
    "Backup",
    "ClientMeasurement",
    "ComparisonFacts",
    "Cost",
    "Costs",
    "DeletedHistory",
    "DoseFacts",
    "Export",
    "FederationFacts",
    "GapFacts",
    "HistoryEntry",
    "MeasuredByClient",
    "MeasuredByOthers",
    "MemberShare",
    "MethodFacts",
    "ModelFacts",
    "RankFacts",
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
    """A field with the default None was added later. It is left out where it is None: old facts give the same bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _without_later_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        stated: dict[str, Any] = handler(self)
        return {k: v for k, v in stated.items() if v is not None or fields[k].is_required()}


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
    # SHA-256 of the frozen parameters, which no client sends; None if no parameter is frozen.
    base_digest: str | None = None


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
    # Earlier requests for samples whose samples were unlearned with this one.
    took_over: tuple[str, ...] | None = None
    # The earlier request for the same samples that this one asked again; None if there is none.
    replaces: str | None = None


class GapFacts(_Facts):
    """How much better a model knows the forget data than unseen data, in points of probability, with its standard error."""

    value: Number
    error: Number


class DoseFacts(_Facts):
    """One unlearning round of adaptive strength. `gap` is the target's figure of the model before the round."""

    round: int
    kappa: Number
    gap: GapFacts


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
    # "auto" for adaptive strength; None for a fixed one.
    strength: str | None = None
    doses: tuple[DoseFacts, ...] | None = None
    # Why a fixed strength served a request for adaptive strength.
    fixed_because: str | None = None
    # The method that followed because the data could still be told from unseen data.
    escalated: str | None = None


class RoundFacts(_Facts):
    """`recovered` is None if no client could measure it. `ended` is why recovery ended."""

    applied: int | None
    recovery: int
    recovered: bool | None
    ended: str | None = None


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


class RankFacts(_Facts):
    """Ranks of the forgotten against unseen samples: AUC with its interval at 97.5 %, and the smallest detectable distance."""

    auc: Number
    interval: Interval
    forget_samples: int
    unseen_samples: int
    detectable: Number


class ClientMeasurement(_Facts):
    """The target's figures of one model. `verdict` is the finding about this model.

    Ranks are against the target's own hold-out and against the pooled hold-outs of other clients. With ranks, the
    intervals of the attacks are at 98.75 %, otherwise at 97.5 %.
    """

    version: int
    forget: Score
    holdout: Score | None
    yeom: AttackFacts | None
    song: AttackFacts | None
    verdict: str | None
    own: RankFacts | None = None
    pool: RankFacts | None = None
    gap: GapFacts | None = None


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


class ComparisonFacts(_Facts):
    """What the verdict rests on: which unseen samples, the AUC before and after, and the interval at 90 % of the change."""

    source: str
    before: Number | None
    after: Number
    after_interval: Interval
    change: Interval | None
    forget_samples: int
    unseen_samples: int
    detectable: Number
    tolerated: Number
    reason: str
    figures: str


class MeasuredByClient(Stages[ClientMeasurement]):
    """Without `comparison`, the verdict is the finding about the newest model, as in version 0.1."""

    by: str
    verdict: str | None
    comparison: ComparisonFacts | None = None
    # phi: the gap after as a fraction of the gap before. It is no proof of erasure.
    fraction_left: GapFacts | None = None


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
    unlearned_samples: UnlearnedSamplesFacts | None = None

    def as_json(self) -> dict[str, Any]:
        """The content as a parsed JSON object."""
        found: dict[str, Any] = json.loads(canonical(self.model_dump()))
        return found


def canonical(content: Any) -> bytes:
    """The one spelling that is signed: keys sorted, no spaces, ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
