"""Three-sample test: is an unlearned model closer to the retrained or to the original model on the forget data?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from puf_common.errors import UsageError

DRAWS = 2000


@dataclass(frozen=True, slots=True)
class ThreeSamples:
    """`closer`: how much closer to the retrained model, in points of confidence. Below 0: closer to the original.

    `p` is the two-sided p-value of a permutation test.
    """

    closer: float
    p: float


def three_sample_test(
    unlearned: ArrayLike, retrained: ArrayLike, original: ArrayLike, *, seed: int, draws: int = DRAWS
) -> ThreeSamples:
    """Compares the distances |u - o| and |u - r| of the confidences, sample by sample.

    If the unlearned model is as close to one as to the other, their names can be exchanged for each sample on its own.
    This changes the sign of the sample's difference, so the permutations are random signs.
    """
    u, r, o = (np.asarray(values, np.float64) for values in (unlearned, retrained, original))
    if u.ndim != 1 or u.size == 0 or not u.shape == r.shape == o.shape:
        raise UsageError("the three models must be given the same samples, at least one")
    differences = np.abs(u - o) - np.abs(u - r)
    observed = float(differences.mean())
    signs = np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), size=(draws, u.size))
    drawn = signs @ differences / u.size
    # The observed assignment is one of the permutations. The margin is for sums in another order.
    extreme = int(np.count_nonzero(np.abs(drawn) >= abs(observed) - 1e-12))
    return ThreeSamples(100.0 * observed, (1 + extreme) / (1 + draws))
