"""Built-in datasets by name. Each has a fixed training pool, which is split into shards, and a common test set."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, TensorDataset

from puf_client.data import prostate
from puf_client.data.api import ClientData, DataContext
from puf_client.data.images import Images
from puf_client.data.partition import Indices, partition, stream
from puf_common.errors import UsageError

# Options of every dataset: `per_client` is the largest number of training samples of a shard (0: no limit), `holdout`
# the share of a shard that is held out.
_SHARED = ("per_client", "holdout")

# After a fixed shuffle, images 0 to 999 are the pool and the other 797 are the test set.
_DIGITS_POOL = 1000
_DIGITS_SEED = 1797


def _shares(labels: NDArray[np.int64], ctx: DataContext) -> tuple[Indices, Indices]:
    """Returns the shard's training and hold-out indices. The hold-out comes first and does not depend on the limit."""
    fraction, cap = ctx.option("holdout", 0.2), ctx.option("per_client", 0)
    if not 0 <= fraction < 1:
        raise UsageError(f"data option holdout is a share of the samples from 0 to below 1, not {fraction:g}")
    if cap < 0:
        raise UsageError(f"data option per_client must be at least 1 (or 0 for all), not {cap}")
    mine = partition(labels, ctx.shards, ctx.partition, ctx.seed)[ctx.shard]
    held = min(max(round(fraction * mine.size), 1), mine.size - 1) if fraction else 0
    train = mine[held:]
    return train[: cap or train.size], mine[:held]


def _ids(name: str, indices: Indices) -> tuple[str, ...]:
    return tuple(f"{name}/train/{index:05d}" for index in indices)


@lru_cache(maxsize=1)
def _digits_on_disk() -> NDArray[np.float64]:
    """Returns scikit-learn's digits. Reads the file directly, because importing scikit-learn takes longer than the data.

    Clients in the same process share the table.
    """
    spec = importlib.util.find_spec("sklearn")
    for place in spec.submodule_search_locations or () if spec else ():
        path = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt", encoding="ascii") as file:
                return np.loadtxt(file, delimiter=",")
    raise UsageError("the dataset digits needs scikit-learn, which is not installed; install puf-fl[train]")


def _digits(ctx: DataContext) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns all 1797 images, standardised and with the requested noise, pool first."""
    ctx.refuse_other_options("noise", *_SHARED)
    noise = ctx.option("noise", 0.0)
    if not 0 <= noise < float("inf"):
        raise UsageError(f"data option noise is a standard deviation of at least 0, not {noise:g}")
    table = _digits_on_disk()
    table = table[stream(_DIGITS_SEED, "digits", "split").permutation(len(table))]
    images, labels = table[:, :-1], table[:, -1].astype(np.int64)
    pool = images[:_DIGITS_POOL]
    images = (images - pool.mean()) / pool.std()
    # Each image always has the same noise, in every process.
    images = images + noise * stream(ctx.seed, "digits", "noise").standard_normal(images.shape)
    return images.astype(np.float32).reshape(-1, 1, 8, 8), labels


def _tensors(images: NDArray[np.float32], labels: NDArray[np.int64]) -> TensorDataset:
    return TensorDataset(torch.from_numpy(images.copy()), torch.from_numpy(labels.copy()))


def _load_digits(ctx: DataContext) -> ClientData:
    images, labels = _digits(ctx)
    train, held = _shares(labels[:_DIGITS_POOL], ctx)
    dataset = _tensors(images[train], labels[train])
    holdout = _tensors(images[held], labels[held]) if held.size else None
    return ClientData(dataset, holdout=holdout, ids=_ids("digits", train))


def _test_digits(ctx: DataContext) -> Dataset[Any]:
    images, labels = _digits(ctx)
    return _tensors(images[_DIGITS_POOL:], labels[_DIGITS_POOL:])


@dataclass(frozen=True)
class _Cifar:
    """One of the two CIFAR datasets: its class in torchvision, its folder, and the channels' mean and standard deviation."""

    name: str
    reader: str
    folder: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def read(self, ctx: DataContext, *, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Returns images and labels of the first `classes` classes (0: all)."""
        ctx.refuse_other_options("augment", "rotate", "size", "classes", "group_size", "download", *_SHARED)
        if ctx.directory is None:
            raise UsageError(f"{self.name} needs --data-dir: the directory of {self.folder}")
        pixels, labels = _read_cifar(self, ctx.directory, train, ctx.option("download", False))
        classes = ctx.option("classes", 0)
        if classes < 0 or classes == 1:
            raise UsageError(f"data option classes must be at least 2 (or 0 for all), not {classes}")
        kept = np.flatnonzero(labels < classes) if classes else slice(None)
        return pixels[kept], labels[kept]

    def images(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64], ctx: DataContext, **augment: bool) -> Images:
        return Images(pixels, labels, self.mean, self.std, size=ctx.option("size", 32), **augment)

    def load(self, ctx: DataContext) -> ClientData:
        pixels, labels = self.read(ctx, train=True)
        train, held = _shares(labels, ctx)
        plain = self.images(pixels[train], labels[train], ctx)
        augmented = plain
        if ctx.option("augment", True):
            rotate = ctx.option("rotate", True)
            augmented = self.images(pixels[train], labels[train], ctx, augment=True, rotate=rotate)
        holdout = self.images(pixels[held], labels[held], ctx) if held.size else None
        groups = _groups(labels[train], ctx.option("group_size", 0))
        return ClientData(augmented, holdout=holdout, ids=_ids(self.name, train), groups=groups, train_plain=plain)

    def test(self, ctx: DataContext) -> Dataset[Any]:
        return self.images(*self.read(ctx, train=False), ctx)


@lru_cache(maxsize=4)
def _read_cifar(
    kind: _Cifar, directory: Path, train: bool, download: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns pixels and labels. Clients in the same process share them."""
    from torchvision import datasets

    try:
        data = getattr(datasets, kind.reader)(root=directory, train=train, download=download)
    except (RuntimeError, OSError) as error:
        if download:
            raise UsageError(f"downloading {kind.name} to {directory} failed: {error}") from error
        raise UsageError(
            f"{kind.name} is not in {directory}: unpack it there as {kind.folder}, "
            "or set the data option download to true (--data-option; in the lab, options under [data])"
        ) from None
    return data.data, np.asarray(data.targets, np.int64)


def _groups(labels: NDArray[np.int64], size: int) -> tuple[str, ...] | None:
    """Returns group names: each group has `size` images of one class, like photographs of one person. 0: no groups."""
    if size < 0:
        raise UsageError(f"data option group_size must be at least 1 (or 0 for no groups), not {size}")
    if not size:
        return None
    seen: dict[int, int] = {}
    names = []
    for label in labels.tolist():
        number = seen[label] = seen.get(label, -1) + 1
        names.append(f"class-{label}-{number // size}")
    return tuple(names)


_CIFAR10 = _Cifar("cifar10", "CIFAR10", "cifar-10-batches-py", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_CIFAR100 = _Cifar("cifar100", "CIFAR100", "cifar-100-python", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

# Two functions for each dataset: one returns a client's part of the training pool, the other the common test set. The test
# set is the same for every shard and shares no sample with any.
DATASETS: dict[str, tuple[Callable[[DataContext], ClientData], Callable[[DataContext], Dataset[Any]]]] = {
    "cifar10": (_CIFAR10.load, _CIFAR10.test),
    "cifar100": (_CIFAR100.load, _CIFAR100.test),
    "digits": (_load_digits, _test_digits),
    "prostate": (prostate.load, prostate.test_set),
}
