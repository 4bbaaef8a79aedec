"""Writes one shard of the digits as CSV for the Node.js client: `python digits_csv.py 2/3 part.csv`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from puf_client.data import load_data
from puf_client.data.api import DataContext


def lines(shard: int, shards: int) -> Iterator[str]:
    """One line for each sample: train or holdout, the label, the pixels."""
    data = load_data("digits", DataContext(shard=shard, shards=shards, options={"noise": "1.0"}))
    assert data.holdout is not None
    for part, samples in (("train", data.train_plain), ("holdout", data.holdout)):
        for index in range(len(samples)):  # type: ignore[arg-type]  # a map-style dataset
            x, y = samples[index]
            yield ",".join([part, str(int(y)), *(f"{value:.6g}" for value in x.flatten().tolist())])


if __name__ == "__main__":
    wanted, of = map(int, sys.argv[1].split("/"))
    Path(sys.argv[2]).write_text("\n".join(lines(wanted, of)) + "\n")
