"""The metrics of an experiment by name: each a function of what a model does with the data. One of the user's own is
`package.module:name`, a function that takes a `Look` and returns a number, or several by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from puf_common.config import plugins
from puf_common.errors import UsageError
from puf_lab.evaluation import attacks
from puf_lab.evaluation.evaluator import Look
from puf_lab.evaluation.metrics import percent
from puf_lab.experiments.own_code import digest

__all__ = ["MEASURES", "Measure", "measure_all", "names_for", "stamps"]

Value = float | Mapping[str, float]

# Changes when a metric of ours gives other numbers than before.
_VERSION = 1


@dataclass(frozen=True)
class Measure:
    """`tasks`: where it means something."""

    label: str
    function: Callable[[Look], Value]
    tasks: tuple[str, ...] = ()


def _song(look: Look) -> float:
    return attacks.song(look.retained.confidences, look.test.confidences, look.forget.confidences, seed=look.seed)


def _rmia(look: Look) -> Mapping[str, float]:
    reference = look.reference or look
    found = attacks.rmia(
        (look.forget.confidences, reference.forget.confidences),
        (look.test.confidences, reference.test.confidences),
        seed=look.seed,
    )
    return {
        "rmia": 100 * found.auc,
        "rmia_member_at_1": 100 * found.member_at_1,
        "rmia_traced_at_1": 100 * found.traced_at_1,
    }


_CLASSES = ("classification",)
MEASURES: dict[str, Measure] = {
    "test": Measure("test", lambda look: percent(look.test.scores)),
    "forget": Measure("forget", lambda look: percent(look.forget.scores)),
    "song": Measure("MIA Song", _song, _CLASSES),
    "yeom": Measure("MIA Yeom", lambda look: attacks.yeom(look.retained.losses, look.forget.losses), _CLASSES),
    "rmia": Measure("RMIA AUC", _rmia, _CLASSES),
    "loss": Measure("forget loss", lambda look: float(np.mean(look.forget.losses))),
}


def names_for(task: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The metrics of a task, and the user's own."""
    return (*(name for name, m in MEASURES.items() if not m.tasks or task in m.tasks), *extra)


def stamps(names: Sequence[str]) -> list[str]:
    """The metrics as they are now: who changes the code of one measures again."""
    return [f"{name} {_VERSION if name in MEASURES else digest(name)}" for name in names]


def measure_all(look: Look, names: Sequence[str]) -> dict[str, float]:
    """Every metric by its name; one that gives several numbers names them itself."""
    found: dict[str, float] = {}
    for name in names:
        if name in MEASURES:
            value = MEASURES[name].function(look)
        elif ":" in name:
            value = plugins.call(plugins.load(name), look)
        else:
            raise UsageError(f"there is no metric {name!r}; use package.module:name for one of your own")
        several = value if isinstance(value, Mapping) else {name.rpartition(":")[2]: value}
        for key, number in several.items():
            found[key] = _number(name, number)
    return found


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UsageError(f"metric {name} must return a number, or numbers by name, not {value!r}") from None
