"""Prints what exported adapters know of one client's text: `python measure.py FILE ...`, with the client's data options.

`--retrained FILE FILE` names adapters that were trained without the client, with two training seeds. Their difference is the
noise floor: a distance to them that is not larger shows nothing. The base model is built as the clients build it: from the seed
of the initial model, or from LORA_CHECKPOINT. Losses are in nats per token.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from lora_text import NextToken, canaries, load, test_set  # type: ignore[import-not-found]
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from puf_client import DataContext
from puf_common.models.networks import build_any

HEAD = ("its text", "its canaries", "extracted", "text of no client")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print losses, and how many canaries can be extracted.")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="adapters that `puf-server export` wrote")
    parser.add_argument(
        "--retrained", type=Path, nargs=2, metavar="FILE", default=[], help="adapters without the client"
    )
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--lines", default="8", help="the client's --data-option lines")
    parser.add_argument("--data-seed", type=int, default=0, help="the clients' --data-seed")
    parser.add_argument("--seed", type=int, default=1, help="seed of the initial model")
    given = parser.parse_args()
    context = DataContext(
        shard=given.shard, shards=given.shard + 1, seed=given.data_seed, options={"lines": given.lines}
    )
    model = build_any("lora_text:build", {}, given.seed).eval()
    found = {}
    for file in [*given.files, *given.retrained]:
        unknown = model.load_state_dict(load_file(file), strict=False).unexpected_keys
        if unknown:
            parser.error(f"{file} is of another model: this one has no {unknown[0]}")
        found[file] = figures(model, context)
    planted = len(canaries(context, {given.shard}))
    row("", HEAD)
    for file, (text, secrets, extracted, other) in found.items():
        row(file.stem, (f"{text:.2f}", f"{secrets:.2f}", f"{extracted:.0f} of {planted}", f"{other:.2f}"))
    if given.retrained:
        first, second = (found[file] for file in given.retrained)
        row("noise floor", [f"{abs(a - b):.2f}" for a, b in zip(first, second, strict=True)])
        for file in given.files:
            distances = [a - (b + c) / 2 for a, b, c in zip(found[file], first, second, strict=True)]
            row(f"{file.stem} - retrained", [f"{distance:+.2f}" for distance in distances])


def row(name: str, cells: Sequence[str]) -> None:
    shown = [cell.rjust(len(head) + 2) for cell, head in zip(cells, HEAD, strict=True)]
    sys.stdout.write(f"{name:25}{''.join(shown)}\n")


def figures(model: nn.Module, context: DataContext) -> tuple[float, float, float, float]:
    """Returns the figures of HEAD for one model."""
    data = load(context).train
    assert isinstance(data, TensorDataset)
    text, _ = measured(model, data)
    secrets, scores = measured(model, canaries(context, {context.shard}))
    other, _ = measured(model, test_set(context))
    return float(text.mean()), float(secrets.mean()), float((scores == 1).sum()), float(other.mean())


@torch.no_grad()
def measured(model: nn.Module, samples: TensorDataset) -> tuple[Tensor, Tensor]:
    """Losses and scores of all samples."""
    x, y = samples.tensors
    output, task = model(x), NextToken()
    return task.sample_losses(output, y), task.sample_scores(output, y)


if __name__ == "__main__":
    main()
