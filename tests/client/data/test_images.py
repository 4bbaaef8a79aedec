"""Augmentation of a batch equals torchvision's augmentation of each image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_client.data.images import Images, augment, draw
from puf_client.data.samples import Batches, batch, select, stacked_if_tensors

CPU = torch.device("cpu")


def images(count: int = 6, *, augmented: bool = False) -> Images:
    pixels = np.random.default_rng(1).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return Images(pixels, np.arange(count), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), augment=augmented)


@settings(deadline=None, max_examples=30)
@given(st.floats(-21.6, 21.6), st.integers(-2, 2), st.integers(-2, 2), st.booleans())
def test_each_step_equals_torchvision(degrees: float, dx: int, dy: int, mirrored: bool) -> None:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as tv

    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    angle = torch.tensor([math.radians(degrees)])
    ours = augment(x, angle, torch.tensor([[dx, dy]]), torch.tensor([mirrored]))
    theirs = tv.rotate(x, degrees, InterpolationMode.BILINEAR, fill=None)
    theirs = tv.crop(tv.pad(theirs, [2, 2, 2, 2]), 2 + dy, 2 + dx, 32, 32)
    theirs = tv.horizontal_flip(theirs) if mirrored else theirs
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_zero_draws_change_nothing_and_images_are_augmented_independently() -> None:
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    none = torch.zeros(4), torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)
    assert torch.allclose(augment(x, *none), x, atol=1e-5)
    mirror = torch.tensor([True, False, True, False])
    out = augment(x, none[0], none[1], mirror)
    assert torch.allclose(out[0], x[0].flip(-1), atol=1e-5)
    assert torch.allclose(out[1], x[1], atol=1e-5)


def test_draws_stay_within_their_bounds() -> None:
    torch.manual_seed(0)
    angles, shifts, mirrored = draw(5000)
    assert math.radians(21) < angles.abs().max() <= math.radians(21.6)
    assert set(shifts.flatten().tolist()) == {-2, -1, 0, 1, 2}
    assert 0.45 < mirrored.float().mean() < 0.55


def test_a_batch_equals_its_single_images_and_can_be_restricted() -> None:
    plain = images()
    assert isinstance(plain, Batches)
    x, y = batch(plain, [4, 1], CPU)
    assert y.tolist() == [4, 1]
    assert torch.equal(x[1], plain[1][0])
    part = select(plain, [5, 4])
    assert torch.equal(batch(part, [1])[0][0], plain[4][0])
    assert stacked_if_tensors(plain, CPU) is plain


@pytest.mark.parametrize("augmented", [True, False])
def test_the_same_stream_gives_the_same_batch(augmented: bool) -> None:
    data = images(augmented=augmented)
    torch.manual_seed(5)
    first = data.take([0, 1, 2])[0]
    again = data.take([0, 1, 2])[0]
    torch.manual_seed(5)
    assert torch.equal(first, data.take([0, 1, 2])[0])
    assert torch.equal(first, again) is not augmented
