"""Event heap, random source and clock. During the faults only safety is checked. After healing every request must end."""

from __future__ import annotations

import hashlib
import heapq
import io
import logging
import secrets
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from greenlet import getcurrent

from puf_common import audit_chain
from puf_common.errors import PufError, Unavailable
from puf_server.core import roster, scheduler
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket, TicketState
from puf_server.core.unlearning import receipt_content
from puf_server.engine.engine import Engine
from tests.sim.checker import Checker, Violation
from tests.sim.client import Client
from tests.sim.client_checks import check_clients
from tests.sim.disk import SimStore
from tests.sim.facts import require, too_few_retained
from tests.sim.process import Process
from tests.sim.scenario import Scenario
from tests.sim.server import SimServer
from tests.sim.several import Common, View

__all__ = ["Outcome", "World", "run", "simulated"]

_TIMEOUT = 30.0
_HEAL_SECONDS = 10 * 3600.0
_AFTERWARDS = 200.0
_EVENTS = 400_000
_SECONDS = 20.0
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

    def gone(self, view: View) -> None:
        """The other servers notice that one gave no sign of life."""
        if view.server is not None and view.server.silent:
            for other in view.common.views:
                if other is not view:
                    other.others_gone(view)

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
                for server in self.servers:
                    server.receipts[ticket.id] = content

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

    # -- actions ----------------------------------------------------------------------------

    def _opening(self) -> None:
        self.healing = False
        for server in self.servers:
            server.start()
        for client in self.clients:
            late = self.strikes("latecomers")
            self.after(self.rng.uniform(0.0, 900.0 if late else 20.0), client.start)
            self.after(self.rng.uniform(60.0, 300.0), self._fate, client)
        self.after(self.rng.uniform(60.0, 300.0), self._operator)
        if self.strikes("everybody_asks"):
            self.after(self.rng.uniform(300.0, self.scenario.chaos_seconds), self._everybody)

    def _everybody(self) -> None:
        for client in self.clients:
            self.after(self.rng.uniform(0.0, 5.0), client.ask)

    def _fate(self, client: Client) -> None:
        """Lets faults happen to a client, or lets its owner ask for something."""
        if self.healing:
            return
        self.after(self.rng.uniform(60.0, 300.0), self._fate, client)
        if self.strikes("crash_client"):
            client.kill()
            self.after(self.rng.uniform(1.0, 600.0), self._restart, client)
        elif self.strikes("lose_state"):
            client.lose_state()
            self.after(self.rng.uniform(1.0, 100.0), self._restart, client)
            self.after(self.rng.uniform(300.0, 900.0), client.name_again)
        elif self.strikes("freeze_client"):
            client.freeze(self.rng.uniform(5.0, 400.0))
        elif self.strikes("leave"):
            client.leave()
            self.after(self.rng.uniform(10.0, 600.0), self._restart, client)
        if self.strikes("client_clock_jump"):
            client.skew = self.rng.choice([40 * 86400.0, -40 * 86400.0])
            self.log(f"the clock of {client.name} jumps by {client.skew:+.0f} s")
            self.after(self.rng.uniform(30.0, 600.0), setattr, client, "skew", 0.0)
        if client.forgotten and self.strikes("stubborn"):
            client.start(rejoin=self.rng.random() < 0.3)
        if self.rng.random() < self.scenario.requests:
            strength: dict[str, Any] = self.rng.choice(
                [{}, {"kappa": self.rng.choice([0.5, 3.0, 4.0])}, {"eta_u": 5.0}]
            )
            samples, late = self.rng.random() < 0.4, self.rng.choice([0.0, 0.0, 0.0, 40 * 86400.0])
            strength["mode"] = self.rng.choice([None, "regular", "special"])
            strength["flip"] = self.rng.choice([None, "client", "server"])
            puf = self.scenario.config.forgetting.method == "puf"
            client.ask(samples=samples, late=late, **(strength if puf else {}))
        elif self.rng.random() < 0.3:
            client.follow()

    def _restart(self, client: Client) -> None:
        if not client.forgotten:
            client.start()

    def _operator(self) -> None:
        if self.healing:
            return
        self.after(self.rng.uniform(60.0, 400.0), self._operator)
        server = self.choose_server()
        if len(self.servers) > 1 and self.strikes("freeze_server"):
            server.freeze(self.rng.uniform(5.0, 200.0))
            server = self.choose_server()
        if self.strikes("crash_server"):
            server.crash("killed")
        if not server.up:
            return
        try:
            state = server.engine.state
            if self.strikes("pause"):
                server.run(server.pause)
                self.after(self.rng.uniform(10.0, 200.0), self._resume)
            elif state.halted or (state.paused and self.rng.random() < 0.5):
                server.run(server.resume)
            if self.strikes("operator_forgets"):
                # In most cases a client that is absent.
                name = self.rng.choice(sorted(state.members) or ["nobody"])
                server.run(lambda: server.forget(name))
            if self.strikes("restore"):
                server.run(server.restore)
                return
            if self.strikes("backup"):
                server.run(server.backup)
            if self.strikes("clock_jump"):
                self.skew = self.rng.choice([40 * 86400.0, -40 * 86400.0, 7200.0, -7200.0, 30.0])
                self.log(f"the clock jumps by {self.skew:+.0f} s")
                self.after(self.rng.uniform(30.0, 600.0), self._set_clock)
            if self.strikes("bit_flip"):
                self.log(f"a bit flips in {server.store.flip_a_bit(self.rng.choice)}")
                self.after(self.rng.uniform(30.0, 600.0), server.store.mend)
            if self.strikes("row_flip"):
                self.log(f"a bit flips in the record {server.store.flip_a_row(self.rng.choice)}")
                self.after(self.rng.uniform(30.0, 600.0), server.store.mend)
            if self.strikes("long_reader"):
                server.store.long_reader = True
                self.after(self.rng.uniform(30.0, 600.0), self._end_reader)
            if self.strikes("extend"):
                server.run(lambda: server.extend(self.rng.randint(1, 3)))
            gone = sorted(n for n, m in state.members.items() if m.status is MemberStatus.FORGOTTEN)
            if gone and self.strikes("readmit"):
                name = self.rng.choice(gone)
                server.run(lambda: server.readmit(name))
                client = self.client(name)
                self.after(self.rng.uniform(1.0, 100.0), self._rejoin, client)
            away = [
                n
                for n in sorted(state.members)
                if not roster.worker_alive(server.engine.presence, n, server.engine.config, self.now)
            ]
            if away and self.strikes("forget_absent"):
                server.run(lambda: server.forget(self.rng.choice(away)))
            if self.strikes("stop"):
                server.run(server.stop)
                for each in self.servers:
                    self.after(3.0, each.crash, "stopped by the operator")
        except PufError as error:
            self.log(f"the operator hears: {error}")

    def reopened(self, name: str) -> None:
        """A restored server opened a request again. Its owner may switch off the client and have it forgotten as a whole."""
        client = self.client(name)
        if self.strikes("leave_after_restore"):
            client.switch_off()
            self.after(self.rng.uniform(1.0, 60.0), client.ask)
            self.after(self.rng.uniform(300.0, 900.0), self._restart, client)

    def _set_clock(self) -> None:
        self.skew = 0.0

    def _end_reader(self) -> None:
        self.server.store.long_reader = False

    def _rejoin(self, client: Client) -> None:
        client.start(rejoin=True)

    def _resume(self) -> None:
        try:
            server = self.choose_server()
            server.run(server.resume)
        except PufError:
            self.after(5.0, self._resume)

    def _heal(self) -> None:
        """Ends all faults and requests, and restarts all clients. Everything in progress must now end."""
        self.log("healing")
        self.healing = True
        self._set_clock()
        self._end_reader()
        self.server.store.mend()
        for server in self.servers:
            server.start()
        self._resume()
        # A fold that began earlier may still fail: the operator resumes again.
        self.after(30.0, self._resume)
        for client in self.clients:
            client.name_again()
            # Forgotten clients try to join, too. They need operator approval.
            self.after(self.rng.uniform(0.0, 60.0), self._rejoin if client.forgotten else self._restart, client)
            if client.following:
                self.after(self.rng.uniform(0.0, 60.0), client.follow)

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
        self._opening()
        while self.now < self.heals_at:
            self._step()
        self._heal()
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


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """Raises Violation if the core computes without end. It counts processor time, not wall-clock time."""

    def bark(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame, 3)) if frame is not None else ""
        raise Violation(f"no answer within {seconds:.0f} s: {where}")

    before = signal.signal(signal.SIGVTALRM, bark)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run(scenario: Scenario, *, verbose: bool = False) -> Outcome:
    """Runs one history to its end, to the first violation, or to an exception of the core or of the client."""
    with simulated(scenario, verbose=verbose) as world:
        return _played(world)


@contextmanager
def simulated(scenario: Scenario, *, verbose: bool = False) -> Iterator[World]:
    """A world without the log lines and the output of its programs. It is closed at the end."""
    # Simulated faults cause thousands of log lines.
    logging.disable(logging.CRITICAL)
    with _drawn(scenario.seed), redirect_stdout(io.StringIO()):
        world, before = World(scenario, verbose=verbose), time.time
        time.time = world.wall_clock
        try:
            yield world
        finally:
            time.time = before
            world.close()
            logging.disable(logging.NOTSET)


@contextmanager
def _drawn(seed: int) -> Iterator[None]:
    """Random names of tickets, sessions and files follow from the seed."""
    chance = Random(f"secrets {seed}")
    before = secrets.token_hex, secrets.token_bytes
    secrets.token_hex = lambda nbytes=None: chance.randbytes(nbytes or 32).hex()
    secrets.token_bytes = lambda nbytes=None: chance.randbytes(nbytes or 32)
    try:
        yield
    finally:
        secrets.token_hex, secrets.token_bytes = before


def _played(world: World) -> Outcome:
    try:
        with _watchdog(_SECONDS):
            world.play()
    except Violation as violation:
        return world.outcome(str(violation))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return world.outcome(f"{type(error).__name__} at {where}: {error}")
    return world.outcome("")
