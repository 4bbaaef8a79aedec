"""A real server process whose system clock jumps by forty days."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.grpc.raw import Raw, update_bytes
from tests.running import make_state, tiny_config

from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import ServerProcess, wait_until

pytestmark = pytest.mark.e2e

DAYS = 40 * 86400


class Federation:
    """A server with two clients that have trained, and a file that moves its clock."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        config = tiny_config(
            plan={"rounds": 1, "min_clients": 2, "absent_seconds": 3600.0},
            forgetting={"blind_recovery_rounds": 0},
        )
        self.skew = root / "skew"
        self.jump(0)
        env = {"PUF_TEST_FAILPOINTS": "yes", "PUF_TEST_CLOCK": str(self.skew)}
        self.server = stack.enter_context(ServerProcess(make_state(root / "state", config), root / "log", env=env))
        self.control = stack.enter_context(self.server.control)
        self.anna, self.bert = (stack.enter_context(Raw(self.server.port, name)) for name in ("anna", "bert"))
        for client in (self.anna, self.bert):
            client.join()
        for client in (self.anna, self.bert):
            client.submit(client.wait().train, update_bytes(0.1))
        wait_until(lambda: self.control.status().position.model_version == 1, 20, self.server)

    def jump(self, seconds: int) -> None:
        """Sets how wrong the clock is. A rename: the server reads the file at any moment."""
        new = self.skew.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.skew)

    def ticket(self) -> tk.Ticket:
        tickets: list[tk.Ticket] = self.control.tickets()
        return tickets[0]


@pytest.fixture
def f(tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as stack:
        yield Federation(tmp_path, stack)


@pytest.mark.parametrize("seconds", [DAYS, -DAYS])
def test_a_jump_is_shown_and_a_request_is_served_as_if_nothing_had_happened(f: Federation, seconds: int) -> None:
    f.anna.file()
    work = {client: client.wait().train for client in (f.anna, f.bert)}
    assert f.ticket().state == tk.TICKET_STATE_SCHEDULED
    f.jump(seconds)
    wait_until(lambda: "the system clock is" in f.control.status().trouble, 20, f.server)
    status = f.control.status()
    assert f"{seconds / 86400:+.1f} days" in status.trouble
    assert (status.clients_alive, status.tickets_failed, status.tickets_overdue) == (2, 0, 0)
    for client, asked in work.items():
        client.submit(asked, update_bytes(0.1 * asked.scale))
    wait_until(lambda: f.ticket().state == tk.TICKET_STATE_COMPLETED, 20, f.server)
    f.control.extend(1)
    # One client is left of the two that a training round needs.
    assert f.bert.wait(0).WhichOneof("work") is None
    assert "waiting for 1 more client" in f.control.status().waiting_for
    f.jump(0)
    wait_until(lambda: f.control.status().trouble == "", 20, f.server)


def test_the_operator_accepts_the_clock(f: Federation) -> None:
    f.jump(DAYS)
    wait_until(lambda: "the system clock is" in f.control.status().trouble, 20, f.server)
    f.control.resume()
    assert f.control.status().trouble == ""
    assert f.control.status().clients_alive == 2
    # The request counts from the accepted time.
    ticket = f.anna.file().ticket
    assert ticket.deadline_at > time.time() + DAYS + 29 * 86400
