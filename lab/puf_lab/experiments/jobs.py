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

from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import FederationSpec
from puf_lab.spec.user_code import digest
from puf_lab.spec.variants import Variant

# Changes when jobs write other files than before.
_FORMAT = 1


@dataclass(frozen=True)
class Job:
    """One model to make: the original, one retrained without the targets, or one from which the targets are removed."""

    experiment: ExperimentSpec
    variant: Variant
    seed: int
    targets: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        return self.variant.method.kind

    @property
    def title(self) -> str:
        clients = f" of client {'+'.join(map(str, self.targets))}" if self.targets else ""
        return f"{self.variant.label(self.experiment.defaults)}{clients}, seed {self.seed}"

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
    def rounds(self) -> int:
        """Upper bound of the rounds that the job takes."""
        e = self.experiment
        if self.kind in ("original", "retrain"):
            return e.federation.rounds
        return 1 + max(e.recovery_rounds + max(e.persistence, default=0), e.horizon)

    @cached_property
    def federation(self) -> FederationSpec:
        return self.experiment.federation_for(self.seed)

    @cached_property
    def key(self) -> str:
        text = json.dumps(self._facts(), sort_keys=True, separators=(",", ":"))
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    def _facts(self) -> dict[str, Any]:
        """Everything that the outcome depends on. The machine, the device and the federation's kind are not part."""
        e, federation = self.experiment, self.experiment.federation
        whole = e.described()
        model = federation.model
        facts = {
            "format": _FORMAT,
            "software": [version("puf"), version("torch"), version("numpy")],
            "kind": self.kind,
            "code": [digest(spec) for spec in (federation.data.name, model.name, federation.task, self.variant.name)],
            "model": [model.name, model.options, model.pretrained],
            "recipe": {**whole["recipe"], "seed": self.seed},
            **{name: whole[name] for name in ("data", "task", "rounds", "participation")},
        }
        if e.data_seed is not None:
            facts["data_seed"] = e.data_seed
        if self.kind != "retrain":
            facts["remembers"] = e.histories
        if self.kind != "original":
            facts |= {"targets": self.targets, "samples": whole["samples"]}
        if self.kind not in ("original", "retrain"):
            facts |= {
                "variant": [self.variant.name, self.variant.options],
                **{name: whole[name] for name in ("forgetting", "recovery_rounds", "horizon", "persistence")},
            }
        return facts


def jobs_of(experiment: ExperimentSpec) -> Iterator[Job]:
    """All jobs, each after the jobs it needs."""
    for seed in experiment.seeds:
        for variant in experiment.variants:
            if variant.method.kind == "original":
                yield Job(experiment, variant, seed)
            else:
                yield from (Job(experiment, variant, seed, targets) for targets in experiment.targets)
