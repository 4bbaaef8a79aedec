"""What a tracker gets of the state: figures by round, and tags. Figures are of several clients together, never of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from puf_common.version import VERSION
from puf_server.core.config import FederationConfig
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import RoundKind, RoundRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket

# The sums of fewer clients are one client's own.
_FEWEST_CLIENTS = 2
# The loss of an unlearning round is partly, or only, that of the target on the data to forget.
_TRAINING = (RoundKind.TRAIN, RoundKind.RECOVER)
_SHOWN = (ModelStatus.READY, ModelStatus.UNLEARNED)


@dataclass(frozen=True)
class Figures:
    """Numbers by name for one round. `key` is unique, so that they are sent once."""

    key: str
    round: int
    at: float
    values: Mapping[str, float]


def figures(state: State) -> Iterator[Figures]:
    """Yields the figures of all committed rounds and scored models, oldest first."""
    for number in sorted(state.records):
        yield of_round(state.records[number])
    for version in sorted(state.models):
        found = of_model(state.models[version])
        if found is not None:
            yield found


def of_round(record: RoundRecord) -> Figures:
    values = {
        "round/seconds": record.committed_at - record.opened_at,
        "round/contributions": float(record.contributions),
        "round/bytes_up": float(record.nbytes_up),
        "round/bytes_down": float(record.nbytes_down),
        "round/unlearns": float(record.kind is RoundKind.UNLEARN),
    }
    if record.kind in _TRAINING and record.contributions >= _FEWEST_CLIENTS:
        values["train/samples"] = float(record.samples_processed)
        if record.train_loss is not None:
            values["train/loss"] = record.train_loss
    return Figures(f"round-{record.number}-{record.attempt}", record.number, record.committed_at, values)


def of_model(model: ModelVersion) -> Figures | None:
    """The score on the clients' hold-outs; None without one, and for models that contain a forgotten client."""
    score = model.score
    if score is None or model.score_clients < _FEWEST_CLIENTS or model.status not in _SHOWN:
        return None
    values = {"holdout/score": score.score, "holdout/loss": score.loss, "holdout/samples": float(score.samples)}
    return Figures(f"model-{model.version}-{score.samples}", model.round, model.created_at, values)


def tags(state: State, config: FederationConfig) -> dict[str, str]:
    """The federation, the digest of its model, and every applied request with the digests of its models."""
    found = {
        "puf.version": VERSION,
        "puf.federation": config.id,
        "puf.title": config.title,
        "puf.model.name": config.model,
        "puf.model.version": str(state.version),
        "puf.model.digest": state.models[state.version].digest,
    }
    for ticket in state.tickets.values():
        if ticket.applied is not None:
            found[f"puf.ticket.{ticket.id}"] = _ticket(ticket, state)
    return found


def _ticket(ticket: Ticket, state: State) -> str:
    """The state of a request and the digests of its models; no name of a client."""
    assert ticket.applied is not None
    versions = {
        "before": ticket.applied.version_before,
        "unlearned": ticket.applied.version_unlearned,
        "recovered": ticket.version_recovered,
    }
    digests = [
        f"{name} {state.models[v].digest}" for name, v in versions.items() if v is not None and v in state.models
    ]
    return "; ".join([f"{ticket.state} by {ticket.applied.method} in round {ticket.applied.round}", *digests])


def withdrawn(state: State, sent: Mapping[int, str]) -> list[str]:
    """The digests of models that were sent and that a request has withdrawn since: they contain forgotten data."""
    gone = (ModelStatus.WITHDRAWN, ModelStatus.DELETED)
    return [
        digest for version, digest in sent.items() if version in state.models and state.models[version].status in gone
    ]
