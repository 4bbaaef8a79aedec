"""Checks and conversions of a routine's inputs: options, a second model, and class labels."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from torch import Tensor, nn

from puf_client.routines.evaluate import has_classes
from puf_common.errors import UsageError
from puf_common.models.module_tensors import load_payload
from puf_common.tensors.manifest import Manifest

Options = TypeVar("Options")


def options_from(kind: type[Options], given: Mapping[str, float]) -> Options:
    """Returns the routine's options as its dataclass, from a number for each name. Other options have their default."""
    hints = get_type_hints(kind)
    known: Any = fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in known]
    routine = kind.__name__.removesuffix("Options").lower()
    for name in given:
        if name not in names:
            raise UsageError(f"routine {routine} has no option {name!r}; it takes {', '.join(names)}")
    missing = [f.name for f in known if f.default is MISSING and f.name not in given]
    if missing:
        raise UsageError(f"routine {routine} needs the option {', '.join(missing)}")
    values: dict[str, float | int | bool] = {}
    for name, value in given.items():
        if hints[name] is not float and not float(value).is_integer():
            raise UsageError(f"routine {routine}: option {name} must be a whole number, not {value:g}")
        values[name] = hints[name](value)
    return kind(**values)


def model_from(model: nn.Module, manifest: Manifest, payload: bytearray | memoryview | bytes) -> nn.Module:
    """Returns a copy of the model with these weights. The first model does not change."""
    other = copy.deepcopy(model)
    load_payload(other, manifest, payload)
    return other


def require_classes(routine: str, output: Tensor, target: Tensor) -> None:
    """Raises for a task without one class per sample, such as segmentation."""
    if not has_classes(output, target):
        raise UsageError(
            f"{routine} works on classification: an output of (batch, classes) and one class number per sample, "
            f"not an output of {tuple(output.shape)} with targets of {tuple(target.shape)} {target.dtype}; "
            "PUF, NoT and retraining work for every task"
        )
