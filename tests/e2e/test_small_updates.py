"""8-bit updates and steps over real connections: a killed client and a killed server change no bit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS, SETTING, opened

from puf_lab.federations.in_process import InProcessFederation
from puf_lab.federations.processes import ServerProcess, wait_until
from puf_lab.spec.federation import DataSpec

pytestmark = pytest.mark.e2e

ROUNDS = 5
# Two processes: on a busy machine every further one takes half a minute to start.
CLIENTS = 2


def test_kills_change_no_bit_of_a_federation_with_8_bit_updates_and_steps(tmp_path: Path) -> None:
    data = DataSpec(clients=CLIENTS, options={"per_client": 20})
    spec = SETTING.model_copy(
        update={"rounds": ROUNDS, "data": data, "plan": {"update_encoding": "i8", "step_encoding": "i8"}}
    )
    with InProcessFederation(spec, tmp_path / "local") as local:
        local.train()
        wanted = bytes(local.payload())
    init = ["--plan-rounds", str(ROUNDS), "--plan-update-encoding", "i8", "--plan-step-encoding", "i8"]
    # No round may close without the killed client, however long its new process takes to start.
    init += ["--plan-absent-seconds", "600"]
    with opened(tmp_path / "federation", spec, init=init) as federation:
        clients = [federation.start(f"client-{i}", federation.run_command(i)) for i in range(CLIENTS)]

        def trained(rounds: int) -> None:
            wait_until(lambda: federation.server.control.status().rounds_trained >= rounds, SECONDS, federation.server)

        federation.joined(range(CLIENTS))
        trained(2)
        clients[1].send(signal.SIGKILL)
        clients[1].wait(SECONDS)
        federation.start("client-1-again", federation.run_command(1))
        trained(3)
        address = federation.server.address
        federation.server.send(signal.SIGKILL)
        federation.server.wait(SECONDS)
        server = ServerProcess(
            federation.directory / "server", federation.directory / "logs" / "again.log", listen=address
        )
        federation.server = federation.stack.enter_context(server)
        federation.idle(ROUNDS)
        assert [federation.round(number).received for number in range(1, ROUNDS + 1)] == [CLIENTS] * ROUNDS
        assert federation.payload() == wanted
        # After the first round every process that was not started anew fetched steps.
        whole, taken = len(wanted), [federation.round(number).bytes_down for number in range(1, ROUNDS + 1)]
        assert taken[1] < 0.3 * CLIENTS * whole
        errors = {path.parent.name for path in federation.clients.glob("*/*/rounding-errors")}
        assert errors == {f"client-{shard}" for shard in range(CLIENTS)}
