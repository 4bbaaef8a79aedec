"""Prints what exported adapters know of one client's text: `python measure.py FILE`, with the client's data options.

The base model is built as the clients build it: from the recipe's seed, or from LORA_CHECKPOINT. Losses are in nats per token.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from lora_text import NextToken, canaries, load, test_set  # type: ignore[import-not-found]
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from puf_client import DataContext
from puf_common.models.networks import build_any


def main() -> None:
    parser = argparse.ArgumentParser(description="Print losses, and how many canaries can be extracted.")
    parser.add_argument("file", type=Path, help="adapters that `puf-server export` wrote")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--lines", default="8", help="the client's --data-option lines")
    parser.add_argument("--data-seed", type=int, default=0, help="the clients' --data-seed")
    parser.add_argument("--seed", type=int, default=1, help="the server's --recipe-seed")
    given = parser.parse_args()
    model = build_any("lora_text:build", {}, given.seed).eval()
    unknown = model.load_state_dict(load_file(given.file), strict=False).unexpected_keys
    if unknown:
        parser.error(f"{given.file} is of another model: this one has no {unknown[0]}")
    context = DataContext(
        shard=given.shard, shards=given.shard + 1, seed=given.data_seed, options={"lines": given.lines}
    )
    data = load(context).train
    assert isinstance(data, TensorDataset)
    losses, _ = measured(model, data)
    sys.stdout.write(f"its text           loss {losses.mean():.2f}\n")
    losses, scores = measured(model, canaries(context, {given.shard}))
    extracted = int((scores == 1).sum())
    sys.stdout.write(f"its canaries       loss {losses.mean():.2f}, {extracted} of {len(scores)} extracted\n")
    losses, _ = measured(model, test_set(context))
    sys.stdout.write(f"text of no client  loss {losses.mean():.2f}\n")


@torch.no_grad()
def measured(model: nn.Module, samples: TensorDataset) -> tuple[Tensor, Tensor]:
    """Losses and scores of all samples."""
    x, y = samples.tensors
    output, task = model(x), NextToken()
    return task.sample_losses(output, y), task.sample_scores(output, y)


if __name__ == "__main__":
    main()
