"""Evaluations: clients measure a model on the data that they hold out from training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from puf_common.errors import StaleRound
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.measurements import Evaluation, Sums
from puf_server.core.state.presence import Presence
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState


def open_evaluation(
    state: State, config: FederationConfig, asked: tuple[str, ...], now: float, *, training_side: bool = False
) -> State:
    evaluation = Evaluation(
        id=state.evaluations + 1,
        version=state.version,
        asked=asked,
        opened_at=now,
        deadline_at=now + config.plan.survey_seconds,
        training_side=training_side,
    )
    return replace(state, evaluation=evaluation, evaluations=evaluation.id)


# A table of fewer clients would show one client's labels to the target.
_FEWEST_CLIENTS = 2


def answer(
    state: State,
    name: str,
    evaluation_id: int,
    version: int,
    sums: Sums,
    training: Sums | None = None,
    class_confidences: Sequence[int] = (),
) -> State:
    evaluation = state.evaluation
    if (
        evaluation is None
        or (evaluation.id, evaluation.version) != (evaluation_id, version)
        or name not in evaluation.asked
    ):
        raise StaleRound(f"measurement {evaluation_id} of model {version} is over", current_round=state.number)
    if name in evaluation.answers:
        return state
    evaluation = replace(evaluation, answers={**evaluation.answers, name: sums})
    if training is not None and evaluation.training_side:
        evaluation = replace(evaluation, training={**evaluation.training, name: training})
    if class_confidences:
        # Only the sum is stored, never the table of one client.
        pairs = zip_longest(evaluation.class_confidences, class_confidences, fillvalue=0)
        evaluation = replace(
            evaluation, class_confidences=tuple(a + b for a, b in pairs), class_clients=evaluation.class_clients + 1
        )
    return replace(state, evaluation=evaluation)


def close_if_due(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Closes the evaluation when all clients answered, or when the missing ones are absent or late.

    The answers go to the model version, and to the job or the recovery that waits for them.
    """
    evaluation = state.evaluation
    if evaluation is None:
        return state
    late = evaluation.deadline_at is not None and now >= evaluation.deadline_at
    absent = roster.absentees(evaluation.missing, presence, config, now)
    if not late and len(absent) < len(evaluation.missing):
        return state
    state = replace(state, evaluation=None)
    if evaluation.answers:
        model = replace(
            state.models[evaluation.version],
            score=total(evaluation.answers),
            score_clients=len(evaluation.answers),
            training=total(evaluation.training),
            class_confidences=evaluation.class_confidences if evaluation.class_clients >= _FEWEST_CLIENTS else (),
        )
        state = state.with_model(model)
    if state.job is not None and not state.job.measured:
        return replace(state, job=replace(state.job, before=evaluation.answers, measured=True))
    if state.recovery is not None:
        state = replace(
            state, recovery=replace(state.recovery, evaluated=evaluation.version, latest=evaluation.answers)
        )
        return _first_score(state, evaluation)
    return state


def total(answers: Mapping[str, Sums]) -> Sums | None:
    """The sum in the order of client names, so that the same answers give the same bits."""
    if not answers:
        return None
    summed = Sums(samples=0, loss_sum=0.0, score_sum=0.0)
    for name in sorted(answers):
        summed = summed + answers[name]
    return summed


def _first_score(state: State, evaluation: Evaluation) -> State:
    """Records the first evaluation after a ticket was applied as its score right after unlearning."""
    model = state.models[evaluation.version]
    for ticket in state.tickets.values():
        applied = ticket.applied
        if applied and applied.version_unlearned == evaluation.version and ticket.state is TicketState.APPLIED:
            state = state.with_ticket(replace(ticket, applied=replace(applied, score_unlearned=model.score)))
    return state
