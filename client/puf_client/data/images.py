"""Images as bytes on the device where they are used, normalised and augmented a whole batch at a time.

One image at a time, the usual augmentation takes longer than training a small network on the result; worker processes
would hide that on a machine with cores to spare, and a federation of many clients has none. Rotation, shift and mirror
are here one resampling of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate
from torch.utils.data import Dataset

from puf_common.errors import UsageError

__all__ = ["Images", "augment", "draw"]

_DEGREES = 0.06 * 360


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Byte images, normalised when they are asked for, enlarged to `size` where that is more than their own and, if
    wanted, augmented: rotated by up to 21.6 degrees (unless not `rotate`), shifted by up to 2 pixels of 32, mirrored.
    What these move in from outside is the mean colour. Chance comes from torch's global stream on the CPU, whatever
    the device."""

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
        """A batch, on the images' device."""
        chosen = torch.as_tensor(indices, device=self.labels.device)
        x = (self.pixels[chosen].float() / 255 - self.mean) / self.std
        if self.size > x.shape[-1]:
            x = interpolate(x, self.size, mode="bilinear", antialias=True)
        if self.augments:
            angles, shifts, mirrored = draw(len(x), self.size // 16)
            x = augment(x, angles if self.rotates else torch.zeros_like(angles), shifts, mirrored)
        return x, self.labels[chosen]

    def on(self, device: torch.device) -> Images:
        """The same images there; bytes, so that a data set fits beside the model."""
        return self if self.labels.device == device else self._with(lambda tensor: tensor.to(device))

    def only(self, indices: Sequence[int]) -> Images:
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.labels.device)
        return self._with(lambda tensor: tensor[chosen] if len(tensor) == len(self) else tensor)

    def _with(self, change: object) -> Images:
        assert callable(change)
        other = object.__new__(Images)
        other.pixels, other.labels = change(self.pixels), change(self.labels)
        other.mean, other.std = self.mean.to(other.labels.device), self.std.to(other.labels.device)
        other.size, other.augments, other.rotates = self.size, self.augments, self.rotates
        return other


def draw(count: int, pixels: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Chance for as many images: angles in radians, whole shifts (x, y) of up to so many pixels, whether mirrored."""
    angles = (2 * torch.rand(count) - 1) * math.radians(_DEGREES)
    return angles, torch.randint(-pixels, pixels + 1, (count, 2)), torch.rand(count) < 0.5


def augment(x: Tensor, angles: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
    """Each image rotated about its centre, then shifted, then mirrored; zero comes in from outside.

    Every pixel of the result is looked up, backwards through the three steps, in the image as it was.
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
