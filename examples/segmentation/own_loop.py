"""A clinic with a custom training loop: plain PyTorch around `puf_client.connect`.

    python own_loop.py --name clinic-2 --shard 2/3

The loop trains by ordinary descent, also when the clinic is forgotten. The session evaluates models and keeps forgotten
images out.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from blobs import FindBlobs, build_model, load  # type: ignore[import-not-found]

import puf_client as puf


def main() -> int:
    parser = argparse.ArgumentParser(description="A clinic with a custom training loop.")
    parser.add_argument("--server", default="127.0.0.1:7300", help="address of the server")
    parser.add_argument("--name", required=True, help="this clinic's name in the federation")
    parser.add_argument("--shard", required=True, help="the clinic's shard: I/N, counted from 0")
    parser.add_argument("--state", type=Path, help="directory for data that must survive a run (default: the user's)")
    options = parser.parse_args()
    shard, shards = map(int, options.shard.split("/"))

    data, model, task = load(puf.DataContext(shard, shards)), build_model({}), FindBlobs()
    with puf.connect(
        options.server, name=options.name, data=data, model=model, task=task, state=options.state
    ) as session:
        for job in session:
            optimizer, seen, total = job.optimizer(), 0, 0.0
            for x, y in job.batches():
                loss = task.loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen, total = seen + len(x), total + loss.item() * len(x)
            if job.submit(train_loss=total / max(1, seen)):
                print(f"round {job.round}: loss {total / seen:.3f}", flush=True)
    if session.forgotten:
        print(f"{options.name} was forgotten", flush=True)
        return 10
    return 0


if __name__ == "__main__":
    sys.exit(main())
