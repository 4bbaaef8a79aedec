"""A clinic with a custom training loop: plain PyTorch around `puf_client.connect`.

    python own_loop.py --name clinic-2 --shard 2/3

The loop trains by ordinary descent and does not handle the sign of unlearning: `submit` computes the difference to the
base model and applies the scale that the server assigned.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys

import torch
from blobs import FindBlobs, build_model, load  # type: ignore[import-not-found]
from torch import nn
from torch.utils.data import DataLoader

import puf_client
from puf_client import Assignment, DataContext, EvaluationRequest
from puf_common.v1.federation_pb2 import LeaveOrder

TASK = FindBlobs()


def main() -> int:
    parser = argparse.ArgumentParser(description="A clinic with a custom training loop.")
    parser.add_argument("--server", default="127.0.0.1:7300", help="address of the server")
    parser.add_argument("--name", required=True, help="this clinic's name in the federation")
    parser.add_argument("--shard", required=True, help="the clinic's shard: I/N, counted from 0")
    options = parser.parse_args()
    shard, shards = map(int, options.shard.split("/"))

    data = load(DataContext(shard, shards))
    model = build_model({})
    session = puf_client.connect(
        options.server, name=options.name, samples=data.samples, holdout_samples=data.holdout_samples
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
    if work.part != "main":
        # A request for single samples. `puf-client run` stores which samples it names; this loop does not.
        work.decline("this loop trains only on all of its data")
        return
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.recipe.momentum)
    seen, total = 0, 0.0
    for epoch in range(round(work.epochs)):
        # The assignment gives the seed, so that a repeated round gives equal bits.
        order = torch.Generator().manual_seed(work.stream(epoch))
        for x, y in DataLoader(samples, work.recipe.batch_size, shuffle=True, generator=order):  # type: ignore[arg-type]
            if work.abandoned():
                return
            loss = TASK.loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = seen + len(x), total + loss.item() * len(x)
    work.submit(model, train_loss=total / seen, samples_processed=seen)
    print(f"round {work.round}: loss {total / seen:.3f}", flush=True)


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
