"""Checks a federation after its kills by the server's state directory and the clients' logs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import canary
from tests.canary import windows
from tests.databases import sqlite
from tests.tickets import applied

from puf_common.tensors.model_file import read_payload
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.storage.state_store import Store

__all__ = ["Outcome", "judge"]


@dataclass(frozen=True)
class Outcome:
    """The digests of all models, the number of acknowledged updates, and the faults."""

    digests: tuple[str, ...]
    memberships: tuple[int, ...]
    acknowledged: int
    rounds: int
    recovery_rounds: int
    # Acknowledged but missing: updates, tickets, measurements, models.
    lost: int
    # Applied, committed or filed more than once.
    doubled: int
    # Begun but not ended: a ticket between two states, a round without all its updates, files without an owner.
    half_applied: int
    # Trained again by a process that had the result already.
    retrained: int
    wrong: tuple[str, ...]
    # Updates of the forgotten client that the search for its bytes knew.
    canaries: int = 0


class _Findings:
    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.wrong: list[str] = []

    def add(self, kind: str, holds: bool, message: str) -> None:
        if not holds:
            self.count[kind] += 1
            self.wrong.append(f"{kind}: {message}")


def judge(directory: Path) -> Outcome:
    """All facts that were lost, repeated or left unfinished."""
    found = _Findings()
    acknowledged = _trained(directory / "logs", found)
    store = Store.open(directory / "server")
    try:
        state = store.load()
        audit = [
            (event, json.loads(facts))
            for event, facts in sqlite(store).execute("SELECT event, facts FROM audit ORDER BY seq")
        ]
        _tickets(state, audit, found)
        _rounds(state, audit, acknowledged, found)
        found.add("half_applied", not any((directory / "server" / "spool").iterdir()), "updates are left in the spool")
        for model in state.models.values():
            if model.status is not ModelStatus.DELETED:
                path = Path(store.models.where(model))
                whole = path.exists() and hashlib.sha256(read_payload(path)).hexdigest() == model.digest
                found.add("lost", whole, f"model {model.version} is missing or does not match its digest")
        known = _residue(directory, found)
        return Outcome(
            canaries=known,
            digests=tuple(m.digest for _, m in sorted(state.models.items())),
            memberships=tuple(m.membership for _, m in sorted(state.members.items())),
            acknowledged=len(acknowledged),
            rounds=state.number,
            recovery_rounds=sum(applied(t).recovery_rounds for t in state.tickets.values()),
            **{kind: found.count[kind] for kind in ("lost", "doubled", "half_applied", "retrained")},
            wrong=tuple(found.wrong),
        )
    finally:
        store.close()


def _residue(directory: Path, found: _Findings) -> int:
    """Searches the server's directory for every update that the forgotten client sent. Returns how many are known."""
    canaries: dict[str, bytes] = {}
    updates = sorted((directory / "canaries").iterdir())
    for path in updates:
        canaries |= windows(path.name, path.read_bytes())
        canaries[f"digest of {path.name}"] = path.name.rpartition(".")[2].encode()
    for name, where in canary.found(directory / "server", canaries).items():
        found.add("residue", False, f"{name} is still in {', '.join(where)}")
    return len(updates)


def _tickets(state: State, audit: list[tuple[str, dict[str, Any]]], found: _Findings) -> None:
    found.add("lost", len(state.tickets) > 0, "the request to be forgotten is gone")
    found.add("doubled", len(state.tickets) <= 1, f"{len(state.tickets)} tickets, one was asked for")
    for ticket in state.tickets.values():
        steps = [step.state for step in ticket.history]
        found.add("half_applied", ticket.state is TicketState.COMPLETED, f"the ticket is {ticket.state}")
        found.add("doubled", steps.count(TicketState.APPLIED) <= 1, f"the ticket went {steps}")
        measured = set(applied(ticket).measurements) >= {
            applied(ticket).version_before,
            applied(ticket).version_unlearned,
        }
        found.add("lost", measured, "measurements are missing")
    for event in ("ticket.filed", "ticket.applied", "ticket.completed"):
        times = sum(e == event for e, _ in audit)
        found.add("lost", times >= 1, f"{event} is not in the audit log")
        found.add("doubled", times <= 1, f"{event} stands {times} times in the audit log")


def _rounds(
    state: State, audit: list[tuple[str, dict[str, Any]]], acknowledged: set[tuple[int, str]], found: _Findings
) -> None:
    found.add("lost", not any(e == "round.update_lost" for e, _ in audit), "an acknowledged update was not on disk")
    committed = Counter(f["round"] for e, f in audit if e == "round.committed")
    for number in range(1, state.number + 1):
        found.add("lost", committed[number] >= 1, f"round {number} was never committed")
        found.add("doubled", committed[number] <= 1, f"round {number} was committed {committed[number]} times")
    for record in state.records.values():
        same = record.contributions == record.expected
        told = f"round {record.number} counts {record.contributions} of {record.expected} updates"
        found.add("half_applied", same, told)
    cohorts = {f["round"]: set(f["clients"]) for e, f in audit if e == "round.opened"}
    for number, client in sorted(acknowledged):
        told = f"the update of {client} in round {number} is not counted"
        found.add("lost", client in cohorts.get(number, ()), told)


def _trained(logs: Path, found: _Findings) -> set[tuple[int, str]]:
    """Round and client of every update that was acknowledged, by the clients' logs: one file per process."""
    taken = set()
    for path in sorted(logs.rglob("client-*.log")):
        done: Counter[tuple[int, str, float]] = Counter()
        for line in path.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line) if '"trained"' in line else {}
            except ValueError:
                continue
            if entry.get("event") == "trained":
                done[entry["round"], entry["part"], entry.get("scale", 1.0)] += 1
                if entry["taken"]:
                    taken.add((entry["round"], path.stem))
        for key, times in done.items():
            found.add("retrained", times == 1, f"{path} trained {key} {times} times")
    return taken
