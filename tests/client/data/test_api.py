from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from puf_client.data import ClientData, DataContext
from puf_common.errors import UsageError


def _dataset(samples: int) -> TensorDataset:
    return TensorDataset(torch.zeros(samples, 1), torch.zeros(samples))


def _data(samples: int = 2, **changes: Any) -> ClientData:
    train = _dataset(samples)
    values = {"train": train, "train_plain": train, "holdout": None, "ids": [f"s{i}" for i in range(samples)]}
    return ClientData(**{**values, **changes})


def test_client_data_states_its_sizes() -> None:
    data = _data(3, holdout=_dataset(2), groups=["a", "a", "b"])
    assert (data.samples, data.holdout_samples, data.augments) == (3, 2, False)
    assert _data(3, train_plain=_dataset(3)).augments
    assert _data(0, holdout=_dataset(2)).samples == 0, "a client that only evaluates has no training samples"


def test_data_is_given_by_name() -> None:
    train = _dataset(2)
    assert ClientData(train, ids=["a", "b"]).train_plain is train
    with pytest.raises(UsageError, match=r"ClientData\(train, holdout=\.\.\., ids="):
        ClientData(train, train, None, ["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="only ids is required"):
        ClientData(train)


class _Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train_plain": _dataset(3)}, "train has 2 samples but train_plain has 3"),
        ({"ids": ["a"]}, "ids has 1"),
        ({"groups": ["a", "b", "c"]}, "groups has 3"),
        ({"train": (torch.zeros(3, 1), torch.zeros(3)), "ids": ["a", "b", "c"]}, r"is TensorDataset\(x, y\)"),
        ({"ids": ["same", "same"]}, "two samples 'same'"),
        ({"ids": ["a", 2]}, "2 is a int"),
        ({"ids": ["a", ""]}, "without spaces"),
        ({"ids": ["a", "b "]}, "without spaces"),
        ({"ids": ["a", "b\nc"]}, "one line of text"),
        ({"ids": ["a", "group:b"]}, "must not begin with 'group:'"),
        ({"groups": ["a", "b\t"]}, "group 'b"),
        ({"train": _Endless()}, "train is a _Endless; it must be a map-style dataset"),
        ({"holdout": 3}, "holdout is a int"),
    ],
)
def test_inconsistent_data_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _data(**changes)


@pytest.mark.parametrize(("shard", "shards"), [(-1, 2), (2, 2), (0, 0)])
def test_a_shard_outside_the_number_of_shards_is_refused(shard: int, shards: int) -> None:
    with pytest.raises(UsageError, match=f"shard {shard}/{shards}"):
        DataContext(shard, shards)


def test_options_have_the_type_of_their_default() -> None:
    ctx = DataContext(options={"a": "2", "b": "0.5", "c": "True", "d": "x"})
    assert (ctx.option("a", 1), ctx.option("b", 1.0), ctx.option("c", False), ctx.option("d", "")) == (
        2,
        0.5,
        True,
        "x",
    )
    assert ctx.option("e", 7) == 7
    for name, default, kind in (("b", 1, "whole number"), ("d", 1.0, "a number"), ("d", True, "true or false")):
        with pytest.raises(UsageError, match=f"option {name} must be .*{kind}"):
            ctx.option(name, default)
    ctx.refuse_other_options("a", "b", "c", "d")
    with pytest.raises(UsageError, match="no data option 'd'; known are a, b, c"):
        ctx.refuse_other_options("a", "b", "c")
