"""Event heap, random source and clock. During the faults only safety is checked. After healing every request must end."""

from __future__ import annotations

import hashlib
import heapq
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from greenlet import getcurrent

from puf_common import audit_chain
from puf_common.errors import PufError, Unavailable
from puf_server.core import roster, scheduler
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket, TicketState
from puf_server.core.unlearning import receipt_content
from puf_server.engine.engine import Engine
from tests.sim.actions import Actions
from tests.sim.backups import Backups
from tests.sim.checker import Checker, Violation
from tests.sim.client import Client
from tests.sim.client_checks import check_clients
from tests.sim.disk import SimStore
from tests.sim.facts import require, too_few_retained
from tests.sim.process import Process
from tests.sim.scenario import Scenario
from tests.sim.server import SimServer
from tests.sim.several import Common, View

__all__ = ["Outcome", "World"]

_TIMEOUT = 30.0
_HEAL_SECONDS = 10 * 3600.0
_AFTERWARDS = 200.0
_EVENTS = 400_000
_START = 100_000_000.0
# A smaller step of the clock is followed. After a longer downtime a start compares deadlines.
_STEP = 60.0
_DOWNTIME = 3600.0
# A file system in memory: the disk of a client is synced in simulation only.
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    seed: int
    failure: str
    digest: str
    steps: int
    transactions: int
    simulated: float
    crashes: int
    tickets: dict[str, int]
    commits: tuple[str, ...]
    faults: dict[str, int]
    history: tuple[str, ...] = ()


class World:
    def __init__(self, scenario: Scenario, *, verbose: bool = False) -> None:
        self.scenario = scenario
        self.rng = Random(scenario.seed)
        self.now = _START
        self.heals_at = _START + scenario.chaos_seconds
        self.events = 0
        # How wrong the wall clock is, and how far the federation's time is from the simulated time.
        self.skew = 0.0
        self.accepted = 0.0
        # No faults while the federation is made or heals.
        self.healing = True
        self.verbose = verbose
        self.history: list[str] = []
        self._hash = hashlib.sha256()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        # The event loop, to which every thread of a client returns.
        self.hub = getcurrent()
        self.processes: list[Process] = []
        # The process whose thread runs now.
        self.running: Process | None = None
        self.broken: Violation | None = None
        # How often each fault struck.
        self.struck: Counter[str] = Counter()
        self.root = Path(tempfile.mkdtemp(prefix="puf-sim-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.checker = Checker()
        store = SimStore(scenario.config, self.strikes, self._transaction)
        self.checker.store = store
        common = Common(self, store) if scenario.servers > 1 else None
        views = [View(common, n) if common is not None else None for n in range(scenario.servers)]
        self.servers = [SimServer(self, store, view) for view in views]
        # The server that takes the call, or was asked last.
        self.server = self.servers[0]
        self.clients = [
            Client(
                self,
                f"c{i}",
                samples=self.rng.randint(2, 12),
                holdout=self.rng.choice([0, 5, 5]) * (10 if scenario.adapts else 1),
            )
            for i in range(scenario.clients)
        ]
        self.clients += [Client(self, f"judge{i}", samples=0, holdout=20) for i in range(scenario.evaluators)]
        self.actions = Actions(self)
        self.backups = Backups(self)

    # -- time and random events ----------------------------------------------------------------------------

    def after(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + seconds, self._pushed, what, args))

    def wall_clock(self) -> float:
        """What `time.time` returns: each client has its own clock, and so has the server."""
        return self.running.wall_clock() if self.running is not None else self.now + self.skew

    def choose_server(self) -> SimServer:
        """Any server that is up."""
        if len(self.servers) > 1:
            serving = [s for s in self.servers if s.up and not s.frozen]
            self.server = self.rng.choice(serving or self.servers)
        return self.server

    def gone(self, view: View, owner: str) -> None:
        """The other servers notice that a process gave no sign of life."""
        if view.owner != owner or (view.server is not None and view.server.silent):
            for other in view.common.views:
                if other is not view:
                    other.others_gone(owner)

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        healing, self.healing = self.healing, True
        try:
            yield
        finally:
            self.healing = healing

    def strikes(self, fault: str) -> bool:
        rate = self.scenario.faults.get(fault)
        struck = rate is not None and not self.healing and self.rng.random() < rate
        self.struck[fault] += struck
        return struck

    def delay(self) -> float:
        if self.strikes("slow_network"):
            return self.rng.uniform(1.0, 90.0)
        return self.rng.uniform(0.01, 0.3)

    def verify(self, check: Callable[[], None]) -> None:
        """Runs a check in a client's thread. The event loop raises what it finds: the client would handle it as an error."""
        try:
            check()
        except Violation as violation:
            self.broken = violation

    def client(self, name: str) -> Client:
        return next(c for c in self.clients if c.name == name)

    def log(self, line: str) -> None:
        # Messages of the client name its directory.
        line = line.replace(str(self.root), "")
        line = f"{self.now - _START:10.2f}  {line}"
        self._hash.update(line.encode())
        if self.verbose:
            self.history.append(line)

    def _transaction(self, before: State | None, after: State) -> None:
        for note in after.notes:
            self.log(f"{note.event} " + " ".join(f"{k}={v}" for k, v in note.facts.items()))
        self.checker.transaction(before, after)
        self._deadlines(before, after)
        for ticket in after.tickets.values():
            if ticket.state is TicketState.COMPLETED and (
                before is None or before.tickets.get(ticket.id) is not ticket
            ):
                content = receipt_content.build(
                    after, self.scenario.config, ticket, head=audit_chain.EMPTY, now=self.now, software="sim"
                )
                self.backups.receipts[ticket.id] = content

    def _deadlines(self, before: State | None, after: State) -> None:
        """No request fails because the wall clock jumped: only if its deadline has passed on the federation's clock."""
        for ticket in after.tickets.values() if before is not None and before.tickets is not after.tickets else ():
            last = ticket.history[-1]
            new = before is not None and before.tickets.get(ticket.id) is not ticket
            if new and last.state is TicketState.FAILED and last.note.startswith("deadline passed"):
                # A start with a wrong clock continues behind the right time. The right clock may come back.
                believed = self.now + max(self.accepted, 0.0)
                require(believed + 2 * _STEP >= ticket.deadline_at, f"a jump failed {ticket.id}")

    def clock_started(self, engine: Engine) -> None:
        """A start may trust the wall clock after a downtime, unless a request would pass its deadline by that."""
        believed = engine.clock() - self.now
        if abs(believed - self.accepted) > _DOWNTIME:
            since, now = self.now + self.accepted, self.now + believed
            passed = [t.id for t in engine.state.tickets.values() if t.waiting and since + _STEP < t.deadline_at <= now]
            require(believed > self.accepted and not passed, f"a start with a wrong clock; deadlines passed: {passed}")
        self.accepted = believed

    # -- the network ----------------------------------------------------------------------------

    def call(self, serve: Callable[[], Any], done: Callable[[Any], None], at: SimServer | None = None) -> None:
        """A call to any server, or to this one. Request or answer can be lost, and the request can be carried out twice."""
        state = {"open": True}

        def finish(answer: Any) -> None:
            if state["open"]:
                state["open"] = False
                done(answer)

        def arrive(answered: bool) -> None:
            try:
                server = at or self.choose_server()
                answer = server.run(serve if at else lambda: server.engine.newest(serve))
            except PufError as error:
                answer = error
            if answered:
                self.after(self.delay(), finish, answer)

        lost = self.strikes("drop_request")
        unheard = lost or self.strikes("drop_reply")
        if not lost:
            self.after(self.delay(), arrive, not unheard)
        if unheard:
            self.after(_TIMEOUT, finish, Unavailable("no answer"))
        if self.strikes("duplicate"):
            self.after(self.delay() * self.rng.choice([1.0, 30.0]), arrive, True)

    # -- running ----------------------------------------------------------------------------

    def _step(self) -> None:
        self.now, _, what, args = heapq.heappop(self._heap)
        self.events += 1
        if self.events > _EVENTS:
            raise Violation("no end in sight: too many events")
        what(*args)
        if self.broken is not None:
            raise self.broken

    def _at_rest(self) -> bool:
        if not self.server.up or self.server.frozen:
            self.choose_server()
            return False
        self.server.engine.refresh()
        state = self.server.engine.state
        if (
            any(self._served(state, t) for t in state.tickets.values())
            or state.round
            or state.evaluation
            or state.job
            or state.recovery
        ):
            return False
        if scheduler.phase(state) == "idle":
            return True
        # Fewer clients are left than the plan requires: the federation waits for new ones.
        few = len(roster.retained(state)) < roster.required(state, self.scenario.config)
        return self.now > self._healed_at + 200.0 and few

    def _served(self, state: State, ticket: Ticket) -> bool:
        """Whether the federation still works on a request. One on hold waits for the operator."""
        return ticket.open and not ticket.on_hold and not too_few_retained(state, self.scenario.config, ticket)

    def play(self) -> None:
        self.actions.opening()
        while self.now < self.heals_at:
            self._step()
        self.actions.heal()
        self._healed_at = self.now
        self._rest()
        self._afterwards()
        # A command that was still running may have filed its request only now.
        self._rest()
        state = self.server.engine.state
        self.server.run(self.server.tick)
        self.checker.ended(state)
        self.checker.canary(state)
        self.checker.files(state)
        check_clients(state, self.checker, self.clients)

    def _rest(self) -> None:
        while not self._at_rest():
            if self.now > self._healed_at + _HEAL_SECONDS:
                raise Violation(f"not at rest {_HEAL_SECONDS / 3600:.0f} h after healing: {self._stuck()}")
            self._step()

    def _afterwards(self) -> None:
        """Owners run the commands of their completed requests again. Workers have time to announce their samples."""
        for client in self.clients:
            client.ask_again(self.server.engine.state)
        until = self.now + _AFTERWARDS
        while self.now < until:
            self._step()

    def close(self) -> None:
        """Ends all processes and deletes their disks."""
        for process in self.processes:
            process.alive = False
            process.unwind()
        shutil.rmtree(self.root, ignore_errors=True)

    def _stuck(self) -> str:
        state = self.server.engine.state
        waiting = scheduler.waiting_for(state, self.server.engine.presence, self.scenario.config, self.now)
        tickets = ", ".join(f"{t.id} {t.state} ({t.history[-1].note})" for t in state.tickets.values() if t.open)
        return f"{scheduler.phase(state)}; {waiting}; {tickets}"

    def outcome(self, failure: str) -> Outcome:
        found: dict[str, int] = {state.value: 0 for state in TicketState}
        if hasattr(self.server, "engine"):
            for ticket in self.server.engine.state.tickets.values():
                found[ticket.state.value] += 1
        return Outcome(
            seed=self.scenario.seed,
            failure=failure,
            digest=self._hash.hexdigest(),
            steps=self.events,
            transactions=self.checker.steps,
            simulated=self.now - _START,
            crashes=sum(server.crashes for server in self.servers),
            tickets=found,
            commits=tuple(self.checker.commits),
            faults=dict(self.struck),
            history=tuple(self.history),
        )
