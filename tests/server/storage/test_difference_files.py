"""Stored differences: made once, found again, deleted with their models, never trusted when damaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.running import make_state, tiny_config

from puf_common.tensors.exact_difference import ExactDecoder
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import Round, RoundKind, Step
from puf_server.core.state.state import State
from puf_server.core.unlearning.model_versions import differences
from puf_server.storage.layout import model_name
from puf_server.storage.orphans import delete_orphans
from puf_server.storage.state_store import Store

SIZE = 5000
MANIFEST = Manifest((TensorSpec("w", "f32", (SIZE,)),))


def payload(version: int) -> bytes:
    start = np.random.default_rng(0).normal(0, 0.1, SIZE)
    return (start + 1e-4 * version).astype("<f4").tobytes()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(make_state(tmp_path / "state", tiny_config(), MANIFEST, bytearray(payload(0))))
    yield store
    store.close()


def models(store: Store, count: int) -> State:
    """A state with so many versions, each with its file."""
    state = store.load()
    first = (store.layout.models / model_name(0, state.models[0].digest)).read_bytes()
    begin = len(first) - MANIFEST.nbytes(MODEL)
    for version in range(1, count):
        model = ModelVersion(
            version=version,
            round=version,
            digest=f"{version:064d}",
            nbytes=MANIFEST.nbytes(MODEL),
            status=ModelStatus.READY,
            created_at=0.0,
        )
        (store.layout.models / model_name(version, model.digest)).write_bytes(first[:begin] + payload(version))
        state = replace(state.with_model(model), version=version)
    return state


def opened(number: int, base: int) -> Round:
    return Round(number=number, attempt=1, kind=RoundKind.TRAIN, step=Step(base=base), lr=0.1, opened_at=0.0)


def test_a_difference_is_made_once_and_leads_to_the_model(store: Store) -> None:
    state = models(store, 2)
    assert store.differences.find(state.models[0], state.models[1]) is None
    made = store.differences.make(state.models[0], state.models[1], lambda: True)
    assert made is not None
    assert store.differences.find(state.models[0], state.models[1]) == made
    assert made.nbytes < 0.75 * MANIFEST.nbytes(MODEL)
    with store.differences.read(made) as source:
        wire = b"".join(bytes(block) for block in source.blocks())
    assert b"".join(bytes(part) for part in ExactDecoder(MANIFEST, payload(0)).feed(wire)) == payload(1)
    # Another model under the same number has no difference.
    assert store.differences.find(replace(state.models[0], digest="f" * 64), state.models[1]) is None


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_file_that_does_not_match_its_name_is_deleted(store: Store, damage: str) -> None:
    state = models(store, 2)
    made = store.differences.make(state.models[0], state.models[1], lambda: True)
    assert made is not None
    path = store.directory / made.name
    content = path.read_bytes()
    path.write_bytes(content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    assert store.differences.find(state.models[0], state.models[1]) is None
    assert list(store.layout.differences.iterdir()) == []


@pytest.mark.parametrize("asked", range(3))
def test_a_model_that_is_withdrawn_meanwhile_leaves_no_difference(store: Store, asked: int) -> None:
    """`wanted` is true for the first `asked` questions."""
    state, answers = models(store, 2), iter([True] * asked)
    assert store.differences.make(state.models[0], state.models[1], lambda: next(answers, False)) is None
    assert list(store.layout.differences.iterdir()) == []


def test_a_difference_that_saves_nothing_is_not_kept(store: Store) -> None:
    state = models(store, 2)
    path = store.layout.models / model_name(1, state.models[1].digest)
    other = np.random.default_rng(9).bytes(4 * SIZE)
    path.write_bytes(path.read_bytes()[: -4 * SIZE] + other)
    assert store.differences.make(state.models[0], state.models[1], lambda: True) is None
    assert list(store.layout.differences.iterdir()) == []


def test_differences_are_deleted_with_their_models(store: Store) -> None:
    state = models(store, 4)
    for base in (0, 1, 2):
        assert store.differences.make(state.models[base], state.models[3], lambda: True)
    (store.layout.differences / "v000002-v000003.exact.part").write_bytes(b"")

    def left(state: State, *, everything: bool = False) -> set[str]:
        delete_orphans(store.files, lambda: state, everything=everything)
        return {path.name[:15] for path in store.layout.differences.iterdir()}

    drafts = {"v000002-v000003"}
    assert left(state) == {"v000000-v000003", "v000001-v000003", "v000002-v000003"}
    withdrawn = state.with_model(replace(state.models[1], status=ModelStatus.WITHDRAWN))
    assert left(withdrawn) == {"v000000-v000003", "v000002-v000003"}
    # A file that is being written stays while the server runs.
    gone = withdrawn.with_model(replace(state.models[3], status=ModelStatus.WITHDRAWN))
    assert left(gone) == drafts
    assert left(gone, everything=True) == set()


def test_the_step_of_a_round_that_is_not_committed_stays(store: Store) -> None:
    state = models(store, 2)
    step = store.differences.new(state.models[1], 2, "i8")
    step.write(b"step")
    path = store.directory / step.publish(2, "a" * 64).name
    current = opened(2, base=1)
    delete_orphans(store.files, lambda: replace(state, round=current))
    assert path.exists()
    delete_orphans(store.files, lambda: state)
    assert not path.exists()


def test_differences_lead_from_four_versions_to_the_models_that_clients_fetch(store: Store) -> None:
    state = models(store, 8)
    assert differences(state) == {(v, 7) for v in (3, 4, 5, 6)}
    current = opened(7, base=5)
    assert differences(replace(state, round=current)) == {(v, 7) for v in (3, 4, 5, 6)} | {(v, 5) for v in (1, 2, 3, 4)}
    for status in (ModelStatus.WITHDRAWN, ModelStatus.DELETED, ModelStatus.AUXILIARY):
        assert differences(state.with_model(replace(state.models[7], status=status))) == set()
        assert (6, 7) not in differences(state.with_model(replace(state.models[6], status=status)))
