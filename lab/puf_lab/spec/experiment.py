"""ExperimentSpec: a federation, the targets that are forgotten, the methods that are compared, and what is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from puf_common.config.messages import about, explain
from puf_common.errors import UsageError
from puf_common.seeds import derive
from puf_lab.spec.federation import DataSpec, FederationSpec, Part
from puf_lab.spec.readings import readings
from puf_lab.spec.tuning import TunedOn, Tuning
from puf_lab.spec.variants import Variant
from puf_server.core.config import Forgetting

_Spec = TypeVar("_Spec", bound=Part)
# Keys and tables of the TOML file that describe the federation.
_FEDERATION = ("data", "model", "task", "recipe", "rounds", "participation", "forgetting", "durability", "plan")
_BACKDOOR_DATA = "puf_lab.federations.backdoor:data"
# With the paper's stop rule the lab drives recovery itself, round by round: it ends at the retrained model's accuracy.
# The bounds are wide: an experiment may ask for values that an operator would refuse.
_PAPER_POLICY = {
    "max_recovery_rounds": 0,
    "blind_recovery_rounds": 0,
    "measure_seconds": 0.0,
    "min_kappa": 1e-6,
    "max_kappa": 1e6,
    "max_total_kappa": 1e9,
    "max_eta_u": 1e6,
    # A variant states its strength, or takes the policy's kappa. Only puf-auto adapts.
    "strength": "fixed",
    "max_epochs": 1000,
}


class SampleSelection(Part):
    """Only a part of the target's samples is forgotten. The target stays with the rest."""

    fraction: float = Field(0.5, gt=0, lt=1)
    by: Literal["sample", "group", "class"] = "sample"
    classes: tuple[int, ...] = ()
    """By class: all samples of these classes are forgotten, whatever their share."""

    @model_validator(mode="after")
    def _names_classes_only_by_class(self) -> Self:
        if (self.by == "class") != bool(self.classes):
            raise ValueError('samples: classes = [...] belongs to by = "class", which needs it')
        if self.by == "class" and "fraction" in self.model_fields_set:
            raise ValueError('samples: by = "class" forgets all samples of the classes; leave out fraction')
        return self


class Backdoor(Part):
    """Poisons the targets' data: a share of their images gets a trigger and a wrong label, both different for each."""

    fraction: float = Field(0.5, gt=0, le=1)
    size: int = Field(3, ge=1)
    """Side of the trigger in pixels."""
    classes: int = Field(10, ge=2)


class Goals(Part):
    """Bounds on the mean distance to Retrain, in points above the noise floor, and on the dip in test accuracy."""

    method: str = "puf-regular"
    """The method whose missed goals are a failure."""
    forget: float = Field(gt=0)
    rmia: float = Field(gt=0)
    dip: float | None = Field(None, gt=0)


class ExperimentSpec(Part):
    """Everything that decides the figures. Two equal experiments have equal results."""

    name: str
    title: str
    note: str = ""
    """How the experiment differs from the paper's. It is printed with every result."""
    paper: str = ""
    """The setting of the paper's tables to compare with."""
    profile: str = "paper"
    federation: FederationSpec = FederationSpec()
    targets: tuple[tuple[int, ...], ...] = ()
    """Each entry is one client, or several clients that are forgotten together."""
    samples: SampleSelection | None = None
    backdoor: Backdoor | None = None
    """Shows by a planted behaviour what a model still has from the target."""
    evaluation_sets: dict[str, str] = Field(default_factory=dict)
    """Further data by name: functions package.module:name of (context, targets) that return a dataset."""
    seeds: tuple[int, ...] = (1,)
    """Seeds of training. Every seed repeats all runs."""
    data_seed: int | None = None
    """Seed of the data: split, noise, and which samples are forgotten. By default it is the seed of the run."""
    init_seed: int | None = None
    """Seed of the initial weights. By default it is the seed of the run."""
    references: int = Field(1, ge=1)
    """Number of models that are retrained with other seeds as the reference of RMIA."""
    methods: tuple[str, ...] = ("original", "retrain", "natural", "puf-special", "puf-regular", "not")
    defaults: dict[str, dict[str, bool | str | int | float]] = Field(default_factory=dict)
    """Options of a method that is named without options."""
    stop: Literal["paper", "product"] = "paper"
    """When a run is completed: at the retrained model's test accuracy, or by the service's own stop rule."""
    recovery_rounds: int = Field(20, ge=1)
    """With the paper's rule, recovery ends after this many rounds, successful or not."""
    horizon: int = Field(10, ge=1)
    """All methods are also compared after this many rounds, recovered or not."""
    persistence: tuple[int, ...] = (5, 10, 20)
    """Numbers of rounds after completion at which forgetting is measured again."""
    tuning: Tuning | None = None
    """What `puf-lab tune` tries."""
    tuned_on: TunedOn | None = None
    """The runs on which the defaults were chosen. They cannot be reported."""
    goals: Goals | None = None
    """What forgetting must reach, for `--goals` and `puf-lab quality`."""

    @model_validator(mode="before")
    @classmethod
    def _from_toml(cls, raw: Any) -> Any:
        """Gathers the federation's keys, which the file has at its top level. A target may be a bare number."""
        if not isinstance(raw, Mapping):
            return raw
        rest = {key: value for key, value in raw.items() if key not in _FEDERATION}
        given = {key: value for key, value in raw.items() if key in _FEDERATION}
        if given:
            rest["federation"] = given
        if isinstance(rest.get("targets"), list | tuple):
            rest["targets"] = [[t] if isinstance(t, int) else t for t in rest["targets"]]
        return rest

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        clients = self.federation.clients
        if not self.targets:
            raise ValueError("targets must name at least one client, e.g. targets = [0, 1, 2]")
        for targets in self.targets:
            if len(set(targets)) != len(targets) or not all(0 <= t < clients for t in targets):
                raise ValueError(f"targets {list(targets)} must be different clients from 0 to {clients - 1}")
            if self.samples is None and len(targets) >= clients:
                raise ValueError("at least one client must remain in the federation")
        if not self.seeds:
            raise ValueError("seeds must name at least one seed")
        both = self.tuned_on.overlap(self.seeds, self.targets, self.data_seed) if self.tuned_on else []
        if both:
            raise ValueError(f"values were chosen on {both[0]}: report other seeds")
        for name, options in self.defaults.items():
            if {"kappa", "eta_u"} <= options.keys():
                raise ValueError(f"defaults of {name}: kappa and eta_u both state the strength; give one of them")
        for text in self.methods:
            if Variant.parse(text, self.defaults).name == "fukd" and not self.federation.data.public:
                raise ValueError("fukd distills on unlabeled data: set public = true under [data], for one more shard")
        optimizer = self.federation.plan.get("server_optimizer", "sgd")
        if optimizer != "sgd":
            unfit = [v.name for v in self.variants if v.method.kind == "forget" and v.needs_plain_averages]
            if unfit:
                raise ValueError(
                    f"{unfit[0]} needs models that are plain averages, but server_optimizer is {optimizer}"
                )
        return self

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The methods to compare, with their options. Original, Retrain and the noise floor are always included."""
        wanted = [Variant.parse(text, self.defaults) for text in self.methods]
        needed = [Variant.parse(name, {}) for name in ("original", "retrain", "floor")]
        return tuple(dict.fromkeys([*needed, *wanted]))

    @property
    def histories(self) -> tuple[str, ...]:
        """Methods for which the original federation must store history."""
        return tuple(sorted({v.history for v in self.variants} - {""}))

    def federation_for(self, seed: int, repeat: int = 0) -> FederationSpec:
        """The federation that is trained for one seed. The seeds of data, initial weights and training are independent.

        Repetition 0 is the run itself. Repetition 1 differs in the seed of training only: batch order and all other
        random streams. Later ones differ in the initial weights, too. All have the same data.
        """
        federation = self.federation
        if federation.model.pretrained and federation.weights is None:
            raise UsageError(
                f"{self.name} starts from published weights: name the checkpoint with --weights FILE.safetensors"
            )
        given = federation.forgetting.model_dump(exclude_unset=True)
        # Only puf-auto adapts: another variant has the policy's strength, if it states none.
        change = _PAPER_POLICY if self.stop == "paper" else {"measure_seconds": 600.0, "strength": "fixed"}
        policy = Forgetting.model_validate({**given, "also_remember": self.histories, **change})
        init = seed if self.init_seed is None else self.init_seed
        seeded = federation.seeded(
            data=seed if self.data_seed is None else self.data_seed,
            init=init if repeat < 2 else derive(init, "init", repeat),
            training=seed if repeat == 0 else derive(seed, "training", repeat),
        )
        return seeded.model_copy(update={"forgetting": policy, "data": self._data()})

    def _data(self) -> DataSpec:
        """The data, behind the function that poisons the targets' part of it if there is a backdoor."""
        data, backdoor = self.federation.data, self.backdoor
        if backdoor is None:
            return data
        targets = sorted({t for together in self.targets for t in together})
        options: dict[str, str | int | float | bool] = {
            "backdoor_data": data.name,
            "backdoor_clients": "+".join(map(str, targets)),
            "backdoor_fraction": backdoor.fraction,
            "backdoor_size": backdoor.size,
            "backdoor_classes": backdoor.classes,
        }
        return data.model_copy(update={"name": _BACKDOOR_DATA, "options": {**data.options, **options}})

    def placed(self, **fields: Any) -> ExperimentSpec:
        """The same experiment on this machine: kind, device, data_dir and weights of its federation."""
        raw = {**dict(self.federation), **fields}
        return self.model_copy(update={"federation": _validated(FederationSpec, raw, self.name)})

    def narrowed(
        self,
        *,
        targets: Sequence[Sequence[int]] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        data_seed: int | None = None,
        init_seed: int | None = None,
    ) -> ExperimentSpec:
        """The same experiment with other targets, methods or seeds."""
        changed = {
            "targets": targets,
            "methods": methods,
            "seeds": seeds,
            "data_seed": data_seed,
            "init_seed": init_seed,
        }
        return self.checked({**dict(self), **{k: v for k, v in changed.items() if v is not None}}, self.name)

    def described(self) -> dict[str, Any]:
        """The experiment in the layout of its TOML file, without what depends on the machine."""
        federation = self.federation.model_dump(mode="json", include=set(_FEDERATION))
        federation["forgetting"] = self.federation.forgetting.model_dump(mode="json", exclude_unset=True)
        if not self.federation.plan:
            # Files of older versions have no plan, and can be combined.
            del federation["plan"]
        described = {**self.model_dump(mode="json", exclude={"federation"}), **federation}
        return {**described, "readings": readings(self)}

    @classmethod
    def checked(cls, raw: Mapping[str, Any], source: str) -> ExperimentSpec:
        """The experiment with these values, or an error of one line that names the source and the key."""
        return _validated(cls, raw, source)


def _validated(kind: type[_Spec], raw: Mapping[str, Any], source: str) -> _Spec:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        # The file has the federation's keys at its top level.
        found = [(".".join(str(p) for p in e["loc"] if p != "federation"), explain(e)) for e in error.errors()]
        raise UsageError(f"setting {source}: {'; '.join(about(*each) for each in found)}") from None


def target_sets(texts: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Targets from the command line: "0,1,2" are three in turn, "0+1" are two together."""
    for text in ",".join(texts).split(","):
        try:
            yield tuple(int(word) for word in text.split("+"))
        except ValueError:
            raise UsageError(f"targets {text!r} must be numbers: 0,3 in turn, 0+3 together") from None
