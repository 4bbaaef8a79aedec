"""Error feedback of 8-bit updates: carried by ordinary training only, the same for every attempt, deleted with a request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from puf_client.session.rounding import Rounding
from puf_client.session.update import LocalUpdate, upload_of
from puf_client.state.directory import StateDirectory
from puf_client.state.rounding_errors import RoundingErrors
from puf_common.tensors.encodings import expand
from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2 as ts
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.spec.federation import DataSpec, FederationSpec
from puf_server.core.config import Forgetting, Recipe

MANIFEST = Manifest((TensorSpec("weight", "f32", (300,)), TensorSpec("mean", "f32", (2,), "buffer")))
UNIT = np.random.default_rng(1).normal(0, 1, 302).astype("<f4").tobytes()


def work(number: int, **fields: object) -> pb.TrainWork:
    scale = {"scale": 1.0} | fields
    return pb.TrainWork(key=pb.WorkKey(membership=1, round=number, attempt=1, part=pb.PART_MAIN), **scale)  # type: ignore[arg-type]


def sent(state: StateDirectory | None, message: pb.TrainWork) -> bytes:
    rounding = Rounding.of(message, "anna", 7, state)
    update = LocalUpdate(UNIT, 10, 0.0, 10)
    _, wire = upload_of(message, update, MANIFEST, encoding=ts.ENCODING_I8, digest_kind="blake3", rounding=rounding)
    return bytes(wire)


def values(wire: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.frombuffer(expand(MANIFEST, wire, "i8"), "<f4")[:300]


def test_what_one_update_loses_the_next_one_adds(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "anna")
    total = np.zeros(300)
    for number in range(1, 31):
        total += values(sent(state, work(number)))
    wanted = 30 * np.frombuffer(UNIT, "<f4")[:300].astype("f8")
    # Without feedback the errors of thirty updates would add up; with it only the last one is left.
    step = np.abs(np.frombuffer(UNIT, "<f4")).max() / 127
    assert np.abs(total - wanted).max() < 1.1 * step
    alone = sum(values(sent(None, work(number))).astype("f8") for number in range(1, 31))
    assert np.abs(alone - wanted).max() > 2 * step


def test_a_repeated_round_sends_the_same_bytes(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "anna")
    first = [sent(state, work(number)) for number in (1, 2, 3)]
    assert sent(state, work(3)) == first[2]
    # As after a restart: another object reads the directory.
    assert sent(StateDirectory(tmp_path / "anna"), work(3)) == first[2]
    assert len(list((tmp_path / "anna" / "rounding-errors").iterdir())) == 2


@pytest.mark.parametrize(
    "fields",
    [{"ticket_id": "t-1", "scale": -2.0}, {"ticket_id": "t-1"}, {"scale": -2.0}, {"routine": "ascent"}],
)
def test_an_unlearning_update_carries_no_error_and_leaves_none(tmp_path: Path, fields: dict[str, object]) -> None:
    state = StateDirectory(tmp_path / "anna")
    sent(state, work(1))
    before = RoundingErrors(state).read(1, 2, MANIFEST.nbytes(UPDATE))
    assert before is not None
    # The bytes are those of a client that has no error at all.
    assert sent(state, work(2, **fields)) == sent(None, work(2, **fields))
    assert RoundingErrors(state).read(1, 3, MANIFEST.nbytes(UPDATE)) == (None if "ticket_id" in fields else before)


def test_another_membership_does_not_carry_the_error(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "anna")
    sent(state, work(1))
    assert RoundingErrors(state).read(2, 5, MANIFEST.nbytes(UPDATE)) is None


def test_a_request_for_samples_deletes_the_error(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "anna")
    sent(state, work(1))
    state.prepare("key", ["a"])
    state.filed("key", "t-1")
    assert not (tmp_path / "anna" / "rounding-errors").exists()


def test_a_federation_forgets_with_8_bit_updates_and_deletes_the_targets_error(tmp_path: Path) -> None:
    spec = FederationSpec(
        title="small updates",
        data=DataSpec(clients=3, options={"noise": 1.0, "per_client": 20}),
        rounds=3,
        recipe=Recipe(lr=0.1, batch_size=10, seed=1),
        forgetting=Forgetting(max_recovery_rounds=1, strength="fixed"),
        plan={"update_encoding": "i8"},
    )
    with InProcessFederation(spec, tmp_path / "f") as federation:
        federation.train()
        folders = {p.parent.name for p in (tmp_path / "f" / "clients").glob("*/*/rounding-errors")}
        assert folders == {"client-0", "client-1", "client-2"}
        full = federation.engine.manifest.nbytes(UPDATE)
        assert federation.state.records[1].nbytes_up < 0.27 * 3 * full
        federation.forget([1], mode="regular", kappa=2.0)
        left = {p.parent.name for p in (tmp_path / "f" / "clients").glob("*/*/rounding-errors")}
        assert left == {"client-0", "client-2"}
