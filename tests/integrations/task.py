"""A model and data in numpy: softmax regression with a buffer, on samples that it can memorise. Runs in every environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_client.routines.per_sample import PerSample
from puf_embedded.measuring import per_sample

Arrays = dict[str, NDArray[Any]]
CLASSES, DIMENSIONS, HOLDOUT = 3, 40, 60


def initial(saved: str = "") -> Arrays:
    """The model that the last run saved in this file; without one, the same new model every time."""
    if saved and Path(saved).exists():
        with np.load(saved) as found:
            return {name: found[name] for name in found}
    draw = np.random.default_rng(0)
    return {
        "layer.weight": (0.01 * draw.normal(size=(CLASSES, DIMENSIONS))).astype(np.float32),
        "layer.bias": np.zeros(CLASSES, np.float32),
        "norm.running_mean": np.zeros(DIMENSIONS, np.float32),
    }


def samples(partition: int, part: str = "train") -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The data of one client. Labels follow weakly from the data, so that a model memorises most of them."""
    count = 40 + 10 * partition if part == "train" else HOLDOUT
    draw = np.random.default_rng([partition, part == "train"])
    y = draw.integers(0, CLASSES, count)
    x = draw.normal(size=(count, DIMENSIONS)) + 0.5 * np.eye(CLASSES, DIMENSIONS)[y]
    return x, y


def probabilities(model: Arrays, x: NDArray[np.float64]) -> NDArray[np.float64]:
    logits = x @ model["layer.weight"].astype(np.float64).T + model["layer.bias"].astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def train(model: Arrays, partition: int, steps: int = 8, rate: float = 0.3) -> tuple[Arrays, int]:
    """Gradient descent on all samples. The buffer becomes the mean of the data."""
    x, y = samples(partition)
    weight, bias = (model[name].astype(np.float64) for name in ("layer.weight", "layer.bias"))
    for _ in range(steps):
        now = {"layer.weight": weight, "layer.bias": bias}
        wrong = (probabilities(now, x) - np.eye(CLASSES)[y]) / len(y)
        weight, bias = weight - rate * wrong.T @ x, bias - rate * wrong.sum(axis=0)
    mean = x.mean(axis=0)
    trained = {"layer.weight": weight, "layer.bias": bias, "norm.running_mean": mean}
    return {name: value.astype(np.float32) for name, value in trained.items()}, len(y)


def measure(model: Arrays, partition: int, part: str) -> PerSample:
    x, y = samples(partition, part)
    found = probabilities(model, x)
    return per_sample(found[np.arange(len(y)), y], y, found.argmax(axis=1) == y, CLASSES)


# What the app on the page docs/flower.md needs.


def numpy(record: Any) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def record(arrays: Arrays) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def save(arrays: Any, path: str) -> None:
    values: dict[str, Any] = numpy(arrays)
    np.savez(path, **values)
