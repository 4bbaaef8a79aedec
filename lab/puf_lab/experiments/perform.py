"""Does one job: trains, or lets targets be forgotten and follows the model round by round until it has recovered."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from puf_lab.evaluation.evaluator import Evaluator, Forget, Look
from puf_lab.evaluation.measures import measure_all, stamps
from puf_lab.experiments.cache import Cache, model_name
from puf_lab.experiments.forget_samples import forget_set
from puf_lab.experiments.jobs import Job, Place
from puf_lab.experiments.setting import Setting, Spent
from puf_lab.federations.base import open_federation
from puf_lab.federations.in_process import copy_state

__all__ = ["Stages", "evaluator_of", "forgotten_by", "perform", "score"]

Tick = Callable[[int], None]


def perform(job: Job, cache: Cache, place: Place, tick: Tick = lambda rounds: None) -> None:
    """Leaves the job in the cache; what it needs is there already. `tick` is told rounds as they are done."""
    if cache.has(job):
        return
    started = time.monotonic()
    with cache.building(job) as folder:
        setting = job.setting(place)
        forgotten = forgotten_by(job, setting) if job.targets else {}
        if job.kind in ("original", "retrain"):
            outcome = _train(job, setting, folder, place, forgotten, tick)
        else:
            outcome = _forget(job, setting, folder, cache, place, forgotten, tick)
        outcome |= {"title": job.title, "seconds": round(time.monotonic() - started, 2), "engine": place.engine}
        (folder / "outcome.json").write_text(json.dumps(outcome))


def score(
    job: Job, targets: tuple[int, ...], cache: Cache, place: Place, names: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Every metric of every stage of a finished job, judged on what these targets want forgotten. Computed once."""
    file = f"scores-{'+'.join(map(str, targets))}.json"
    known = cache.noted(job, file)
    if known is None or known["stamps"] != stamps(names):
        stages = cache.outcome(job).get("stages") or {"trained": None}
        retrained = Job(job.experiment, job.retrain.variant, job.seed, targets)
        forgotten = forgotten_by(retrained, job.setting(place))
        reference = _look(retrained, cache, place, forgotten)
        looks: dict[int | None, dict[str, float]] = {}
        for number in stages.values():
            if number not in looks:
                look = evaluator_of(job.setting(place)).look(cache.payload(job, number), forgotten, reference)
                looks[number] = measure_all(look, names)
        known = {"stamps": stamps(names), "stages": {stage: looks[number] for stage, number in stages.items()}}
        cache.note(job, file, known)
    found: dict[str, dict[str, float]] = known["stages"]
    return found


# A process works on one experiment at a time: its data are loaded once, its reference looks at them once per target.
_EVALUATORS: dict[str, Evaluator] = {}
_LOOKS: dict[str, Look] = {}


def evaluator_of(setting: Setting) -> Evaluator:
    key = repr(setting)
    if key not in _EVALUATORS:
        _EVALUATORS.clear()
        _EVALUATORS[key] = Evaluator(setting)
    return _EVALUATORS[key]


def _look(job: Job, cache: Cache, place: Place, forgotten: Forget) -> Look:
    """The retrained model's look at the data: every method of the same target is compared with it."""
    if job.key not in _LOOKS:
        _LOOKS.clear()
        _LOOKS[job.key] = evaluator_of(job.setting(place)).look(cache.payload(job), forgotten)
    return _LOOKS[job.key]


def forgotten_by(job: Job, setting: Setting) -> Forget:
    """Whose samples the job is about."""
    clients = evaluator_of(setting).clients if job.experiment.samples else []
    return forget_set(clients, job.targets, job.experiment.samples, job.seed)


def _left_out(forgotten: Forget) -> dict[str, Any]:
    """What a federation must be opened with, so that the forgotten data take no part in it."""
    return {
        "without": [shard for shard, ids in forgotten.items() if ids is None],
        "without_samples": {shard: ids for shard, ids in forgotten.items() if ids is not None},
    }


def _train(job: Job, setting: Setting, folder: Path, place: Place, forgotten: Forget, tick: Tick) -> dict[str, Any]:
    home = folder / "federation"
    with open_federation(place.engine, setting, home, **_left_out(forgotten)) as federation:
        federation.train(tick)
        (folder / model_name(None)).write_bytes(federation.payload())
        spent = federation.spent()
    if job.kind != "original":
        shutil.rmtree(home)
    return {"spent": asdict(spent)}


class Stages:
    """Which rounds after unlearning matter: recovery by the retrained model's accuracy, then how it lasts.

    Round 0 is the model right after unlearning. A run that does not recover in time is completed all the same, as one
    that did not.
    """

    def __init__(self, job: Job, goal: float) -> None:
        self._experiment = job.experiment
        self._goal = goal
        # Without an unlearning step round 0 is the original itself; its first chance is after one round.
        self._first = 1 if job.kind == "natural" else 0
        self.recovered: bool | None = None
        self.rounds: dict[str, int] = {"unlearned": 0, "horizon": self._experiment.horizon}

    def saw(self, number: int, test: float) -> None:
        """The test accuracy after so many rounds."""
        if self.recovered is None and number >= self._first:
            reached = test >= self._goal
            if reached or number >= self._experiment.recovery_rounds:
                self.recovered = reached
                self.rounds["recovered"] = number
                self.rounds |= {f"after {n}": number + n for n in self._experiment.persistence}

    def over(self, number: int) -> bool:
        return self.recovered is not None and number >= max(self.rounds.values())

    def wanted(self, number: int) -> bool:
        return number in self.rounds.values()


def _forget(
    job: Job, setting: Setting, folder: Path, cache: Cache, place: Place, forgotten: Forget, tick: Tick
) -> dict[str, Any]:
    evaluator = evaluator_of(setting)
    goal, _ = evaluator.accuracies(cache.payload(job.retrain), forgotten)
    stages = Stages(job, goal)
    curve: list[tuple[int, float, float]] = []
    costs: list[Spent] = []
    home = folder / "federation"
    copy_state(cache.folder(job.original) / "federation", home, job.variant.policy())
    stays = _left_out(forgotten) if job.kind == "natural" else {}
    with open_federation(place.engine, setting, home, **stays) as federation:
        before = federation.spent()
        if job.kind == "forget":
            federation.forget(
                list(forgotten),
                mode=job.variant.method.mode,
                samples={shard: ids for shard, ids in forgotten.items() if ids is not None},
                **_strength(job),
            )
        tick(1)
        for number in range(job.rounds):
            if number:
                federation.extend(1)
                federation.train(tick)
            payload = federation.payload()
            test, forget = evaluator.accuracies(payload, forgotten)
            curve.append((number, test, forget))
            costs.append(federation.spent() - before)
            stages.saw(number, test)
            if stages.wanted(number):
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


def _strength(job: Job) -> dict[str, Any]:
    strength = job.variant.strength()
    return {key: int(value) if key == "epochs" else value for key, value in strength.items()}
