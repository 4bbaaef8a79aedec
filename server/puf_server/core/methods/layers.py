"""The first and the last layer of a model, by the order of its tensors."""

from __future__ import annotations

from puf_common.errors import InvalidArgument
from puf_common.tensors.manifest import Manifest, TensorSpec

# In the outputs of an assignment: the model's last layer.
HEAD = "@head"


def first_layer(manifest: Manifest, *, include_bias: bool = False) -> frozenset[str]:
    """The first weight in declared order, and its bias if asked for. A weight has at least two axes."""
    return _with_bias(manifest, _weights(manifest)[0], include_bias)


def last_layer(manifest: Manifest) -> frozenset[str]:
    """The last weight in declared order, and its bias."""
    return _with_bias(manifest, _weights(manifest)[-1], True)


def outputs(manifest: Manifest, wanted: tuple[str, ...]) -> Manifest:
    """The manifest of an update: all tensors, or the named ones."""
    if not wanted:
        return manifest
    names = {n for word in wanted for n in (last_layer(manifest) if word == HEAD else (word,))}
    unknown = names - {t.name for t in manifest.tensors}
    if unknown:
        raise InvalidArgument(f"the model has no tensor {min(unknown)}", tensor=min(unknown))
    return Manifest(tuple(t for t in manifest.tensors if t.name in names))


def _weights(manifest: Manifest) -> list[TensorSpec]:
    parameters = [t for t in manifest.tensors if t.role == "parameter"]
    return [t for t in parameters if len(t.shape) >= 2] or parameters[:1]


def _with_bias(manifest: Manifest, weight: TensorSpec, include_bias: bool) -> frozenset[str]:
    bias = weight.name.removesuffix("weight") + "bias"
    present = include_bias and any(t.name == bias and t.role == "parameter" for t in manifest.tensors)
    return frozenset({weight.name, bias} if present else {weight.name})
