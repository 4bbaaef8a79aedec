"""Tables of operator replies, for people."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli.hints import hint

__all__ = ["clients", "methods", "models", "rounds", "status", "tickets"]


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


def clients(found: Sequence[op.ClientInfo]) -> None:
    """Prints the roster."""
    rows = [
        (
            c.name,
            c.status,
            "yes" if c.alive else "no",
            f"{c.samples:,}",
            f"{c.holdout_samples:,}",
            f"{c.first_round}–{c.last_round}" if c.last_round else "–",
            _rate(c.download_rate),
            _rate(c.upload_rate),
            c.device,
            c.activity,
        )
        for c in found
    ]
    head = ("client", "status", "alive", "samples", "hold-out", "rounds", "down", "up", "device", "doing")
    _print(head, rows, "no clients yet")


def rounds(found: Sequence[op.RoundInfo]) -> None:
    """Prints rounds."""
    rows = [
        (
            str(r.number),
            r.kind,
            r.phase,
            f"{r.received} of {r.expected}",
            "–" if math.isnan(r.train_loss) or not r.committed_at else f"{r.train_loss:.3f}",
            f"{r.committed_at - r.opened_at:.1f} s" if r.committed_at else "–",
            _bytes(r.bytes_down),
            _bytes(r.bytes_up),
        )
        for r in found
    ]
    _print(("round", "kind", "phase", "updates", "loss", "took", "down", "up"), rows, "no rounds yet")


def tickets(found: Sequence[tk.Ticket]) -> None:
    """Prints requests to be forgotten."""
    rows = [
        (
            t.id,
            t.client,
            tk.Scope.Name(t.request.scope).removeprefix("SCOPE_").lower(),
            tk.TicketState.Name(t.state).removeprefix("TICKET_STATE_").lower(),
            t.method or tk.Mode.Name(t.request.mode).removeprefix("MODE_").lower(),
            str(t.applied_round or "–"),
            str(t.recovery_rounds),
            {True: "yes", False: "no"}[t.recovered] if t.HasField("recovered") else "–",
            _date(t.deadline_at),
            t.history[-1].note if t.history else "",
        )
        for t in found
    ]
    head = ("ticket", "client", "scope", "state", "method", "applied", "recovery", "recovered", "deadline", "last")
    _print(head, rows, "no requests to be forgotten")


def models(found: Sequence[op.ModelInfo]) -> None:
    """Prints model versions."""
    rows = [
        (
            str(m.version),
            str(m.round),
            m.status,
            f"{m.score.accuracy:.1%}" if m.HasField("score") else "–",
            _bytes(m.byte_length),
            m.digest.hex()[:16],
            _date(m.created_at),
        )
        for m in found
    ]
    _print(("version", "round", "status", "hold-out", "size", "sha256", "made"), rows, "no models")


def methods() -> None:
    """Prints the methods of forgetting with their options."""
    from puf_server.core import methods as known
    from puf_server.core.methods import comparison as table

    facts = [row[1:] for row in table.rows()]
    names = [row[0] for row in table.rows()]
    _print(("", *names), [(column, *values) for column, *values in zip(table.COLUMNS[1:], *facts, strict=True)], "")
    console = Console(highlight=False)
    for name, method in known.known().items():
        console.print(f"[bold]{name}[/bold]: {method.summary}")
        for option, field in method.options_type.model_fields.items():
            console.print(f"    {option}: {field.description} (default {field.default})")


def _print(head: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    if not rows:
        Console().print(empty)
        return
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
