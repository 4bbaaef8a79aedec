"""The conditions for a directory after a power cut, and for the federation that continues from it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from tests.crash.recording import CrashState
from tests.crash.workload import TARGET, Small, make
from tests.databases import sqlite
from tests.tickets import applied, outcome

from puf_common.errors import PufError, UsageError
from puf_common.tensors.model_file import read_payload
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.storage.layout import history_name, spool_name
from puf_server.storage.state_rows import VOLATILE

__all__ = ["Checker", "Violation", "check_promises"]


class Violation(AssertionError):
    """A crash state that lacks something acknowledged."""


class Checker:
    """Recovers from crash states. The same recovered state is continued only once: the result depends on it alone."""

    def __init__(self, scratch: Path, digests: list[str]) -> None:
        self._scratch = scratch
        self._digests = digests
        self._finished: set[str] = set()
        self.checked = 0

    @property
    def finished(self) -> int:
        return len(self._finished)

    def check(self, crash: CrashState) -> None:
        """Raises a Violation that names the operation of the power cut and the fault."""
        self.checked += 1
        if self._scratch.exists():
            shutil.rmtree(self._scratch)
        self._scratch.mkdir()
        crash.build(self._scratch)
        try:
            self._check(crash)
        except (AssertionError, PufError, OSError, KeyError) as error:
            raise Violation(
                f"after {crash.prefix} operations, {crash.variant}: {type(error).__name__} {error}"
            ) from error

    def _check(self, crash: CrashState) -> None:
        for name in crash.deleted:
            assert name not in crash.files, f"{name} exists again, its deletion was acknowledged"
        directory = self._scratch / "state"
        try:
            small = Small(directory, now=10_000.0)
        except UsageError:
            assert not crash.facts, "there is no federation, but its creation was acknowledged"
            # The same command succeeds with any files that are left.
            small = Small(make(self._scratch), now=10_000.0)
        try:
            check_promises(small.state, crash.facts)
            self._files(small, directory)
            self._go_on(small)
        finally:
            small.close()

    def _files(self, small: Small, directory: Path) -> None:
        state, store = small.state, small.engine.store
        # A recorded update is on disk. A lost one would show a wrong order of operations.
        lost = sqlite(store).execute("SELECT facts FROM audit WHERE event = 'round.update_lost'").fetchall()
        assert not lost, f"recorded and not on disk: {lost}"
        there = {p.name for p in (directory / "spool").iterdir()}
        current = state.round
        assert there == ({spool_name(current, key) for key in current.received} if current else set())
        if current is not None:
            for key, update in current.received.items():
                content = (store.layout.spool / spool_name(current, key)).read_bytes()
                assert hashlib.sha256(content).hexdigest() == update.digest, key
        kept = {
            m.version: Path(store.models.where(m)) for m in state.models.values() if m.status is not ModelStatus.DELETED
        }
        for version, path in kept.items():
            assert hashlib.sha256(read_payload(path)).hexdigest() == state.models[version].digest, version
        assert {p.name for p in (directory / "models").iterdir()} == {p.name for p in kept.values()}
        for record in state.history.values():
            content = (directory / "history" / history_name(record)).read_bytes()
            assert hashlib.sha256(content).hexdigest() == record.digest, record.key
        for ticket in state.tickets.values():
            times = sum(event.state is TicketState.APPLIED for event in ticket.history)
            assert times == (1 if ticket.applied else 0)
            assert (state.members[TARGET].status is MemberStatus.FORGOTTEN) == bool(times)

    def _go_on(self, small: Small) -> None:
        seen = repr([getattr(small.state, f.name) for f in fields(State) if f.name not in VOLATILE])
        if seen in self._finished:
            return
        small.to_the_end()
        state = small.state
        digests = [m.digest for m in state.models.values()]
        assert digests == self._digests, "the final weights differ from those of a run that was never interrupted"
        (ticket,) = state.tickets.values()
        assert (ticket.state, outcome(ticket).recovered) == (TicketState.COMPLETED, True)
        assert sorted(state.records) == list(range(1, state.number + 1))
        assert all(r.contributions == r.expected for r in state.records.values())
        self._finished.add(seen)


def check_promises(state: State, facts: Iterable[tuple[object, ...]]) -> None:
    """Raises unless every acknowledged fact is in the state."""
    for kind, *fact in facts:
        if kind == "joined":
            assert fact[0] in state.members, fact
        elif kind == "version":
            assert state.version >= int(str(fact[0])), fact
        elif kind == "ticket":
            assert list(state.tickets) == fact, fact
        elif kind == "measured":
            ticket_id, version = fact
            assert version in applied(state.tickets[str(ticket_id)]).measurements, fact
        elif kind == "evaluated":
            evaluation, name = fact
            if state.evaluation is not None and state.evaluation.id == evaluation:
                assert name in state.evaluation.answers, fact
            assert state.evaluations >= int(str(evaluation)), fact
        elif kind == "update":
            number, attempt, key, digest = fact
            if state.number < int(str(number)):
                assert state.round is not None, fact
                assert (state.round.number, state.round.attempt) == (number, attempt), fact
                assert str(key) in state.round.received, f"the acknowledged update {fact} is lost"
                assert state.round.received[str(key)].digest == digest, fact
