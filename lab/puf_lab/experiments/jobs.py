"""The jobs of an experiment. Each is named by the hash of everything that its outcome depends on.

Original and Retrain have the same name in every experiment that shares them, so they are trained once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from puf_client.data.partition import KINDS
from puf_common.errors import UsageError
from puf_lab.federations.state_directories import initial_model
from puf_lab.spec.code_digest import code_digest
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import FederationSpec
from puf_lab.spec.user_code import digest
from puf_lab.spec.variants import Variant

# Changes when jobs write other files than before.
_FORMAT = 2


@dataclass(frozen=True)
class Job:
    """One model to make: the original, one retrained without the targets, or one from which the targets are removed.

    `repeat` is the repetition of Retrain: 0 is Retrain itself, 1 the noise floor, 2 and above the references of RMIA.
    """

    experiment: ExperimentSpec
    variant: Variant
    seed: int
    targets: tuple[int, ...] = ()
    repeat: int = 0

    @property
    def kind(self) -> str:
        return self.variant.method.kind

    @property
    def title(self) -> str:
        clients = f" of client {'+'.join(map(str, self.targets))}" if self.targets else ""
        label = "Reference" if self.repeat > 1 else self.variant.label(self.experiment.defaults)
        return f"{label}{clients}, seed {self.seed}"

    @property
    def needs(self) -> tuple[Job, ...]:
        """Jobs that must be done before this one."""
        if self.kind in ("original", "retrain"):
            return ()
        return self.original, self.retrain

    @property
    def original(self) -> Job:
        return Job(self.experiment, Variant("original"), self.seed)

    @property
    def retrain(self) -> Job:
        return Job(self.experiment, Variant("retrain"), self.seed, self.targets)

    @property
    def floor(self) -> Job:
        """Retrain with the same data and the same initial weights, and another seed of training."""
        return Job(self.experiment, Variant("floor"), self.seed, self.targets, repeat=1)

    @property
    def references(self) -> tuple[Job, ...]:
        """Retrained models with other initial weights and training seeds. RMIA compares all models with them."""
        repeats = range(2, 2 + self.experiment.references)
        return tuple(Job(self.experiment, Variant("retrain"), self.seed, self.targets, repeat=r) for r in repeats)

    @cached_property
    def recovers_by_method(self) -> bool:
        """Whether the method has its own rounds of recovery, and the paper's rule ends them.

        Other methods recover by ordinary training, which the lab plans round by round.
        """
        return self.kind == "forget" and self.experiment.stop == "paper" and self.variant.recovers

    @property
    def rounds(self) -> int:
        """Upper bound of the rounds that the job takes."""
        e = self.experiment
        if self.kind in ("original", "retrain"):
            return e.federation.rounds
        recovery = e.recovery_rounds if e.stop == "paper" else self.federation.forgetting.max_recovery_rounds
        own = (
            self.variant.own_rounds(e.federation.rounds, e.federation.forgetting.max_doses)
            if self.kind == "forget"
            else 0
        )
        return own + max(recovery + max(e.persistence, default=0), e.horizon)

    @cached_property
    def federation(self) -> FederationSpec:
        return self.experiment.federation_for(self.seed, self.repeat)

    @cached_property
    def code(self) -> str:
        """Digest of the code that the job executes. It travels with the job to other processes and machines."""
        return self._code_here()

    @cached_property
    def user_code(self) -> list[str]:
        """Digests of the user's code that the job executes."""
        return self._user_code_here()

    def check_code(self) -> None:
        """Raises if the code of this process is not that of the process that made the job, and named it."""
        if (self.code, self.user_code) != (self._code_here(), self._user_code_here()):
            raise UsageError(
                f"{self.title}: this process has other code than the one that started the experiment: install the same "
                "version and the same code of your own on every node, and start again after an edit"
            )

    def _code_here(self) -> str:
        trains = self.kind == "retrain" or (self.kind == "original" and not self.experiment.histories)
        return code_digest("training" if trains else "forgetting")

    def _user_code_here(self) -> list[str]:
        federation = self.experiment.federation
        partition, model = federation.data.partition, federation.model
        split = partition if partition.partition(":")[0] not in KINDS else ""
        own: tuple[str, ...] = (federation.data.name, self.federation.data.name, split, model.name, federation.task)
        if self.kind == "forget":
            own = (*own, self.variant.name, *self.variant.routines)
        return [digest(spec) for spec in own]

    @cached_property
    def key(self) -> str:
        text = json.dumps(self._facts(), sort_keys=True, separators=(",", ":"))
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    def _facts(self) -> dict[str, Any]:
        """Everything that the outcome depends on. The machine, the device and the federation's kind are not part."""
        e, federation = self.experiment, self.experiment.federation
        whole = e.described()
        model = federation.model
        facts: dict[str, Any] = {
            "format": _FORMAT,
            "software": [version("puf-fl"), version("torch"), version("numpy")],
            "kind": self.kind,
            "code": self.code,
            "user_code": self.user_code,
            "model": [model.name, model.options, model.pretrained],
            "initial_weights": _weights_digest(self.federation),
            "recipe": {**whole["recipe"], "seed": self.federation.recipe.seed},
            "data_seed": self.federation.data_seed,
            "data": self.federation.data.model_dump(mode="json"),
            **{name: whole[name] for name in ("task", "rounds", "participation", "plan") if name in whole},
        }
        if self.kind != "retrain":
            facts["remembers"] = e.histories
        if self.kind != "original":
            facts |= {"targets": self.targets, "samples": whole["samples"]}
        if self.kind not in ("original", "retrain"):
            facts |= {
                "variant": [self.variant.name, self.variant.options],
                "policy": {**self.federation.forgetting.model_dump(mode="json"), **self.variant.policy()},
                "mode": self.variant.method.mode,
                **{n: whole[n] for n in ("forgetting", "stop", "recovery_rounds", "horizon", "persistence")},
            }
        return facts


Pair = tuple[Job, tuple[int, ...]]
_DIGESTS: dict[str, str] = {}


def _weights_digest(federation: FederationSpec) -> str:
    """Digest of the federation's initial weights. They are made once per process."""
    key = repr((federation.model, federation.weights, federation.init_seed))
    if key not in _DIGESTS:
        first = initial_model(federation)
        _DIGESTS[key] = hashlib.sha256(first.payload + bytes.fromhex(first.base_digest)).hexdigest()[:20]
    return _DIGESTS[key]


def jobs_of(experiment: ExperimentSpec) -> Iterator[Job]:
    """All jobs, each after the jobs it needs."""
    for seed in experiment.seeds:
        for variant in experiment.variants:
            if variant.method.kind == "original":
                yield Job(experiment, variant, seed)
                continue
            for targets in experiment.targets:
                job = Job(experiment, variant, seed, targets)
                if variant.name == "retrain":
                    yield from (job, *job.references)
                else:
                    yield job.floor if variant.name == "floor" else job


def pairs_of(experiment: ExperimentSpec) -> list[Pair]:
    """The jobs whose metrics are computed, each with the targets whose data are the forget set."""
    jobs = list(jobs_of(experiment))
    return [
        (job, targets)
        for seed in experiment.seeds
        for targets in experiment.targets
        for job in jobs
        if job.seed == seed and job.targets in ((), targets) and job.repeat < 2
    ]
