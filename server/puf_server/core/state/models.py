"""Model versions, deleted ones included."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from puf_server.core.state.measurements import Sums

__all__ = ["ModelStatus", "ModelVersion"]


class ModelStatus(StrEnum):
    READY = "ready"
    # Unlearned, recovery under way.
    UNLEARNED = "unlearned"
    # Knew somebody who was forgotten; kept only until the ticket completes.
    WITHDRAWN = "withdrawn"
    # A method's second model; only for clients whose work names it, gone when the tickets are applied.
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
    # The retained clients' training samples, all together.
    training: Sums | None = None
    # Of the same bytes as the digest, for quick checks of a transfer; empty from servers that knew none.
    blake3: str = ""
