"""An experiment as jobs that depend on each other, each named by the hash of everything its outcome depends on.

Original and Retrain have the same name in every experiment that shares them, so they are trained once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from puf_common.errors import UsageError
from puf_lab.experiments.own_code import digest
from puf_lab.experiments.setting import Setting
from puf_lab.experiments.spec import Experiment
from puf_lab.experiments.variants import Variant

__all__ = ["Job", "Place", "jobs_of"]

# Changes when jobs leave something else behind than before.
_FORMAT = 1


@dataclass(frozen=True)
class Place:
    """Where a job runs: what may differ from machine to machine without changing what is meant."""

    data_dir: Path | None = None
    device: str = "cpu"
    engine: str = "in-process"
    weights: Path | None = None


@dataclass(frozen=True)
class Job:
    """One model to be made: the original, one retrained without the targets, or one that was made to forget them."""

    experiment: Experiment
    variant: Variant
    seed: int
    targets: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        return self.variant.method.kind

    @property
    def title(self) -> str:
        who = f" of client {'+'.join(map(str, self.targets))}" if self.targets else ""
        return f"{self.variant.label(self.experiment.defaults)}{who}, seed {self.seed}"

    @property
    def needs(self) -> tuple[Job, ...]:
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
        """At most this many."""
        e = self.experiment
        if self.kind in ("original", "retrain"):
            return e.rounds
        return 1 + max(e.recovery_rounds + max(e.persistence, default=0), e.horizon)

    def setting(self, place: Place) -> Setting:
        if self.experiment.model.pretrained and place.weights is None:
            raise UsageError(
                f"{self.experiment.name} starts from published weights: name the checkpoint with --weights FILE.safetensors"
            )
        return replace(
            self.experiment.setting(self.seed, place.data_dir), title="lab", device=place.device, weights=place.weights
        )

    @cached_property
    def key(self) -> str:
        text = json.dumps(self._facts(), sort_keys=True, separators=(",", ":"))
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    def _facts(self) -> dict[str, Any]:
        e = self.experiment
        whole = e.model_dump(mode="json")
        facts = {
            "format": _FORMAT,
            "software": [version("puf"), version("torch"), version("numpy")],
            "kind": self.kind,
            "code": [digest(spec) for spec in (e.data.name, e.model.name, e.task, self.variant.name)],
            "model": [e.model.name, e.model.options, e.model.pretrained],
            "recipe": {**whole["recipe"], "seed": self.seed},
            **{name: whole[name] for name in ("data", "task", "rounds", "participation")},
        }
        if self.kind != "retrain":
            facts["remembers"] = e.remembers
        if self.kind != "original":
            facts |= {"targets": self.targets, "samples": whole["samples"]}
        if self.kind not in ("original", "retrain"):
            facts |= {
                "variant": [self.variant.name, self.variant.options],
                **{name: whole[name] for name in ("forgetting", "recovery_rounds", "horizon", "persistence")},
            }
        return facts


def jobs_of(experiment: Experiment) -> Iterator[Job]:
    """In an order in which every job comes after those it needs."""
    for seed in experiment.seeds:
        for variant in experiment.variants:
            if variant.method.kind == "original":
                yield Job(experiment, variant, seed)
            else:
                yield from (Job(experiment, variant, seed, targets) for targets in experiment.targets)
