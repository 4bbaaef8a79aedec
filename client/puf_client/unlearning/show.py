"""Prints a request and its outcome: a small table and sentences."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.table import Table

from puf_client.routines.measure import ModelMeasurement
from puf_client.terminal import console
from puf_client.unlearning.tickets import last_note, strength
from puf_common.receipts.evidence import STATEMENT, Attack
from puf_common.receipts.gap import Gap, fraction_left, left_in_words
from puf_common.receipts.verdict import NOT_MEASURED, Judgement, judge
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

_MODES = {
    tk.MODE_REGULAR: "regular: the other clients train in the same round",
    tk.MODE_SPECIAL: "special: only the targets train",
}
_SIDES = {tk.FLIP_CLIENT: "on this client", tk.FLIP_SERVER: "on the server"}
_LEAK = (
    "Special is cheaper, but an owner of the models before and after it can compute this client's update exactly, "
    "and learn much about its data."
)


def show_request(
    name: str, description: pb.DescribeReply, request: tk.UnlearningRequest, ticket: tk.Ticket | None
) -> None:
    """Prints scope, mode and strength of a request before it is filed."""
    if request.scope == tk.SCOPE_SAMPLES:
        scope = f"{request.forget_samples} samples; {name} stays a member with the other {request.retain_samples}"
    else:
        scope = f"all contributions of {name}; the client leaves the federation"
    table = Table.grid(padding=(0, 2))
    table.add_row("federation", f"{description.title} ({description.federation_id})")
    table.add_row("forget", scope)
    if (description.method or "puf") == "puf":
        table.add_row("mode", _MODES.get(request.mode, "set by the federation"))
        table.add_row("strength", strength(request))
        table.add_row("negated", _SIDES.get(request.flip, "set by the federation"))
    else:
        table.add_row("method", description.method)
    if request.reference:
        table.add_row("reference", request.reference)
    if ticket is not None:
        table.add_row("deadline", time.strftime("%Y-%m-%d", time.localtime(ticket.deadline_at)))
    else:
        table.add_row("deadline", f"{description.forgetting.deadline_days:g} days from receipt")
    out = console()
    out.print(table)
    if request.mode == tk.MODE_SPECIAL:
        out.print(_LEAK)
    if ticket is not None:
        out.print(f"already filed as {ticket.id}; no new request is filed")


def show_outcome(ticket: tk.Ticket, measured: Mapping[int, ModelMeasurement]) -> None:
    """Prints the table of models, and the outcome in sentences."""
    out = console()
    table = _table(ticket, measured)
    if table.row_count:
        out.print(table)
    for sentence in _sentences(ticket):
        out.print(sentence)
    if any(m.yeom or m.song for m in measured.values()):
        out.print(
            "By loss, by confidence: share of the forget data / hold-out that a membership attack labels as training data."
        )
    if ticket.HasField("version_recovered"):
        judged = judge(measured.get(ticket.version_before), measured.get(ticket.version_recovered))
        for sentence in _verdict(judged):
            out.print(sentence)
        left = fraction_left(_gap(measured, ticket.version_before), _gap(measured, ticket.version_recovered))
        if left is not None:
            out.print(left_in_words(left.value, left.error))
    if ticket.state == tk.TICKET_STATE_COMPLETED:
        out.print(f"Forgetting is {STATEMENT}.")


def _table(ticket: tk.Ticket, measured: Mapping[int, ModelMeasurement]) -> Table:
    table = Table("model", "forget data", "mean loss", "own hold-out", "others' hold-outs", "by loss", "by confidence")
    for label in ("before", "unlearned", "recovered"):
        if not ticket.HasField(f"version_{label}"):
            continue
        version = getattr(ticket, f"version_{label}")
        mine = measured.get(version, ModelMeasurement(None))
        sums, holdout = mine.forget, mine.holdout
        table.add_row(
            f"{label} ({version})",
            _percent(sums.score_sum / sums.samples) if sums and sums.samples else "not measured",
            f"{sums.loss_sum / sums.samples:.3f}" if sums and sums.samples else "",
            _percent(holdout.score_sum / holdout.samples) if holdout else "",
            _percent(getattr(ticket, f"score_{label}").accuracy) if ticket.HasField(f"score_{label}") else "",
            _shares(mine.yeom),
            _shares(mine.song),
        )
    return table


def _shares(attack: Attack | None) -> str:
    return "" if attack is None else f"{100 * attack.forget_share:.0f} / {100 * attack.holdout_share:.0f} %"


def _verdict(judged: Judgement | None) -> list[str]:
    """The verdict in the words of the receipt, and the figures behind it."""
    if judged is None:
        return [f"Verdict: {NOT_MEASURED}. This client did not compare the models with unseen data."]
    return [f"Verdict: {judged.verdict or NOT_MEASURED}. {judged.reason}", judged.figures]


def _gap(measured: Mapping[int, ModelMeasurement], version: int) -> Gap | None:
    found = measured.get(version)
    return found.gap if found else None


def _percent(score: float) -> str:
    return f"{100 * score:.1f} %"


def _sentences(ticket: tk.Ticket) -> list[str]:
    if ticket.state == tk.TICKET_STATE_WITHDRAWN:
        return [f"{ticket.id} was withdrawn: {last_note(ticket)}"]
    if ticket.state != tk.TICKET_STATE_COMPLETED:
        return [
            f"{ticket.id} failed: {last_note(ticket)}",
            "Nothing was forgotten; run the same command to file the request again.",
        ]
    of_samples = ticket.request.scope == tk.SCOPE_SAMPLES
    subject = f"The request of {ticket.client}"
    if of_samples:
        # The number that was used counts, not the number that was asked for.
        subject += f" for {_counted(ticket.unlearned_samples or ticket.request.forget_samples, 'sample')}"
    method = {
        "puf-regular": "by PUF-Regular",
        "puf-auto": f"after {_counted(len(ticket.doses), 'round')} of PUF with adaptive strength",
        "puf-special": "by PUF-Special",
        "reset": "by a reset to the initial model, because no other client was left",
    }.get(ticket.method, f"by {ticket.method}" if ticket.method else "")
    if ticket.applied_round:
        applied = f"applied in round {ticket.applied_round} {method}".rstrip()
    else:
        applied = f"completed: {last_note(ticket)}"
    sentences = [f"{subject} was {applied}."]
    if ticket.fixed_because:
        sentences.append(f"The strength was fixed, because {ticket.fixed_because}.")
    if ticket.escalated:
        sentences.append(f"The data could still be told from unseen data, so the method {ticket.escalated} followed.")
    if ticket.recovery_rounds:
        rounds = f"{_counted(ticket.recovery_rounds, 'round')} without {'them' if of_samples else 'it'}"
        sentences.append(f"After {rounds}: {last_note(ticket)}.")
    if ticket.deleted_versions:
        sentences.append(f"Deleted: {_counted(len(ticket.deleted_versions), 'older model')}.")
    if ticket.deleted_records:
        sentences.append(
            f"Deleted: {_counted(ticket.deleted_records, 'record')} that the method had stored about the client."
        )
    return sentences


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
