"""Requests of clients without a network and without the client's code, for the test that chooses every step itself."""

from __future__ import annotations

from dataclasses import dataclass

from puf_common.errors import Forgotten, PufError, Unavailable
from puf_server.core import assignments as work
from puf_server.core import roster, rounds, tickets
from puf_server.core.state.measurements import Sums
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.rounds import ReceivedUpdate, Round
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, Ticket
from puf_server.core.unlearning import evaluation
from puf_server.engine.engine import Engine
from puf_server.storage.layout import spool_name
from tests.sim.disk import SimStore
from tests.sim.weights import Update
from tests.sim.world import World

__all__ = ["DirectRequests", "Header"]


@dataclass(frozen=True, kw_only=True)
class Header(rounds.UpdateHeader):
    """The header of an update, and the update itself."""

    update: Update


class DirectRequests:
    def __init__(self, world: World) -> None:
        self.world = world
        self._tokens = 0

    @property
    def engine(self) -> Engine:
        return self.world.server.engine

    @property
    def store(self) -> SimStore:
        return self.world.server.store

    def join(
        self,
        name: str,
        *,
        instance: str,
        samples: int,
        holdout: int,
        adapts: bool = False,
        rejoin: bool,
        only_if_no_worker: bool,
    ) -> tuple[str, int]:
        self._tokens += 1
        wanted = roster.JoinRequest(
            instance=instance,
            token=str(self._tokens),
            samples=samples,
            holdout=holdout,
            device="sim",
            adapts=adapts,
            rejoin=rejoin,
            only_if_no_worker=only_if_no_worker,
        )

        def change(state: State, now: float) -> tuple[State, None]:
            state = roster.join(state, self.engine.presence, self.engine.config, name, wanted, now)
            return rounds.samples_changed(state, name, now), None

        self.engine.call(change, lambda presence, now: presence.heard(name, now))
        member = self.engine.state.members[name]
        return member.session, member.membership

    def heartbeat(self, name: str, session: str, training_id: str) -> bool:
        def change(state: State, now: float) -> tuple[State, bool]:
            asked = work.work_for(state, self.engine.config, name, session, now)
            wanted = work.training_id(asked) if isinstance(asked, work.Train) else ""
            return state, bool(training_id) and training_id != wanted

        abandon = self.engine.call(change, lambda presence, now: presence.heard(name, now, ""))
        return abandon and not self.engine.state.paused and not self.engine.state.halted

    def begin(self, name: str, header: Header) -> Round | None:
        """The round that expects the update; None if a committed round has counted it."""
        state = self.engine.state
        if rounds.was_counted(state, name, header, header.update.digest):
            self.world.checker.acknowledged_again(name, header, header.update.digest)
            return None
        if roster.member_of(state, name).status is not MemberStatus.ACTIVE:
            raise Forgotten(f"{name} was forgotten", client=name)
        current, assignment = rounds.expected_assignment(state, name, header)
        rounds.check_header(current, assignment, header)
        return current

    def finish(self, name: str, header: Header, current: Round | None) -> bool:
        if current is None:
            return True
        digest = header.update.digest
        file = spool_name(current, f"{name}/{header.part}", digest)
        self.store.spool.files[file] = header.update.payload
        self.store.books[name, digest] = header.update

        def change(state: State, now: float) -> tuple[State, bool]:
            update = ReceivedUpdate(
                digest=digest,
                samples=header.samples,
                nbytes=96,
                train_loss=1.0,
                samples_processed=1,
                at=now,
                dose=header.dose,
            )
            state, duplicate = rounds.receive(state, name, header, update)
            if file not in self.store.spool.files:
                raise Unavailable("swept away while it arrived")
            return state, duplicate

        try:
            duplicate = self.engine.call(change)
        except PufError:
            self.engine.delete_orphans()
            raise
        self.world.checker.acknowledged(name, header, digest)
        return duplicate

    def decline(self, name: str, session: str, number: int, attempt: int, key: str) -> None:
        def change(state: State, now: float) -> tuple[State, None]:
            roster.session_member(state, name, session)
            current = state.round
            if current is None or (current.number, current.attempt) != (number, attempt):
                return state, None
            return rounds.decline(state, name, key, "cannot", now), None

        self.engine.call(change)

    def answer(self, name: str, evaluation_id: int, version: int, sums: Sums) -> None:
        self.engine.call(lambda state, now: (evaluation.answer(state, name, evaluation_id, version, sums), None))

    def file(self, name: str, request: RequestForm) -> Ticket:
        self._tokens += 1
        ticket_id = f"t-{self._tokens:04d}"

        def change(state: State, now: float) -> tuple[State, str]:
            state, ticket, _ = tickets.file(
                state, self.engine.presence, self.engine.config, name, request, ticket_id=ticket_id, now=now
            )
            return state, ticket.id

        filed = self.engine.call(change)
        return self.engine.state.tickets[filed]

    def withdraw(self, name: str, ticket_id: str) -> None:
        self.engine.call(lambda state, now: (tickets.withdraw(state, name, ticket_id, now)[0], None))
        self.world.checker.taken_back(self.engine.state.tickets[ticket_id])
