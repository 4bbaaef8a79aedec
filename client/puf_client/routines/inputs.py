"""What a routine is given beside samples: options by name, another model, and labels that are classes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from torch import Tensor, nn

from puf_common.errors import UsageError
from puf_common.models.registry import load_payload
from puf_common.tensors.manifest import Manifest

__all__ = ["model_from", "options_from", "require_classes"]

Options = TypeVar("Options")


def options_from(kind: type[Options], given: Mapping[str, float]) -> Options:
    """Options as they travel, a number for each name, as the routine's own dataclass. What is not given has its default."""
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
    """A second model of the same kind with these weights; the first stays as it is."""
    other = copy.deepcopy(model)
    load_payload(other, manifest, payload)
    return other


def require_classes(routine: str, output: Tensor, target: Tensor) -> None:
    """Refuses a task that does not give one class to every sample, such as segmentation."""
    if output.ndim != 2 or output.shape[1] < 2 or target.ndim != 1 or target.is_floating_point():
        raise UsageError(
            f"{routine} works on labels of classification: an output of (batch, classes) and one class number per sample, "
            f"not an output of {tuple(output.shape)} with targets of {tuple(target.shape)} {target.dtype}; "
            "PUF, NoT and retraining work for every task"
        )
