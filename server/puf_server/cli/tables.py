"""Tables of operator replies, for people."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk

M = TypeVar("M")
# The head of each column, and how it shows a message.
Columns = dict[str, Callable[[M], str]]
# A pattern in the server's sentences about what it waits for and about trouble, and the command.
_HINTS = (
    (re.compile(r"\bhalted: "), "look into the cause, then run puf-server resume"),
    (re.compile(r"\bpaused by the operator\b"), "puf-server resume"),
    (re.compile(r"\bclients on hold: "), "look at puf-server clients, then run puf-server clients approve NAME"),
    (re.compile(r"\btickets on hold: "), "look at puf-server tickets, then run puf-server tickets approve TICKET"),
    (re.compile(r"\bsystem clock is .* away\b"), "set the clock; if it is right, run puf-server resume"),
    (re.compile(r"\bmodel on hold: "), "run puf-server release, or puf-server rollback"),
)


def status(reply: op.StatusReply) -> None:
    """Prints a summary of the federation, with the command that it waits for."""
    phase = fed.Phase.Name(reply.position.phase).removeprefix("PHASE_").lower()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("federation", f"{reply.title} ({reply.federation_id})")
    table.add_row("phase", phase)
    if reply.waiting_for:
        table.add_row("activity", reply.waiting_for)
    if next_step := hint(reply):
        table.add_row("next", next_step)
    extra = reply.position.round - reply.rounds_trained
    forgetting = f", {extra} for forgetting and recovery" if extra else ""
    table.add_row("rounds", f"{reply.rounds_trained} of {reply.rounds_planned} training rounds{forgetting}")
    table.add_row("model", f"version {reply.position.model_version}{_scored(reply)}")
    table.add_row("clients", f"{reply.clients_alive} alive of {reply.clients_active} on the roster")
    table.add_row("open tickets", str(reply.tickets_open))
    if reply.tickets_overdue:
        table.add_row("OVERDUE", f"{_requests(reply.tickets_overdue)} not applied at the deadline")
    if reply.tickets_failed:
        table.add_row("FAILED", f"{_requests(reply.tickets_failed)} failed, nothing was forgotten: puf-server tickets")
    if reply.trouble:
        table.add_row("TROUBLE", reply.trouble)
    table.add_row("tensor bytes", f"{_bytes(reply.bytes_sent)} sent, {_bytes(reply.bytes_received)} received")
    if reply.download_rate or reply.upload_rate:
        rates = f"{_rate(reply.download_rate)} down, {_rate(reply.upload_rate)} up"
        table.add_row("median client", f"{rates}; see puf-server clients")
    table.add_row("server", f"{reply.server_version}, up {_seconds(reply.uptime_seconds)}")
    Console().print(table)


_CLIENTS: Columns[op.ClientInfo] = {
    "client": lambda c: c.name,
    "status": lambda c: c.status,
    "alive": lambda c: "yes" if c.alive else "no",
    "samples": lambda c: f"{c.samples:,}",
    "hold-out": lambda c: f"{c.holdout_samples:,}",
    "rounds": lambda c: f"{c.first_round}–{c.last_round}" if c.last_round else "–",
    "down": lambda c: _rate(c.download_rate),
    "up": lambda c: _rate(c.upload_rate),
    "device": lambda c: c.device,
    "activity": lambda c: c.activity,
}
_ROUNDS: Columns[op.RoundInfo] = {
    "round": lambda r: str(r.number),
    "kind": lambda r: r.kind,
    "phase": lambda r: r.phase,
    "updates": lambda r: f"{r.received} of {r.expected}",
    "loss": lambda r: "–" if math.isnan(r.train_loss) or not r.committed_at else f"{r.train_loss:.3f}",
    "took": lambda r: f"{r.committed_at - r.opened_at:.1f} s" if r.committed_at else "–",
    "down": lambda r: _bytes(r.bytes_down),
    "up": lambda r: _bytes(r.bytes_up),
}
_TICKETS: Columns[tk.Ticket] = {
    "ticket": lambda t: t.id,
    "client": lambda t: t.client,
    "scope": lambda t: tk.Scope.Name(t.request.scope).removeprefix("SCOPE_").lower(),
    "state": lambda t: tk.TicketState.Name(t.state).removeprefix("TICKET_STATE_").lower(),
    "method": lambda t: t.method or tk.Mode.Name(t.request.mode).removeprefix("MODE_").lower(),
    "applied": lambda t: str(t.applied_round or "–"),
    "recovery": lambda t: str(t.recovery_rounds),
    "recovered": lambda t: {True: "yes", False: "no"}[t.recovered] if t.HasField("recovered") else "–",
    "verdict": lambda t: t.verdict or "–",
    "deadline": lambda t: _date(t.deadline_at),
    "last": lambda t: t.history[-1].note if t.history else "",
}
_MODELS: Columns[op.ModelInfo] = {
    "version": lambda m: str(m.version),
    "round": lambda m: str(m.round),
    "status": lambda m: m.status,
    "hold-out": lambda m: f"{m.score.accuracy:.1%}" if m.HasField("score") else "–",
    "size": lambda m: _bytes(m.byte_length),
    "sha256": lambda m: m.digest.hex()[:16],
    "made": lambda m: _date(m.created_at),
}
_LISTS: dict[str, tuple[Columns[Any], str]] = {
    "clients": (_CLIENTS, "no clients yet"),
    "rounds": (_ROUNDS, "no rounds yet"),
    "tickets": (_TICKETS, "no requests to be forgotten"),
    "models": (_MODELS, "no models"),
}


def show(name: str, found: Sequence[Any]) -> None:
    """Prints clients, rounds, tickets or models as a table."""
    columns, empty = _LISTS[name]
    if found:
        _table(list(columns), ([cell(one) for cell in columns.values()] for one in found))
    else:
        Console().print(empty)


def methods() -> None:
    """Prints the methods of forgetting with their options."""
    from puf_server.core import methods as known
    from puf_server.core.methods import comparison

    rows = comparison.rows()
    _table(("", *(row[0] for row in rows)), zip(comparison.COLUMNS[1:], *(row[1:] for row in rows), strict=True))
    console = Console(highlight=False)
    for name, method in known.known().items():
        console.print(f"[bold]{name}[/bold]: {method.summary}")
        for option, field in method.options_type.model_fields.items():
            console.print(f"    {option}: {field.description} (default {field.default})")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*head)
    # Names and ids must stay copyable; all other columns may wrap.
    table.columns[0].no_wrap = True
    table.columns[0].overflow = "ignore"
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Without a terminal the table need not fit a screen.
    console.print(table) if console.is_terminal else Console(width=1000).print(table)


def _scored(reply: op.StatusReply) -> str:
    if not reply.HasField("score"):
        return ""
    return f"; version {reply.score_version} scores {reply.score.accuracy:.1%} on {reply.score.clients} hold-outs"


def hint(reply: op.StatusReply) -> str:
    """The next command; empty if the federation does not wait for the operator."""
    told = f"{reply.waiting_for}; {reply.trouble}"
    return "; ".join(command for pattern, command in _HINTS if pattern.search(told))


def _requests(count: int) -> str:
    return f"{count} request{'s' * (count != 1)} to be forgotten"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _rate(per_second: float) -> str:
    return f"{_bytes(per_second)}/s" if per_second else "–"


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
