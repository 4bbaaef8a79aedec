"""NoT (Khalil et al. 2025): the first layer's weights change their sign, and recovery does the rest.

    W_1 <- -W_1

Nobody takes part, nothing is remembered, and the model is the same for every target: NoT does not select. The file is not
called after the method because `not` is a word of Python.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from pydantic import BaseModel, Field

from puf_common.errors import UsageError
from puf_common.manifest import Manifest

__all__ = ["NotOptions", "first_layer", "negate"]


class NotOptions(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    include_bias: bool = Field(False, description="negate the first layer's bias, too")


def first_layer(manifest: Manifest, *, include_bias: bool = False) -> tuple[str, ...]:
    """Names of what is negated: the first kernel or matrix in the model's own order. Norms and buffers never are."""
    parameters = [t for t in manifest.tensors if t.role == "parameter"]
    weight = next((t for t in parameters if len(t.shape) >= 2), None)
    if weight is None:
        raise UsageError("NoT negates a model's first layer, and this model has no kernel or matrix")
    if not include_bias:
        return (weight.name,)
    bias = weight.name.removesuffix("weight") + "bias"
    return (weight.name, *(t.name for t in parameters if t.name == bias))


def negate(block: NDArray[Any]) -> NDArray[Any]:
    """Twice is nothing, to the bit."""
    negated: NDArray[Any] = -block
    return negated
