"""One server process as the others of its federation reach it: what it reports to them, and what it does with their reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from puf_server.core.state.presence import Presence
from puf_server.storage.state_database import OthersReport, OwnReport

if TYPE_CHECKING:
    from puf_server.engine.engine import Engine


class Sharing:
    """Implements Watcher. Called from one thread, which is not one of the engine's callers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: Mapping[str, float] = {}

    def changed(self) -> None:
        self._engine.catch_up()

    def report(self) -> OwnReport:
        presence, state = self._engine.presence, self._engine.state
        known, self._seen = self._seen, presence.seen
        workers = {name: presence.activity.get(name, "") for name, at in presence.seen.items() if known.get(name) != at}
        members = {m.name for m in state.members.values() if m.session}
        return OwnReport(workers, members, state.number, presence.nbytes_down)

    def learn(self, others: OthersReport) -> None:
        members = self._engine.state.members

        def adopt(presence: Presence, now: float) -> Presence:
            heard = {n: now - silent for n, silent in others.silent.items() if n in members and members[n].session}
            activity = {name: others.activity[name] for name in heard}
            return presence.exchanged(heard, activity, others.sent, now)

        self._engine.attend(adopt)

    def gone(self) -> None:
        # Files that it was writing have no owner any more.
        self._engine.delete_orphans()

    def stop(self) -> None:
        self._engine.change(lambda state, _: replace(state, stopping=True))
