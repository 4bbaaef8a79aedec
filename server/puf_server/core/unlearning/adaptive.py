"""Adaptive strength on tickets: what each dose did, and requests whose strength cannot adapt."""

from __future__ import annotations

from dataclasses import replace

from puf_server.core import tickets
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import View
from puf_server.core.methods.puf_auto import LARGE_DOSE, doses_with
from puf_server.core.state.rounds import Round
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Dose, FixedStrength


def fix_strength(state: State, config: FederationConfig, ticket_id: str, why: str, now: float) -> State:
    """Gives a request the federation's fixed strength, because strength cannot adapt. The ticket says why."""
    policy = config.forgetting
    fixed = FixedStrength(kappa=policy.kappa, epochs=policy.epochs, because=why)
    state = state.with_ticket(replace(state.tickets[ticket_id], fixed=fixed))
    return tickets.remark(state, ticket_id, now, f"one round with kappa {policy.kappa:g}: {why}")


def recorded(state: State, view: View, current: Round, now: float) -> State:
    """The state with the doses of a committed round, on the job and in the history of its tickets."""
    job = view.started
    doses = doses_with(view, current)
    if not doses:
        return state
    for ticket_id, given in doses.items():
        if given != job.doses.get(ticket_id):
            state = tickets.remark(state, ticket_id, now, _sentence(given))
    assert state.job is not None
    return replace(state, job=replace(state.job, doses=doses))


def _sentence(doses: tuple[Dose, ...]) -> str:
    dose = doses[-1]
    said = (
        f"round {dose.round}: dose {len(doses)} with kappa {dose.kappa:.3g}; before it, the model knew the data "
        f"{100 * dose.gap.value:.1f} +- {100 * dose.gap.error:.1f} points better than unseen data"
    )
    if len(doses) == 1 and dose.kappa >= LARGE_DOSE:
        said += ". The model fits the data closely: expect a temporary drop of its score"
    return said
