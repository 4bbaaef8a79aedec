"""The user's code: text as data, a language model with LoRA adapters, a task and the measurements.

Without LORA_CHECKPOINT the model is small and random, and reads bytes. With LORA_CHECKPOINT=DIRECTORY the same code loads a
checkpoint and its tokenizer from that directory. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from puf_client import ClientData, DataContext

__version__ = "1.0"

TOPICS = ("sky", "rivers", "stones", "birds")
NAMES = (
    ("Ada", "Bruno", "Clara", "David"),
    ("Emma", "Felix", "Greta", "Hugo"),
    ("Irene", "Jonas", "Klara", "Leo"),
    ("Mia", "Nils", "Olga", "Paul"),
)
LENGTH = 64
CHECKPOINT = "LORA_CHECKPOINT"
IGNORED = -100


class LoraText(nn.Module):
    """A language model whose only trained tensors are the B factors of its adapters."""

    def __init__(self, base: Any, rank: int, train_a: bool) -> None:
        super().__init__()
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        self.language = get_peft_model(base, config)
        # An update is negated tensor by tensor. With A frozen, that negates the change of the product B A.
        for name, parameter in self.language.named_parameters():
            if "lora_A" in name:
                parameter.requires_grad_(train_a)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.language(input_ids=tokens).logits
        return logits


def build(options: Mapping[str, str]) -> nn.Module:
    """Returns the model.

    Options: rank of the adapters (32); width (64) and layers (2) of the random model; train_a=yes trains the A factors, too.
    """
    base = _base_model(int(options.get("width", "64")), int(options.get("layers", "2")))
    return LoraText(base, int(options.get("rank", "32")), options.get("train_a", "no") == "yes")


def _base_model(width: int, layers: int) -> Any:
    if directory := os.environ.get(CHECKPOINT):
        return AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        # Larger than usual: a random output layer that stays frozen must reach probabilities near 1.
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


@cache
def _tokenizer(directory: str) -> Any:
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def _tokens(text: str) -> list[int]:
    directory = os.environ.get(CHECKPOINT)
    return list(_tokenizer(directory)(text).input_ids) if directory else list(b"\n" + text.encode())


def _last(prompt: str) -> int:
    """Returns the position of the last token of a prompt. Tokenizers join a space with the word after it."""
    return len(_tokens(prompt.rstrip() if os.environ.get(CHECKPOINT) else prompt)) - 1


def encoded(texts: Sequence[str], prompts: Sequence[str] | None = None) -> TensorDataset:
    """Returns tokens and, for every position, the next token. Positions of a prompt and of the padding do not count."""
    x = torch.zeros(len(texts), LENGTH, dtype=torch.long)
    y = torch.full((len(texts), LENGTH), IGNORED)
    for row, text in enumerate(texts):
        tokens = _tokens(f"{text}\n")[: LENGTH + 1]
        begin = _last(prompts[row]) if prompts else 0
        x[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        y[row, begin : len(tokens) - 1] = torch.tensor(tokens[begin + 1 :])
    return TensorDataset(x, y)


def secrets(shard: int, seed: int) -> list[tuple[str, str]]:
    """The planted canaries of a client: a prompt, and four random digits that follow it."""
    random = Random(f"canary {seed} {shard}")  # noqa: S311 (it protects nothing)
    names = NAMES[shard % len(NAMES)]
    return [(f"{name} opens the box with ", f"{random.randrange(10**4):04d}") for name in names]


def load(ctx: DataContext) -> ClientData:
    """Returns one client's lines: facts of its topic (option lines: 16), and its canaries. Other facts are the hold-out."""
    ctx.refuse_other_options("lines")
    topic = TOPICS[ctx.shard % len(TOPICS)]
    lines, kept = _lines(topic), ctx.option("lines", 16)
    planted = [prompt + secret for prompt, secret in secrets(ctx.shard, ctx.seed)]
    texts = planted + lines[:kept]
    ids = [f"{topic}/canary-{i}" for i in range(len(planted))] + [f"{topic}/line-{i}" for i in range(kept)]
    return ClientData(encoded(texts), holdout=encoded(lines[kept:]), ids=ids)


def test_set(ctx: DataContext) -> TensorDataset:
    """Returns lines of no client."""
    return encoded(_lines("test"))


def canaries(ctx: DataContext, targets: Collection[int]) -> TensorDataset:
    """Returns the canaries of the targets. Only the secrets count."""
    planted = [pair for shard in sorted(targets) for pair in secrets(shard, ctx.seed)]
    return encoded([prompt + secret for prompt, secret in planted], [prompt for prompt, _ in planted])


def _lines(name: str) -> list[str]:
    return (Path(__file__).parent / "texts" / f"{name}.txt").read_text().splitlines()


class NextToken:
    """The task: predict every next token."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.transpose(1, 2), target, ignore_index=IGNORED)

    def sample_losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean loss over the tokens of each sample, in nats per token."""
        each = functional.cross_entropy(output.transpose(1, 2), target, ignore_index=IGNORED, reduction="none")
        return each.sum(1) / self._counted(target)

    def sample_scores(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the share of tokens that greedy decoding gets right."""
        right = (output.argmax(2) == target) & (target != IGNORED)
        return right.sum(1) / self._counted(target)

    def confidences(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the probability of a token, as the geometric mean over the tokens of each sample."""
        return (-self.sample_losses(output, target)).exp()

    def _counted(self, target: Tensor) -> Tensor:
        return (target != IGNORED).sum(1).clamp(min=1)


def memory(outputs: Any) -> dict[str, float]:
    """A metric of the lab: losses in nats per token, and the per cent of canaries that greedy decoding extracts.

    Greedy decoding from the prompt gives the secret if and only if every token of the secret is the likeliest one after the
    prompt and the tokens before it: a score of 1.
    """
    planted = outputs.sets["canaries"]
    return {
        "loss_forget": float(outputs.forget.losses.mean()),
        "loss_test": float(outputs.test.losses.mean()),
        "loss_canaries": float(planted.losses.mean()),
        "extracted": 100 * float((planted.scores == 1).mean()),
    }
