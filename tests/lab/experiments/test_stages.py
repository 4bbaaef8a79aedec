"""Completion by the paper's rule and by the service's own rule, and the stages that are measured."""

from __future__ import annotations

from functools import partialmethod
from pathlib import Path

import pytest

from puf_common.errors import UsageError
from puf_lab.evaluation.evaluator import Evaluator
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import ExecutorOptions
from puf_lab.experiments.jobs import jobs_of
from puf_lab.experiments.perform import perform
from puf_lab.experiments.runner import run_experiment
from puf_lab.experiments.stages import Stages
from puf_lab.federations.state_directories import initial_model
from puf_lab.spec.experiment import ExperimentSpec
from puf_server.core.methods.base import Step, View
from puf_server.core.methods.fedosd import FedOsd


def held_out(experiment: ExperimentSpec) -> ExperimentSpec:
    """The service's rule needs hold-out data."""
    data = experiment.federation.data
    return experiment.placed(data=data.model_copy(update={"options": {**data.options, "holdout": 0.2}}))


def test_the_papers_rule_ends_at_the_retrained_accuracy(tiny: ExperimentSpec) -> None:
    stages = Stages(tiny, 50.0)
    for number, test in enumerate([30.0, 49.5, 48.0]):
        assert not stages.over(number)
        stages.add(number, test)
    assert stages.recovered is False, "given up after recovery_rounds = 2"
    assert stages.rounds == {"unlearned": 0, "horizon": 1, "equal": 1, "recovered": 2, "after 1": 3}
    assert not stages.over(2)
    assert stages.over(3)


def test_without_an_unlearning_step_the_original_does_not_count(tiny: ExperimentSpec) -> None:
    stages = Stages(tiny, 50.0, first=1)
    stages.add(0, 60.0)
    assert (stages.recovered, "equal" in stages.rounds) == (None, False)
    stages.add(1, 55.0)
    assert (stages.recovered, stages.rounds["equal"]) == (True, 1)


def test_the_services_rule_is_not_the_labs(tiny: ExperimentSpec) -> None:
    stages = Stages(tiny, 50.0, by_service=True)
    for number, test in ((-1, 60.0), (0, 40.0), (1, 60.0)):
        stages.add(number, test)
    assert stages.recovered is None
    assert stages.rounds["equal"] == 1, "rounds of the method before the unlearned model do not count"
    stages.complete(4, recovered=True)
    assert stages.rounds["after 1"] == 5


def test_the_service_completes_the_request(tiny: ExperimentSpec, tmp_path: Path) -> None:
    """The original is shared with the paper's rule, and the service's own policy holds in the copy."""
    cache = Cache(tmp_path / "cache")
    paper = held_out(tiny).placed(rounds=10).narrowed(targets=[(0,)], methods=["puf-regular"])
    product = paper.model_copy(update={"stop": "product"})
    for experiment in (paper, product):
        for job in jobs_of(experiment):
            perform(job, cache)
    first, second = (next(job for job in jobs_of(e) if job.kind == "forget") for e in (paper, product))
    assert first.original.key == second.original.key
    assert first.key != second.key
    outcome = cache.outcome(second)
    numbers = [number for number, _, _ in outcome["curve"]]
    completed = outcome["stages"]["recovered"]
    assert numbers == list(range(len(numbers)))
    assert outcome["ending"], "the ticket says why recovery ended"
    assert 0 < completed <= product.federation_for(1).forgetting.max_recovery_rounds
    assert outcome["stages"]["after 1"] == completed + 1 == numbers[-1]
    assert outcome["spent"]["rounds"] == 1 + completed
    kept = sorted(path.name for path in cache.folder(second).glob("*.bin"))
    assert kept == [f"round-{number:03d}.bin" for number in sorted(set(outcome["stages"].values()))]
    assert cache.outcome(first)["curve"][0] == outcome["curve"][0], "the same unlearned model"


def test_what_is_followed_round_by_round_needs_a_federation_in_this_process(
    tiny: ExperimentSpec, tmp_path: Path
) -> None:
    elsewhere = tiny.placed(kind="processes")
    for followed in (elsewhere.model_copy(update={"stop": "product"}), elsewhere.narrowed(methods=["fedosd"])):
        with pytest.raises(UsageError, match="use --federation in-process"):
            run_experiment(followed, tmp_path / "out", cache=Cache(tmp_path / "cache"), options=ExecutorOptions())
    assert not list(tmp_path.glob("cache/*"))


def curve_of(experiment: ExperimentSpec, method: str, cache: Cache) -> list[list[float]]:
    """Round, test and forget accuracy of the method's models."""
    *_, job = jobs_of(experiment.narrowed(targets=[(0,)], methods=[method]))
    for each in (*job.needs, job):
        perform(each, cache)
    curve: list[list[float]] = cache.outcome(job)["curve"]
    return curve


@pytest.mark.parametrize(("method", "samples"), [("puf-special", 20), ("puf-special epochs=3", 60)])
def test_the_target_trains_the_stated_epochs(tiny: ExperimentSpec, tmp_path: Path, method: str, samples: int) -> None:
    """The target has 20 images, and one epoch is the default. In Special it trains alone."""
    cache = Cache(tmp_path / "cache")
    curve_of(tiny, method, cache)
    *_, job = jobs_of(tiny.narrowed(targets=[(0,)], methods=[method]))
    assert cache.outcome(job)["unlearning"]["samples"] == samples


def test_a_method_with_its_own_recovery_recovers_by_it(
    tiny: ExperimentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedOSD's recovery does not go back. Its rounds end by the paper's rule, and ordinary training follows."""
    # The goal is out of reach, so that there are three rounds of recovery.
    monkeypatch.setattr("puf_lab.experiments.stages.Stages.add", partialmethod(_given_up_after, 3))
    cache = Cache(tmp_path / "cache")
    asked: list[int] = []
    own_step = FedOsd.recovery_step

    def counted(self: FedOsd, view: View, step: Step) -> Step:
        asked.append(view.state.number + 1)
        return own_step(self, view, step)

    monkeypatch.setattr(FedOsd, "recovery_step", counted)
    own = curve_of(tiny, "fedosd rounds=2", cache)
    # Rounds 1 and 2 are training, 3 and 4 the method's. The fourth round of recovery is given up before it begins.
    assert asked == [5, 6, 7, 8]
    assert [number for number, *_ in own] == [0, 1, 2, 3, 4]
    plain = curve_of(tiny, "fedosd rounds=2 project=false", cache)
    assert own[0] == plain[0], "the same unlearned model"
    assert own[1:4] != plain[1:4]


def test_rounds_that_a_method_repeats_are_recovery(tiny: ExperimentSpec, tmp_path: Path) -> None:
    """With little noise SIFU goes back to the initial model. That is what it gives at once; training again comes after."""
    cache = Cache(tmp_path / "cache")
    curve = curve_of(tiny, "sifu sigma=1e-9 epsilon=1e-6", cache)
    *_, job = jobs_of(tiny.narrowed(targets=[(0,)], methods=["sifu sigma=1e-9 epsilon=1e-6"]))
    evaluator = Evaluator(job.federation)
    first = evaluator.accuracies(initial_model(job.federation).payload, [0])
    assert tuple(curve[0]) == (0, *first)
    outcome = cache.outcome(job)
    assert outcome["unlearning"]["samples"] == 0
    assert [number for number, *_ in curve] == list(range(len(curve)))


def _given_up_after(self: Stages, rounds: int, number: int, test: float) -> None:
    if number == rounds:
        self.complete(number, recovered=False)


def test_recovery_within_a_request_is_training_if_the_method_does_not_change_it(
    tiny: ExperimentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "fedosd rounds=1 project=false"
    within = curve_of(tiny, method, Cache(tmp_path / "within"))
    monkeypatch.setattr("puf_lab.spec.variants.Variant.recovers", False)
    assert curve_of(tiny, method, Cache(tmp_path / "after")) == within
