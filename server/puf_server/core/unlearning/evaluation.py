"""Measuring a model on the clients' hold-outs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from puf_common.errors import InvalidArgument, StaleRound
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state import State, Sums, Survey, TicketState

__all__ = ["answer", "close_if_due", "open_survey", "total"]


def open_survey(
    state: State, config: FederationConfig, asked: tuple[str, ...], now: float, *, training_side: bool = False
) -> State:
    survey = Survey(
        id=state.surveys + 1,
        version=state.version,
        asked=asked,
        opened_at=now,
        deadline_at=now + config.plan.survey_seconds,
        training_side=training_side,
    )
    return replace(state, survey=survey, surveys=survey.id)


def answer(state: State, name: str, survey_id: int, version: int, sums: Sums, training: Sums | None = None) -> State:
    survey = state.survey
    if survey is None or (survey.id, survey.version) != (survey_id, version) or name not in survey.asked:
        raise StaleRound(f"measurement {survey_id} of model {version} is over", current_round=state.number)
    if sums.samples < 1 or not 0.0 <= sums.score_sum <= sums.samples:
        raise InvalidArgument("a measurement needs at least one sample and a score between 0 and the number of samples")
    if name in survey.answers:
        return state
    survey = replace(survey, answers={**survey.answers, name: sums})
    if training is not None and survey.training_side:
        survey = replace(survey, training={**survey.training, name: training})
    return replace(state, survey=survey)


def close_if_due(state: State, config: FederationConfig, now: float) -> State:
    """Closes when all have answered, or when those missing are absent or late; then hands the answers to whoever asked."""
    survey = state.survey
    if survey is None:
        return state
    late = survey.deadline_at is not None and now >= survey.deadline_at
    absent = roster.absentees(survey.missing, state, config, now)
    if not late and len(absent) < len(survey.missing):
        return state
    state = replace(state, survey=None)
    if survey.answers:
        model = replace(
            state.models[survey.version],
            score=total(survey.answers),
            score_clients=len(survey.answers),
            training=total(survey.training),
        )
        state = state.with_model(model)
    if state.episode is not None and not state.episode.measured:
        return replace(state, episode=replace(state.episode, before=survey.answers, measured=True))
    if state.recovery is not None:
        state = replace(state, recovery=replace(state.recovery, surveyed=survey.version, latest=survey.answers))
        return _first_score(state, survey)
    return state


def total(answers: Mapping[str, Sums]) -> Sums | None:
    """Sum in client order, so that the same answers give the same bits."""
    if not answers:
        return None
    summed = Sums(samples=0, loss_sum=0.0, score_sum=0.0)
    for name in sorted(answers):
        summed = summed + answers[name]
    return summed


def _first_score(state: State, survey: Survey) -> State:
    """The first measurement after a ticket was applied is its score right after unlearning."""
    model = state.models[survey.version]
    for ticket in state.tickets.values():
        if ticket.version_unlearned == survey.version and ticket.state is TicketState.APPLIED:
            state = state.with_ticket(replace(ticket, score_unlearned=model.score))
    return state
