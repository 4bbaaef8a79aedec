"""A client: its disk, its worker, and its owner, who may ask that the client or some samples are forgotten.

All of it is the shipped code: `puf-client run`, `--unlearn`, `withdraw` and `data exclude`, on a simulated machine.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from puf_client.options import RunOptions, UnlearnOptions, WithdrawOptions
from puf_client.session.assignment import PARTS
from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage
from puf_client.unlearning.name_again import name_again
from puf_client.unlearning.run import unlearn
from puf_client.unlearning.tickets import take_back
from puf_client.worker.run import work
from puf_client.worker.trainer import Trainer
from puf_common.config.exit_codes import Exit
from puf_common.errors import Forgotten, PufError
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.tickets import TicketState
from tests.sim.client_disk import ClientDisk
from tests.sim.facts import require
from tests.sim.process import Process
from tests.sim.trainer import SimTrainer
from tests.sim.transport import SimTransport
from tests.sim.weights import Update

if TYPE_CHECKING:
    from puf_server.core.state.state import State
    from tests.sim.world import World


class Client:
    def __init__(self, world: World, name: str, samples: int, holdout: int) -> None:
        self.world = world
        self.name = name
        self.ids = frozenset(range(samples))
        self.sample_ids = [f"{name}-{i}" for i in range(samples)]
        self.holdout = holdout
        # Whether the owner's process has the data and can be the worker.
        self.stands_in = world.rng.random() < 0.5
        self.disk = ClientDisk(world.root / name, self._before_write)
        self.worker: Process | None = None
        self.commands: list[Process] = []
        # The ticket of the last request, and the command that files or follows it.
        self.following = ""
        self._command: UnlearnOptions | None = None
        self._asked: frozenset[int] = frozenset()
        # The completed ticket whose command was run again, and the exit code.
        self.again: tuple[str, int | None] | None = None
        self._told_forgotten = False
        # Whether the state directory was lost, and with it the record of the samples.
        self.lost = False
        # How wrong the wall clock of its machine is.
        self.skew = 0.0
        self._processes = 0
        # Every training of this client, by the bytes of its update before scaling.
        self._trainings: dict[bytes, Update] = {}

    @property
    def state(self) -> StateDirectory:
        return StateDirectory.of(self.world.scenario.config.id, self.name, self.disk.root)

    @property
    def forgotten(self) -> bool:
        return self._told_forgotten or self.state.forgotten is not None

    # -- what the checker asks -----------------------------------------------------------------------------

    def trained(self, update: Update) -> None:
        self._trainings[update.payload] = update

    def _sent(self, key: pb.WorkKey, scale: float, payload: bytes) -> Update:
        """The training whose update was sent with this scale."""

        def named(update: Update) -> bool:
            return (update.membership, update.round, update.part) == (key.membership, key.round, PARTS[key.part])

        # First that of the header: a scale of 0 makes all updates equal.
        for update in sorted(self._trainings.values(), key=named, reverse=True):
            found = update.scaled(scale)
            if found.payload == payload:
                return found
        require(False, f"{self.name} sends an update that is none of its trainings with the stated scale {scale}")
        raise AssertionError

    def sends(self, header: pb.UpdateHeader, payload: bytes) -> None:
        """An update is one of the client's trainings, and its samples are recorded, before it is sent."""
        update = self._sent(header.key, header.applied_scale, payload)
        self.world.server.store.books[self.name, header.digest.hex()] = update
        state = self.state
        hashes = {state.salted(self.sample_ids[i]) for i in update.ids}
        known = (s for s in SampleUsage(state).sets() if hashes == s.hashes)
        rounds = [r for s in known for r in (s.rounds.trained, s.rounds.unlearned) if r is not None]
        inside = any(first <= update.round <= last for first, last in rounds)
        require(inside, f"{self.name} sends an update of round {update.round} without a record of its samples")

    def joins(self, tickets: list[tk.Ticket]) -> None:
        """A worker joins only if its state directory knows the samples of every request that the server has stated."""
        state = self.state
        for ticket in tickets:
            withdrawn = ticket.state == tk.TICKET_STATE_WITHDRAWN and not ticket.taken_over
            if ticket.request.scope == tk.SCOPE_SAMPLES and not withdrawn:
                known = state.exclusion(ticket.request.request_key)
                require(known is not None, f"{self.name} joins and does not know which samples {ticket.id} names")

    def files(self, request: tk.UnlearningRequest) -> None:
        """A request states the date that its owner stated, and none of the client's own clock."""
        stated = self._command.received if self._command is not None else None
        right = request.received_at == (stated.timestamp() if stated is not None else 0.0)
        require(right, f"{self.name} states that its request was received at {request.received_at}")
        if request.scope == tk.SCOPE_SAMPLES:
            self.world.checker.named[self.name, request.request_key] = self._asked

    # -- the worker ----------------------------------------------------------------------------------------

    def start(self, *, rejoin: bool = False) -> None:
        """Starts the worker, unless it runs."""
        if self.worker is not None and self.worker.alive:
            return
        process = self.worker = self._process("worker")
        options = RunOptions(name=self.name, state=self.disk.root, data="simulated", rejoin=rejoin)

        def run() -> Exit:
            return work(options, SimTransport(self, process), process, lambda *_: self._trainer(process))

        def ended(why: str, error: PufError | None, code: int) -> None:
            self._told_forgotten = isinstance(error, Forgotten) or code == Exit.FORGOTTEN
            if not self._told_forgotten:
                self.world.after(self.world.rng.uniform(20.0, 120.0), self._restart, process)

        self._run(process, run, ended)

    def _restart(self, process: Process) -> None:
        if self.worker is process and not self.forgotten:
            self.start()

    def kill(self) -> None:
        if self.worker is not None:
            self.worker.kill()

    def freeze(self, seconds: float) -> None:
        """Suspends the worker. The same process continues later."""
        process = self.worker
        if process is not None and process.alive and not process.frozen:
            self.world.log(f"{self.name} frozen for {seconds:.0f} s")
            process.frozen = True
            self.world.after(seconds, setattr, process, "frozen", False)

    def leave(self) -> None:
        """SIGTERM to the worker."""
        if self.worker is not None:
            self.worker.terminate()

    def wall_clock(self) -> float:
        return self.world.now + self.skew

    # -- the disk ------------------------------------------------------------------------------------------

    def _before_write(self, process: Process) -> None:
        """The process can be killed, and the power can fail, between any two operations on the disk."""
        if self.world.strikes("kill_at_write"):
            process.kill()
            if process is self.worker:
                self.world.after(self.world.rng.uniform(1.0, 300.0), self._power_on)
        elif self.world.strikes("power_cut"):
            self.power_cut()

    def power_cut(self) -> None:
        """Ends all processes of the machine. What was not synced is lost."""
        self.world.log(f"{self.name} has no power")
        self.switch_off()
        self.disk.lose_unsynced()
        self.world.after(self.world.rng.uniform(1.0, 300.0), self._power_on)

    def _power_on(self) -> None:
        if not self.forgotten:
            self.start()

    def lose_state(self) -> None:
        """Loses the disk. The next process knows no exclusion."""
        self.world.log(f"{self.name} loses its disk")
        self.switch_off()
        self.disk.erase()
        self.lost = True

    def name_again(self) -> None:
        """The owner names the forgotten samples again (`puf-client data exclude`), so that the worker may run."""
        if not self.lost or not self.world.server.up:
            return
        for ticket in self.world.server.engine.state.tickets.values():
            ids = self.world.checker.named.get((ticket.client, ticket.request.key))
            if ticket.client == self.name and ids is not None:
                self._name_again(ticket.id, [self.sample_ids[i] for i in sorted(ids)])

    def _name_again(self, ticket_id: str, ids: list[str]) -> None:
        process = self._process("exclude")

        def run() -> None:
            name_again(SimTransport(self, process), self.disk.root, ticket_id, ids, process)

        self._run(process, run)

    def switch_off(self) -> None:
        """Kills all processes of the client."""
        for process in (self.worker, *self.commands):
            if process is not None and process.alive:
                process.kill()

    # -- the owner -----------------------------------------------------------------------------------------

    def ask(
        self, *, samples: bool = False, ids: frozenset[int] = frozenset(), late: float = 0.0, **wishes: Any
    ) -> None:
        """Runs `puf-client --unlearn` for some samples or the whole client."""
        if any(p.alive for p in self.commands):
            return
        left = sorted(self.ids - self.world.checker.out_of_training(self.name))
        chosen: frozenset[int] = frozenset()
        if (samples or ids) and len(left) > 1:
            chosen = ids or frozenset(self.world.rng.sample(left, self.world.rng.randint(1, len(left) - 1)))
        self._asked = chosen
        self._command = UnlearnOptions(
            name=self.name,
            state=self.disk.root,
            receipt_dir=self.world.root,
            data="simulated" if self.stands_in or chosen else "",
            forget=self._list(chosen) if chosen else None,
            received=datetime.fromtimestamp(self.world.now - late, UTC) if late else None,
            yes=True,
            **wishes,
        )
        self.follow()
        if self.world.strikes("ask_twice"):
            self.follow(again=True)
        if self.world.strikes("withdraw"):
            self.world.after(self.world.rng.uniform(5.0, 200.0), self.withdraw)

    def _list(self, chosen: frozenset[int]) -> Path:
        path = self.world.root / f"{self.name}.txt"
        path.write_text("\n".join(self.sample_ids[i] for i in sorted(chosen)))
        return path

    def follow(self, *, again: bool = False) -> None:
        """Runs the last command again: it files its request if it was not filed, and follows it."""
        if self._command is None or (not again and any(p.alive for p in self.commands)):
            return
        options = self._command.model_copy(update={"same_data": self.lost})
        process = self._process("owner")

        def run() -> Exit:
            return unlearn(options, SimTransport(self, process), process, lambda *_: self._trainer(process))

        def ended(why: str, error: PufError | None, code: int) -> None:
            if self.again is not None:
                self.again = (self.again[0], code if error is None else 1)

        self._run(process, run, ended)
        if self.world.strikes("crash_owner"):
            self.world.after(self.world.rng.uniform(0.0, 200.0), process.kill)

    def ask_again(self, state: State) -> None:
        """Runs the last command again if its request is completed."""
        ticket = state.tickets.get(self.following)
        if ticket is None or ticket.state is not TicketState.COMPLETED or self.lost or self._command is None:
            return
        names = frozenset[int]() if ticket.whole_client else self.world.checker.ids_of(ticket)
        member = state.members[self.name]
        # A readmitted client has to join before it can ask.
        if (
            names == self._asked
            and ticket.membership == member.membership
            and member.status is not MemberStatus.READMITTED
        ):
            self.again = (ticket.id, None)
            self.follow(again=True)

    def withdraw(self) -> None:
        """Runs `puf-client withdraw` for the last ticket."""
        ticket_id = self.following
        if ticket_id:
            process = self._process("withdraw")
            options = WithdrawOptions(name=self.name, state=self.disk.root, yes=True)
            self._run(process, lambda: take_back(options, ticket_id, SimTransport(self, process), process))

    # -- processes -----------------------------------------------------------------------------------------

    def _trainer(self, process: Process) -> Trainer:
        return cast(Trainer, SimTrainer(self, process))

    def _process(self, what: str) -> Process:
        self._processes += 1
        process = Process(self.world, f"{self.name} {what} {self._processes}", self.disk, self.wall_clock)
        self.world.processes.append(process)
        if what != "worker":
            self.commands = [p for p in self.commands if p.alive] + [process]
        return process

    def _run(
        self,
        process: Process,
        command: Callable[[], object],
        ended: Callable[[str, PufError | None, int], None] = lambda *_: None,
    ) -> None:
        """Runs a command as the main thread of a process. An exception that is no PufError is a fault of the client."""

        def main() -> None:
            why, failure, code = "done", None, 0
            try:
                code = int(cast(int, command() or 0))
                why = f"code {code}"
            except PufError as error:
                why, failure = error.message, error
            except SystemExit:
                why = "SIGTERM"
            self.world.log(f"{process.name} ends: {why}")
            process.end()
            ended(why, failure, code)

        process.start(main, "main")
