"""A client's data: a built-in dataset by name, or the user's function."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_client.data.api import ClientData, DataContext
from puf_common.config import plugins
from puf_common.errors import UsageError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

__all__ = ["BUILT_IN", "ClientData", "DataContext", "load_data", "require_available", "test_set"]

BUILT_IN = ("cifar10", "cifar100", "digits", "prostate")
_IN_A_DIRECTORY = ("cifar10", "cifar100", "prostate")


def require_available(spec: str, directory: Path | None) -> None:
    """Raises for an unknown built-in dataset or a missing --data-dir. Imports neither torch nor the user's code."""
    if ":" in spec:
        return
    if spec not in BUILT_IN:
        raise UsageError(
            f"there is no built-in dataset {spec!r}; use one of {', '.join(BUILT_IN)}, "
            "or package.module:function for your data"
        )
    if spec in _IN_A_DIRECTORY and directory is None:
        raise UsageError(f"{spec} needs --data-dir: the directory with the files of the dataset")


def load_data(spec: str, ctx: DataContext) -> ClientData:
    """Returns this client's part of a built-in dataset, or the result of package.module:function for the context."""
    if ":" not in spec:
        require_available(spec, ctx.directory)
        from puf_client.data.datasets import DATASETS

        return DATASETS[spec][0](ctx)
    data = plugins.call(plugins.load(spec), ctx)
    if not isinstance(data, ClientData):
        raise UsageError(f"{spec} must return puf_client.ClientData, not {type(data).__name__}")
    return data


def test_set(spec: str, ctx: DataContext) -> Dataset[Any]:
    """Returns the common test set: the built-in one, or that of the function `test_set(ctx)` in the user's module."""
    if ":" not in spec:
        require_available(spec, ctx.directory)
        from puf_client.data.datasets import DATASETS

        return DATASETS[spec][1](ctx)
    module = spec.partition(":")[0]
    if not hasattr(sys.modules[plugins.load(spec).__module__], "test_set"):
        raise UsageError(f"an experiment with {spec} needs a function test_set(ctx) in {module}: samples of no client")
    dataset: Dataset[Any] = plugins.call(plugins.load(f"{module}:test_set"), ctx)
    return dataset
