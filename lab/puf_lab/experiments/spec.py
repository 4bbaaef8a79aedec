"""An experiment as a short TOML file: which federation, who leaves, by which methods it is forgotten, what is measured.

A file may build on another one (`base = "cifar100-iid"`) and say only what differs; a profile is such a difference that
fits many. What is built in lies in `settings/`; a path to a file of one's own works wherever a name does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from puf_common.config.messages import explain_all
from puf_common.errors import UsageError
from puf_lab.experiments.setting import Setting
from puf_lab.experiments.variants import Variant
from puf_server.core.config import Forgetting, Recipe

__all__ = ["PROFILES", "Experiment", "load_experiment", "names"]

PROFILES = ("paper", "author-code")
_DEPTH = 5


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Data(_Part):
    name: str = "digits"
    partition: str = "iid"
    clients: int = Field(10, ge=2)
    public: bool = False
    """Cuts one shard more, which nobody trains on: unlabeled, for methods that distill."""
    options: dict[str, str | int | float | bool] = {}


class Model(_Part):
    name: str = "digits-cnn"
    options: dict[str, str | int] = {}
    pretrained: bool = False
    """Starts from a published checkpoint, which the command line names."""
    flops_per_sample: float = Field(0.0, ge=0)
    """F of the appendix; 0 where nobody has stated one, and then no computation is shown."""
    head_parameters: int = Field(0, ge=0)


class Samples(_Part):
    """Only a part of the target's samples is forgotten; the target stays with the rest."""

    fraction: float = Field(0.5, gt=0, lt=1)
    by: Literal["sample", "group"] = "sample"


class Experiment(_Part):
    """Everything that decides the figures. Two equal experiments have equal results."""

    name: str
    title: str
    note: str = ""
    """How it differs from the paper; printed with every result."""
    paper: str = ""
    """The setting in the paper's tables that it stands beside."""
    profile: str = "paper"
    data: Data = Data()
    model: Model = Model()
    task: str = "classification"
    recipe: Recipe = Recipe()
    rounds: int = Field(30, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    targets: tuple[tuple[int, ...], ...] = ()
    """Each entry is a client that leaves, or several that leave together."""
    samples: Samples | None = None
    seeds: tuple[int, ...] = (1,)
    methods: tuple[str, ...] = ("original", "retrain", "natural", "puf-special", "puf-regular", "not")
    defaults: dict[str, dict[str, str | int | float]] = {}
    """Options of a method where it is named without."""
    forgetting: dict[str, Any] = {}
    recovery_rounds: int = Field(20, ge=1)
    """Recovery is given up after this many rounds."""
    horizon: int = Field(10, ge=1)
    """Rounds after unlearning at which all methods are compared, whether they have recovered or not."""
    persistence: tuple[int, ...] = (5, 10, 20)
    """Rounds after completion at which forgetting is looked at again."""

    @model_validator(mode="before")
    @classmethod
    def _one_target_may_be_a_number(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("targets"), list | tuple):
            raw = {**raw, "targets": [[t] if isinstance(t, int) else t for t in raw["targets"]]}
        return raw

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.targets:
            raise ValueError("targets must name at least one client, e.g. targets = [0, 1, 2]")
        for targets in self.targets:
            if len(set(targets)) != len(targets) or not all(0 <= t < self.data.clients for t in targets):
                raise ValueError(f"targets {list(targets)} must be different clients from 0 to {self.data.clients - 1}")
            if len(targets) >= self.data.clients:
                raise ValueError("somebody must stay")
        if not self.seeds:
            raise ValueError("seeds must name at least one seed")
        for name, options in self.defaults.items():
            if {"kappa", "eta_u"} <= options.keys():
                raise ValueError(f"defaults of {name}: kappa and eta_u are two ways to say the same, give one of them")
        for text in self.methods:
            if Variant.parse(text, self.defaults).name == "fukd" and not self.data.public:
                raise ValueError("fukd distills on unlabeled data: set public = true under [data], for one shard more")
        Forgetting.model_validate(self.forgetting)
        return self

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The methods to compare, with their options. Original and Retrain are always among them."""
        wanted = [Variant.parse(text, self.defaults) for text in self.methods]
        needed = [Variant.parse(name, {}) for name in ("original", "retrain")]
        return tuple(dict.fromkeys([*needed, *wanted]))

    @property
    def remembers(self) -> tuple[str, ...]:
        """Methods for which the original must keep history."""
        return tuple(sorted({v.remembers for v in self.variants} - {""}))

    @property
    def unit(self) -> str:
        return "Dice" if self.task == "segmentation" else "accuracy"

    def setting(self, seed: int, data_dir: Path | None) -> Setting:
        """The federation that is trained, for one seed."""
        policy = {
            **self.forgetting,
            "also_remember": self.remembers,
            # Recovery is driven round by round, because it stops by the retrained model's accuracy.
            "max_recovery_rounds": 0,
            "blind_recovery_rounds": 0,
            "measure_seconds": 0.0,
            # An experiment may ask for what an operator would refuse.
            "min_kappa": 1e-6,
            "max_kappa": 1e6,
            "max_total_kappa": 1e9,
            "max_eta_u": 1e6,
            "max_epochs": 1000,
        }
        return Setting(
            title=self.name,
            data=self.data.name,
            data_options=_texts(self.data.options),
            data_dir=data_dir,
            data_seed=seed,
            partition=self.data.partition,
            clients=self.data.clients,
            public=self.data.public,
            model=self.model.name,
            model_options=_texts(self.model.options),
            task=self.task,
            recipe=self.recipe.model_copy(update={"seed": seed}),
            rounds=self.rounds,
            participation=self.participation,
            forgetting=Forgetting.model_validate(policy),
        )

    def narrowed(
        self,
        *,
        targets: Sequence[Sequence[int]] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Experiment:
        """The same experiment for some of its targets, methods or seeds, or for others than it names."""
        changed = {"targets": targets, "methods": methods, "seeds": seeds}
        return _checked({**self.model_dump(), **{k: v for k, v in changed.items() if v is not None}}, self.name)


def names() -> list[str]:
    """Built-in settings."""
    return sorted(e.name.removesuffix(".toml") for e in files("puf_lab.settings").iterdir() if e.name.endswith(".toml"))


def load_experiment(spec: str, *, profile: str = "paper") -> Experiment:
    """A built-in setting by name, or the file at a path, under a profile."""
    raw = _read(spec)
    raw = _merged(raw, _profile(profile, raw))
    name = Path(spec).stem if _is_path(spec) else spec
    return _checked({**raw, "name": name, "profile": profile}, spec)


def _checked(raw: Mapping[str, Any], spec: str) -> Experiment:
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        raise UsageError(f"setting {spec}: {explain_all(error)}") from None


def _profile(profile: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile changes for data of this kind: the file has a table per dataset."""
    if profile not in PROFILES:
        raise UsageError(f"there is no profile {profile!r}; use one of {', '.join(PROFILES)}")
    tables = tomllib.loads(files("puf_lab.settings").joinpath("profiles", f"{profile}.toml").read_text())
    change: dict[str, Any] = tables.get(str(raw.get("data", {}).get("name", "digits")), {})
    literal = raw.get("defaults", {}).get("puf-special", {}).get("eta_u")
    if profile == "author-code" and "samples" in raw and literal is not None:
        # The code divides the forget data's update by all of the target's samples, the paper by those that take part.
        share = raw["samples"].get("fraction", 0.5)
        change = _merged(change, {"defaults": {"puf-special": {"eta_u": literal * share}}})
    return change


def _is_path(spec: str) -> bool:
    return spec.endswith(".toml") or "/" in spec


def _read(spec: str, depth: int = 0) -> dict[str, Any]:
    if depth > _DEPTH:
        raise UsageError(f"setting {spec} builds on itself")
    try:
        text = Path(spec).read_text() if _is_path(spec) else _built_in(spec)
        raw = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read the setting {spec}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"setting {spec} is not TOML: {error}") from None
    base = raw.pop("base", None)
    if base is None:
        return raw
    if _is_path(base) and _is_path(spec):
        base = str(Path(spec).parent / base)
    return _merged(_read(base, depth + 1), raw)


def _built_in(name: str) -> str:
    if name not in names():
        raise UsageError(f"there is no setting {name!r}; `puf-lab list` shows them, and FILE.toml is one of your own")
    return files("puf_lab.settings").joinpath(f"{name}.toml").read_text()


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, anything else is replaced; kappa and eta_u are two ways to say one thing."""
    strengths = {"kappa", "eta_u"}
    merged = {key: value for key, value in base.items() if key not in strengths or not strengths & change.keys()}
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """As a command line would say it."""

    def word(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return {key: word(value) for key, value in options.items()}


def target_sets(texts: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """From the command line: "0,1,2" are three that leave in turn, "0+1" two that leave together."""
    for text in ",".join(texts).split(","):
        try:
            yield tuple(int(word) for word in text.split("+"))
        except ValueError:
            raise UsageError(f"targets {text!r} must be numbers: 0,3 in turn, 0+3 together") from None
