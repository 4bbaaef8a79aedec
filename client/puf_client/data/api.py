"""What a data function is given, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from puf_common.errors import UsageError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

__all__ = ["ClientData", "DataContext"]

Value = TypeVar("Value", bool, int, float, str)
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class DataContext:
    """Which part of which data: everything a data function may depend on, so that every run sees the same samples."""

    shard: int = 0
    """This client's part, counted from 0."""
    shards: int = 1
    """Parts that the training data is split into. All clients must agree on it, on `partition` and on `seed`."""
    partition: str = "iid"
    """"iid", "dirichlet:ALPHA" or "hsu:ALPHA"."""
    seed: int = 0
    directory: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 <= self.shard < self.shards:
            raise UsageError(f"shard {self.shard}/{self.shards} must be I/N with I from 0 to N-1")

    def option(self, name: str, default: Value) -> Value:
        """The option as a value of its default's type."""
        if name not in self.options:
            return default
        text = self.options[name]
        try:
            return _TRUTHS[text.lower()] if isinstance(default, bool) else type(default)(text)
        except (KeyError, ValueError):
            kind = {bool: "true or false", int: "a whole number", float: "a number"}.get(type(default), "text")
            raise UsageError(f"data option {name} must be {kind}, not {text!r}") from None

    def refuse_other_options(self, *known: str) -> None:
        """A misspelt option is an error, not a silent default."""
        for name in self.options:
            if name not in known:
                raise UsageError(f"there is no data option {name!r}; known are {', '.join(known) or 'none'}")


@dataclass(frozen=True)
class ClientData:
    """One client's data as map-style torch datasets of (x, y).

    `ids[i]` names `train[i]` for good: it must be unique and depend neither on order nor on restarts, because
    forgetting goes by it. `groups[i]` is what can be forgotten together, for instance a patient.
    """

    train: Dataset[Any]
    train_plain: Dataset[Any]
    """The samples of `train` in the same order without augmentation; the same object where there is none."""
    holdout: Dataset[Any] | None
    """Samples of this client that are never trained on."""
    ids: Sequence[str]
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        samples = _length(self.train, "train")
        lengths = {"train_plain": _length(self.train_plain, "train_plain"), "ids": len(self.ids)}
        if self.groups is not None:
            lengths["groups"] = len(self.groups)
        for name, length in lengths.items():
            if length != samples:
                raise UsageError(f"the data's train has {samples} samples but {name} has {length}; they must be equal")
        if self.holdout is not None:
            _length(self.holdout, "holdout")
        _require_names(self.ids, "id")
        _require_names(self.groups or (), "group")
        if len(set(self.ids)) != samples:
            seen: set[str] = set()
            twice = next(i for i in self.ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise UsageError(f"the data names two samples {twice!r}; ids must be unique")

    @property
    def augments(self) -> bool:
        return self.train is not self.train_plain

    @property
    def samples(self) -> int:
        return len(self.ids)

    @property
    def holdout_samples(self) -> int:
        return 0 if self.holdout is None else _length(self.holdout, "holdout")


def _length(dataset: object, name: str) -> int:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"the data's {name} is a {type(dataset).__name__}; it must be a map-style dataset with a length and an index"
        )
    return len(dataset)


def _require_names(names: Sequence[str], what: str) -> None:
    """Names must fit on one line of a list of what is to be forgotten, where `group:` marks a group."""
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{what}s must be strings; {name!r} is a {type(name).__name__}")
        if not name or name != name.strip() or not name.isprintable():
            raise UsageError(f"{what} {name!r} must be a line of text without blanks at its ends")
        if name.startswith("group:"):
            raise UsageError(f"{what} {name!r} must not begin with 'group:'")
