"""What a client is asked to do: a function of the state, so asking twice gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass

from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state import Kind, Round, RoundPhase, Slot, State

__all__ = ["Evaluate", "Train", "training_id", "work_for"]


@dataclass(frozen=True, slots=True)
class Train:
    round: Round
    slot: Slot
    plain: bool
    forget_request: str
    seconds_left: float

    @property
    def lr(self) -> float:
        return self.round.lr if self.slot.lr is None else self.slot.lr

    @property
    def exact_samples(self) -> int:
        """The count the update must state, 0 where anything up to the announced count will do."""
        return self.slot.samples if self.round.denominator is not None else 0


@dataclass(frozen=True, slots=True)
class Evaluate:
    survey: int
    version: int
    training_side: bool = False


def work_for(state: State, config: FederationConfig, name: str, session: str, now: float) -> Train | Evaluate | None:
    roster.session_member(state, name, session)
    if state.paused or state.halted:
        return None
    current = state.round
    if current is not None and current.phase is RoundPhase.COLLECTING:
        for slot in current.slots:
            if slot.client == name and slot.key not in current.received and slot.key not in current.declined:
                ticket = state.tickets.get(slot.ticket)
                left = 0.0 if current.deadline_at is None else max(0.001, current.deadline_at - now)
                plain = config.recipe.plain_unlearning and current.kind is Kind.UNLEARN and current.plain
                return Train(current, slot, plain, ticket.request_key if ticket else "", left)
    survey = state.survey
    if survey is not None and name in survey.missing:
        return Evaluate(survey.id, survey.version, survey.training_side)
    return None


def training_id(work: Train) -> str:
    """Names what is trained: everything that shapes the update but attempt, scale and side."""
    slot = work.slot
    # What remains depends on the request too: another one may leave the same number of other samples.
    request = work.forget_request if slot.part in ("forget", "retain") else ""
    named: tuple[object, ...] = (
        work.round.number, work.round.base, slot.membership, slot.part, slot.samples, slot.epochs, work.lr,
        int(work.plain), request,
    )  # fmt: skip
    if slot.routine != "train" or slot.options or slot.aux is not None or slot.outputs or work.round.stream:
        options = ",".join(f"{k}={v!r}" for k, v in sorted(slot.options.items()))
        named += (slot.routine, options, slot.aux, ",".join(slot.outputs), work.round.stream)
    return "/".join(map(str, named))
