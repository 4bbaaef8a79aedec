from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from puf_client.data.partition import Indices, partition
from puf_common.errors import UsageError

LABELS = np.repeat(np.arange(10), 100)


def _skew(labels: NDArray[np.int64], parts: list[Indices]) -> float:
    """Mean share of a shard's most frequent class."""
    return float(np.mean([np.bincount(labels[p]).max() / p.size for p in parts]))


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=300),
    shards=st.integers(1, 12),
    spec=st.sampled_from(
        ["iid", "dirichlet:0.01", "dirichlet:0.3", "dirichlet:100", "hsu:0.0001", "hsu:0.3", "hsu:50"]
    ),
    seed=st.integers(0, 2**63 - 1),
)
def test_shards_are_disjoint_and_none_is_empty(labels: list[int], shards: int, spec: str, seed: int) -> None:
    try:
        parts = partition(labels, shards, spec, seed)
    except UsageError:
        assert len(labels) < shards or spec.startswith("dirichlet")
        return
    together = np.concatenate(parts)
    assert len(parts) == shards
    assert all(part.size for part in parts)
    assert np.unique(together).size == together.size
    assert together.min() >= 0
    assert together.max() < len(labels)
    sizes = [part.size for part in parts]
    if spec == "iid":
        assert together.size == len(labels)
        assert max(sizes) - min(sizes) <= 1
    if spec.startswith("hsu"):
        assert set(sizes) == {len(labels) // shards}


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.3", "hsu:0.3"])
def test_equal_arguments_give_equal_splits(spec: str) -> None:
    first = partition(LABELS, 5, spec, 1)
    np.random.seed(3)
    assert all(np.array_equal(a, b) for a, b in zip(first, partition(LABELS.tolist(), 5, spec, 1), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, partition(LABELS, 5, spec, 2), strict=True))


def test_the_split_never_changes() -> None:
    """Clients of different versions must compute equal splits, or their shards overlap."""
    digests = {
        spec: hashlib.sha256(np.concatenate(partition(LABELS, 4, spec, 1)).astype("<i8").tobytes()).hexdigest()[:16]
        for spec in ("iid", "dirichlet:0.3", "hsu:0.3")
    }
    assert digests == {"iid": "1c74451739ec3fd9", "dirichlet:0.3": "7124f2918de12935", "hsu:0.3": "7e2fa683aa07781f"}


def test_a_large_alpha_gives_even_shares() -> None:
    parts = partition(LABELS, 10, "dirichlet:10000000", 1)
    assert all(abs(part.size - 100) <= 10 for part in parts)
    assert all(abs(np.bincount(LABELS[part], minlength=10) - 10).max() <= 1 for part in parts)


def test_a_small_alpha_skews_labels() -> None:
    for kind, alphas in (("dirichlet", (100, 0.1)), ("hsu", (1000, 1))):
        even, skewed = (_skew(LABELS, partition(LABELS, 5, f"{kind}:{alpha}", 1)) for alpha in alphas)
        assert even < 0.25
        assert skewed > 0.35


def test_rounded_shares_never_exceed_the_class() -> None:
    """Ten clients share a class of 15 samples: 1.5 is rounded up to 2, and the last clients get fewer."""
    parts = partition(np.zeros(15, int), 6, "dirichlet:10000000", 3)
    assert sum(part.size for part in parts) <= 15
    assert np.unique(np.concatenate(parts)).size == sum(part.size for part in parts)


def test_every_prefix_of_a_shard_is_mixed() -> None:
    part = partition(LABELS, 2, "dirichlet:1000", 1)[0]
    assert np.unique(LABELS[part[:60]]).size >= 8


@pytest.mark.parametrize(
    "spec", ["", "lda:1", "iid:3", "dirichlet", "dirichlet:", "dirichlet:x", "hsu:0", "hsu:-1", "hsu:inf", "hsu:nan"]
)
def test_unknown_kinds_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="must be iid, dirichlet:ALPHA or hsu:ALPHA"):
        partition(LABELS, 2, spec, 1)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="3 samples cannot be split into 4"):
        partition([0, 1, 2], 4, "iid", 1)
    with pytest.raises(UsageError, match=r"left a shard of 5 empty 10 times; use a larger ALPHA"):
        partition(np.zeros(100, int), 5, "dirichlet:0.001", 1)
    with pytest.raises(UsageError, match="0 shards"):
        partition(LABELS, 0, "iid", 1)
