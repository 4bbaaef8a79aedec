"""Connections that are cut or stall at every chunk of a transfer in both directions, and servers that restart meanwhile.

One client, one round per fault: every weight moves by exactly one. Lost, doubled or truncated bytes change the sum.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Literal

import grpc
import numpy as np
import pytest
from tests.faults import Line, config, large_line
from tests.grpc.test_session import MANIFEST
from tests.proxy import Strike, proxied
from tests.running import Federation

import puf_client.transport.grpc
import puf_server.rpc.requests
from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer, Running
from puf_client.transport.download import Download
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import TransferCorrupted
from puf_common.network.status import channel_options
from puf_common.tensors.chunk_frames import chunk_frame
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import federation_pb2 as pb

CHUNK = 1 << 18
CHUNKS = -(-MANIFEST.nbytes(UPDATE) // CHUNK)


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    monkeypatch.setattr(puf_server.rpc.requests, "CHUNK_BYTES", CHUNK)
    # Clients reconnect at once: there are not many of them in a test.
    quick = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.min_reconnect_backoff_ms", 200)]
    monkeypatch.setattr(puf_client.transport.grpc, "channel_options", lambda target: [*channel_options(target), *quick])
    running = Federation(tmp_path / "state", config(), MANIFEST)
    yield running
    running.stop()


@pytest.fixture
def line(federation: Federation) -> Iterator[Line]:
    with proxied(int(federation.target.rpartition(":")[2])) as proxy:
        line = Line(federation, proxy)
        yield line
        line.close()


def test_a_cut_at_every_chunk_of_either_direction_is_recovered(line: Line) -> None:
    line.round()
    line.round()
    # Bytes of a whole transfer in each direction, with all overhead.
    sent, received = line.sent, line.received
    assert sent > MANIFEST.nbytes(UPDATE)
    header = sent - MANIFEST.nbytes(UPDATE)
    places = [0, header // 2, *(header + i * CHUNK for i in range(CHUNKS)), sent - 1]
    for place in places:
        line.round(Strike("down", min(place, received - 1)), Strike("up", place))
    assert line.proxy.struck == 2 * len(places)
    line.round()
    assert line.federation.weights(line.rounds - 1) == line.rounds - 1
    # Only bytes that were sent again are counted in addition.
    assert line.transport.bytes_sent > (line.rounds + 1) * MANIFEST.nbytes(UPDATE)


def test_cuts_and_stalls_at_random_bytes_are_recovered(line: Line) -> None:
    random, total = Random(7), MANIFEST.nbytes(UPDATE)
    for _ in range(6):
        kinds: list[Literal["cut", "stall"]] = ["cut", "stall"]
        down, up = (Strike(d, random.randrange(total), random.choice(kinds), 0.3) for d in ("down", "up"))
        line.round(down, up)
    assert line.proxy.struck == 12
    line.round()


def test_a_large_model_survives_cuts_and_stalls_at_random_chunks(tmp_path: Path) -> None:
    with large_line(tmp_path / "state") as line:
        line.strike_at_random(Random(3), 4)
        assert line.proxy.struck == 8
        assert line.lost() == 0
        # Uploads that were cut continued where they broke.
        assert line.transport.resumed >= 1


def test_a_stall_beyond_the_deadline_is_tried_again(federation: Federation) -> None:
    with proxied(int(federation.target.rpartition(":")[2])) as proxy:
        line = Line(federation, proxy, transfer_seconds=2.0)
        line.round(Strike("down", 3 * CHUNK, "stall", 3.0), Strike("up", 2 * CHUNK + 7, "stall", 3.0))
        assert proxy.struck == 2
        line.round()
        line.close()


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_server_that_restarts_in_the_middle_of_a_stream(line: Line, direction: Literal["up", "down"]) -> None:
    line.round()
    reached = threading.Event()

    def restart() -> None:
        assert reached.wait(30)
        line.federation.stop()
        line.federation.start()

    thread = threading.Thread(target=restart)
    thread.start()
    strike = Strike(direction, 4 * CHUNK, "stall", 0.5, also=reached.set)
    line.round(*((strike, None) if direction == "down" else (None, strike)))
    thread.join(60)
    assert not thread.is_alive()
    line.round()


class Damaging(GrpcTransport):
    """Changes a byte of the first uploads and the first downloads."""

    damages = 2

    def _frames(self, header: pb.UpdateHeader, payload: Payload, begin: int = 0) -> Iterator[bytes]:
        for i, frame in enumerate(super()._frames(header, payload, begin)):
            if i == 2 and self.damages:
                self.damages -= 1
                chunk = pb.SubmitUpdateRequest.FromString(frame).chunk
                data = bytearray(chunk.data)
                data[2] ^= 1
                yield chunk_frame(chunk.offset, data)
            else:
                yield frame

    def _download(self, download: Download) -> tuple[pb.ModelHeader, Payload]:
        if self.damages > 2:
            self.damages -= 1
            raise TransferCorrupted("it does not match its digest")
        return super()._download(download)


@pytest.mark.parametrize(("damages", "survives"), [(2, True), (3, False)])
def test_damaged_transfers_are_sent_again_whole_and_not_for_ever(
    federation: Federation, damages: int, survives: bool
) -> None:
    with Damaging(federation.target, "a", retry=RetryPolicy(first_pause=0.01)) as transport:
        transport.damages = 0
        with connect(transport, Offer(samples=10, manifest=MANIFEST), running=Running(heartbeats=False)) as session:
            # Two damaged downloads.
            transport.damages = 4
            work = next(iter(session))
            assert isinstance(work, Assignment)
            transport.damages = damages
            weights = {"w": work.weights["w"] + np.float32(1), "seen": np.int64(1)}
            if survives:
                assert work.submit(weights)
                assert transport.damages == 0
            else:
                with pytest.raises(TransferCorrupted, match="digest"):
                    work.submit(weights)
                # Nothing of it is kept.
                assert not [p for p in (federation.directory / "spool").iterdir() if p.suffix != ".part"]


def test_nothing_is_truncated_silently(federation: Federation) -> None:
    """A stream that ends early is not accepted as an update."""
    with (
        GrpcTransport(federation.target, "a") as transport,
        connect(transport, Offer(samples=10, manifest=MANIFEST), running=Running(heartbeats=False)) as session,
    ):
        work = next(iter(session))
        assert isinstance(work, Assignment)
        payload = bytes(MANIFEST.nbytes(UPDATE))
        header = pb.UpdateHeader(
            key=work.key,
            base_version=0,
            samples=10,
            applied_scale=1.0,
            byte_length=len(payload),
            digest=bytes(32),
            manifest_fingerprint=MANIFEST.fingerprint,
        )
        frames = list(transport._frames(header, payload))[:-1]
        with pytest.raises(grpc.RpcError) as refused:
            transport._submit(iter(frames), timeout=30, metadata=transport._metadata)
        assert refused.value.code() is grpc.StatusCode.DATA_LOSS
        assert "ended after" in (refused.value.details() or "")
