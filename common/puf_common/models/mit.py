"""MiT-B0, the encoder of SegFormer, as a classifier: 3,319,392 parameters without its head of one layer.

The encoder is that of segmentation-models-pytorch. Its tensors have the names of the published weights, so checkpoints
trained on ImageNet can be loaded, also with the names of Hugging Face's transformers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

_WIDTH = 256
_RENAMED = (
    (r"^(segformer\.)?encoder\.patch_embeddings\.(\d)\.proj\.", r"patch_embed{2}.proj."),
    (r"^(segformer\.)?encoder\.patch_embeddings\.(\d)\.layer_norm\.", r"patch_embed{2}.norm."),
    (r"^(segformer\.)?encoder\.layer_norm\.(\d)\.", r"norm{2}."),
    (r"^(segformer\.)?encoder\.block\.(\d)\.(\d+)\.", r"block{2}.{3}."),
)
_INSIDE = {
    "layer_norm_1.": "norm1.",
    "layer_norm_2.": "norm2.",
    "attention.self.query.": "attn.q.",
    "attention.self.sr.": "attn.sr.",
    "attention.self.layer_norm.": "attn.norm.",
    "attention.output.dense.": "attn.proj.",
    "mlp.dense1.": "mlp.fc1.",
    "mlp.dense2.": "mlp.fc2.",
}


def mit_b0(classes: int) -> nn.Module:
    """The encoder, the mean over the positions of its last stage, and one linear layer."""
    import torch
    from torch import nn

    try:
        from segmentation_models_pytorch.encoders import get_encoder
    except ModuleNotFoundError:
        raise UsageError("the model mit-b0 needs segmentation-models-pytorch: pip install 'puf-fl[lab]'") from None

    class MitClassifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # It reads numbers from tensors while it is built, which the device "meta" does not have.
            with torch.device("cpu"):
                self.encoder = get_encoder("mit_b0", weights=None)
            self.head = nn.Linear(_WIDTH, classes)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.encoder(x)[-1].mean((2, 3)))
            return scores

    return MitClassifier()


def load_published(model: nn.Module, path: Path) -> None:
    """Loads a published checkpoint (a safetensors file) into the encoder. The head keeps its initial weights."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    encoder = getattr(model, "encoder", None)
    if encoder is None:
        raise UsageError("published weights are for the model mit-b0")
    try:
        tensors = translated(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot read {path} as safetensors: {error}") from None
    expected = encoder.state_dict()
    missing = [name for name in expected if name not in tensors or tensors[name].shape != expected[name].shape]
    if missing:
        raise UsageError(f"{path} is not a checkpoint of MiT-B0: {missing[0]} is missing or has another shape")
    encoder.load_state_dict({name: tensors[name] for name in expected})


def translated(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the encoder's names. transformers stores keys and values separately, the encoder as one tensor."""
    import torch

    found: dict[str, Tensor] = {}
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        new = _renamed(name.removeprefix("encoder.") if name.startswith("encoder.patch_embed1") else name)
        split = re.match(r"(.*)attention\.self\.(key|value)\.(weight|bias)$", new)
        if split:
            pairs.setdefault(f"{split[1]}attn.kv.{split[3]}", {})[split[2]] = tensor
            continue
        for old, short in _INSIDE.items():
            new = new.replace(old, short)
        found[new] = tensor
    found.update({name: torch.cat([both["key"], both["value"]]) for name, both in pairs.items() if len(both) == 2})
    return found


def _renamed(name: str) -> str:
    for pattern, form in _RENAMED:
        match = re.match(pattern, name)
        if match:
            stage = str(int(match[2]) + 1)
            block = match[3] if (match.lastindex or 0) >= 3 else ""
            return form.replace("{2}", stage).replace("{3}", block) + name[match.end() :]
    return name
