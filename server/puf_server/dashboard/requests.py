"""Requests to be forgotten as the pages show them: what is next, who is waited for, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from puf_common.receipts.evidence import wilson
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk
from puf_server.dashboard.formats import duration, names

OPEN = (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_SCHEDULED, tk.TICKET_STATE_APPLIED, tk.TICKET_STATE_RECOVERING)
ENDED = (tk.TICKET_STATE_COMPLETED, tk.TICKET_STATE_FAILED, tk.TICKET_STATE_WITHDRAWN)
_WAITING = (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_SCHEDULED)
# A deadline is near when less than this is left.
NEAR_SECONDS = 3 * 86400.0
_TONES = {"forgotten": "good", "like unseen data": "good", "still known": "bad", "not like unseen data": "bad"}
_STAGES = ("before", "unlearned", "recovered")
_STAGE_TITLES = ("Before", "Right after forgetting", "Recovered")


class Deadline(NamedTuple):
    """How a deadline is shown. `tone` is a class of the style sheet."""

    text: str
    tone: str


class Bar(NamedTuple):
    """A share with its interval at 95 %. `kind` is "forgotten", "unseen" or "others"."""

    kind: str
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One request in a list."""

    ticket: tk.Ticket
    state: str
    subject: str
    age: str
    deadline: Deadline
    strength: str
    next_step: str


@dataclass(frozen=True)
class Stage:
    """What was measured of one model of a request. An empty list: not measured."""

    title: str
    version: int | None
    answers: list[Bar]
    by_loss: list[Bar]
    by_confidence: list[Bar]
    others: list[Bar]


def row(ticket: tk.Ticket, status: op.StatusReply, now: float) -> Row:
    return Row(
        ticket,
        state_of(ticket.state),
        _subject(ticket),
        duration(now - (ticket.request.received_at or now)),
        _deadline(ticket, now),
        strength(ticket),
        next_step(ticket, status),
    )


def groups(rows: Iterable[Row], states: Sequence[tk.TicketState]) -> Iterator[tuple[str, list[Row]]]:
    """The rows by state, in the order of `states`; states without a row are left out."""
    known = list(rows)
    for state in states:
        if found := [r for r in known if r.ticket.state == state]:
            yield state_of(state), found


def state_of(state: tk.TicketState) -> str:
    return tk.TicketState.Name(state).removeprefix("TICKET_STATE_").lower()


def verdict_tone(verdict: str | None) -> str:
    """The colour of a receipt's verdict. Words that are not known here get that of an open question."""
    return _TONES.get(verdict or "", "open")


def strength(ticket: tk.Ticket) -> str:
    """Mode and strength as they were asked for."""
    asked = ticket.request
    mode = tk.Mode.Name(asked.mode).removeprefix("MODE_").lower()
    rate = asked.strength.WhichOneof("rate")
    named = {"kappa": f"κ {asked.strength.kappa:g}", "eta_u": f"η_u {asked.strength.eta_u:g}", "auto": "adaptive"}
    value = f", {named[rate]}" if rate else ""
    epochs = asked.strength.epochs
    return f"{mode}{value}" + (f", {epochs} epoch{'' if epochs == 1 else 's'}" if epochs else "")


def next_step(ticket: tk.Ticket, status: op.StatusReply) -> str:
    """What happens next, and who is waited for."""
    current = status.round if status.HasField("round") else None
    if ticket.held:
        return f"operator approval: {ticket.held}"
    if ticket.state == tk.TICKET_STATE_PENDING and not ticket.worker_alive and not ticket.fallback:
        return f"waits for {ticket.client} to connect"
    if ticket.state == tk.TICKET_STATE_PENDING:
        return "waits for its turn"
    if ticket.state == tk.TICKET_STATE_SCHEDULED and current is not None and ticket.id in current.tickets:
        return f"unlearning round {current.number}: {_collected(current)}"
    if ticket.state == tk.TICKET_STATE_SCHEDULED:
        return "clients measure the model before"
    if ticket.state in (tk.TICKET_STATE_APPLIED, tk.TICKET_STATE_RECOVERING):
        if current is not None and current.kind == "recover":
            return f"recovery round {current.number}: {_collected(current)}"
        return "clients measure the model after"
    if ticket.state == tk.TICKET_STATE_COMPLETED:
        return "receipt is ready"
    return ticket.history[-1].note if ticket.history else ""


def stages(ticket: tk.Ticket) -> list[Stage]:
    """The three models of a request with what was measured of each."""
    found = []
    measured = {m.version: m for m in ticket.measurements}
    for name, title in zip(_STAGES, _STAGE_TITLES, strict=True):
        version = getattr(ticket, f"version_{name}") if ticket.HasField(f"version_{name}") else None
        own = measured.get(version) if version is not None else None
        score = getattr(ticket, f"score_{name}") if ticket.HasField(f"score_{name}") else None
        found.append(
            Stage(
                title,
                version,
                _answers(own) if own else [],
                _taken(own.yeom) if own and own.HasField("yeom") else [],
                _taken(own.song) if own and own.HasField("song") else [],
                [_bar("others", score.accuracy * score.samples, score.samples)] if score and score.samples else [],
            )
        )
    return found


def _answers(own: tk.Measurement) -> list[Bar]:
    found = [_bar("forgotten", own.forget.score_sum, own.forget.samples)]
    if own.HasField("holdout"):
        found.append(_bar("unseen", own.holdout.score_sum, own.holdout.samples))
    return found


def _taken(attack: tk.MembershipAttack) -> list[Bar]:
    return [
        _bar("forgotten", attack.forget_members, attack.forget_samples),
        _bar("unseen", attack.holdout_members, attack.holdout_samples),
    ]


def _bar(kind: str, successes: float, samples: int) -> Bar:
    successes = min(max(successes, 0.0), float(samples))
    return Bar(kind, successes / samples, *wilson(successes, samples))


def _subject(ticket: tk.Ticket) -> str:
    if ticket.request.scope == tk.SCOPE_SAMPLES:
        return f"{ticket.request.forget_samples:,} samples of {ticket.client}"
    return ticket.client


def _deadline(ticket: tk.Ticket, now: float) -> Deadline:
    if ticket.state not in _WAITING:
        return Deadline("", "")
    left = ticket.deadline_at - now
    if left < 0:
        return Deadline(f"overdue by {duration(left)}", "bad")
    return Deadline(f"in {duration(left)}", "open" if left < NEAR_SECONDS else "")


def _collected(current: op.RoundInfo) -> str:
    if not current.missing:
        return "the server sums the updates"
    return f"waits for {names(current.missing)}"
