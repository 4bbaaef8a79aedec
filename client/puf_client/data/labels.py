"""The class of every training sample, for requests that name a class."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from puf_client.data.api import ClientData
from puf_client.data.samples import batch, count
from puf_common.errors import UsageError

_BATCH = 256


def labels_of(data: ClientData) -> NDArray[np.int64]:
    """The class of each training sample, in the order of the data. Raises for data without one class per sample."""
    found: list[NDArray[np.int64]] = []
    for start in range(0, count(data.train_plain), _BATCH):
        _, y = batch(data.train_plain, range(start, min(start + _BATCH, count(data.train_plain))))
        if y.ndim != 1 or y.is_floating_point():
            raise UsageError(
                f"a class can be forgotten only if every sample has one class number; the targets have the shape "
                f"{tuple(y.shape)} and the type {y.dtype}: list the samples with --forget"
            )
        found.append(y.cpu().numpy().astype(np.int64))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def of_classes(data: ClientData, classes: Collection[int]) -> list[int]:
    """The positions of all samples of these classes. Raises if a class has none."""
    labels = labels_of(data)
    missing = sorted(set(classes) - set(labels.tolist()))
    if missing:
        raise UsageError(
            f"this client has no sample of class {', '.join(map(str, missing))}; nothing was filed; its classes are "
            f"{', '.join(map(str, sorted(set(labels.tolist()))))}"
        )
    return [int(i) for i in np.flatnonzero(np.isin(labels, sorted(classes)))]
