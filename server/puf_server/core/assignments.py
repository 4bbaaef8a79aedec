"""What a client is asked to do. It depends on the state only: asking twice gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass

from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.rounds import Assignment, Round, RoundKind, RoundPhase
from puf_server.core.state.state import State


@dataclass(frozen=True, slots=True)
class Train:
    round: Round
    assignment: Assignment
    plain: bool
    forget_request: str
    seconds_left: float
    # The keys of the requests for samples that its ticket took over.
    taken_requests: tuple[str, ...] = ()

    @property
    def lr(self) -> float:
        return self.round.lr if self.assignment.lr is None else self.assignment.lr

    @property
    def exact_samples(self) -> int:
        """The sample count that the update must state; 0 where any count up to the announced one is accepted."""
        return self.assignment.samples if self.round.denominator is not None else 0


@dataclass(frozen=True, slots=True)
class Evaluate:
    evaluation: int
    version: int
    training_side: bool = False


def work_for(state: State, config: FederationConfig, name: str, session: str, now: float) -> Train | Evaluate | None:
    roster.session_member(state, name, session)
    if state.paused or state.halted:
        return None
    current = state.round
    if current is not None and current.phase is RoundPhase.COLLECTING:
        for assignment in current.assignments:
            if (
                assignment.client == name
                and assignment.key not in current.received
                and assignment.key not in current.declined
            ):
                ticket = state.tickets.get(assignment.ticket)
                left = 0.0 if current.deadline_at is None else max(0.001, current.deadline_at - now)
                plain = config.recipe.plain_unlearning and current.kind is RoundKind.UNLEARN and current.step.plain
                taken = tuple(state.tickets[t].request.key for t in ticket.took_over) if ticket else ()
                return Train(current, assignment, plain, ticket.request.key if ticket else "", left, taken)
    evaluation = state.evaluation
    if evaluation is not None and name in evaluation.missing:
        return Evaluate(evaluation.id, evaluation.version, evaluation.training_side)
    return None


def training_id(work: Train) -> str:
    """A name for the training. It covers all that shapes the update, except attempt, scale and side."""
    assignment = work.assignment
    # Two requests can leave the same number of different samples.
    request = work.forget_request if assignment.part in ("forget", "retain") else ""
    named: tuple[object, ...] = (
        work.round.number, work.round.base, assignment.membership, assignment.part, assignment.samples,
        assignment.epochs, work.lr, int(work.plain), request,
    )  # fmt: skip
    if (
        assignment.routine != "train"
        or assignment.options
        or assignment.aux is not None
        or assignment.outputs
        or work.round.step.stream
    ):
        options = ",".join(f"{k}={v!r}" for k, v in sorted(assignment.options.items()))
        named += (
            assignment.routine,
            options,
            assignment.aux,
            ",".join(assignment.outputs),
            work.round.step.stream or 0,
        )
    return "/".join(map(str, named))
