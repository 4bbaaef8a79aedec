"""Steps in 8-bit numbers: worked numbers, the error that is carried, and the bits that clients compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_common.tensors.differences import StepDecoder
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_server.aggregation.fold import ArraySource, Contribution, NotFinite
from puf_server.aggregation.rounded_step import Writers, rounded_step

MANIFEST = Manifest(
    (
        TensorSpec("weight", "f32", (300,)),
        TensorSpec("mean", "f32", (2,), "buffer"),
        TensorSpec("half", "f16", (2,)),
        TensorSpec("steps", "i64", (), "buffer"),
    )
)


def update(weight: Sequence[float] | float, mean: float = 0.0, half: float = 0.0, steps: int = 0) -> bytes:
    payload = bytearray(MANIFEST.nbytes(UPDATE))
    for view, value in zip(MANIFEST.views(payload, UPDATE).values(), (weight, mean, half, steps), strict=True):
        view[...] = value
    return bytes(payload)


def stepped(base: bytes, updates: dict[str, bytes], error: bytes | None = None) -> tuple[bytes, bytes, bytes]:
    """The new model, the step and the new error."""
    made = bytearray(), bytearray(), bytearray()
    contributions = [
        Contribution(client=name, part="main", samples=1, source=ArraySource(payload))
        for name, payload in updates.items()
    ]
    source = None if error is None else ArraySource(error)
    rounded_step(MANIFEST, ArraySource(base), contributions, source, Writers(*(m.extend for m in made)))
    model, step, new_error = made
    return bytes(model), bytes(step), bytes(new_error)


def weights(payload: bytes, use: str = UPDATE) -> np.ndarray:
    return MANIFEST.views(payload, MODEL if use == MODEL else UPDATE)["weight"]


def test_a_step_of_two_clients_by_hand() -> None:
    a, b = np.zeros(300), np.zeros(300)
    # The mean is 126.999 and 0.4 in the first block: the scale is 1, so 0.4 is rounded to 0 and stays in the error.
    a[0], b[0], a[1], b[1] = 2 * 126.999, 0.0, 0.3, 0.5
    base = bytes(MANIFEST.nbytes(MODEL))
    model, step, error = stepped(base, {"a": update(list(a), 1.0, 0.5, 3), "b": update(list(b), 3.0, 1.5, 2)})
    assert np.frombuffer(step[:4], "<f4")[0] == 1.0
    assert list(np.frombuffer(step[4:7], "i1")) == [127, 0, 0]
    assert list(weights(model, MODEL)[:2]) == [127.0, 0.0]
    assert list(weights(error)[:3]) == pytest.approx([-0.001, 0.4, 0.0], abs=1e-5)
    # All else is not rounded: buffers are merged, half precision takes the plain step.
    views = MANIFEST.views(model, MODEL)
    assert (list(views["mean"]), list(views["half"]), int(views["steps"])) == ([2.0, 2.0], [1.0, 1.0], 3)
    assert not MANIFEST.views(error, UPDATE)["half"].any()


@given(seed=st.integers(0, 1000), rounds=st.integers(1, 5))
@settings(max_examples=25)
def test_clients_reach_the_model_exactly_and_nothing_is_lost(seed: int, rounds: int) -> None:
    chance = np.random.default_rng(seed)
    base = bytearray(MANIFEST.nbytes(MODEL))
    MANIFEST.views(base, MODEL)["weight"][...] = chance.normal(0, 1, 300)
    model, error = bytes(base), None
    wanted = weights(model, MODEL).astype(np.float64)
    for _ in range(rounds):
        change = {name: update(list(chance.normal(0, 0.01, 300))) for name in ("a", "b")}
        held = model
        model, step, error = stepped(held, change, error)
        assert b"".join(bytes(part) for part in StepDecoder(MANIFEST, held).feed(step)) == model
        wanted += sum(weights(u).astype(np.float64) * 0.5 for u in change.values())
    # What was rounded away is in the error: the model with it is the model without rounding.
    assert error is not None
    assert np.abs(weights(model, MODEL) + weights(error).astype("f8") - wanted).max() < 1e-7
    assert np.abs(weights(error)).max() <= 0.51 * (0.05 / 126)


def test_the_order_of_clients_changes_no_bit() -> None:
    chance = np.random.default_rng(3)
    updates = {name: update(list(chance.normal(0, 1, 300))) for name in ("a", "b", "c")}
    base = bytes(MANIFEST.nbytes(MODEL))
    assert stepped(base, updates) == stepped(base, dict(reversed(updates.items())))


@pytest.mark.parametrize("value", [3e38, 1e38])
def test_an_update_that_is_too_large_names_its_client(value: float) -> None:
    base = bytearray(MANIFEST.nbytes(MODEL))
    MANIFEST.views(base, MODEL)["weight"][...] = 3e38
    large = np.zeros(300)
    large[5] = value
    with pytest.raises(NotFinite) as caught:
        stepped(
            bytes(base), {"a": update(0.5), "b": update(list(large))} if value > 2e38 else {"b": update(list(large))}
        )
    assert caught.value.facts["client"] == "b"
