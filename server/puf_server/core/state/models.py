"""Model versions, deleted ones included."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from puf_server.core.state.measurements import Sums


class ModelStatus(StrEnum):
    READY = "ready"
    # Unlearned, recovery under way.
    UNLEARNED = "unlearned"
    # Contains a client that is forgotten. Kept until the ticket completes.
    WITHDRAWN = "withdrawn"
    # A method's second model. Deleted when the tickets are applied.
    AUXILIARY = "auxiliary"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    version: int
    round: int
    digest: str
    nbytes: int
    status: ModelStatus
    created_at: float
    score: Sums | None = None
    score_clients: int = 0
    # On the training samples of the retained clients.
    training: Sums | None = None
    # Hold-out samples of the clients that answered, by class and bin of confidence; empty if fewer than two reported them.
    class_confidences: tuple[int, ...] = ()
    # A second digest of the same bytes, for quick checks of a transfer; empty in records of older versions.
    blake3: str = ""
