"""Performs one job: trains, or forgets the targets and follows the model round by round until it has recovered."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from puf_client.worker.devices import choose
from puf_common.errors import PufError
from puf_lab.evaluation.evaluator import Evaluator, ForgetSet
from puf_lab.experiments.cache import Cache, model_name
from puf_lab.experiments.jobs import Job
from puf_lab.experiments.measuring import evaluator_of, forgotten_by
from puf_lab.experiments.stages import Stages
from puf_lab.federations.base import Federation, Spent, open_federation
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.federations.state_directories import copy_state
from puf_lab.reporting.provenance import commit
from puf_server.core.config import Forgetting
from puf_server.core.state.state import State

Tick = Callable[[int], None]
# The service opens the first round of recovery. The experiment's stop rule decides about each further one.
_RECOVERING = {"max_recovery_rounds": 1, "blind_recovery_rounds": 1}


def perform(job: Job, cache: Cache, tick: Tick = lambda rounds: None) -> None:
    """Puts the job into the cache. The jobs it needs must be there. `tick` receives numbers of finished rounds."""
    if cache.has(job):
        return
    job.check_code()
    started = time.monotonic()
    with cache.building(job) as folder:
        forgotten = forgotten_by(job) if job.targets else {}
        if job.kind in ("original", "retrain"):
            outcome = _train(job, folder, forgotten, tick)
        else:
            outcome = _forget(job, folder, cache, forgotten, tick)
        seconds = round(time.monotonic() - started, 2)
        outcome |= {"title": job.title, "seconds": seconds, **produced_by(job)}
        (folder / "outcome.json").write_text(json.dumps(outcome))


def produced_by(job: Job) -> dict[str, str]:
    """What made the run: code, commit, device and kind of federation. It stays with the run in the cache."""
    device = choose(job.federation.device).device
    name = platform.machine() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return {
        "code": job.code,
        "commit": commit(),
        "device": f"{device} {name}",
        "federation": job.federation.kind,
    }


def _train(job: Job, folder: Path, forgotten: ForgetSet, tick: Tick) -> dict[str, Any]:
    home = folder / "federation"
    with open_federation(job.federation, home, left_out=forgotten) as federation:
        federation.train(tick)
        (folder / model_name(None)).write_bytes(federation.payload())
        spent = federation.spent()
    if job.kind != "original":
        shutil.rmtree(home)
    return {"spent": asdict(spent)}


class Trail:
    """The model of every round of a run: its accuracies and the cost so far. The models wait in the job's folder."""

    def __init__(self, federation: Federation, evaluator: Evaluator, forgotten: ForgetSet, folder: Path) -> None:
        self._federation, self._evaluator, self._forgotten, self._folder = federation, evaluator, forgotten, folder
        self._before = federation.spent()
        self.accuracies: list[tuple[float, float]] = []
        self.costs: list[Spent] = []
        self.zero = 0
        """Position of the model right after unlearning. Rounds are counted from it."""

    @property
    def _in_process(self) -> InProcessFederation:
        assert isinstance(self._federation, InProcessFederation)
        return self._federation

    @property
    def last(self) -> int:
        return len(self.accuracies) - 1 - self.zero

    def add(self, version: int | None = None) -> float:
        """Takes a version, by default the newest model. Returns its test accuracy."""
        payload = self._federation.payload() if version is None else self._in_process.payload(version)
        self._path(len(self.accuracies)).write_bytes(payload)
        self.accuracies.append(self._evaluator.accuracies(payload, self._forgotten))
        self.costs.append(self._federation.spent() - self._before)
        return self.accuracies[-1][0]

    def keep(self, rounds: Collection[int]) -> None:
        """Gives the models of these rounds their names and deletes the others."""
        for position in range(len(self.accuracies)):
            number = position - self.zero
            if number in rounds:
                self._path(position).rename(self._folder / model_name(number))
            else:
                self._path(position).unlink()

    def curve(self) -> list[tuple[int, float, float]]:
        return [(position - self.zero, *point) for position, point in enumerate(self.accuracies)]

    def _path(self, position: int) -> Path:
        return self._folder / f"position-{position}.bin"


def _forget(job: Job, folder: Path, cache: Cache, forgotten: ForgetSet, tick: Tick) -> dict[str, Any]:
    evaluator = evaluator_of(job.federation)
    goal, _ = evaluator.accuracies(cache.payload(job.retrain), forgotten)
    by_service = job.kind == "forget" and job.experiment.stop == "product"
    # Without an unlearning step round 0 is the original itself, so recovery counts from round 1.
    stages = Stages(job.experiment, goal, first=1 if job.kind == "natural" else 0, by_service=by_service)
    home = folder / "federation"
    # The original may have been trained for another setting, under another policy.
    policy = job.federation.forgetting.model_dump(mode="json")
    policy |= {**job.variant.policy(), **(_RECOVERING if job.recovers_by_method else {})}
    copy_state(cache.folder(job.original) / "federation", home, policy)
    ending = ""
    spec = job.federation.model_copy(update={"forgetting": Forgetting.model_validate(policy)})
    with open_federation(spec, home, left_out=forgotten if job.kind == "natural" else {}) as federation:
        trail = Trail(federation, evaluator, forgotten, folder)
        if by_service:
            ending = _until_completed(job, federation, forgotten, trail, stages)
        elif job.recovers_by_method:
            _until_recovered(job, federation, forgotten, trail, stages)
        else:
            if job.kind == "forget":
                federation.forget(list(forgotten), **_request(job, forgotten))
            stages.add(0, trail.add())
        tick(1 + trail.last)
        while not stages.over(trail.last):
            federation.extend(1)
            federation.train(tick)
            test = trail.add()
            stages.add(trail.last, test)
    shutil.rmtree(home)
    trail.keep(stages.rounds.values())
    return {
        "goal": goal,
        "recovered": bool(stages.recovered),
        "ending": ending,
        "stages": stages.rounds,
        "curve": trail.curve(),
        "unlearning": asdict(trail.costs[trail.zero]),
        "spent": asdict(trail.costs[trail.zero + stages.rounds["recovered"]]),
    }


def _request(job: Job, forgotten: ForgetSet) -> dict[str, Any]:
    """How the targets ask. PUF's strength is always stated: the service's default may be another one."""
    strength = job.variant.strength()
    if job.variant.is_puf and not {"kappa", "eta_u"} & strength.keys():
        strength["kappa"] = job.federation.forgetting.kappa
    samples = {shard: ids for shard, ids in forgotten.items() if ids is not None}
    return {"mode": job.variant.method.mode, "samples": samples, **strength}


def _until_recovered(job: Job, federation: Federation, forgotten: ForgetSet, trail: Trail, stages: Stages) -> None:
    """Recovers within the request, as the method does it, until the stages say that it is over."""
    assert isinstance(federation, InProcessFederation)

    def follow(_: State) -> None:
        test = trail.add()
        stages.add(trail.last, test)
        federation.recover(further=stages.recovered is None)

    federation.forget(list(forgotten), progress=follow, **_request(job, forgotten))


def _until_completed(job: Job, federation: Federation, forgotten: ForgetSet, trail: Trail, stages: Stages) -> str:
    """Lets the service decide when the request is completed. Returns what the ticket says about it."""
    assert isinstance(federation, InProcessFederation)
    versions: list[int] = []

    def follow(_: State) -> None:
        versions.append(federation.model_on_the_way)
        trail.add(versions[-1])

    ticket = federation.forget(list(forgotten), progress=follow, **_request(job, forgotten))[0]
    if ticket.outcome is None or ticket.applied is None or ticket.applied.version_unlearned is None:
        raise PufError(f"{job.title}: the request was not completed: {ticket.history[-1].note}")
    trail.zero = versions.index(ticket.applied.version_unlearned)
    for number, test, _ in trail.curve():
        stages.add(number, test)
    stages.complete(trail.last, ticket.outcome.recovered is True)
    return ticket.history[-1].note
