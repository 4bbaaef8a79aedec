"""Hypothesis chooses the order of events for the real engine, one step at a time, with the checker and without a network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from puf_common.errors import PufError
from puf_server.core.config import FederationConfig, Forgetting, Plan
from puf_server.core.state.measurements import Sums
from puf_server.core.state.rounds import Assignment, Part, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Flip, Mode, RequestForm, Scope
from tests.sim.checker import PERSISTENT
from tests.sim.direct import DirectRequests, Header
from tests.sim.scenario import NOBODY_ASKS, Scenario
from tests.sim.weights import Update
from tests.sim.world import World

NAMES = st.sampled_from(["a", "b", "c", "d"])
SAMPLES = 6


def _world() -> World:
    config = FederationConfig(
        id="model",
        model="books",
        plan=Plan(
            rounds=3, min_clients=2, absent_seconds=60.0, heartbeat_seconds=10.0, evaluate_every=0, keep_models=2
        ),
        forgetting=Forgetting(
            deadline_days=0.02, attempt_seconds=300.0, max_recovery_rounds=2, measure_seconds=0.0, collapse_ratio=0.0
        ),
        limits=NOBODY_ASKS,
    )
    scenario = Scenario(seed=1, config=config, clients=0, evaluators=0, requests=0.0, chaos_seconds=0.0, faults={})
    world = World(scenario)
    world.server.start()
    return world


class Core(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = _world()
        self.server = self.world.server
        self.direct = DirectRequests(self.world)
        self.excluded: dict[str, set[int]] = {}
        self.sent: list[tuple[str, Header]] = []
        self.instances = 0
        self.keys = 0

    @property
    def state(self) -> State:
        return self.server.engine.state

    def ids(self, name: str) -> frozenset[int]:
        return frozenset(range(SAMPLES)) - self.excluded.get(name, set())

    def try_(self, step: Callable[..., object], *args: object) -> None:
        """A PufError is a valid answer. Any other exception is a bug."""
        with suppress(PufError):
            step(*args)

    @rule(name=NAMES, again=st.booleans(), rejoin=st.booleans())
    def join(self, name: str, again: bool, rejoin: bool) -> None:
        self.instances += not again
        self.try_(
            lambda: self.direct.join(
                name,
                instance=f"{name}-{self.instances}",
                samples=len(self.ids(name)),
                holdout=3,
                rejoin=rejoin,
                only_if_no_worker=False,
            )
        )

    @rule()
    def beat(self) -> None:
        for name, member in self.state.members.items():
            self.try_(self.direct.heartbeat, name, member.session, "")

    @precondition(lambda self: self.state.round is not None and self.state.round.missing)
    @rule(data=st.data(), lie=st.sampled_from(["", "", "", "", "attempt", "base", "samples", "scale"]))
    def submit(self, data: st.DataObject, lie: str) -> None:
        current = self.state.round
        assert current is not None
        assignment = data.draw(st.sampled_from(current.missing))
        header = self._header(assignment)
        if lie == "attempt":
            header = replace(header, attempt=header.attempt + 1)
        elif lie == "base":
            header = replace(header, base=header.base + 1)
        elif lie == "samples":
            header = replace(header, samples=SAMPLES + 1)
        elif lie == "scale":
            header = replace(header, applied_scale=-7.0)
        self._send(assignment.client, header)

    @precondition(lambda self: self.state.round is not None)
    @rule()
    def submit_all(self) -> None:
        current = self.state.round
        assert current is not None
        for assignment in current.missing:
            self._send(assignment.client, self._header(assignment))

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), other=st.booleans())
    def submit_again(self, data: st.DataObject, other: bool) -> None:
        """Sends an old update again, or another update under the same key."""
        name, header = data.draw(st.sampled_from(self.sent))
        if other:
            header = replace(header, update=replace(header.update, base="another"))
        self._send(name, header)

    def _header(self, assignment: Assignment) -> Header:
        current = self.state.round
        assert current is not None
        ids = self.ids(assignment.client)
        if assignment.part is Part.FORGET:
            key = self.state.tickets[assignment.ticket].request.key
            ids = self.world.checker.named[assignment.client, key]
        update = Update(
            client=assignment.client,
            membership=assignment.membership,
            part=str(assignment.part),
            round=current.number,
            base=self.state.models[current.base].digest,
            ids=ids,
            epochs=assignment.epochs,
            applied_scale=assignment.scale if assignment.flip == "client" else 1.0,
        )
        return Header(
            membership=assignment.membership,
            number=current.number,
            attempt=current.attempt,
            part=assignment.part,
            base=current.base,
            samples=len(ids),
            applied_scale=update.applied_scale,
            update=update,
        )

    def _send(self, name: str, header: Header) -> None:
        self.sent = [*self.sent[-9:], (name, header)]
        self.try_(lambda: self.direct.finish(name, header, self.direct.begin(name, header)))

    @precondition(lambda self: self.state.evaluation is not None)
    @rule(score=st.integers(0, 3))
    def answer(self, score: int) -> None:
        evaluation = self.state.evaluation
        assert evaluation is not None
        for name in evaluation.missing:
            sums = Sums(samples=3, loss_sum=1.0, score_sum=float(score))
            self.try_(self.direct.answer, name, evaluation.id, evaluation.version, sums)

    @precondition(lambda self: self.state.round is not None and self.state.round.missing)
    @rule(data=st.data())
    def decline(self, data: st.DataObject) -> None:
        current = self.state.round
        assert current is not None
        assignment = data.draw(st.sampled_from(current.missing))
        session = self.state.members[assignment.client].session
        self.try_(self.direct.decline, assignment.client, session, current.number, current.attempt, assignment.key)

    @rule(name=NAMES, mode=st.sampled_from(Mode), flip=st.sampled_from(Flip))
    def file(self, name: str, mode: Mode, flip: Flip) -> None:
        self.keys += 1
        self.try_(self.direct.file, name, RequestForm(key=f"k{self.keys}", mode=mode, flip=flip))

    @rule(name=NAMES, mode=st.sampled_from(Mode), count=st.integers(1, 3))
    def file_samples(self, name: str, mode: Mode, count: int) -> None:
        ids = self.ids(name)
        if len(ids) <= count:
            return
        self.keys += 1
        chosen = frozenset(sorted(ids)[:count])
        request = RequestForm(
            key=f"k{self.keys}",
            scope=Scope.SAMPLES,
            mode=mode,
            forget_samples=count,
            retain_samples=len(ids) - count,
        )
        self.world.checker.named[name, request.key] = chosen
        try:
            ticket = self.direct.file(name, request)
        except PufError:
            return
        if ticket.request.key == request.key:
            self.excluded.setdefault(name, set()).update(chosen)

    @precondition(lambda self: self.state.tickets)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.state.tickets.values(), key=lambda t: t.id)))
        try:
            self.direct.withdraw(ticket.client, ticket.id)
        except PufError:
            return
        named = self.world.checker.named.get((ticket.client, ticket.request.key), frozenset())
        self.excluded.get(ticket.client, set()).difference_update(named)

    @precondition(lambda self: any(m.status == "forgotten" for m in self.state.members.values()))
    @rule()
    def readmit(self) -> None:
        name = min(n for n, m in self.state.members.items() if m.status == "forgotten")
        self.server.readmit(name)

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0, 301.0, 1800.0]), alive=st.booleans())
    def tick(self, seconds: float, alive: bool) -> None:
        self.world.now += seconds
        if alive:
            self.beat()
        self.server.engine.tick()

    @precondition(lambda self: self.server.engine.round_to_fold() is not None)
    @rule(late=st.booleans(), name=NAMES)
    def fold(self, late: bool, name: str) -> None:
        """Folds and commits. Sometimes a client asks to be forgotten in between."""
        current = self.server.engine.round_to_fold()
        assert current is not None
        result = self.server.engine.fold(current)
        if late:
            self.file(name, Mode.REGULAR, Flip.CLIENT)
        self.server.engine.commit(result)

    @rule(in_fold=st.booleans())
    def crash_and_recover(self, in_fold: bool) -> None:
        current = self.server.engine.round_to_fold()
        if in_fold and current is not None:
            self.server.engine.fold(current)
        self.server.crash("by rule")
        self.server.start()

    @invariant()
    def memory_is_what_the_disk_has(self) -> None:
        loaded = self.world.server.store.load()
        for name in PERSISTENT:
            assert getattr(loaded, name) == getattr(self.state, name)

    @invariant()
    def the_model_in_use_is_readable(self) -> None:
        self.world.server.store.weights(self.state.models[self.state.version])
        current = self.state.round
        if current is not None and current.phase is RoundPhase.COLLECTING:
            self.world.server.store.weights(self.state.models[current.base])


Core.TestCase.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestCore = Core.TestCase
