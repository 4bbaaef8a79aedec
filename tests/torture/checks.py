"""Reads what a tortured federation left behind, the server's state and the clients' logs, and judges it from outside."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tests.torture.harness import Failed

from puf_common.modelfile import read_payload
from puf_server.core.state import ModelStatus, TicketState
from puf_server.store import Store

__all__ = ["Outcome", "judge"]


@dataclass(frozen=True)
class Outcome:
    """Digests of all models that ever were, and how many updates clients saw acknowledged."""

    digests: tuple[str, ...]
    acknowledged: int
    rounds: int
    recovery_rounds: int


def judge(directory: Path) -> Outcome:
    """Raises Failed with the first thing that was lost, doubled or done by half."""
    acknowledged = _acknowledged(directory / "logs")
    store = Store.open(directory / "server")
    try:
        state = store.load()
        audit = [
            (event, json.loads(facts))
            for event, facts in store.db.execute("SELECT event, facts FROM audit ORDER BY seq")
        ]
        _require(len(state.tickets) == 1, f"{len(state.tickets)} tickets, one was asked for")
        (ticket,) = state.tickets.values()
        steps = [step.state for step in ticket.history]
        _require(ticket.state is TicketState.COMPLETED, f"the ticket is {ticket.state}")
        _require(steps.count(TicketState.APPLIED) == 1, f"the ticket went {steps}")
        for event in ("ticket.filed", "ticket.applied", "ticket.completed"):
            told = [f for e, f in audit if e == event]
            _require(len(told) == 1, f"{event} stands {len(told)} times in the audit log")
        _require(
            set(ticket.measurements) >= {ticket.version_before, ticket.version_unlearned}, "measurements are missing"
        )
        _require(not any(e == "round.update_lost" for e, _ in audit), "an acknowledged update was not on disk")
        committed = [f["round"] for e, f in audit if e == "round.committed"]
        _require(committed == list(range(1, state.number + 1)), f"rounds were committed as {committed}")
        for record in state.records.values():
            same = record.contributions == record.expected
            _require(same, f"round {record.number} counts {record.contributions} of {record.expected} updates")
        cohorts = {f["round"]: set(f["clients"]) for e, f in audit if e == "round.opened"}
        for number, client in acknowledged:
            _require(client in cohorts.get(number, ()), f"the update of {client} in round {number} is not counted")
        _require(not any((directory / "server" / "spool").iterdir()), "updates are left in the spool")
        for model in state.models.values():
            if model.status is not ModelStatus.DELETED:
                digest = hashlib.sha256(read_payload(store.model_path(model))).hexdigest()
                _require(digest == model.digest, f"model {model.version} does not match its digest")
        digests = tuple(m.digest for _, m in sorted(state.models.items()))
        return Outcome(digests, len(acknowledged), state.number, ticket.recovery_rounds)
    finally:
        store.close()


def _acknowledged(logs: Path) -> set[tuple[int, str]]:
    """(round, client) of every update that a client saw taken, by the clients' own logs."""
    found = set()
    for path in logs.rglob("client-*.log"):
        for line in path.read_text(errors="replace").splitlines():
            if '"trained"' in line:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if entry.get("event") == "trained" and entry["taken"]:
                    found.add((entry["round"], path.stem))
    return found


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Failed(message)
