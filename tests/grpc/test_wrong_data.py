"""A request never unlearns other data than it names: false receipts that were once possible, and what is refused now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.grpc.test_client import CLIENTS, Clinic
from tests.grpc.test_methods import clinic_that

from puf_client.cli.main import main
from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.transport.base import ENDED
from puf_client.transport.grpc import GrpcTransport
from puf_common.config.exit_codes import Exit
from puf_common.errors import PufError, Unavailable
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

SAMPLES = 20


@contextmanager
def naive_loop(clinic: Clinic, shard: int = 2, **more: Any) -> Iterator[list[tuple[str, str]]]:
    """A user's loop that looks neither at the part nor at the routine. Yields what it was asked to train."""
    asked: list[tuple[str, str]] = []
    session = connect(clinic.target, name=f"client-{shard}", wait_seconds=1.0, **({"samples": SAMPLES} | more))

    def work() -> None:
        with suppress(Unavailable):
            for task in session:
                if isinstance(task, Assignment):
                    asked.append((task.part, task.routine))
                    task.submit({n: a + np.asarray(0.001, a.dtype) for n, a in task.weights.items()})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        session.close()
        thread.join(30)


def ended(clinic: Clinic, request: tk.UnlearningRequest, shard: int = 2) -> tk.Ticket:
    """Files a request as the command does, and returns its ticket when it has ended."""
    with GrpcTransport(clinic.target, f"client-{shard}") as transport:
        ticket = transport.file_unlearning(pb.FileUnlearningRequest(request=request)).ticket
        for reply in transport.follow_ticket(ticket.id):
            ticket = reply.ticket
    assert ticket.state in ENDED
    return ticket


@contextmanager
def with_loop(tmp_path: Path, **forgetting: Any) -> Iterator[tuple[Clinic, list[tuple[str, str]]]]:
    with (
        clinic_that(tmp_path, members=(0, 1), measure_seconds=0.0, **forgetting) as clinic,
        naive_loop(clinic) as asked,
    ):
        clinic.wait_for_rounds(2)
        yield clinic, asked


# -- the three false receipts ------------------------------------------------------------------------------------------


def test_a_loop_that_trains_on_all_of_its_data_cannot_forget_single_samples(tmp_path: Path) -> None:
    with with_loop(tmp_path) as (clinic, asked):
        wanted = tk.UnlearningRequest(
            request_key="r1", scope=tk.SCOPE_SAMPLES, forget_samples=5, retain_samples=SAMPLES - 5
        )
        ticket = ended(clinic, wanted)
        assert ticket.state == tk.TICKET_STATE_FAILED
        assert "whole client" in ticket.history[-1].note
        assert set(asked) == {("main", "train")}
        assert not [r for r in clinic.server.engine.state.records.values() if r.kind == "unlearn"]


def test_a_loop_that_descends_is_not_asked_to_ascend(tmp_path: Path) -> None:
    with with_loop(tmp_path, method="pga", method_options={"epochs": "1"}) as (clinic, asked):
        ticket = ended(clinic, tk.UnlearningRequest(request_key="r1", scope=tk.SCOPE_CLIENT))
        assert ticket.state == tk.TICKET_STATE_FAILED
        assert "ascent" in ticket.history[-1].note
        assert set(asked) == {("main", "train")}


def test_the_command_does_not_negate_the_shard_of_another_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path) as clinic:
        # Another process takes over the name and leaves: no worker of client-1 is alive.
        connect(clinic.target, name="client-1", samples=SAMPLES).close()
        with pytest.raises(PufError, match="newer"):
            clinic.runs.pop(1).result(30)
        other = [*clinic.flags(1), "--shard", f"0/{CLIENTS}"]
        for more in (["--yes"], ["--dry-run"]):
            assert main(["--unlearn", *other, *more]) == Exit.REFUSED
            told = capsys.readouterr().err
            assert "20 samples" in told
            assert "--shard" in told
        assert not clinic.server.engine.state.tickets
        # Its own shard is accepted.
        assert main(["--unlearn", *clinic.flags(1), "--yes"]) == Exit.OK


def test_forgotten_samples_do_not_come_back_with_a_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path) as clinic:
        (tmp_path / "ids.txt").write_text("\n".join(clinic.ids(2)[:5]))
        assert main(["--unlearn", *clinic.flags(2), "--yes", "--forget", "ids.txt"]) == Exit.OK
        with pytest.raises(PufError, match=r"announces 20 samples.*15"):
            connect(clinic.target, name="client-2", samples=SAMPLES)
        assert clinic.server.engine.state.members["client-2"].samples == 15
