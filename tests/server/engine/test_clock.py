"""The federation's clock: it follows small steps of the wall clock, and shows a jump instead of acting on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forgotten import OnDisk, trained_state
from tests.running import make_state, tiny_config

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import roster
from puf_server.core.state.tickets import Ticket, TicketState
from puf_server.engine.clock import FederationClock
from puf_server.engine.engine import Engine
from puf_server.engine.troubles import Trouble
from puf_server.rpc.requests import Handlers
from puf_server.storage.state_store import Store

DAY = 86400.0


class Machine:
    """The clocks of a machine. Only `sleep` lets time pass; `skew` is how wrong the wall clock is."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.booted = 2e9
        self.skew = 0.0

    def clock(self) -> FederationClock:
        return FederationClock(lambda: self.booted + self.passed + self.skew, lambda: self.passed)

    @property
    def right(self) -> float:
        return self.booted + self.passed


class Running(OnDisk):
    """A federation with the clock of a machine."""

    def __init__(self, directory: Path, machine: Machine) -> None:
        super().__init__(directory)
        self.engine.close()
        self.machine = machine
        self.engine = Engine(Store.open(directory), machine.clock())
        self.handlers = Handlers(self.engine)

    def __enter__(self) -> Running:
        return self

    def ticket(self, ticket_id: str) -> Ticket:
        return self.engine.state.tickets[ticket_id]

    def sleep(self, seconds: float) -> None:
        self.machine.passed += seconds
        self.engine.tick()

    def file(self, name: str) -> str:
        request = tk.UnlearningRequest(request_key=f"k-{name}", scope=tk.SCOPE_CLIENT)
        return self.handlers.tickets.file_unlearning(name, fed.FileUnlearningRequest(request=request)).ticket.id

    def leave(self, name: str) -> None:
        self.handlers.leave(name, fed.LeaveRequest(session=self.engine.state.members[name].session))

    def alive(self, name: str) -> bool:
        return roster.worker_alive(self.engine.presence, name, self.engine.config, self.engine.clock())

    @property
    def off(self) -> float:
        """How wrong the federation's time is."""
        return round(self.engine.clock() - self.machine.right, 3)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return trained_state(tmp_path / "state")


@pytest.fixture
def f(directory: Path, machine: Machine) -> Iterator[Running]:
    with Running(directory, machine) as f:
        f.join("anna", "bert", "cleo")
        yield f


@pytest.mark.parametrize("skew", [40 * DAY, -40 * DAY, 2 * 3600, -120])
def test_a_jump_fails_no_request_and_kills_no_worker(f: Running, skew: float, caplog: pytest.LogCaptureFixture) -> None:
    ticket = f.file("cleo")
    f.leave("cleo")
    f.machine.skew = skew
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            f.sleep(1)
    assert f.ticket(ticket).open
    assert f.off == 0
    assert f.alive("anna")
    assert [r.levelname for r in caplog.records if "the system clock jumped" in r.getMessage()] == ["ERROR"]
    assert "the system clock is" in f.engine.troubles.text()
    f.machine.skew = 0
    f.sleep(1)
    assert f.engine.troubles.text() == ""
    assert f.ticket(ticket).open


def test_a_worker_that_is_silent_becomes_absent_also_when_the_clock_is_set_back(f: Running) -> None:
    f.machine.skew = -DAY
    f.sleep(f.engine.config.plan.absent_seconds + 1)
    assert not f.alive("anna")


@pytest.mark.parametrize("skew", [20, -20])
def test_a_small_step_is_followed_and_changes_no_liveness(f: Running, skew: float) -> None:
    f.sleep(9)
    f.machine.skew = skew
    f.sleep(0)
    assert f.off == skew
    assert f.engine.troubles.text() == ""
    assert f.alive("anna")
    f.sleep(2)
    assert not f.alive("anna")


def test_the_operator_accepts_a_clock_and_then_deadlines_have_passed(f: Running) -> None:
    ticket = f.file("cleo")
    f.leave("cleo")
    f.machine.skew = 40 * DAY
    f.sleep(1)
    f.engine.accept_clock()
    assert f.off == 40 * DAY
    assert f.engine.troubles.text() == ""
    assert f.alive("anna")
    f.sleep(f.engine.config.plan.absent_seconds + 1)
    assert f.ticket(ticket).state is TicketState.FAILED
    assert "clock.accepted" in f.events()


def test_accepting_a_clock_that_did_not_jump_changes_nothing(f: Running) -> None:
    before = f.events()
    f.engine.accept_clock()
    assert f.events() == before


@pytest.mark.parametrize("skew", [40 * DAY, -40 * DAY])
def test_a_start_with_a_wrong_clock_continues_from_the_recorded_time(
    directory: Path, machine: Machine, skew: float
) -> None:
    with Running(directory, machine) as f:
        f.join("anna", "bert", "cleo")
        f.sleep(1)
        ticket = f.file("cleo")
        f.leave("cleo")
    machine.skew = skew
    machine.passed += 600
    with Running(directory, machine) as f:
        assert f.off == -600
        assert Trouble.CLOCK in f.engine.troubles.open()
        f.sleep(f.engine.config.plan.absent_seconds + 1)
        assert f.ticket(ticket).open
        # The clock is right again. It is ahead by the time in which no server ran.
        machine.skew = 0
        f.sleep(1)
        assert f.off == 0
        assert f.engine.troubles.text() == ""
    with Running(directory, machine) as f:
        assert f.engine.troubles.text() == ""
        assert f.ticket(ticket).open


def test_a_long_downtime_is_believed_where_no_request_would_fail(directory: Path, machine: Machine) -> None:
    with Running(directory, machine) as f:
        f.join("anna", "bert", "cleo")
        f.sleep(1)
    machine.passed += 90 * DAY
    with Running(directory, machine) as f:
        assert f.off == 0
        assert f.engine.troubles.text() == ""


def test_the_time_is_recorded_now_and_then(tmp_path: Path, machine: Machine) -> None:
    directory = make_state(tmp_path / "state", tiny_config())
    with Running(directory, machine) as f:
        f.sleep(1)
        first = f.engine.store.last_time()
        assert first == machine.right
        f.sleep(100)
        assert f.engine.store.last_time() == first
        f.sleep(201)
        assert f.engine.store.last_time() == machine.right
