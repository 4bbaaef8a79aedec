"""The user's code: data, a model, a task and a test set for finding blobs in noisy images.

Each clinic's scanner has its own brightness and contrast, and each patient has a few images. All images are generated
from the context's seed, so there is nothing to download.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from puf_client import ClientData, DataContext
from puf_common.seeds import derive

__version__ = "1.0"

SIZE = 24
IMAGES_PER_PATIENT = 4


def load(ctx: DataContext) -> ClientData:
    """Returns one clinic's patients. The last quarter of the patients is the hold-out, so no patient is in both parts."""
    ctx.refuse_other_options("patients")
    patients = ctx.option("patients", 12)
    images, masks, groups, ids = [], [], [], []
    for number in range(patients):
        patient = f"clinic-{ctx.shard}/patient-{number:03d}"
        x, y = _patient(ctx.seed, patient, _scanner(ctx.seed, ctx.shard))
        images.append(x)
        masks.append(y)
        groups += [patient] * len(x)
        ids += [f"{patient}/image-{i}" for i in range(len(x))]
    kept = (patients - patients // 4) * IMAGES_PER_PATIENT
    x, y = torch.cat(images), torch.cat(masks)
    train = TensorDataset(x[:kept], y[:kept])
    return ClientData(train, holdout=TensorDataset(x[kept:], y[kept:]), ids=ids[:kept], groups=groups[:kept])


def test_set(ctx: DataContext) -> TensorDataset:
    """Returns patients of no clinic, on different scanners."""
    drawn = [_patient(ctx.seed, f"test/patient-{n:03d}", _scanner(ctx.seed, 1000 + n)) for n in range(24)]
    return TensorDataset(torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn]))


def _scanner(seed: int, number: int) -> tuple[float, float]:
    """Returns brightness and contrast."""
    random = np.random.RandomState(derive(seed, "scanner", number) % 2**32)
    return float(random.uniform(-0.4, 0.4)), float(random.uniform(0.8, 1.25))


def _patient(seed: int, name: str, scanner: tuple[float, float]) -> tuple[Tensor, Tensor]:
    random = np.random.RandomState(derive(seed, "patient", name) % 2**32)
    brightness, contrast = scanner
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images = np.empty((IMAGES_PER_PATIENT, 1, SIZE, SIZE), np.float32)
    masks = np.empty((IMAGES_PER_PATIENT, SIZE, SIZE), np.int64)
    for i in range(IMAGES_PER_PATIENT):
        mask: NDArray[np.bool_] = np.zeros((SIZE, SIZE), np.bool_)
        for _ in range(random.randint(1, 4)):
            row, column = random.uniform(4, SIZE - 4, 2)
            height, width = random.uniform(2, 5, 2)
            mask |= ((rows - row) / height) ** 2 + ((columns - column) / width) ** 2 < 1
        texture = 0.4 * random.standard_normal((SIZE, SIZE)) + 0.02 * random.uniform(-1, 1) * columns
        images[i, 0] = brightness + contrast * (mask + texture)
        masks[i] = mask
    return torch.from_numpy(images), torch.from_numpy(masks)


class FindBlobs:
    """Loss and metrics of an image. Blob pixels are rare, so a missed one has a higher loss.

    Output is (batch, 1, rows, columns) of logits, target (batch, rows, columns) of 0 and 1.
    """

    missed = 2.0

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.sample_losses(output, target).mean()

    def sample_losses(self, output: Tensor, target: Tensor) -> Tensor:
        weight = torch.full((1,), self.missed, device=output.device)
        truth = target.to(output.dtype)
        per_pixel = functional.binary_cross_entropy_with_logits(
            output[:, 0], truth, pos_weight=weight, reduction="none"
        )
        return per_pixel.flatten(1).mean(1)

    def sample_scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns intersection over union; 1 if target and prediction are both empty."""
        found, truth = (output[:, 0] > 0).flatten(1), target.bool().flatten(1)
        union = (found | truth).sum(1)
        return torch.where(union > 0, (found & truth).sum(1) / union.clamp(min=1), 1.0)

    def confidences(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the probability of the true value, averaged over the pixels. Membership attacks use it."""
        probability = output[:, 0].sigmoid()
        return torch.where(target.bool(), probability, 1 - probability).flatten(1).mean(1)


def build_model(options: Mapping[str, str]) -> nn.Module:
    """Returns a U-Net with one level. Its batch norm has running means: buffers, which are sent and never negated."""
    return TinyUNet(int(options.get("width", "8")))


class TinyUNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _block(1, width)
        self.down = _block(width, 2 * width)
        self.up = _block(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x)
        coarse = self.down(functional.max_pool2d(fine, 2))
        wide = functional.interpolate(coarse, scale_factor=2, mode="nearest")
        logits: Tensor = self.head(self.up(torch.cat([fine, wide], 1)))
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )
