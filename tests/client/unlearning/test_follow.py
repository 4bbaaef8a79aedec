"""Following a ticket without data: events are printed, known measurements are used, errors end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from puf_client.state.directory import StateDirectory
from puf_client.terminal import Display
from puf_client.transport.base import Transport
from puf_client.unlearning.follow import TicketFollower
from puf_common.errors import NotYours, PufError
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk


def ticket(state: tk.TicketState, *notes: str, alive: bool = True) -> tk.Ticket:
    found = tk.Ticket(id="t-1", client="anna", state=state, worker_alive=alive, membership=3)
    found.request.scope = tk.SCOPE_CLIENT
    for note in notes:
        found.history.add(state=state, note=note, at=0.0)
    return found


class Sending:
    """A server that sends these changes of the ticket, then raises the error if there is one."""

    def __init__(self, *changes: tk.Ticket, error: PufError | None = None) -> None:
        self._changes, self._error = changes, error

    def follow_ticket(self, ticket_id: str) -> Iterator[pb.FollowTicketReply]:
        for change in self._changes:
            yield pb.FollowTicketReply(ticket=change)
        if self._error is not None:
            raise self._error


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "anna")


def follower(server: Sending, state: StateDirectory) -> TicketFollower:
    return TicketFollower(cast(Transport, server), state, Display(), None)


def test_each_event_is_printed_once_and_the_end_is_returned(
    state: StateDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    done = ticket(tk.TICKET_STATE_COMPLETED, "filed", "round 7", "recovered")
    server = Sending(ticket(tk.TICKET_STATE_APPLIED, "filed", "round 7"), done)
    assert follower(server, state).follow(ticket(tk.TICKET_STATE_PENDING, "filed")) == done
    output = capsys.readouterr().out
    assert [output.count(note) for note in ("filed", "round 7", "recovered")] == [1, 1, 1]


def test_a_forgotten_client_is_marked_as_soon_as_the_request_is_applied(state: StateDirectory) -> None:
    server = Sending(error=NotYours("gone"))
    with pytest.raises(NotYours):
        follower(server, state).follow(ticket(tk.TICKET_STATE_APPLIED))
    assert state.forgotten is not None
    assert (state.forgotten["membership"], state.forgotten["ticket_id"]) == (3, "t-1")


def test_measurements_that_the_ticket_has_are_used(state: StateDirectory) -> None:
    done = ticket(tk.TICKET_STATE_COMPLETED)
    done.version_recovered = 8
    done.measurements.add(version=8, forget=tk.EvaluationSums(samples=4))
    following = follower(Sending(), state)
    following.follow(done)
    assert [(version, m.forget and m.forget.samples) for version, m in following.measurements.items()] == [(8, 4)]


def test_without_a_worker_and_without_data_the_request_waits(
    state: StateDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = ticket(tk.TICKET_STATE_PENDING, "filed", alive=False)
    server = Sending(waiting, ticket(tk.TICKET_STATE_FAILED, "filed", "too late"))
    follower(server, state).follow(waiting)
    assert capsys.readouterr().out.count("without --data this process cannot do its work") == 1
