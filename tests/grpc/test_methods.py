"""Methods other than PUF over gRPC: a real server, real workers, and the command of the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.databases import audit_entries
from tests.grpc.test_client import CLIENTS, Clinic
from tests.running import make_state, running, tiny_config
from tests.tickets import applied

from puf_client.cli.main import main
from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer
from puf_common.config.exit_codes import Exit
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.models.networks import build
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import server_optimizer
from puf_server.core.methods.layers import outputs
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState


@contextmanager
def clinic_that(
    tmp_path: Path, members: tuple[int, ...] = (0, 1, 2), *, plan: dict[str, Any] | None = None, **forgetting: Any
) -> Iterator[Clinic]:
    model = build("digits-cnn", {}, 1)
    manifest = manifest_of(model)
    config = tiny_config(
        recipe={"batch_size": 10},
        plan={
            "rounds": 2,
            "min_clients": CLIENTS,
            "heartbeat_seconds": 0.2,
            "absent_seconds": 3.0,
            **(plan or {}),
        },
        forgetting={"measure_seconds": 60.0, "max_recovery_rounds": 1, **forgetting},
    ).model_copy(update={"model": "digits-cnn"})
    make_state(tmp_path / "server", config, manifest, payload_of(model, manifest))
    with running(tmp_path / "server") as server:
        clinic = Clinic(server, tmp_path / "state")
        if forgetting.get("method") == "fukd":
            clinic.run_distiller()
        clinic.run(*members)
        try:
            if len(members) == CLIENTS:
                clinic.wait_for_rounds(2)
            yield clinic
        finally:
            clinic.end()


# The clients that send an update in each step: the two that stay, the target, or the distiller.
STEPS = [
    ("natural", {"rounds": "1"}, [0]),
    ("not", {}, [0]),
    ("retrain", {}, [2, 2]),
    ("federaser", {}, [0, 2]),
    ("pga", {"epochs": "1"}, [1]),
    ("mode", {"rounds": "2", "degrade_rounds": "1"}, [0, 2, 0, 3, 3]),
    ("fedau", {"epochs": "2"}, [1]),
    ("fukd", {"epochs": "1"}, [0, 1]),
    ("rapid", {}, [2, 2]),
    ("fedquit", {}, [1]),
    ("negmerge", {"runs": "2"}, [1]),
    ("fedosd", {"rounds": "2"}, [3, 3]),
    ("sifu", {}, [0]),
]


@pytest.mark.parametrize(("method", "options", "steps"), STEPS, ids=[method for method, *_ in STEPS])
def test_a_client_is_forgotten_by(
    method: str,
    options: dict[str, str],
    steps: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path, method=method, method_options=options) as clinic:
        kept_here = [len(list(clinic.state_of(i).path.glob("last-models/*"))) for i in (1, 2)]
        assert kept_here == ([2, 2] if method == "pga" else [0, 0])
        # Options of PUF are refused by name before a request is filed.
        assert main(["--unlearn", *clinic.flags(2), "--yes", "--kappa", "2"]) != Exit.OK
        assert "belong to PUF; leave them out" in capsys.readouterr().err
        assert main(["--unlearn", *clinic.flags(2), "--yes"]) == Exit.OK
        told = capsys.readouterr().out
        assert f"by {method}." in told
        assert clinic.runs[2].result(30) == Exit.FORGOTTEN
        ticket = clinic.ticket(2)
        assert (ticket.state, ticket.method) == (tk.TICKET_STATE_COMPLETED, method)
        assert {m.version for m in ticket.measurements} >= {ticket.version_before, ticket.version_unlearned}
        state = clinic.server.engine.state
        asked = [r for r in state.records.values() if r.kind is RoundKind.UNLEARN]
        assert [r.contributions for r in asked] == steps
        kept = {r.client for r in state.history.values()}
        assert kept == ({"client-0", "client-1"} if method in ("federaser", "fukd", "sifu") else set())
        assert ticket.deleted_records == {"federaser": 3, "fukd": 1, "sifu": 2}.get(method, 0)
        # The target's directory contains nothing either.
        assert not list(clinic.state_of(2).path.glob("last-models*"))
        if method == "fedau":
            head = outputs(clinic.server.engine.manifest, ("@head",))
            assert [r.nbytes_up for r in asked] == [head.nbytes(UPDATE)]


@pytest.mark.parametrize("optimizer", ["adam", "yogi"])
@pytest.mark.parametrize("mode", ["regular", "special"])
def test_a_client_is_forgotten_under_a_server_optimizer(
    optimizer: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = {"server_optimizer": optimizer, "server_lr": 0.02}
    with clinic_that(tmp_path, plan=plan, measure_seconds=0.0) as clinic:
        engine = clinic.server.engine
        trained = server_optimizer.moments(engine.state)
        assert trained is not None
        assert main(["--unlearn", *clinic.flags(2), "--yes", "--mode", mode, "--kappa", "1"]) == Exit.OK
        ticket = clinic.ticket(2)
        assert (ticket.state, ticket.method) == (tk.TICKET_STATE_COMPLETED, f"puf-{mode}")
        # The unlearning round is a plain step. It deletes the moments, and recovery begins new ones.
        [asked] = [r for r in engine.state.records.values() if r.kind is RoundKind.UNLEARN]
        assert asked.contributions == (3 if mode == "regular" else 1)
        left = server_optimizer.moments(engine.state)
        assert left is not None
        assert {record.digest for record in left}.isdisjoint({record.digest for record in trained})
        assert [e.event for e in audit_entries(engine.store)].count("optimizer.reset") == 1


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedau", {"epochs": "2"}),
        ("mode", {"rounds": "1", "degrade_rounds": "1"}),
        ("fedosd", {"rounds": "1"}),
        ("negmerge", {"runs": "2"}),
    ],
)
def test_samples_are_forgotten_beside_the_rest_by(
    method: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path, method=method, method_options=options) as clinic:
        (tmp_path / "ids.txt").write_text("\n".join(clinic.ids(2)[:5]))
        assert main(["--unlearn", *clinic.flags(2), "--yes", "--forget", "ids.txt"]) == Exit.OK
        ticket = clinic.ticket(2)
        assert (ticket.state, ticket.method) == (tk.TICKET_STATE_COMPLETED, method)
        # The client stays with the rest of its samples.
        assert clinic.server.engine.state.members["client-2"].samples == 15


def test_the_operator_has_a_client_that_left_forgotten_by_the_fallback(tmp_path: Path) -> None:
    with clinic_that(tmp_path, members=(0, 1), fallback="retrain", measure_seconds=0.0) as clinic:
        engine = clinic.server.engine
        # A user's loop that takes part in training and then leaves.
        with connect(clinic.target, Offer(samples=20), name="client-2") as session:
            while engine.state.number < 2:
                work = session.step(1.0)
                if isinstance(work, Assignment):
                    work.submit(work.weights)
        with clinic.control() as control:
            ticket = control.forget("client-2").ticket
        assert ticket.fallback == "absent"
        clinic.wait_for(lambda: not engine.state.tickets[ticket.id].open)
        done = engine.state.tickets[ticket.id]
        assert (applied(done).method, done.state) == ("retrain (fallback: absent)", TicketState.COMPLETED)
        assert [r.contributions for r in engine.state.records.values() if r.kind is RoundKind.UNLEARN] == [2, 2]
