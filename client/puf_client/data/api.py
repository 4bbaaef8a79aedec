"""The argument of a data function, and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeVar

from puf_common.errors import UsageError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Value = TypeVar("Value", bool, int, float, str)
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class DataContext:
    """Everything that a data function may depend on. An equal context must give equal samples in every run."""

    shard: int = 0
    """This client's shard, counted from 0."""
    shards: int = 1
    """Number of shards of the training data. `shards`, `partition` and `seed` must be equal for all clients."""
    partition: str = "iid"
    """"iid", "dirichlet:ALPHA" or "hsu:ALPHA"."""
    seed: int = 0
    directory: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 <= self.shard < self.shards:
            raise UsageError(f"shard {self.shard}/{self.shards} must be I/N with I from 0 to N-1")

    def option(self, name: str, default: Value) -> Value:
        """Returns the option as a value of the default's type."""
        if name not in self.options:
            return default
        text = self.options[name]
        try:
            return _TRUTHS[text.lower()] if isinstance(default, bool) else type(default)(text)
        except (KeyError, ValueError):
            kind = {bool: "true or false", int: "a whole number", float: "a number"}.get(type(default), "text")
            raise UsageError(f"data option {name} must be {kind}, not {text!r}") from None

    def refuse_other_options(self, *known: str) -> None:
        """Raises for an unknown option, which may be misspelt."""
        for name in self.options:
            if name not in known:
                raise UsageError(f"there is no data option {name!r}; known are {', '.join(known) or 'none'}")


@dataclass(frozen=True, init=False)
class ClientData:
    """One client's data as map-style torch datasets of (x, y): `ClientData(train, holdout=val, ids=ids)`.

    `ids[i]` identifies `train[i]` permanently. It must be unique and must not depend on order or restarts, because
    requests to forget name samples by id. Samples with equal `groups[i]` can be forgotten together, such as a patient.
    """

    train: Dataset[Any]
    holdout: Dataset[Any] | None
    """Samples of this client that it never trains on. Without them this client cannot evaluate models."""
    ids: Sequence[str]
    groups: Sequence[str] | None
    train_plain: Dataset[Any]
    """The samples of `train` in the same order without augmentation; `train` itself if none is given."""

    def __init__(
        self,
        train: Dataset[Any],
        *unnamed: Never,
        ids: Sequence[str] | None = None,
        holdout: Dataset[Any] | None = None,
        groups: Sequence[str] | None = None,
        train_plain: Dataset[Any] | None = None,
    ) -> None:
        if unnamed or ids is None:
            raise UsageError(
                "ClientData takes everything but train by name: ClientData(train, holdout=..., ids=..., groups=..., "
                "train_plain=...); only ids is required"
            )
        plain = train if train_plain is None else train_plain
        values = {"train": train, "holdout": holdout, "ids": ids, "groups": groups, "train_plain": plain}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        samples = _length(train, "train")
        lengths = {"train_plain": _length(plain, "train_plain"), "ids": len(ids)}
        if groups is not None:
            lengths["groups"] = len(groups)
        for name, length in lengths.items():
            if length != samples:
                pair = "; a pair of tensors is TensorDataset(x, y)" if isinstance(values["train"], tuple) else ""
                raise UsageError(
                    f"the data's train has {samples} samples but {name} has {length}; they must be equal{pair}"
                )
        if holdout is not None:
            _length(holdout, "holdout")
        _require_names(ids, "id")
        _require_names(groups or (), "group")
        if len(set(ids)) != samples:
            twice = Counter(ids).most_common(1)[0][0]
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
            f"the data's {name} is a {type(dataset).__name__}; it must be a map-style dataset with __len__ and __getitem__"
        )
    return len(dataset)


def _require_names(names: Sequence[str], what: str) -> None:
    """Raises for names that cannot be a line in a list of samples to forget, where `group:` marks a group."""
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{what}s must be strings; {name!r} is a {type(name).__name__}")
        if not name or name != name.strip() or not name.isprintable():
            raise UsageError(f"{what} {name!r} must be one line of text without spaces at its ends")
        if name.startswith("group:"):
            raise UsageError(f"{what} {name!r} must not begin with 'group:'")
