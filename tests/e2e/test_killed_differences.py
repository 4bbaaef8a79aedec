"""A server that is killed while models travel as differences: the next process continues with the same bits."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS
from tests.grpc.test_differences import NBYTES, result, state_of
from tests.running import running

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.session import Session
from puf_client.session.settings import Offer
from puf_client.transport.grpc import GrpcTransport
from puf_lab.federations.processes import ServerProcess
from puf_server.failpoints import SWITCH, VARIABLE

pytestmark = pytest.mark.e2e

ROUNDS = 4


def new_state(directory: Path, encoding: str) -> Path:
    return state_of(directory, encoding, rounds=ROUNDS, start_clients=1)


def train(session: Session) -> list[bytes]:
    """Trains in every round. Returns the models that the client had."""
    bases: list[bytes] = []
    for work in session:
        assert isinstance(work, Assignment)
        if work.round > len(bases):
            bases.append(bytes(work.payload))
        work.submit(result(work))
        if work.round == ROUNDS:
            return bases
    raise AssertionError("the session ended before the last round")


@pytest.mark.parametrize(
    ("encoding", "share", "kills"),
    [
        ("difference", 0.75, ("difference.made=kill", "difference.made=1*off->kill")),
        ("i8", 0.27, ("commit.train.before=1*off->kill", "commit.train.after=kill")),
    ],
)
def test_kills_change_no_bit_and_no_length_of_a_download(
    tmp_path: Path, encoding: str, share: float, kills: Sequence[str]
) -> None:
    """With `difference`: after the file was made, before it is sent. With `i8`: around the commit of a rounded step."""
    with (
        running(new_state(tmp_path / "whole", encoding)) as server,
        connect(f"127.0.0.1:{server.port}", Offer(samples=10), name="anna") as session,
    ):
        wanted = train(session)
    state = new_state(tmp_path / "killed", encoding)

    def start(point: str, listen: str = "127.0.0.1:0") -> ServerProcess:
        return ServerProcess(state, tmp_path / "server.log", listen=listen, env={SWITCH: "yes", VARIABLE: point})

    server_process = start(kills[0])
    address = server_process.address
    with ThreadPoolExecutor(1) as pool, GrpcTransport(address, "anna") as transport:

        def client() -> list[bytes]:
            with connect(transport, Offer(samples=10)) as session:
                return train(session)

        trained = pool.submit(client)
        for point in (*kills[1:], ""):
            assert server_process.wait(SECONDS) == -signal.SIGKILL
            server_process = start(point, address)
        with server_process:
            assert trained.result(SECONDS) == wanted
        assert transport.bytes_received <= NBYTES * (1 + share * (ROUNDS - 1))
