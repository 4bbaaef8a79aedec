"""`puf-client run`, `unlearn`, `status` and `withdraw` with torch, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from tests.running import make_state, running, tiny_config
from tests.tickets import applied

from puf_client.cli.main import main
from puf_client.data import DataContext, load_data
from puf_client.options import RunOptions
from puf_client.state.directory import StateDirectory
from puf_client.transport.grpc import GrpcTransport
from puf_client.worker.run import run_worker
from puf_common.config.exit_codes import Exit
from puf_common.errors import Forgotten, Mismatch
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.models.networks import build
from puf_common.receipts import signed_receipt
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli.operator_client import OperatorClient
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import restore
from puf_server.runtime.server import Server

CLIENTS = 3


class Clinic:
    """A server with the digits model, and clients that are started one by one."""

    def __init__(self, server: Server, state: Path) -> None:
        self.server = server
        self.state = state
        self.target = f"127.0.0.1:{server.port}"
        self._pool = ThreadPoolExecutor(8)
        self.runs: dict[int, Future[Exit]] = {}

    def flags(self, i: int) -> list[str]:
        where = ["--server", self.target, "--name", f"client-{i}", "--state", str(self.state)]
        return [*where, "--data", "digits", "--data-option", "per_client=20", "--shard", f"{i}/{CLIENTS}"]

    def identity(self, i: int) -> list[str]:
        return ["--server", self.target, "--name", f"client-{i}", "--state", str(self.state)]

    def run(self, *members: int, rejoin: bool = False) -> None:
        for i in members:
            options = RunOptions(
                server=self.target,
                name=f"client-{i}",
                state=self.state,
                data="digits",
                data_option={"per_client": "20"},
                shard=f"{i}/{CLIENTS}",
                rejoin=rejoin,
            )
            self.runs[i] = self.start(options)

    def start(self, options: RunOptions) -> Future[Exit]:
        return self._pool.submit(run_worker, options)

    def run_distiller(self) -> None:
        """A client with public data that uses only the images."""
        options = RunOptions(
            server=self.target,
            name="public",
            state=self.state,
            data="digits",
            data_option={"per_client": "40"},
            data_seed=7,
            distiller=True,
        )
        self.runs[-1] = self._pool.submit(run_worker, options)

    def wait_for(self, reached: Callable[[], bool], what: str = "it") -> None:
        never = threading.Event()
        for _ in range(1200):
            if reached():
                return
            never.wait(0.05)
        raise AssertionError(f"{what} never happened")

    def wait_for_rounds(self, number: int) -> None:
        self.wait_for(lambda: self.server.engine.state.number >= number, f"the commit of round {number}")

    def ids(self, i: int) -> list[str]:
        data = load_data("digits", DataContext(shard=i, shards=CLIENTS, options={"per_client": "20"}))
        return list(data.ids)

    def ticket(self, i: int) -> tk.Ticket:
        with GrpcTransport(self.target, f"client-{i}") as transport:
            return transport.list_my_tickets().tickets[0]

    def state_of(self, i: int) -> StateDirectory:
        return StateDirectory.of("f-test", f"client-{i}", self.state)

    def control(self) -> OperatorClient:
        return OperatorClient(f"127.0.0.1:{self.server.operator_port}")

    def end(self) -> None:
        """Stops the federation like `puf-server stop`: all clients leave."""
        with self.control() as control:
            control.stop()
        for run in self.runs.values():
            assert run.result(60) in (Exit.OK, Exit.FORGOTTEN)
        self._pool.shutdown()


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    # Receipts are written to the current directory.
    (tmp_path / "receipts").mkdir()
    monkeypatch.chdir(tmp_path / "receipts")
    model = build("digits-cnn", {}, 1)
    manifest = manifest_of(model)
    config = tiny_config(
        recipe={"batch_size": 10},
        plan={"rounds": 2, "min_clients": CLIENTS, "heartbeat_seconds": 0.2, "absent_seconds": 3.0},
        forgetting={"measure_seconds": 60.0, "max_recovery_rounds": 1},
    ).model_copy(update={"model": "digits-cnn"})
    make_state(tmp_path / "server", config, manifest, payload_of(model, manifest))
    with running(tmp_path / "server") as server:
        clinic = Clinic(server, tmp_path / "state")
        yield clinic
        clinic.end()


def test_a_whole_client_is_forgotten_while_its_worker_runs(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    assert main(["--unlearn", *clinic.flags(2), "--yes"]) == Exit.OK
    told = capsys.readouterr().out
    assert "request of client-2 was applied" in told
    assert "not a proof of erasure" in told
    assert clinic.runs[2].result(30) == Exit.FORGOTTEN
    ticket = clinic.ticket(2)
    assert ticket.state == tk.TICKET_STATE_COMPLETED
    assert {m.version for m in ticket.measurements} >= {ticket.version_before, ticket.version_unlearned}
    before, after = (m.forget for m in ticket.measurements[:2])
    assert before.samples == after.samples == 20
    assert after.loss_sum > before.loss_sum
    # The training losses of the others were known in time, so that both attacks were run on every model.
    assert all(m.HasField("yeom") and m.HasField("song") and m.HasField("holdout") for m in ticket.measurements)
    # The receipt is signed by the key that was pinned when the client joined.
    path = tmp_path / "receipts" / f"receipt-{ticket.id}.json"
    assert str(path.name) in told
    assert path.with_suffix(".html").exists()
    pinned = ["--state", str(clinic.state)]
    assert main(["verify", str(path), *pinned]) == Exit.OK
    shown = signed_receipt.read(path.read_bytes()).content.as_json()
    assert shown["measured_by_client"]["recovered"]["verdict"] is not None
    path.write_bytes(path.read_bytes().replace(b"client-2", b"client-1", 1))
    assert main(["verify", str(path), *pinned]) == Exit.FAILURE
    # A receipt can be fetched again.
    assert main(["receipt", ticket.id, *clinic.identity(2)]) == Exit.OK
    assert main(["verify", str(path), *pinned]) == Exit.OK
    assert main(["present", str(path), *clinic.identity(2)]) == Exit.OK
    assert "nothing to do" in capsys.readouterr().out
    # Both the client directory and the server store the request.
    clinic.run(2)
    with pytest.raises(Forgotten, match="readmit"):
        clinic.runs.pop(2).result(30)
    # The same request twice is one ticket.
    assert main(["unlearn", *clinic.flags(2), "--yes"]) == Exit.OK
    assert clinic.ticket(2).id == ticket.id


def test_a_server_with_another_key_is_refused(clinic: Clinic, capsys: pytest.CaptureFixture[str]) -> None:
    clinic.state_of(0).pin_server_key(bytes(32))
    clinic.run(0)
    with pytest.raises(Mismatch, match="the pinned key is"):
        clinic.runs.pop(0).result(30)
    assert main(["unlearn", *clinic.flags(0), "--yes"]) == Exit.REFUSED
    assert "the pinned key is" in capsys.readouterr().err
    assert "client-0" not in clinic.server.engine.state.members


def test_a_directory_that_cannot_hold_the_receipt_is_reported_first(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["unlearn", *clinic.flags(0), "--yes", "--receipt-dir", str(tmp_path / "file")]) == Exit.USAGE
    assert "--receipt-dir" in capsys.readouterr().err


def test_a_restored_backup_forgets_again(clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    backup(tmp_path / "server", tmp_path / "old.tar")
    assert main(["unlearn", *clinic.flags(2), "--yes"]) == Exit.OK
    ticket = clinic.ticket(2)
    assert clinic.runs.pop(2).result(30) == Exit.FORGOTTEN
    # The operator states that nothing was forgotten since the backup. The client presents its receipt.
    restore(tmp_path / "old.tar", tmp_path / "restored", waived=True)
    with running(tmp_path / "restored") as server:
        again = Clinic(server, clinic.state)
        again.run(0, 1)
        again.run(2)
        with pytest.raises(Forgotten, match="restored from an older backup"):
            again.runs.pop(2).result(30)
        assert server.engine.state.tickets[ticket.id].open
        # The same command again: the ticket is open, and the client takes part in one more round.
        capsys.readouterr()
        assert main(["unlearn", *again.flags(2), "--yes"]) == Exit.OK
        told = capsys.readouterr().out
        assert f"already filed as {ticket.id}" in told
        assert "request of client-2 was applied" in told
        assert again.ticket(2).id == ticket.id
        assert server.engine.state.members["client-2"].status == "forgotten"
        again.end()


def test_a_worker_of_a_restored_server_presents_the_receipt_of_its_samples(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wanted = tmp_path / "forget.txt"
    wanted.write_text("\n".join(clinic.ids(1)[:5]))
    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    backup(tmp_path / "server", tmp_path / "old.tar")
    assert main(["unlearn", *clinic.flags(1), "--forget", str(wanted), "--yes"]) == Exit.OK
    ticket = clinic.ticket(1)
    # The client directory shows the use of a sample without a network.
    capsys.readouterr()
    gone, kept = clinic.ids(1)[0], clinic.ids(1)[9]
    assert main(["data", "used", gone, kept, "nobody", *clinic.identity(1)[2:]]) == Exit.OK
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(
        f"{gone}: trained on in rounds 1 to 2, used to unlearn in round 3, excluded from training now"
    )
    assert told[1].startswith(f"{kept}: trained on in rounds 1 to ")
    assert "unlearn" not in told[1]
    assert told[2].startswith("nobody: never in an update from here")
    restore(tmp_path / "old.tar", tmp_path / "restored", waived=True)
    with running(tmp_path / "restored") as server:
        again = Clinic(server, clinic.state)
        again.run(0, 1, 2)
        again.wait_for_rounds(4)
        assert applied(server.engine.state.tickets[ticket.id]).round == 3
        again.end()


def test_a_worker_that_lost_its_exclusions_does_not_start(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wanted = tmp_path / "forget.txt"
    wanted.write_text("\n".join(clinic.ids(1)[:5]))
    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    assert main(["unlearn", *clinic.flags(1), "--forget", str(wanted), "--yes"]) == Exit.OK
    ticket = clinic.ticket(1)
    elsewhere = [*clinic.flags(1), "--state", str(tmp_path / "elsewhere")]
    assert main(["run", *elsewhere]) == Exit.REFUSED
    assert f"puf-client data exclude {ticket.id}" in capsys.readouterr().err
    short = tmp_path / "short.txt"
    short.write_text(clinic.ids(1)[0])
    assert main(["data", "exclude", ticket.id, *elsewhere, "--forget", str(short)]) == Exit.USAGE
    assert "is for 5 samples" in capsys.readouterr().err
    assert main(["data", "exclude", "t-none", *elsewhere, "--forget", str(wanted)]) == Exit.FAILURE
    assert main(["data", "exclude", ticket.id, *elsewhere, "--forget", str(wanted)]) == Exit.OK
    found = StateDirectory.of("f-test", "client-1", tmp_path / "elsewhere")
    assert found.excluded(clinic.ids(1)).tolist() == [True] * 5 + [False] * 15
    assert main(["status", *elsewhere[:4], "--state", str(tmp_path / "elsewhere")]) == Exit.OK


def test_without_a_worker_the_command_takes_part_itself(clinic: Clinic, capsys: pytest.CaptureFixture[str]) -> None:
    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    members = clinic.server.engine.state.members
    assert members["client-2"].last_round == 2
    # Another machine takes over the name and leaves: no worker of client-2 is alive.
    from puf_client.session.connect import connect
    from puf_client.session.settings import Offer

    connect(clinic.target, Offer(samples=20), name="client-2").close()
    assert main(["unlearn", *clinic.flags(2), "--mode", "special", "--flip", "server", "--yes"]) == Exit.OK
    told = capsys.readouterr().out
    assert "can compute this client's update exactly" in told
    assert "PUF-Special" in told
    assert clinic.state_of(2).forgotten is not None
    with pytest.raises(Exception, match="newer"):
        clinic.runs.pop(2).result(30)


def test_samples_are_forgotten_and_stay_out(clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wanted = tmp_path / "forget.txt"
    wanted.write_text("\n".join(clinic.ids(1)[:5]))
    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    assert (
        main(
            [
                "unlearn",
                *clinic.flags(1),
                "--forget",
                str(wanted),
                "--reference",
                "case 7",
                "--yes",
                "--received",
                "2026-01-02",
            ]
        )
        == Exit.OK
    )
    assert "request of client-1 for 5 samples was applied" in capsys.readouterr().out
    assert clinic.state_of(1).excluded(clinic.ids(1)).sum() == 5
    assert clinic.server.engine.state.members["client-1"].samples == 15
    assert clinic.ticket(1).request.reference == "case 7"
    received = datetime.fromisoformat("2026-01-02").timestamp()
    assert (clinic.ticket(1).request.received_at, clinic.ticket(1).deadline_at) == (received, received + 30 * 86400)
    # The same list is the same request. An overlapping list is refused.
    assert main(["unlearn", *clinic.flags(1), "--forget", str(wanted), "--yes"]) == Exit.OK
    assert "already filed" in capsys.readouterr().out
    wanted.write_text("\n".join(clinic.ids(1)[4:7]))
    assert main(["unlearn", *clinic.flags(1), "--forget", str(wanted), "--yes"]) == Exit.USAGE
    assert "already forgotten" in capsys.readouterr().err


def test_refusals_file_nothing(clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wanted = tmp_path / "forget.txt"
    wanted.write_text("nobody")
    for flags, code, says in (
        (["--forget", str(wanted), "--yes"], Exit.USAGE, "unknown: nobody"),
        (["--forget", str(tmp_path / "gone"), "--yes"], Exit.USAGE, "gone"),
        (["--yes"], Exit.FAILURE, "not in this federation"),
        (["--dry-run"], Exit.FAILURE, "not in this federation"),
    ):
        assert main(["unlearn", *clinic.flags(0), *flags]) == code
        assert says in capsys.readouterr().err
    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    assert main(["unlearn", *clinic.flags(0)]) == Exit.USAGE
    assert "--yes" in capsys.readouterr().err
    assert main(["unlearn", *clinic.flags(0), "--dry-run"]) == Exit.OK
    assert "nothing was filed" in capsys.readouterr().out
    # A dry run has the server's checks, too.
    assert main(["unlearn", *clinic.flags(0), "--dry-run", "--kappa", "99"]) == Exit.REFUSED
    assert "kappa must lie between" in capsys.readouterr().err
    wanted.write_text(clinic.ids(0)[0])
    assert main(["unlearn", *clinic.flags(0), "--forget", str(wanted), "--kappa", "99", "--yes"]) == Exit.REFUSED
    assert "kappa must lie between" in capsys.readouterr().err
    assert not any(known.ticket_id for known in clinic.state_of(0).exclusions())
    assert not clinic.server.engine.state.tickets


def test_a_pending_request_can_be_seen_and_withdrawn(
    clinic: Clinic, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from puf_client.options import UnlearnOptions
    from puf_client.unlearning.request import file, plan
    from puf_client.worker.trainer import prepare

    clinic.run(0, 1, 2)
    clinic.wait_for_rounds(2)
    with clinic.control() as control:
        control.pause()
    wanted = tmp_path / "forget.txt"
    wanted.write_text("\n".join(clinic.ids(0)[:3]))
    options = UnlearnOptions(
        data="digits", data_option={"per_client": "20"}, shard=f"0/{CLIENTS}", forget=wanted, name="client-0"
    )
    state = clinic.state_of(0)
    with GrpcTransport(clinic.target, "client-0") as transport:
        description = transport.describe()
        trainer = prepare(options, description)
        ticket = file(plan(options, description, state, trainer, []), state, transport)
    assert state.excluded(clinic.ids(0)).sum() == 3
    assert main(["status", *clinic.identity(0)]) == Exit.OK
    told = capsys.readouterr().out
    assert ticket.id in told
    assert "3 of 20 samples" in told
    assert main(["withdraw", *clinic.identity(0), "--yes"]) == Exit.OK
    assert not state.excluded(clinic.ids(0)).any()
    assert main(["withdraw", *clinic.identity(0), "--yes"]) == Exit.USAGE
    # After that a request for the same samples is a new one.
    with GrpcTransport(clinic.target, "client-0") as transport:
        again = plan(options, description, state, trainer, list(transport.list_my_tickets().tickets))
    assert again.ticket is None
    assert again.request.request_key != ticket.request.request_key
