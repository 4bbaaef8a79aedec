"""A client's data: built in by name, or the user's own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from puf_client.data.api import ClientData, DataContext
from puf_common.config import plugins
from puf_common.errors import UsageError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

__all__ = ["ClientData", "DataContext", "load_data", "test_set"]


def load_data(spec: str, ctx: DataContext) -> ClientData:
    """This client's part of a built-in dataset ("digits"), or what package.module:function makes of the context."""
    if ":" not in spec:
        from puf_client.data import datasets

        return datasets.load(spec, ctx)
    data = plugins.call(plugins.load(spec), ctx)
    if not isinstance(data, ClientData):
        raise UsageError(f"{spec} must return puf_client.ClientData, not {type(data).__name__}")
    return data


def test_set(spec: str, ctx: DataContext) -> Dataset[Any]:
    """The test set that all clients have in common: the built-in one, or `test_set(ctx)` beside the user's function."""
    if ":" not in spec:
        from puf_client.data import datasets

        return datasets.test_set(spec, ctx)
    function: Callable[..., Any] = plugins.load(f"{spec.partition(':')[0]}:test_set")
    dataset: Dataset[Any] = plugins.call(function, ctx)
    return dataset
