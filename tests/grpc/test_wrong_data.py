"""A request never unlearns other data than it names: false receipts that were once possible, and what is refused now."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.grpc.test_client import CLIENTS, Clinic
from tests.grpc.test_methods import clinic_that
from torch.utils.data import ConcatDataset, Subset

from puf_client.cli.main import main
from puf_client.data import ClientData, DataContext, load_data
from puf_client.options import RunOptions
from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.samples import LoopSupport
from puf_client.session.session import Session
from puf_client.session.settings import Joining, Offer, Running
from puf_client.state.usage import SampleUsage, Used, digest_of
from puf_client.transport.base import ENDED
from puf_client.transport.grpc import GrpcTransport
from puf_common.config.exit_codes import Exit
from puf_common.errors import Mismatch, PufError, Unavailable, UsageError
from puf_common.receipts import signed_receipt
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

SAMPLES = 20


@contextmanager
def naive_loop(clinic: Clinic) -> Iterator[list[tuple[str, str]]]:
    """A user's loop that looks neither at the part nor at the routine. Yields what it was asked to train."""
    asked: list[tuple[str, str]] = []
    session = connect(clinic.target, Offer(samples=SAMPLES), name="client-2", running=Running(wait_seconds=1.0))

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
        connect(clinic.target, Offer(samples=SAMPLES), name="client-1").close()
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
            connect(clinic.target, Offer(samples=SAMPLES), name="client-2")
        assert clinic.server.engine.state.members["client-2"].samples == 15


# -- the command compares its data with the record of training ---------------------------------------------------------


def unlearn(clinic: Clinic, shard: int, *more: str) -> int:
    return main(["--unlearn", *clinic.flags(shard), *more])


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (15, "5 of the 20 samples that this client trained on are not in the data"),
        (25, "5 samples of the data were never"),
    ],
)
def test_missing_and_additional_samples_are_refused(
    clinic: Clinic, samples: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", f"{__name__}:{'fewer' if samples < SAMPLES else 'more'}"]
    (clinic.state.parent / "ids.txt").write_text(clinic.ids(1)[0])
    for more in (["--yes"], ["--dry-run"], ["--yes", "--same-data"], ["--yes", "--forget", "ids.txt"]):
        assert unlearn(clinic, 1, *data, *more) == Exit.REFUSED
        assert says in capsys.readouterr().err
    assert not clinic.server.engine.state.tickets


def fewer(context: DataContext) -> ClientData:
    """The data of `digits` without its last five samples."""
    whole = load_data("digits", context)
    kept = range(whole.samples - 5)
    return ClientData(Subset(whole.train, kept), holdout=whole.holdout, ids=whole.ids[:-5])


def more(context: DataContext) -> ClientData:
    """The data of `digits` with five further samples."""
    whole = load_data("digits", context)
    train: ConcatDataset[Any] = ConcatDataset([whole.train, Subset(whole.train, range(5))])
    return ClientData(train, holdout=whole.holdout, ids=[*whole.ids, *(f"new-{i}" for i in range(5))])


def test_without_a_record_only_a_confirmed_request_is_filed(
    clinic: Clinic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ["--state", str(tmp_path / "elsewhere")]
    # The number is compared with the roster.
    assert unlearn(clinic, 1, *elsewhere, "--data", f"{__name__}:fewer", "--yes", "--same-data") == Exit.REFUSED
    assert "announced 20 samples when it joined, the data has 15" in capsys.readouterr().err
    assert unlearn(clinic, 1, *elsewhere, "--yes") == Exit.REFUSED
    assert "--same-data" in capsys.readouterr().err
    assert unlearn(clinic, 1, *elsewhere, "--dry-run") == Exit.OK
    assert "--same-data" in capsys.readouterr().out
    assert not clinic.server.engine.state.tickets
    # The confirmation is the record that the receipt is compared with.
    assert unlearn(clinic, 1, *elsewhere, "--yes", "--same-data") == Exit.OK
    ticket = clinic.ticket(1)
    assert ticket.unlearned_samples == SAMPLES
    # The worker has its own directory and another salt: the digest is that of the worker.
    assert main(["verify", f"receipt-{ticket.id}.json", "--state", str(clinic.state)]) == Exit.OK
    assert "count and digest agree" in capsys.readouterr().out


def test_a_worker_with_other_data_declines_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path, measure_seconds=0.0) as clinic:
        options = RunOptions(
            server=clinic.target,
            name="client-1",
            state=clinic.state,
            data="digits",
            data_option={"per_client": "20"},
            shard=f"0/{CLIENTS}",
        )
        replaced, clinic.runs[1] = clinic.runs[1], clinic.start(options)
        with pytest.raises(PufError, match="newer"):
            replaced.result(30)
        ticket = ended(clinic, tk.UnlearningRequest(request_key="r1", scope=tk.SCOPE_CLIENT), shard=1)
        assert ticket.state == tk.TICKET_STATE_FAILED
        note = ticket.history[-1].note
        assert "20 of the 20 samples" in note
        assert "the shard of another client" in note
        # Neither ids nor paths leave the client.
        assert "digits/" not in note
        assert str(tmp_path) not in note


# -- loops that hand their ids to the session --------------------------------------------------------------------------


@contextmanager
def loop_with_ids(clinic: Clinic) -> Iterator[Session]:
    session = connect(
        clinic.target,
        Offer(data=clinic.ids(2), parts=("main", "retain", "forget")),
        name="client-2",
        state=clinic.state,
        running=Running(wait_seconds=1.0),
    )

    def work() -> None:
        with suppress(Unavailable):
            for task in session:
                if isinstance(task, Assignment):
                    step = {n: a + np.asarray(0.001, a.dtype) for n, a in task.weights.items()}
                    task.submit(step, indices=task.indices)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield session
    finally:
        session.close()
        thread.join(30)


def test_samples_of_a_loop_are_forgotten_and_stay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.txt").write_text("")
    with clinic_that(tmp_path, members=(0, 1)) as clinic:
        ids = clinic.ids(2)
        (tmp_path / "ids.txt").write_text("\n".join(ids[:5]))
        with loop_with_ids(clinic) as session:
            clinic.wait_for_rounds(2)
            assert unlearn(clinic, 2, "--yes", "--forget", "ids.txt") == Exit.OK
            clinic.wait_for(lambda: session.samples == 15)
        ticket = clinic.ticket(2)
        usage = SampleUsage(clinic.state_of(2))
        applied = (ticket.applied_round, ticket.applied_round)
        assert (usage.look_up(ids[0]) or Used()).unlearned == applied
        assert (usage.look_up(ids[5]) or Used()).unlearned is None
        # Number and digest on ticket and receipt are those of the record.
        expected = digest_of(map(clinic.state_of(2).salted, ids[:5]))
        assert (ticket.unlearned_samples, ticket.unlearned_digest.hex()) == (5, expected)
        stated = signed_receipt.read(Path(f"receipt-{ticket.id}.json").read_bytes()).content.unlearned_samples
        assert stated is not None
        assert (stated.samples, stated.digest) == (5, expected)
        assert "cannot check" in stated.by
        capsys.readouterr()
        check = ["verify", f"receipt-{ticket.id}.json", "--state", str(clinic.state)]
        assert main(check) == Exit.OK
        assert "the 5 unlearned samples are those of the record" in capsys.readouterr().out
        # A record of other samples is found.
        path = next((clinic.state_of(2).path / "requests").glob("*.json"))
        path.write_text(path.read_text().replace(clinic.state_of(2).salted(ids[0]), "0" * 64))
        assert main(check) == Exit.FAILURE
        assert "not the samples that this client had to unlearn" in capsys.readouterr().out


def test_a_loop_that_restarts_leaves_forgotten_samples_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path) as clinic:
        (tmp_path / "ids.txt").write_text("\n".join(clinic.ids(2)[:5]))
        assert unlearn(clinic, 2, "--yes", "--forget", "ids.txt") == Exit.OK
        with loop_with_ids(clinic) as session:
            assert session.samples == 15
            with pytest.raises(PufError, match="newer"):
                clinic.runs.pop(2).result(30)
        # A directory that does not know the exclusions is refused before joining.
        with pytest.raises(Mismatch, match="would train on them again"):
            connect(clinic.target, Offer(data=clinic.ids(2)), name="client-2", state=tmp_path / "elsewhere")
        # Other ids for the same samples do not bring them back unnoticed.
        renamed = [f"renamed/{i}" for i in clinic.ids(2)]
        with pytest.raises(Mismatch, match="--added-samples 5"):
            connect(clinic.target, Offer(data=renamed), name="client-2", state=clinic.state)
        connect(
            clinic.target, Offer(data=renamed), name="client-2", state=clinic.state, joining=Joining(added_samples=5)
        ).close()
        assert clinic.server.engine.state.members["client-2"].samples == SAMPLES


def test_a_loop_without_ids_cannot_claim_parts() -> None:
    with pytest.raises(UsageError, match="set data"):
        LoopSupport(lambda: 1, parts=frozenset({"main", "forget"}))
    with pytest.raises(UsageError, match="no part 'rest'"):
        LoopSupport(lambda: 1, parts=frozenset({"rest"}))


def test_samples_are_listed_with_their_use(clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ids = clinic.ids(2)
    (tmp_path / "ids.txt").write_text("\n".join(ids[:5]))
    assert unlearn(clinic, 2, "--yes", "--forget", "ids.txt") == Exit.OK
    capsys.readouterr()
    assert main(["data", "list", *clinic.flags(2), "--json"]) == Exit.OK
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == ids
    assert [row["status"] for row in rows] == ["forgotten"] * 5 + ["in training"] * 15
    assert rows[0]["trained"] == [1, 2]
    assert main(["data", "list", *clinic.flags(2)[6:]]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines] == ["id", *ids]
