"""Models that travel as differences, over real sockets: bits, bytes, one file for all clients, fallback, forgetting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.grpc.raw import Raw
from tests.running import make_state, running, tiny_config

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.session import Session
from puf_client.session.settings import Offer
from puf_client.transport.grpc import GrpcTransport
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import step_rounding
from puf_server.core.state.models import ModelStatus
from puf_server.core.unlearning import model_versions
from puf_server.runtime.server import Server

SIZE = 20_000
MANIFEST = Manifest((TensorSpec("w", "f32", (SIZE,)), TensorSpec("steps", "i64", (), "buffer")))
NBYTES = MANIFEST.nbytes(MODEL)
NAMES = ("anna", "bert", "carl")


def start_model() -> bytearray:
    payload = bytearray(NBYTES)
    MANIFEST.views(payload, MODEL)["w"][...] = np.random.default_rng(0).normal(0, 0.1, SIZE)
    return payload


def result(work: Assignment) -> dict[str, np.ndarray]:
    """The model after a training that depends on client and round."""
    chance = np.random.default_rng([work.message.key.round, *work.client.encode()])
    w = (work.weights["w"] + chance.normal(0, 1e-3, SIZE)).astype(np.float32)
    return {"w": w, "steps": np.array(work.message.key.round)}


def state_of(directory: Path, encoding: str, **plan: object) -> Path:
    config = tiny_config(plan={"rounds": 4, "min_clients": 1, "start_clients": 3, "step_encoding": encoding, **plan})
    return make_state(directory, config, MANIFEST, start_model())


@contextmanager
def sessions(server: Server, names: Sequence[str] = NAMES) -> Iterator[list[Session]]:
    with ExitStack() as stack:
        target = f"127.0.0.1:{server.port}"
        yield [stack.enter_context(connect(target, Offer(samples=10), name=name)) for name in names]


def model(server: Server, version: int) -> bytes:
    return bytes(server.engine.store.models.payload(server.engine.state.models[version]))


def one_round(server: Server, members: Sequence[Session]) -> list[bytes]:
    """Lets every client train once. Returns the base models that they had."""
    number, bases = server.engine.state.number, []
    for session in members:
        work = session.step(20)
        assert isinstance(work, Assignment)
        bases.append(bytes(work.payload))
        assert work.submit(result(work))
    while server.engine.state.number == number:
        server.engine.tick()
    return bases


def received(session: Session) -> int:
    assert isinstance(session.transport, GrpcTransport)
    return session.transport.bytes_received


def stored(server: Server) -> list[str]:
    folder = server.engine.store.layout.differences
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(("encoding", "share"), [("difference", 0.75), ("i8", 0.27)])
def test_clients_reach_every_model_exactly_with_fewer_bytes(tmp_path: Path, encoding: str, share: float) -> None:
    with running(state_of(tmp_path / "state", encoding)) as server, sessions(server) as members:
        assert one_round(server, members) == [model(server, 0)] * 3
        assert [received(session) for session in members] == [NBYTES] * 3
        for version in (1, 2, 3):
            before = [received(session) for session in members]
            assert one_round(server, members) == [model(server, version)] * 3
            taken = {received(session) - had for session, had in zip(members, before, strict=True)}
            # One file serves all clients.
            assert len(taken) == 1
            assert max(taken) <= share * NBYTES
            assert server.engine.state.records[version + 1].nbytes_down == 3 * max(taken)
        # Differences lead to the newest model only, and to the base of the open round.
        assert all(name.startswith(("v000003-v000004-", "v000002-v000003-")) for name in stored(server))


def test_without_the_setting_models_travel_whole_and_nothing_is_stored(tmp_path: Path) -> None:
    with running(state_of(tmp_path / "state", "full")) as server, sessions(server) as members:
        one_round(server, members)
        one_round(server, members)
        assert [received(session) for session in members] == [2 * NBYTES] * 3
        assert stored(server) == []


def test_steps_in_8_bit_numbers_lose_nothing_over_the_rounds(tmp_path: Path) -> None:
    """Model and error together are the sum of all updates."""
    with running(state_of(tmp_path / "state", "i8")) as server, sessions(server) as members:
        wanted = MANIFEST.views(start_model(), MODEL)["w"].astype(np.float64)
        for _ in range(3):
            number = server.engine.state.number + 1
            one_round(server, members)
            changes = [np.random.default_rng([number, *name.encode()]).normal(0, 1e-3, SIZE) for name in NAMES]
            wanted += np.mean(changes, axis=0)
        state, store = server.engine.state, server.engine.store
        assert step_rounding.error(state, 3) is not None
        # It belongs to the model that the step made, and to no other.
        assert step_rounding.error(state, 2) is None
        (file,) = store.layout.history.iterdir()
        error = np.frombuffer(file.read_bytes(), "<f4", SIZE)
        reached = MANIFEST.views(model(server, 3), MODEL)["w"]
        assert np.abs(reached + error - wanted).max() < 1e-7
        assert np.abs(error).max() > 1e-6


@pytest.mark.parametrize("encoding", ["difference", "i8"])
def test_a_damaged_difference_gives_the_whole_model(tmp_path: Path, encoding: str) -> None:
    with running(state_of(tmp_path / "state", encoding)) as server, sessions(server) as members:
        one_round(server, members)
        anna, bert, _ = members
        # Fetches the difference, so that it is made.
        anna.fetch(1)
        (name,) = stored(server)
        path = server.engine.store.layout.differences / name
        content = bytearray(path.read_bytes())
        content[-9000] ^= 1
        path.write_bytes(content)
        assert bytes(bert.fetch(1)) == model(server, 1)
        assert received(bert) >= 2 * NBYTES
        path.unlink()
        with GrpcTransport(f"127.0.0.1:{server.port}", "carl") as carl:
            assert carl.fetch_model(1)[1] == model(server, 1)


@pytest.mark.parametrize("wrong", ["digest", "version"])
def test_a_client_with_an_unknown_model_gets_the_whole_one(tmp_path: Path, wrong: str) -> None:
    with running(state_of(tmp_path / "state", "difference")) as server, sessions(server) as members:
        one_round(server, members)
        digest = bytes.fromhex(server.engine.state.models[0].digest)
        request = fed.FetchModelRequest(version=1, held_version=0, held_digest=digest)
        with Raw(server.port, "anna") as raw:
            first, *_ = raw.stub.FetchModel(request, **raw.options)
            assert first.header.difference.kind == ts.DIFFERENCE_KIND_EXACT
            assert first.header.byte_length == NBYTES
            request.held_digest, request.held_version = (bytes(32), 0) if wrong == "digest" else (digest, 7)
            first, *rest = raw.stub.FetchModel(request, **raw.options)
            assert not first.header.HasField("difference")
            assert b"".join(frame.chunk.data for frame in rest) == model(server, 1)


@pytest.mark.parametrize("encoding", ["difference", "i8"])
def test_a_restart_keeps_differences_and_the_rounding_error(tmp_path: Path, encoding: str) -> None:
    directory = state_of(tmp_path / "state", encoding)
    with running(directory) as server, sessions(server) as members:
        one_round(server, members)
        members[0].fetch(1)
        before, error = stored(server), server.engine.state.history
        assert len(before) == 1
    (directory / "differences" / "v000000-v000001.exact.part").write_bytes(b"of a server that was killed")
    with running(directory) as server:
        assert stored(server) == before
        assert server.engine.state.history == error
        with Raw(server.port, "anna") as raw:
            held = bytes.fromhex(server.engine.state.models[0].digest)
            request = fed.FetchModelRequest(version=1, held_version=0, held_digest=held)
            first, *_ = raw.stub.FetchModel(request, **raw.options)
            assert first.header.difference.digest.hex() == before[0].rpartition(".")[2]
        assert stored(server) == before


@pytest.mark.parametrize("encoding", ["difference", "i8"])
def test_a_request_deletes_differences_and_the_rounding_error(tmp_path: Path, encoding: str) -> None:
    with running(state_of(tmp_path / "state", encoding)) as server, sessions(server) as members:
        one_round(server, members)
        one_round(server, members)
        members[0].fetch(2)
        assert stored(server)
        with Raw(server.port, "carl") as raw:
            ticket = raw.file(strength=tk.Strength(kappa=1.0)).ticket.id
        while (state := server.engine.state).tickets[ticket].applied is None:
            for session in members:
                work = session.step(0.05)
                if isinstance(work, Assignment):
                    work.submit(result(work))
        withdrawn = {v for v, m in state.models.items() if m.status is ModelStatus.WITHDRAWN}
        assert withdrawn >= {1, 2}
        assert not any({a, b} & withdrawn for a, b in model_versions.differences(state))
        # Files are deleted right after the commit.
        gone_by = time.monotonic() + 20
        while left := [name for name in stored(server) if any(f"v{v:06d}-" in name for v in withdrawn)]:
            assert time.monotonic() < gone_by, left
        assert step_rounding.KEY not in state.history
        # The unlearned model is exact for those who hold a withdrawn one, too: they get it whole.
        base = server.engine.state.version
        assert bytes(members[0].fetch(base)) == model(server, base)
