"""The sum of a FLARE round over differences of weights. Needs no FLARE.

    Regular   sum over retained (n_i / n) Delta_i - kappa * Delta_u, with n over all sites of the round
    Special   - kappa * Delta_u; retained updates of that round do not count

A target sends -kappa * Delta_u already. Buffers are the mean of the retained sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from puf_common.errors import InvalidUpdate
from puf_embedded.arithmetic import Array, Arrays, buffers_of, require_same


@dataclass(frozen=True)
class Contribution:
    """The update of one site: its differences, its weight, and whether it is negated."""

    site: str
    update: Arrays
    samples: float
    negated: bool = False


def negated(update: Arrays, kappa: float, buffers: Iterable[str] | None = None) -> dict[str, Array]:
    """`-kappa * Delta` for parameters and zero for buffers. Computed in float64 and rounded once."""
    kept = buffers_of(update, buffers)
    return {
        name: np.zeros_like(value)
        if name in kept
        else np.asarray((-kappa * value.astype(np.float64)).astype(value.dtype))
        for name, value in update.items()
    }


def combined(
    parts: Sequence[Contribution], *, special: bool = False, buffers: Iterable[str] | None = None
) -> dict[str, Array]:
    """The difference that the server adds to its model. Raises InvalidUpdate if there is nothing to sum."""
    if not parts:
        raise InvalidUpdate("no update came: the round has nothing to sum")
    for part in parts:
        require_same(parts[0].update, part.update)
        if part.samples <= 0:
            raise InvalidUpdate(f"{part.site} states no samples: its update has no weight")
    retained = [p for p in parts if not p.negated]
    targets = [p for p in parts if p.negated]
    if targets and special:
        retained = []
    total = sum(p.samples for p in (*retained, *targets))
    others = sum(p.samples for p in retained)
    kept = buffers_of(parts[0].update, buffers)
    result = {}
    for name, like in parts[0].update.items():
        found = np.zeros(like.shape, np.float64)
        for p in retained:
            found += p.samples / (others if name in kept else total) * p.update[name].astype(np.float64)
        for p in targets:
            if name not in kept:
                found += p.update[name].astype(np.float64)
        result[name] = found.astype(like.dtype if np.issubdtype(like.dtype, np.floating) else np.float64)
    return result
