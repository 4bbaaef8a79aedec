"""Images stored as bytes on the device, normalised and augmented one batch at a time.

The usual augmentation of single images takes longer than training a small network on them. Worker processes would hide
that only on a machine with idle cores, and many clients leave none. Here rotation, shift and mirroring are one
resampling of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate
from torch.utils.data import Dataset

from puf_common.errors import UsageError

_DEGREES = 0.06 * 360


class Images(Dataset[tuple[Tensor, Tensor]]):
    """A dataset of byte images: normalised, enlarged to `size` if they are smaller, and optionally augmented.

    Augmentation rotates by up to 21.6 degrees (with `rotate`), shifts by up to 2 pixels of 32, and mirrors. Pixels from
    outside the image have the mean colour. Random numbers come from torch's global CPU generator on every device.
    """

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        labels: NDArray[np.int64],
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        *,
        size: int = 32,
        augment: bool = False,
        rotate: bool = True,
    ) -> None:
        if size < 32:
            raise UsageError(f"data option size must be at least 32, not {size}")
        self.pixels = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
        self.labels = torch.from_numpy(labels.copy())
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)
        self.size = size
        self.augments = augment
        self.rotates = rotate

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.take([index])
        return x[0], y[0]

    def take(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns a batch on the images' device."""
        chosen = torch.as_tensor(indices, device=self.labels.device)
        x = (self.pixels[chosen].float() / 255 - self.mean) / self.std
        if self.size > x.shape[-1]:
            x = interpolate(x, self.size, mode="bilinear", antialias=True)
        if self.augments:
            angles, shifts, mirrored = draw(len(x), self.size // 16)
            x = augment(x, angles if self.rotates else torch.zeros_like(angles), shifts, mirrored)
        return x, self.labels[chosen]

    def on(self, device: torch.device) -> Images:
        """Returns the same images on another device, still as bytes to save memory."""
        if self.labels.device == device:
            return self
        other = copy(self)
        for name in ("pixels", "labels", "mean", "std"):
            setattr(other, name, getattr(self, name).to(device))
        return other

    def only(self, indices: Sequence[int]) -> Images:
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.labels.device)
        other = copy(self)
        other.pixels, other.labels = self.pixels[chosen], self.labels[chosen]
        return other


def draw(count: int, pixels: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Draws for `count` images: angles in radians, shifts (x, y) of up to `pixels` whole pixels, whether mirrored."""
    angles = (2 * torch.rand(count) - 1) * math.radians(_DEGREES)
    return angles, torch.randint(-pixels, pixels + 1, (count, 2)), torch.rand(count) < 0.5


def augment(x: Tensor, angles: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
    """Returns each image rotated about its centre, then shifted, then mirrored. Pixels from outside are zero.

    The position of every result pixel is traced back through the three steps to the original image.
    """
    height, width = x.shape[-2:]
    angles, shifts, mirrored = angles.to(x.device), shifts.to(x.device), mirrored.to(x.device)
    column = torch.arange(width, device=x.device, dtype=x.dtype)
    row = torch.arange(height, device=x.device, dtype=x.dtype)
    across = torch.where(mirrored[:, None], width - 1 - column, column) + shifts[:, :1]
    down = row + shifts[:, 1:]
    inside = ((down >= 0) & (down < height))[:, :, None] & ((across >= 0) & (across < width))[:, None, :]
    across, down = across[:, None, :] - (width - 1) / 2, down[:, :, None] - (height - 1) / 2
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    grid = torch.stack(((cos * across - sin * down) * (2 / width), (sin * across + cos * down) * (2 / height)), -1)
    return grid_sample(x, grid, mode="bilinear", align_corners=False) * inside[:, None]
