"""One event heap, one random source, one clock. First chaos, in which only safety counts; then everything heals, and
every request must come to its end."""

from __future__ import annotations

import hashlib
import heapq
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from puf_common.errors import PufError, Unavailable
from puf_server.core import audit_chain, roster, scheduler
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Flip, Mode, TicketState
from puf_server.core.unlearning import receipt_content
from tests.sim.checker import Checker, Violation
from tests.sim.client import Agent
from tests.sim.disk import SimStore
from tests.sim.scenario import Scenario
from tests.sim.server import SimServer

__all__ = ["Outcome", "World", "run"]

_TIMEOUT = 30.0
_HEAL_SECONDS = 10 * 3600.0
_EVENTS = 400_000
_SECONDS = 20.0
_START = 1_000_000.0


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
    history: tuple[str, ...] = ()


class World:
    def __init__(self, scenario: Scenario, *, verbose: bool = False) -> None:
        self.scenario = scenario
        self.rng = Random(scenario.seed)
        self.now = _START
        self.events = 0
        # No faults while the federation is made, and none while it heals.
        self.healing = True
        self.verbose = verbose
        self.history: list[str] = []
        self._hash = hashlib.sha256()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self.checker = Checker()
        store = SimStore(scenario.config, self.strikes, self._transaction)
        self.checker.store = store
        self.server = SimServer(self, store)
        self.agents = [
            Agent(self, f"c{i}", samples=self.rng.randint(2, 12), holdout=self.rng.choice([0, 5, 5]))
            for i in range(scenario.clients)
        ]
        self.agents += [Agent(self, f"judge{i}", samples=0, holdout=20) for i in range(scenario.evaluators)]

    # -- time and chance -----------------------------------------------------------------------------------------------

    def after(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + seconds, self._pushed, what, args))

    def strikes(self, fault: str) -> bool:
        rate = self.scenario.faults.get(fault)
        return rate is not None and not self.healing and self.rng.random() < rate

    def delay(self) -> float:
        if self.strikes("slow_network"):
            return self.rng.uniform(1.0, 90.0)
        return self.rng.uniform(0.01, 0.3)

    def log(self, line: str) -> None:
        line = f"{self.now - _START:10.2f}  {line}"
        self._hash.update(line.encode())
        if self.verbose:
            self.history.append(line)

    def _transaction(self, before: State | None, after: State) -> None:
        for note in after.notes:
            self.log(f"{note.event} " + " ".join(f"{k}={v}" for k, v in note.facts.items()))
        self.checker.transaction(before, after)
        for ticket in after.tickets.values():
            if ticket.state is TicketState.COMPLETED and (
                before is None or before.tickets.get(ticket.id) is not ticket
            ):
                content = receipt_content.build(
                    after, self.scenario.config, ticket, head=audit_chain.EMPTY, now=self.now, software="sim"
                )
                self.server.receipts[ticket.id] = content

    # -- the network ---------------------------------------------------------------------------------------------------

    def call(self, serve: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """A request and its answer. Either may be lost; a request may be carried out and its answer lost, or twice."""
        state = {"open": True}

        def finish(answer: Any) -> None:
            if state["open"]:
                state["open"] = False
                done(answer)

        def arrive(answered: bool) -> None:
            try:
                answer = self.server.run(serve)
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

    # -- who does what when --------------------------------------------------------------------------------------------

    def _opening(self) -> None:
        self.healing = False
        self.server.start()
        for agent in self.agents:
            late = self.strikes("latecomers")
            self.after(self.rng.uniform(0.0, 900.0 if late else 20.0), agent.start)
            self.after(self.rng.uniform(60.0, 300.0), self._fate, agent)
        self.after(self.rng.uniform(60.0, 300.0), self._operator)
        if self.strikes("everybody_asks"):
            self.after(self.rng.uniform(300.0, self.scenario.chaos_seconds), self._everybody)

    def _everybody(self) -> None:
        for agent in self.agents:
            self.after(self.rng.uniform(0.0, 5.0), agent.ask)

    def _fate(self, agent: Agent) -> None:
        """Now and then something happens to a client, or it wants something."""
        if self.healing:
            return
        self.after(self.rng.uniform(60.0, 300.0), self._fate, agent)
        if self.strikes("crash_client"):
            agent.kill()
            self.after(self.rng.uniform(1.0, 600.0), self._restart, agent)
        elif self.strikes("lose_state"):
            agent.lose_state()
            self.after(self.rng.uniform(1.0, 100.0), self._restart, agent)
            self.after(self.rng.uniform(300.0, 900.0), agent.name_again)
        elif self.strikes("freeze_client"):
            agent.freeze(self.rng.uniform(5.0, 400.0))
        elif self.strikes("leave"):
            agent.goodbye()
            self.after(self.rng.uniform(10.0, 600.0), self._restart, agent)
        if agent.forgotten and self.strikes("stubborn"):
            agent.start(rejoin=self.rng.random() < 0.3)
        if self.rng.random() < self.scenario.requests:
            strength: dict[str, Any] = self.rng.choice(
                [{}, {"kappa": self.rng.choice([0.5, 3.0, 4.0])}, {"eta_u": 5.0}]
            )
            samples, late = self.rng.random() < 0.4, self.rng.choice([0.0, 0.0, 0.0, 40 * 86400.0])
            strength["mode"] = self.rng.choice([None, Mode.REGULAR, Mode.SPECIAL])
            strength["flip"] = self.rng.choice([None, Flip.CLIENT, Flip.SERVER])
            puf = self.scenario.config.forgetting.method == "puf"
            agent.ask(samples=samples, late=late, **(strength if puf else {}))
        elif agent.following and self.rng.random() < 0.3:
            agent.follow(agent.following)

    def _restart(self, agent: Agent) -> None:
        if not agent.forgotten:
            agent.start()

    def _operator(self) -> None:
        if self.healing:
            return
        self.after(self.rng.uniform(60.0, 400.0), self._operator)
        server = self.server
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
                # Somebody who is gone, mostly.
                name = self.rng.choice(sorted(state.members) or ["nobody"])
                server.run(lambda: server.forget(name))
            if self.strikes("backup"):
                server.run(server.backup)
            elif self.strikes("restore"):
                server.run(server.restore)
                return
            if self.strikes("extend"):
                server.run(lambda: server.extend(self.rng.randint(1, 3)))
            gone = sorted(n for n, m in state.members.items() if m.status is MemberStatus.FORGOTTEN)
            if gone and self.strikes("readmit"):
                name = self.rng.choice(gone)
                server.run(lambda: server.readmit(name))
                agent = next(a for a in self.agents if a.name == name)
                self.after(self.rng.uniform(1.0, 100.0), self._rejoin, agent)
            away = [
                n
                for n in sorted(state.members)
                if not roster.worker_alive(server.engine.presence, n, server.engine.config, self.now)
            ]
            if away and self.strikes("forget_absent"):
                server.run(lambda: server.forget(self.rng.choice(away)))
            if self.strikes("stop"):
                server.run(server.stop)
                self.after(3.0, server.crash, "stopped by the operator")
        except PufError as error:
            self.log(f"the operator hears: {error}")

    def _rejoin(self, agent: Agent) -> None:
        agent.start(rejoin=True)

    def _resume(self) -> None:
        try:
            self.server.run(self.server.resume)
        except PufError:
            self.after(5.0, self._resume)

    def _heal(self) -> None:
        """No more faults, no more wishes; everybody is back. What was begun must now end by itself."""
        self.log("healing")
        self.healing = True
        self.server.start()
        self._resume()
        # A sum that was begun before may still turn out to be no model: the operator looks once more.
        self.after(30.0, self._resume)
        for agent in self.agents:
            agent.name_again()
            # One that was forgotten tries as well; only the operator's word lets it in.
            self.after(self.rng.uniform(0.0, 60.0), self._rejoin if agent.forgotten else self._restart, agent)
            if agent.following:
                self.after(self.rng.uniform(0.0, 60.0), agent.follow, agent.following)

    # -- running -------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.now, _, what, args = heapq.heappop(self._heap)
        self.events += 1
        if self.events > _EVENTS:
            raise Violation("no end in sight: too many events")
        what(*args)

    def _at_rest(self) -> bool:
        if not self.server.up:
            return False
        state = self.server.engine.state
        if (
            any(t.open for t in state.tickets.values())
            or state.round
            or state.evaluation
            or state.job
            or state.recovery
        ):
            return False
        if scheduler.phase(state) == "idle":
            return True
        # Nobody is left who could train: waiting for newcomers is all there is to do.
        return self.now > self._healed_at + 200.0 and not roster.retained(state)

    def play(self) -> None:
        self._opening()
        while self.now < _START + self.scenario.chaos_seconds:
            self._step()
        self._heal()
        self._healed_at = self.now
        while not self._at_rest():
            if self.now > self._healed_at + _HEAL_SECONDS:
                raise Violation(f"not at rest {_HEAL_SECONDS / 3600:.0f} h after healing: {self._stuck()}")
            self._step()
        state = self.server.engine.state
        self.checker.ended(state)
        self.checker.files(state)

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
            crashes=self.server.crashes,
            tickets=found,
            commits=tuple(self.checker.commits),
            history=tuple(self.history),
        )


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """A core that turns in circles is a broken promise too. Counts the time this process computes, not the wall's."""

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
    """One history, to its end or to the first broken promise; any other exception of the core is one, too."""
    world = World(scenario, verbose=verbose)
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
