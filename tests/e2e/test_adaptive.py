"""Adaptive strength with real processes: clients leave settings in which the paper's single round does almost nothing."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.federation import Federation, opened
from tests.e2e.pasting import Terminal, commands

from puf_client.data import load_data
from puf_common.config.exit_codes import Exit
from puf_common.receipts import signed_receipt
from puf_common.receipts.evidence import Verdict
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.federations.processes import wait_until
from puf_lab.spec.federation import DataSpec, FederationSpec
from puf_server.core.config import Forgetting, Recipe

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SECONDS = 300.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "segmentation"


def noisy_digits(clients: int, rounds: int, **options: float) -> FederationSpec:
    return FederationSpec(
        title="adaptive",
        data=DataSpec(clients=clients, options={"noise": 1.0, "per_client": 60, **options}),
        recipe=Recipe(lr=0.1, lr_decay=0.998, batch_size=10, seed=1),
        rounds=rounds,
        forgetting=Forgetting(),
    )


def trained(federation: Federation) -> None:
    federation.fleet()
    wait_until(lambda: federation.server.control.status().rounds_trained > 0, SECONDS, federation.server)
    federation.idle()


def forgotten(federation: Federation, shard: int) -> tk.Ticket:
    """Checks what every request with adaptive strength must end with."""
    ticket = federation.ticket(shard)
    assert (ticket.state, ticket.method) == (tk.TICKET_STATE_COMPLETED, "puf-auto")
    assert ticket.request.strength.auto
    assert ticket.recovered
    assert ticket.recovery_end in ("equal", "plateau")
    assert ticket.verdict in {v.value for v in Verdict} - {Verdict.STILL_KNOWN.value}
    assert 1 <= len(ticket.doses) <= 8
    (file,) = federation.directory.glob(f"receipt-{ticket.id}.json")
    content = signed_receipt.read(file.read_bytes()).content
    assert content.measured_by_client.verdict == ticket.verdict
    assert content.method.strength == "auto"
    assert content.method.doses is not None
    assert len(content.method.doses) == len(ticket.doses)
    left = content.measured_by_client.fraction_left
    assert left is not None
    assert left.value < 0.5
    assert left.error > 0
    return ticket


# The last one is the default of docker-compose.yml.
@pytest.mark.parametrize(
    ("clients", "rounds", "options"), [(5, 20, {}), (6, 30, {}), (4, 20, {"holdout": 0.4})], ids=["5", "6", "compose"]
)
def test_a_client_is_forgotten_where_one_round_is_not_enough(
    clients: int, rounds: int, options: dict[str, float], tmp_path: Path
) -> None:
    setting = noisy_digits(clients, rounds, **options)
    with opened(tmp_path / "federation", setting) as federation:
        trained(federation)
        leaving = federation.unlearn(1)
        assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(30)
        ticket = forgotten(federation, 1)
        printed = leaving.log.read_text()
        assert "of PUF with adaptive strength" in printed
        assert f"Verdict: {ticket.verdict}" in printed
        assert "is left (standard error" in printed
        payload = federation.payload()
    # The same federation in this process has the same bits.
    with InProcessFederation(setting, tmp_path / "local") as local:
        local.train()
        [other] = local.forget([1])
        assert other.applied is not None
        assert [d.kappa for d in other.applied.doses] == [d.kappa for d in ticket.doses]
        assert bytes(local.payload()) == payload


def test_two_clients_leave_at_once(tmp_path: Path) -> None:
    with opened(tmp_path / "federation", noisy_digits(6, 15)) as federation:
        trained(federation)
        control = federation.server.control
        control.pause()
        leaving = [federation.unlearn(1), federation.unlearn(4)]
        wait_until(lambda: len(control.tickets()) == 2, SECONDS, federation.server, *leaving)
        control.resume()
        assert [p.wait(SECONDS) for p in leaving] == [Exit.OK, Exit.OK]
        first, second = forgotten(federation, 1), forgotten(federation, 4)
        assert [d.round for d in first.doses] == [d.round for d in second.doses]
        # They share the limit on the sum of kappa.
        assert max(d.kappa for d in (*first.doses, *second.doses)) <= 4.0


def test_half_of_a_clients_samples(tmp_path: Path) -> None:
    setting = noisy_digits(6, 15)
    ids = load_data("digits", setting.context(2)).ids
    wanted = tmp_path / "forget.txt"
    wanted.write_text("\n".join(ids[::2]) + "\n")
    with opened(tmp_path / "federation", setting) as federation:
        trained(federation)
        leaving = federation.unlearn(2, "--forget", str(wanted))
        assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(30)
        ticket = forgotten(federation, 2)
        assert ticket.unlearned_samples == len(ids[::2])
        assert max(d.kappa for d in ticket.doses) <= 2.0
        assert federation.member(2).status == "active"
        assert federation.member(2).samples == len(ids) - len(ids[::2])


def test_the_audit_log_names_every_dose(tmp_path: Path) -> None:
    with opened(tmp_path / "federation", noisy_digits(5, 4)) as federation:
        trained(federation)
        leaving = federation.unlearn(0)
        assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(30)
        ticket = federation.ticket(0)
        notes = [step.note for step in ticket.history if step.state == tk.TICKET_STATE_SCHEDULED]
        for number, dose in enumerate(ticket.doses, 1):
            assert any(f"round {dose.round}: dose {number} with kappa" in note for note in notes)
        assert json.loads((federation.directory / f"receipt-{ticket.id}.json").read_text())


def test_a_clinic_of_the_segmentation_example(tmp_path: Path) -> None:
    """A task without classes: the gap uses the task's own confidences."""
    shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__", "federation"))
    # Each clinic has its own scanner, so it compares with its own patients: fifty of them are held out, with 200 images.
    code = "--data blobs:load --model blobs:build_model --task blobs:FindBlobs"
    with ExitStack() as stack:
        terminal = Terminal(tmp_path / "example", stack)
        init = next(c for c in commands((EXAMPLE / "README.md").read_text()) if c.startswith("puf-server init"))
        done = terminal.paste(init)
        assert done is not None
        assert done.code == Exit.OK, done.err
        terminal.paste("puf-server serve --state federation --insecure")
        for shard in range(3):
            terminal.paste(f"puf-client run --name clinic-{shard} --shard {shard}/3 {code} --data-option patients=200")
        terminal.wait_for(fed.PHASE_IDLE)
        done = terminal.paste(
            f"puf-client --unlearn --yes --name clinic-1 --shard 1/3 {code} --data-option patients=200"
        )
        assert done is not None
        assert done.code == Exit.OK, done.out + done.err
        (ticket,) = terminal.control.tickets()
        assert (ticket.state, ticket.method) == (tk.TICKET_STATE_COMPLETED, "puf-auto")
        assert ticket.recovered
        assert ticket.verdict != Verdict.STILL_KNOWN.value, done.out
        assert f"Verdict: {ticket.verdict}" in done.out
