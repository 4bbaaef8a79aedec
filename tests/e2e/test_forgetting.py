"""Whole clients ask to be forgotten with their command: every mode, both sides of the flip, two at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.conftest import Reference
from tests.e2e.federation import SECONDS, Federation, command

from puf_common.config.exit_codes import Exit
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import wait_until

pytestmark = pytest.mark.e2e


def test_regular_while_the_worker_lives(idle: Federation, trained: Path, reference: Reference, tmp_path: Path) -> None:
    assert (trained / "model").read_bytes() == reference([])
    idle.fleet(without=[3], wait=False)
    worker = idle.run(3)
    idle.joined(range(4))
    leaving = idle.unlearn(3)
    assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(20)
    # The worker took part in its last round and was printed to leave.
    assert worker.wait(SECONDS) == Exit.FORGOTTEN
    printed = leaving.log.read_text()
    assert "request of client-3 was applied in round 3 by PUF-Regular" in printed
    assert "not a proof of erasure" in printed
    ticket = idle.ticket(3)
    assert ticket.state == tk.TICKET_STATE_COMPLETED
    assert (ticket.method, ticket.applied_round, ticket.attempts) == ("puf-regular", 3, 1)
    assert ticket.scale == -2 * 80 / 20
    measured = {m.version: m.forget for m in ticket.measurements}
    before, after = measured[ticket.version_before], measured[ticket.version_unlearned]
    assert before.samples == after.samples == 20
    assert after.loss_sum > before.loss_sum
    last = idle.round(3)
    assert (last.kind, last.expected, last.received) == ("unlearn", 4, 4)
    # Later models were computed without it, with the same bits as in this process.
    for number in range(4, 4 + ticket.recovery_rounds):
        assert (idle.round(number).kind, idle.round(number).received) == ("recover", 3)
    assert idle.payload() == reference([3])
    assert idle.member(3).status == "forgotten"

    # Neither the client's state nor the server's admits it again.
    for state in (idle.clients, tmp_path / "elsewhere"):
        again = command(idle.run_command(3, "--state", str(state)))
        assert again.code == Exit.FORGOTTEN
        (line,) = again.errors
        assert "forgotten" in line
        assert "Traceback" not in again.err
    assert idle.member(3).status == "forgotten"


def test_special(idle: Federation, reference: Reference) -> None:
    idle.fleet()
    leaving = idle.unlearn(0, "--mode", "special")
    assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(20)
    assert "can compute this client's update exactly" in leaving.log.read_text()
    ticket = idle.ticket(0)
    assert (ticket.state, ticket.method) == (tk.TICKET_STATE_COMPLETED, "puf-special")
    # Only the target trained; its scale is kappa alone.
    assert (idle.round(3).kind, idle.round(3).expected, idle.round(3).received) == ("unlearn", 1, 1)
    assert ticket.scale == -2.0
    assert idle.payload() == reference([0], "special")


def test_two_at_once_share_one_round(idle: Federation, reference: Reference) -> None:
    fleet = idle.fleet()
    control = idle.server.control
    control.pause()
    leaving = [idle.unlearn(1), idle.unlearn(2)]
    wait_until(lambda: len(control.tickets()) == 2, SECONDS, idle.server, fleet, *leaving)
    assert {t.state for t in control.tickets()} == {tk.TICKET_STATE_PENDING}
    control.resume()
    assert [p.wait(SECONDS) for p in leaving] == [Exit.OK, Exit.OK]
    tickets = [idle.ticket(1), idle.ticket(2)]
    assert [t.applied_round for t in tickets] == [3, 3]
    assert {t.state for t in tickets} == {tk.TICKET_STATE_COMPLETED}
    assert sorted(idle.round(3).tickets) == sorted(t.id for t in tickets)
    assert (idle.round(3).expected, idle.round(3).received) == (4, 4)
    assert idle.payload() == reference([1, 2])


def test_flipping_on_the_server_gives_the_same_bits(idle: Federation, reference: Reference) -> None:
    """The reference and the test of Regular flip on the client."""
    idle.fleet()
    leaving = idle.unlearn(3, "--flip", "server")
    assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(20)
    assert "on the server" in leaving.log.read_text()
    assert idle.ticket(3).request.flip == tk.FLIP_SERVER
    assert idle.payload() == reference([3])


def test_without_a_worker_the_command_stands_in(idle: Federation, reference: Reference) -> None:
    idle.fleet(without=[2])
    leaving = idle.unlearn(2)
    assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(20)
    printed = leaving.log.read_text()
    assert "this process does the unlearning round" in printed
    assert "request of client-2 was applied" in printed
    assert idle.ticket(2).state == tk.TICKET_STATE_COMPLETED
    assert not idle.alive(2)
    assert idle.payload() == reference([2])
