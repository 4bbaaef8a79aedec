"""A clinic with a custom training loop: plain PyTorch around `puf_client.connect`.

    python own_loop.py --name clinic-2 --shard 2/3

The loop trains by ordinary descent and does not handle the sign of unlearning: `submit` computes the difference to the
base model and applies the scale that the server assigned. It trains on `work.indices` only, so it supports all parts. It
has no other routine than "train": the session declines work that needs another one.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from blobs import FindBlobs, build_model, load  # type: ignore[import-not-found]
from torch import nn
from torch.utils.data import DataLoader, Subset

import puf_client
from puf_client import Assignment, DataContext, EvaluationRequest
from puf_common.v1.federation_pb2 import LeaveOrder

TASK = FindBlobs()


def main() -> int:
    parser = argparse.ArgumentParser(description="A clinic with a custom training loop.")
    parser.add_argument("--server", default="127.0.0.1:7300", help="address of the server")
    parser.add_argument("--name", required=True, help="this clinic's name in the federation")
    parser.add_argument("--shard", required=True, help="the clinic's shard: I/N, counted from 0")
    parser.add_argument("--state", type=Path, help="directory for data that must survive a run (default: the user's)")
    options = parser.parse_args()
    shard, shards = map(int, options.shard.split("/"))

    data = load(DataContext(shard, shards))
    model = build_model({})
    session = puf_client.connect(
        options.server,
        name=options.name,
        data=data,
        holdout_samples=data.holdout_samples,
        parts=("main", "retain", "forget"),
        state=options.state,
    )
    with session:
        for work in session:
            model.load_state_dict({name: torch.tensor(array) for name, array in work.weights.items()})
            if isinstance(work, Assignment):
                train(model, data.train, work)
            else:
                measure(model, data.holdout, work)
    if session.leave is not None and session.leave.reason == LeaveOrder.REASON_FORGOTTEN:
        print(f"{options.name} was forgotten", flush=True)
        return 10
    return 0


def train(model: nn.Module, samples: object, work: Assignment) -> None:
    # Samples that were forgotten are not among them.
    chosen: Subset[object] = Subset(samples, list(work.indices))  # type: ignore[arg-type]
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.recipe.momentum)
    seen, total = 0, 0.0
    for x, y in batches(chosen, work):
        if work.abandoned():
            return
        loss = TASK.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen, total = seen + len(x), total + loss.item() * len(x)
    work.submit(model, indices=work.indices, train_loss=total / seen, samples_processed=seen)
    print(f"round {work.round}: loss {total / seen:.3f}", flush=True)


def batches(samples: Subset[object], work: Assignment) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the batches of an assignment. Its epochs may be fractional: 0.5 is half of the batches of one epoch."""
    per_epoch = math.ceil(len(samples) / work.recipe.batch_size)
    left = max(1, math.floor(work.epochs * per_epoch + 1e-9))
    for epoch in range(math.ceil(left / per_epoch)):
        # The assignment gives the seed, so that a repeated round gives equal bits.
        order = torch.Generator().manual_seed(work.stream(epoch))
        loader = DataLoader(samples, work.recipe.batch_size, shuffle=True, generator=order)
        yield from islice(loader, left)
        left -= per_epoch


@torch.no_grad()
def measure(model: nn.Module, samples: object, work: EvaluationRequest) -> None:
    model.eval()
    count, losses, scores = 0, 0.0, 0.0
    for x, y in DataLoader(samples, 64):  # type: ignore[arg-type]
        output = model(x)
        count += len(x)
        losses += TASK.sample_losses(output, y).sum().item()
        scores += TASK.sample_scores(output, y).sum().item()
    work.report(count, losses, scores)
    print(f"model {work.version}: IoU {scores / count:.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
