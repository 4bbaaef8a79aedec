"""The real engine behind requests. It can crash between any two steps and restarts from the disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from puf_common.errors import Forgotten, NotFound, PufError, StorageCorrupted, Unavailable
from puf_common.receipts.content import ReceiptContent
from puf_common.receipts.gap import Gap
from puf_common.receipts.ranks import RankComparison
from puf_server.aggregation.folder import FoldResult
from puf_server.core import assignments as work
from puf_server.core import operations, roster, rounds, tickets
from puf_server.core.state.measurements import Measurement, Sums
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import ReceivedUpdate, Round
from puf_server.core.state.state import State
from puf_server.core.state.tickets import FiledBy, RequestForm, Ticket
from puf_server.core.unlearning import evaluation, model_versions, reopen
from puf_server.engine.clock import FederationClock
from puf_server.engine.engine import Engine
from puf_server.storage.layout import spool_name
from puf_server.storage.state_store import Store
from tests.sim.disk import Crash, SimStore, file_name
from tests.sim.folder import SimFolder
from tests.sim.weights import Update, Weights, initial

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Header", "Leave", "SimServer"]

T = TypeVar("T")
_RETRY_SECONDS = 0.5
_TICK_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Header(rounds.UpdateHeader):
    """The header of an update, and the update itself."""

    update: Update


@dataclass(frozen=True)
class Leave:
    """The order to leave. The reason is `stopped` or `forgotten`."""

    reason: str


class SimServer:
    def __init__(self, world: World, store: SimStore) -> None:
        self.world = world
        self.store = store
        self.up = False
        self.epoch = 0
        self.crashes = 0
        self.waiters: dict[str, Callable[[], None]] = {}
        self._tokens = 0
        self._backups: list[tuple[Any, ...]] = []
        # Signed receipts by ticket.
        self.receipts: dict[str, ReceiptContent] = {}
        self._folding = False
        self._shown: tuple[object, ...] = ()
        self._create()

    def _create(self) -> None:
        weights = initial()
        model = ModelVersion(
            version=0, round=0, digest=weights.digest, nbytes=8, status=ModelStatus.READY, created_at=self.world.now
        )
        self.store.models[file_name(0, weights.digest)] = weights
        state = State(planned=self.store.config.plan.rounds, models={0: model})
        self.store.save(None, state.note("federation.created", self.world.now))

    # -- start and crash ----------------------------------------------------------------------------

    def start(self) -> None:
        if self.up:
            return
        self.epoch += 1
        self.up, self._folding, self._shown = True, False, ()
        self.world.checker.survived()
        try:
            folder = SimFolder(self.store)
            wall = FederationClock(lambda: self.world.now + self.world.skew, lambda: self.world.now)
            self.engine = Engine(cast(Store, self.store), wall, folder)
            self.engine.subscribe(lambda before, after: self._changed())
        except Crash as crash:
            self._die(crash)
            return
        except Unavailable:
            self._die(Crash("the disk is full at start"))
            return
        self.world.log("server started")
        self.world.clock_started()
        self.world.checker.files(self.engine.state)
        self._changed()
        self._tick(self.epoch)

    def crash(self, why: str) -> None:
        if self.up:
            self._die(Crash(why))

    def _die(self, crash: Crash) -> None:
        self.world.log(f"server crashed: {crash}")
        self.up = False
        self.crashes += 1
        self.waiters.clear()
        self.world.after(self.world.rng.uniform(0.5, 40.0), self.start)

    def run(self, step: Callable[[], T]) -> T:
        """Runs a step in the server process. After a crash in it, the caller sees a broken connection."""
        if not self.up:
            raise Unavailable("the server is down")
        try:
            return step()
        except Crash as crash:
            self._die(crash)
            raise Unavailable("the connection broke") from None

    def _tick(self, epoch: int) -> None:
        if not self.up or epoch != self.epoch:
            return
        with suppress(PufError):
            self.run(self.engine.tick)
        self.world.after(_TICK_SECONDS, self._tick, epoch)

    def _changed(self) -> None:
        if not self.up or not hasattr(self, "engine"):
            return
        state = self.engine.state
        shown = (state.round, state.evaluation, state.paused, state.halted, state.stopping)
        if any(a is not b for a, b in zip(shown, self._shown, strict=False)) or not self._shown:
            self._shown = shown
            waiters, self.waiters = self.waiters, {}
            for wake in waiters.values():
                wake()
        if not self._folding and self.engine.round_to_fold() is not None:
            self._folding = True
            self.world.after(0.01, self._fold, self.epoch)

    def _fold(self, epoch: int) -> None:
        """Runs one fold at a time. The sum is on disk for some time before the commit."""
        if not self.up or epoch != self.epoch:
            return
        current = self.engine.round_to_fold()
        if current is None:
            self._folding = False
            return
        try:
            # A fold changes the state where it finds a damaged update.
            result = self.run(lambda: self.engine.fold(current))
        except (FileNotFoundError, Unavailable):
            self.world.after(_RETRY_SECONDS, self._fold, epoch)
            return
        if self.world.strikes("crash_in_fold"):
            self._die(Crash("summed up, not committed"))
            return
        if self.world.strikes("overflow"):
            result = FoldResult(current, failure="not finite")
        self.world.after(self.world.rng.uniform(0.05, 5.0), self._folded, epoch, result)

    def _folded(self, epoch: int, result: FoldResult) -> None:
        if not self.up or epoch != self.epoch:
            return
        with suppress(PufError):
            self.run(lambda: self.engine.commit(result))
        self.world.after(_RETRY_SECONDS, self._fold, epoch)

    # -- requests of clients, as the handlers answer them --------------------------------------------------------------

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

    def leave(self, name: str, session: str) -> None:
        self.engine.call(lambda state, now: (roster.leave(state, name, session, now), None))

    def work(self, name: str, session: str) -> work.Train | work.Evaluate | Leave | None:
        if self.engine.state.stopping:
            return Leave("stopped")
        try:
            return work.work_for(self.engine.state, self.engine.config, name, session, self.engine.clock())
        except Forgotten:
            return Leave("forgotten")

    def fetch(self, name: str, version: int) -> Weights:
        state = self.engine.state
        member = roster.member_of(state, name)
        model = model_versions.may_fetch(state, self.engine.config, member, version, self.engine.clock())
        self.world.checker.served(state, name, model)
        return self.store.weights(model)

    def begin(self, name: str, header: Header) -> Round | None:
        """The round that expects the update; None if a committed round has counted it."""
        state = self.engine.state
        if rounds.was_counted(state, name, header, header.update.digest):
            self.world.checker.acknowledged_again(name, header)
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
        self.store.spool[file] = header.update
        if self.world.strikes("crash_in_upload"):
            raise Crash("spooled, not booked")
        if self.world.strikes("sweep_in_upload"):
            self.engine.delete_orphans()

        def change(state: State, now: float) -> tuple[State, bool]:
            update = ReceivedUpdate(
                digest=digest,
                samples=header.samples,
                nbytes=8,
                train_loss=1.0,
                samples_processed=1,
                at=now,
                dose=header.dose,
            )
            state, duplicate = rounds.receive(state, name, header, update)
            if file not in self.store.spool:
                raise Unavailable("swept away while it arrived")
            return state, duplicate

        try:
            duplicate = self.engine.call(change)
        except PufError:
            self.engine.delete_orphans()
            raise
        if rounds.was_counted(self.engine.state, name, header, digest):
            self.engine.delete_orphans()
            self.world.checker.acknowledged_again(name, header)
        else:
            self.world.checker.acknowledged(name, header)
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

    # -- requests to be forgotten ----------------------------------------------------------------------------

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

    def forget(self, name: str) -> Ticket:
        """The operator's request for a client."""
        return self.file(name, RequestForm(key=f"operator-{self._tokens}", by=FiledBy.OPERATOR))

    def withdraw(self, name: str, ticket_id: str) -> None:
        self.engine.call(lambda state, now: (tickets.withdraw(state, name, ticket_id, now)[0], None))
        self.world.checker.taken_back(self.engine.state.tickets[ticket_id])

    def measure(self, name: str, ticket_id: str, version: int, sums: Sums) -> None:
        gap = Gap(value=sums.score - 0.7, error=0.02)
        ranks = RankComparison(auc=sums.score, forget_samples=400, unseen_samples=400)
        found = Measurement(forget=sums, own=ranks, gap=gap)
        self.engine.call(lambda state, now: (tickets.measure(state, name, ticket_id, version, found, now)[0], None))

    def tickets_of(self, name: str) -> list[Ticket]:
        return [t for t in self.engine.state.tickets.values() if t.client == name]

    def ticket(self, name: str, ticket_id: str) -> tuple[Ticket, bool]:
        state = self.engine.state
        ticket = tickets.find(state, name, ticket_id)
        return ticket, roster.worker_alive(self.engine.presence, name, self.engine.config, self.engine.clock())

    # -- backups ----------------------------------------------------------------------------

    def backup(self) -> None:
        self.world.log("backup made")
        self._backups.append(self.store.snapshot())

    def restore(self) -> None:
        """Replaces the state by an older backup and shows it every receipt."""
        if not self._backups:
            return
        self.world.log("an older backup is restored")
        self.store.put_back(self.world.rng.choice(self._backups))
        self.world.checker.restored(self.store.load())
        before = self.store.load()
        after = reopen.restored(before, self.world.now)
        for content in self.receipts.values():
            try:
                after, _, _ = reopen.reopen(after, self.store.config, content, self.world.now)
            except StorageCorrupted as error:
                self.world.log(f"a receipt is not believed: {error}")
        # No fault meanwhile: the operator repeats a restore until it is done.
        healing, self.world.healing = self.world.healing, True
        self.store.save(before, after)
        self.world.healing = healing
        self._die(Crash("the machine was replaced"))

    # -- the operator ----------------------------------------------------------------------------

    def pause(self) -> None:
        self.engine.call(lambda state, now: (operations.pause(state, now), None))

    def resume(self) -> None:
        self.engine.accept_clock()
        self.world.accepted = self.engine.clock() - self.world.now
        self.engine.call(lambda state, now: (operations.resume(state, now), None))

    def extend(self, rounds_more: int) -> None:
        self.engine.call(lambda state, now: (operations.extend(state, rounds_more, now), None))

    def stop(self) -> None:
        """Stops the federation. A later start continues."""
        self.engine.call(lambda state, now: (operations.stop(state, now), None))

    def readmit(self, name: str) -> None:
        if name not in self.engine.state.members:
            raise NotFound(name)
        self.engine.call(lambda state, now: (roster.readmit(state, name, now), None))
