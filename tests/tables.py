"""Tables of hold-outs for tests."""

from __future__ import annotations

from collections.abc import Sequence

from puf_common.receipts.evidence import BINS
from puf_common.receipts.gap import ClassTable


def by_class(counts: Sequence[int], sums: Sequence[float], squares: Sequence[float]) -> ClassTable:
    """A table with these counts and sums. All samples of a class are in its first bin."""
    bins = [n for count in counts for n in (count, *([0] * (BINS - 1)))]
    return ClassTable(bins=tuple(bins), sums=tuple(sums), squares=tuple(squares))
