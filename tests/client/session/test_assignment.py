"""What a training loop hands in becomes the update that the contract describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from puf_client.session.assignment import Assignment
from puf_client.session.update import LocalUpdate, cut, difference, restricted
from puf_common.errors import InvalidUpdate
from puf_common.seeds import derive
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb

MANIFEST = Manifest(
    (
        TensorSpec("w", "f32", (2, 3)),
        TensorSpec("half", "f16", (2,)),
        TensorSpec("mean", "f32", (2,), "buffer"),
        TensorSpec("steps", "i64", (), "buffer"),
    )
)


def model(seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(2, 3)).astype(np.float32),
        "half": rng.normal(size=2).astype(np.float16),
        "mean": rng.normal(size=2).astype(np.float32),
        "steps": np.array(seed),
    }


def payload_of(arrays: dict[str, NDArray[Any]]) -> bytearray:
    payload = bytearray(MANIFEST.nbytes(MODEL))
    for name, view in MANIFEST.views(payload, MODEL).items():
        view[...] = arrays[name]
    return payload


class Module:
    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return self.arrays


def test_parameters_travel_as_differences_and_buffers_as_values() -> None:
    old, new = model(1), model(2)
    update = MANIFEST.views(difference(MANIFEST, payload_of(old), new), UPDATE)
    np.testing.assert_array_equal(update["w"], new["w"] - old["w"])
    np.testing.assert_array_equal(update["half"], new["half"].astype(np.float32) - old["half"].astype(np.float32))
    assert update["half"].dtype == np.float32
    np.testing.assert_array_equal(update["mean"], new["mean"])
    assert update["steps"] == 2


def test_a_module_and_its_weights_give_the_same_bytes() -> None:
    base, new = payload_of(model(1)), model(2)
    assert difference(MANIFEST, base, Module(new)) == difference(MANIFEST, base, new)


def test_torch_tensors_give_the_same_bytes() -> None:
    torch = pytest.importorskip("torch")
    base, new = payload_of(model(1)), model(2)
    tensors = {name: torch.from_numpy(array).requires_grad_(name == "w") for name, array in new.items()}
    assert difference(MANIFEST, base, tensors) == difference(MANIFEST, base, new)


def test_ready_made_bytes_are_taken_as_they_are() -> None:
    ready = difference(MANIFEST, payload_of(model(1)), model(2))
    again = difference(MANIFEST, b"", bytes(ready))
    assert again == ready
    with pytest.raises(InvalidUpdate, match="bytes"):
        difference(MANIFEST, b"", bytes(ready)[:-1])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda m: m.pop("half"), "half"),
        (lambda m: m.update(extra=np.zeros(1)), "extra"),
        (lambda m: m.update(w=np.zeros((3, 2), np.float32)), "w"),
        (lambda m: m.update(w=np.full((2, 3), np.nan, np.float32)), "w"),
        (lambda m: m.update(mean=np.array([1, np.inf], np.float32)), "mean"),
    ],
)
def test_what_does_not_fit_names_the_tensor(change: Any, names: str) -> None:
    new = model(2)
    change(new)
    with pytest.raises(InvalidUpdate) as caught:
        difference(MANIFEST, payload_of(model(1)), new)
    assert caught.value.facts["tensor"] == names
    assert names in caught.value.message


@given(st.integers(0, 2**63 - 1), st.integers(1, 999), st.sampled_from(["main", "retain", "forget"]), st.integers(0, 9))
def test_streams_depend_on_purpose_alone(seed: int, number: int, part: str, attempt: int) -> None:
    key = pb.WorkKey(round=number, attempt=attempt, part=f"PART_{part.upper()}")
    task = _task(pb.TrainWork(key=key), pb.Recipe(seed=seed))
    assert task.stream(3) == derive(seed, "train", number, "clinic-7", part, 3)


def test_weights_cannot_be_changed_by_a_loop() -> None:
    task = _task(pb.TrainWork(key=pb.WorkKey(part=pb.PART_MAIN)), pb.Recipe())
    with pytest.raises(ValueError, match="read-only"):
        task.weights["w"][...] = 0


def test_a_count_other_than_the_frozen_one_is_refused_before_it_travels() -> None:
    task = _task(pb.TrainWork(key=pb.WorkKey(round=4, part=pb.PART_MAIN), samples=10), pb.Recipe())
    with pytest.raises(InvalidUpdate, match="10 samples"):
        task.submit(model(2), samples=9)
    assert task.submit(model(2))
    assert task.submit(model(2), samples=10)


def _task(work: pb.TrainWork, recipe: pb.Recipe) -> Assignment:
    def deliver(work: pb.TrainWork, update: LocalUpdate) -> bool:
        return update.samples == 10

    return Assignment(
        message=work,
        client="clinic-7",
        recipe=recipe,
        manifest=MANIFEST,
        payload=memoryview(payload_of(model(1))).toreadonly(),
        announced=7,
        deliver=deliver,
        refuse=lambda work, reason: None,
    )


def test_a_torch_module_with_tied_parameters_travels_once() -> None:
    torch = pytest.importorskip("torch")
    from puf_common.models.module_tensors import manifest_of, payload_of

    net = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    manifest = manifest_of(net)
    base = payload_of(net, manifest)
    with torch.no_grad():
        net[0].weight += 1
    update = manifest.views(difference(manifest, base, net), UPDATE)
    assert np.allclose(update["0.weight"].astype(np.float64), 1.0)
    net[0].weight.data[0, 0] = float("nan")
    with pytest.raises(InvalidUpdate, match="diverged"):
        difference(manifest, base, net)


def test_only_the_named_tensors_come_back_in_the_models_order() -> None:
    new = model(2)
    whole = difference(MANIFEST, payload_of(model(1)), new)
    layout = restricted(MANIFEST, ["mean", "w"])
    assert [t.name for t in layout.tensors] == ["w", "mean"]
    part = layout.views(cut(MANIFEST, whole, layout), UPDATE)
    for name, view in part.items():
        np.testing.assert_array_equal(view, MANIFEST.views(whole, UPDATE)[name])
    assert restricted(MANIFEST, []) is MANIFEST
    with pytest.raises(InvalidUpdate, match="requests tensor x"):
        restricted(MANIFEST, ["x"])


def test_random_streams_may_be_those_of_another_round() -> None:
    recipe = pb.Recipe(seed=3)
    own = _task(pb.TrainWork(key=pb.WorkKey(round=9, part=pb.PART_MAIN)), recipe)
    replayed = _task(pb.TrainWork(key=pb.WorkKey(round=9, part=pb.PART_MAIN), stream_round=2), recipe)
    assert own.stream(0) == derive(3, "train", 9, "clinic-7", "main", 0)
    assert replayed.stream(0) == derive(3, "train", 2, "clinic-7", "main", 0)
    assert (own.routine, replayed.routine) == ("train", "train")
