"""Which shard has which samples: a pure function of labels, number of shards, kind and seed.

Every client computes the whole split and takes its own shard, so the shards of all machines are disjoint without a
coordinator. This needs equal random numbers on every machine: numpy guarantees the stream of `RandomState`, but not the
streams of its newer generators.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from puf_common.config import plugins
from puf_common.errors import UsageError
from puf_common.seeds import derive

Indices = NDArray[np.int64]

KINDS = ("iid", "dirichlet", "hsu")
# Number of draws before an error, if every draw leaves a shard empty.
_ATTEMPTS = 10


def stream(seed: int, *purpose: str | int) -> np.random.RandomState:
    """Returns random numbers for one purpose, equal on every machine and with every version of numpy."""
    value = derive(seed, *purpose)
    return np.random.RandomState([value & 0xFFFFFFFF, value >> 32])


def partition(labels: ArrayLike, shards: int, spec: str, seed: int) -> list[Indices]:
    """Returns disjoint sets of indices into `labels`. None is empty, and each is in random order.

    * `iid`: a random split into parts whose sizes differ by at most one sample.
    * `dirichlet:ALPHA`: for every class, shares of the clients drawn from Dir(ALPHA, ..., ALPHA). Sizes differ, and
      rounding may leave a few samples unassigned.
    * `hsu:ALPHA`: for every client, a mix of classes drawn from Dir(ALPHA * p) with p the classes' shares. All sizes
      are equal. Both kinds are called label skew with ALPHA, but `hsu` has far more skew for equal ALPHA.
    * `package.module:function` of the user: gets labels, shards and seed, and returns one list of indices per shard.
    """
    array = np.asarray(labels)
    own, _, function = spec.partition(":")
    if own not in KINDS and function.isidentifier():
        return _own(array, shards, spec, seed)
    kind, alpha = _parse(spec)
    if shards < 1:
        raise UsageError(f"data cannot be split into {shards} shards")
    if array.size < shards:
        raise UsageError(f"{array.size} samples cannot be split into {shards} shards")
    random = stream(seed, "partition", kind, str(alpha), shards)
    if kind == "iid":
        return [part.astype(np.int64) for part in np.array_split(random.permutation(array.size), shards)]
    _, inverse = np.unique(array, return_inverse=True)
    pools = [np.flatnonzero(inverse == c) for c in range(int(inverse.max()) + 1)]
    split = (
        _dirichlet(pools, shards, alpha, spec, random) if kind == "dirichlet" else _hsu(pools, shards, alpha, random)
    )
    return [part[random.permutation(part.size)].astype(np.int64) for part in split]


def _own(labels: NDArray[np.int64], shards: int, spec: str, seed: int) -> list[Indices]:
    """The split of the user's function. Raises if it is not one list of different samples per shard."""
    split = [np.asarray(part, np.int64) for part in plugins.call(plugins.load(spec), labels, shards, seed)]
    used = np.concatenate(split) if split else np.empty(0, np.int64)
    if len(split) != shards or any(part.size == 0 for part in split):
        raise UsageError(f"partition {spec} must return {shards} lists of indices, none of them empty")
    if len(np.unique(used)) != used.size or used.min() < 0 or used.max() >= labels.size:
        raise UsageError(f"partition {spec} must use each index from 0 to {labels.size - 1} at most once")
    return split


def _parse(spec: str) -> tuple[str, float]:
    kind, colon, text = spec.partition(":")
    if kind == "iid" and not colon:
        return kind, 0.0
    try:
        alpha = float(text)
    except ValueError:
        alpha = 0.0
    if kind not in ("dirichlet", "hsu") or not 0 < alpha < float("inf"):
        raise UsageError(f"partition {spec!r} must be iid, dirichlet:ALPHA or hsu:ALPHA with ALPHA above 0")
    return kind, alpha


def _draw(concentration: NDArray[np.float64], random: np.random.RandomState) -> NDArray[np.float64]:
    """Returns one draw from a Dirichlet distribution. If it underflows, returns its limit: one share has everything."""
    with np.errstate(invalid="ignore"):
        shares = random.dirichlet(concentration)
    if not np.isfinite(shares).all():
        shares = np.zeros_like(concentration)
        shares[random.choice(len(shares), p=concentration / concentration.sum())] = 1.0
    return shares


def _dirichlet(
    pools: list[Indices], shards: int, alpha: float, spec: str, random: np.random.RandomState
) -> list[Indices]:
    for _ in range(_ATTEMPTS):
        parts: list[list[Indices]] = [[] for _ in range(shards)]
        for pool in pools:
            counts = np.round(_draw(np.full(shards, alpha), random) * pool.size).astype(np.int64)
            # If rounding assigns more samples than there are, the last shards get fewer.
            ends = np.minimum(np.cumsum(counts), pool.size)
            shuffled = pool[random.permutation(pool.size)]
            for part, begin, end in zip(parts, [0, *ends[:-1]], ends, strict=True):
                part.append(shuffled[begin:end])
        split = [np.concatenate(part) for part in parts]
        if all(part.size for part in split):
            return split
    raise UsageError(
        f"partition {spec} of {sum(p.size for p in pools)} samples left a shard of {shards} empty {_ATTEMPTS} times; "
        "use a larger ALPHA or fewer shards"
    )


def _hsu(pools: list[Indices], shards: int, alpha: float, random: np.random.RandomState) -> list[Indices]:
    sizes = np.array([pool.size for pool in pools])
    prior = sizes / sizes.sum()
    per_shard = int(sizes.sum()) // shards
    shuffled = [pool[random.permutation(pool.size)] for pool in pools]
    taken = np.zeros_like(sizes)
    split = []
    for _ in range(shards):
        mix = _draw(alpha * prior, random)
        counts = np.zeros_like(sizes)
        while (missing := per_shard - int(counts.sum())) > 0:
            left = sizes - taken - counts
            # Exhausted classes leave the mix. If all its classes are exhausted, the remaining counts are the weights.
            weights = np.where(left > 0, mix, 0.0)
            if not weights.sum() > 0:
                weights = left.astype(np.float64)
            counts += np.minimum(random.multinomial(missing, weights / weights.sum()), left)
        split.append(np.concatenate([s[t : t + c] for s, t, c in zip(shuffled, taken, counts, strict=True)]))
        taken += counts
    return split
