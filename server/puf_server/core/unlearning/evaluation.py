"""Evaluations: clients measure a model on the data that they hold out from training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from puf_common.errors import StaleRound
from puf_common.receipts.gap import ClassTable
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.measurements import Evaluation, PooledTable, Sums
from puf_server.core.state.presence import Presence
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState

# Evaluations that the stop rule of recovery looks back on.
_COURSE = 4


def open_evaluation(
    state: State,
    config: FederationConfig,
    asked: tuple[str, ...],
    now: float,
    *,
    version: int | None = None,
    training_side: bool = False,
) -> State:
    """Asks clients to evaluate a version, by default the newest model of the federation."""
    evaluation = Evaluation(
        id=state.evaluations + 1,
        version=state.version if version is None else version,
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
    answers = {**evaluation.answers, name: replace(sums, classes=None)}
    evaluation = replace(evaluation, answers=answers, tables=_pooled(evaluation.tables, sums.classes))
    if training is not None and evaluation.training_side:
        evaluation = replace(evaluation, training={**evaluation.training, name: training})
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
            score=_score(evaluation),
            score_clients=len(evaluation.answers),
            training=total(evaluation.training),
        )
        state = state.with_model(model)
    if state.job is not None and not state.job.measured:
        job = replace(state.job, before=evaluation.answers, measured=True, evaluated=evaluation.version)
        return replace(state, job=job)
    if state.job is not None:
        return replace(state, job=replace(state.job, evaluated=evaluation.version))
    if state.recovery is not None:
        recovery = replace(
            state.recovery,
            evaluated=evaluation.version,
            latest=evaluation.answers,
            course=(*state.recovery.course, evaluation.answers)[-_COURSE:],
        )
        return _first_score(replace(state, recovery=recovery), evaluation)
    return state


def _score(evaluation: Evaluation) -> Sums | None:
    found = total(evaluation.answers)
    return replace(found, classes=_largest(evaluation.tables)) if found else None


def total(answers: Mapping[str, Sums]) -> Sums | None:
    """The sum in the order of client names, so that the same answers give the same bits."""
    if not answers:
        return None
    summed = Sums(samples=0, loss_sum=0.0, score_sum=0.0)
    for name in sorted(answers):
        summed = summed + answers[name]
    return summed


def _pooled(tables: Mapping[int, PooledTable], more: ClassTable | None) -> Mapping[int, PooledTable]:
    """Tables by number of classes. Their sums are exact, so that the order of the answers does not matter."""
    if more is None:
        return tables
    known = tables.get(more.classes)
    return {**tables, more.classes: known.plus(more) if known else PooledTable(table=more)}


def _largest(tables: Mapping[int, PooledTable]) -> ClassTable | None:
    """The table with the most samples. A client that reports another number of classes than the others does not count."""
    shared = [pooled.table for pooled in tables.values() if pooled.clients >= _FEWEST_CLIENTS]
    return max(shared, key=lambda t: (t.samples, t.classes), default=None)


def _first_score(state: State, evaluation: Evaluation) -> State:
    """Records the first evaluation after a ticket was applied as its score right after unlearning."""
    model = state.models[evaluation.version]
    for ticket in state.tickets.values():
        applied = ticket.applied
        if applied and applied.version_unlearned == evaluation.version and ticket.state is TicketState.APPLIED:
            state = state.with_ticket(replace(ticket, applied=replace(applied, score_unlearned=model.score)))
    return state
