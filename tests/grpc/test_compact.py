"""A federation whose updates travel in half the bytes, over real sockets."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.grpc.raw import Raw, status, update_bytes
from tests.running import TINY, make_state, running, tiny_config, tiny_payload

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer
from puf_common.tensors.digests import digest
from puf_common.tensors.encodings import compact, compact_nbytes, expand
from puf_common.tensors.manifest import MODEL, UPDATE


def update(factor: float) -> bytes:
    payload = bytearray(TINY.nbytes(UPDATE))
    for view in TINY.views(payload, UPDATE).values():
        view[...] = ((np.arange(view.size) + 1) * factor).reshape(view.shape)
    return bytes(payload)


@pytest.mark.parametrize("encoding", ["f16", "bf16"])
def test_a_round_is_the_mean_of_what_arrived(tmp_path: Path, encoding: str) -> None:
    config = tiny_config(plan={"rounds": 1, "update_encoding": encoding})
    updates = {"anna": update(0.1), "bert": update(0.3)}
    with running(make_state(tmp_path / "state", config)) as server:
        sessions = [connect(f"127.0.0.1:{server.port}", Offer(samples=1), name=name) for name in updates]
        for session in sessions:
            work = session.step(20)
            assert isinstance(work, Assignment)
            assert work.submit(updates[session.transport.name])
        while server.engine.state.number < 1:
            sessions[0].step(0.05)
        for session in sessions:
            session.close()
        state = server.engine.state
        model = bytes(server.engine.store.models.payload(state.models[1]))
    assert state.records[1].nbytes_up == 2 * compact_nbytes(TINY, encoding) < 2 * TINY.nbytes(UPDATE)
    arrived = [
        TINY.views(expand(TINY, compact(TINY, payload, encoding), encoding), UPDATE) for payload in updates.values()
    ]
    for name in ("layer.weight", "layer.bias"):
        mean = sum(np.multiply(a[name], 0.5, dtype=np.float64) for a in arrived)
        expected = TINY.views(tiny_payload(), MODEL)[name].astype(np.float64) + mean
        assert np.array_equal(TINY.views(model, MODEL)[name], expected.astype("f4"))


def test_an_update_of_another_encoding_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    config = tiny_config(plan={"update_encoding": "f16"})
    with running(make_state(tmp_path / "state", config)) as server:
        anna, bert = (Raw(server.port, name) for name in ("anna", "bert"))
        anna.join()
        bert.join()
        work = anna.wait().train
        with pytest.raises(grpc.RpcError, match="travel as f16") as caught:
            anna.submit(work)
        assert status(caught.value) == ("INVALID_ARGUMENT", "INVALID_UPDATE")
        wire = compact(TINY, update_bytes(), "f16")
        whole = bytes(expand(TINY, wire, "f16"))
        header = anna.header(work, whole, encoding=1)
        # A short update may continue. A new upload ends the wait for the rest.
        for wrong in (wire[:-1], wire[4:], wire + b"x"):
            with pytest.raises(grpc.RpcError):
                anna.send(header, wrong, 7)
        assert list((tmp_path / "state" / "spool").iterdir()) == []
        assert header.digest == digest(whole)
        assert anna.send(header, wire, 7).duplicate is False
        anna.channel.close()
        bert.channel.close()
