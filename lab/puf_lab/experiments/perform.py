"""Performs one job: trains, or forgets the targets and follows the model round by round until it has recovered."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from puf_lab.evaluation.evaluator import Evaluator, ForgetSet, ModelOutputs
from puf_lab.evaluation.metrics import compute, stamps
from puf_lab.experiments.cache import Cache, model_name
from puf_lab.experiments.forget_samples import forget_set
from puf_lab.experiments.jobs import Job
from puf_lab.federations.base import Spent, open_federation
from puf_lab.federations.state_directories import copy_state
from puf_lab.spec.federation import FederationSpec

Tick = Callable[[int], None]


def perform(job: Job, cache: Cache, tick: Tick = lambda rounds: None) -> None:
    """Puts the job into the cache. The jobs it needs must be there. `tick` receives numbers of finished rounds."""
    if cache.has(job):
        return
    started = time.monotonic()
    with cache.building(job) as folder:
        forgotten = forgotten_by(job) if job.targets else {}
        if job.kind in ("original", "retrain"):
            outcome = _train(job, folder, forgotten, tick)
        else:
            outcome = _forget(job, folder, cache, forgotten, tick)
        seconds = round(time.monotonic() - started, 2)
        outcome |= {"title": job.title, "seconds": seconds, "federation": job.federation.kind}
        (folder / "outcome.json").write_text(json.dumps(outcome))


def score(job: Job, targets: tuple[int, ...], cache: Cache, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The metrics of every stage of a finished job, with the forget set of these targets. They are computed once."""
    file = f"scores-{'+'.join(map(str, targets))}.json"
    known = cache.noted(job, file)
    if known is None or known["stamps"] != stamps(names):
        stages = cache.outcome(job).get("stages") or {"trained": None}
        retrained = Job(job.experiment, job.retrain.variant, job.seed, targets)
        forgotten = forgotten_by(retrained)
        reference = _reference(retrained, cache, forgotten)
        found: dict[int | None, dict[str, float]] = {}
        for number in stages.values():
            if number not in found:
                outputs = evaluator_of(job.federation).outputs(cache.payload(job, number), forgotten, reference)
                found[number] = compute(outputs, names)
        known = {"stamps": stamps(names), "stages": {stage: found[number] for stage, number in stages.items()}}
        cache.note(job, file, known)
    scores: dict[str, dict[str, float]] = known["stages"]
    return scores


# A process works on one experiment at a time. It loads the data once, and evaluates each reference model once per target.
_EVALUATORS: dict[str, Evaluator] = {}
_REFERENCES: dict[str, ModelOutputs] = {}


def evaluator_of(federation: FederationSpec) -> Evaluator:
    key = repr(federation)
    if key not in _EVALUATORS:
        _EVALUATORS.clear()
        _EVALUATORS[key] = Evaluator(federation)
    return _EVALUATORS[key]


def _reference(job: Job, cache: Cache, forgotten: ForgetSet) -> ModelOutputs:
    """Outputs of the retrained model. Every method of the same target is compared with it."""
    if job.key not in _REFERENCES:
        _REFERENCES.clear()
        _REFERENCES[job.key] = evaluator_of(job.federation).outputs(cache.payload(job), forgotten)
    return _REFERENCES[job.key]


def forgotten_by(job: Job) -> ForgetSet:
    """The samples that the job's targets want forgotten."""
    clients = evaluator_of(job.federation).clients if job.experiment.samples else []
    return forget_set(clients, job.targets, job.experiment.samples, job.seed)


def _train(job: Job, folder: Path, forgotten: ForgetSet, tick: Tick) -> dict[str, Any]:
    home = folder / "federation"
    with open_federation(job.federation, home, left_out=forgotten) as federation:
        federation.train(tick)
        (folder / model_name(None)).write_bytes(federation.payload())
        spent = federation.spent()
    if job.kind != "original":
        shutil.rmtree(home)
    return {"spent": asdict(spent)}


class Stages:
    """The rounds after unlearning whose models are kept: unlearned, horizon, recovered, and some rounds later.

    Recovery ends at the retrained model's accuracy. Round 0 is the model right after unlearning. A run that does not
    recover in time is completed too, and marked as not recovered.
    """

    def __init__(self, job: Job, goal: float) -> None:
        self._experiment = job.experiment
        self._goal = goal
        # Without an unlearning step round 0 is the original itself, so recovery counts from round 1.
        self._first = 1 if job.kind == "natural" else 0
        self.recovered: bool | None = None
        self.rounds: dict[str, int] = {"unlearned": 0, "horizon": self._experiment.horizon}

    def add(self, number: int, test: float) -> None:
        """Takes the test accuracy after this round into account."""
        if self.recovered is None and number >= self._first:
            reached = test >= self._goal
            if reached or number >= self._experiment.recovery_rounds:
                self.recovered = reached
                self.rounds["recovered"] = number
                self.rounds |= {f"after {n}": number + n for n in self._experiment.persistence}

    def over(self, number: int) -> bool:
        return self.recovered is not None and number >= max(self.rounds.values())


def _forget(job: Job, folder: Path, cache: Cache, forgotten: ForgetSet, tick: Tick) -> dict[str, Any]:
    evaluator = evaluator_of(job.federation)
    goal, _ = evaluator.accuracies(cache.payload(job.retrain), forgotten)
    stages = Stages(job, goal)
    curve: list[tuple[int, float, float]] = []
    costs: list[Spent] = []
    home = folder / "federation"
    copy_state(cache.folder(job.original) / "federation", home, job.variant.policy())
    with open_federation(job.federation, home, left_out=forgotten if job.kind == "natural" else {}) as federation:
        before = federation.spent()
        if job.kind == "forget":
            samples = {shard: ids for shard, ids in forgotten.items() if ids is not None}
            federation.forget(list(forgotten), mode=job.variant.method.mode, samples=samples, **job.variant.strength())
        tick(1)
        for number in range(job.rounds):
            if number:
                federation.extend(1)
                federation.train(tick)
            payload = federation.payload()
            test, forget = evaluator.accuracies(payload, forgotten)
            curve.append((number, test, forget))
            costs.append(federation.spent() - before)
            stages.add(number, test)
            if number in stages.rounds.values():
                (folder / model_name(number)).write_bytes(payload)
            if stages.over(number):
                break
    shutil.rmtree(home)
    rounds = {stage: number for stage, number in stages.rounds.items() if number < len(curve)}
    return {
        "goal": goal,
        "recovered": bool(stages.recovered),
        "stages": rounds,
        "curve": curve,
        "unlearning": asdict(costs[0]),
        "spent": asdict(costs[rounds["recovered"]]),
    }
