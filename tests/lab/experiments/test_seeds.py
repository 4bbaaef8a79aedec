"""Seeds of data, initial weights and training: Retrain, the noise floor and the references of RMIA."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from puf_client.data import load_data
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.experiments.measuring import forgotten_by, score
from puf_lab.experiments.perform import perform
from puf_lab.federations.state_directories import initial_model
from puf_lab.spec.experiment import ExperimentSpec, SampleSelection
from puf_lab.spec.variants import Variant

NAMES = ("test", "forget", "rmia")


def retrain(experiment: ExperimentSpec) -> Job:
    return Job(experiment, Variant("retrain"), 1, (0,))


def test_the_floor_has_the_same_data_and_initial_weights_and_another_training_seed(tiny: ExperimentSpec) -> None:
    job = retrain(tiny)
    first, other, reference = (each.federation for each in (job, job.floor, *job.references))
    assert first.data_seed == other.data_seed == reference.data_seed
    for shard in range(first.clients):
        one, two = (load_data(each.data.name, each.context(shard)) for each in (first, other))
        assert one.ids == two.ids
        assert all(np.array_equal(one.train[i][0], two.train[i][0]) for i in range(one.samples))
    assert first.recipe.seed != other.recipe.seed != reference.recipe.seed
    assert initial_model(first)[1] == initial_model(other)[1] != initial_model(reference)[1]
    assert len({job.key, job.floor.key, *(each.key for each in job.references)}) == 3


def test_retrained_models_differ_and_none_is_its_own_reference(tiny: ExperimentSpec, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    job = retrain(tiny)
    for each in (job.original, job, job.floor, *job.references):
        perform(each, cache)
    models = {bytes(cache.payload(each)) for each in (job, job.floor, *job.references)}
    assert len(models) == 3
    values = {each.variant.name: score(each, (0,), cache, NAMES)["trained"] for each in (job, job.floor)}
    assert values["retrain"]["rmia"] != 50.0, "Retrain is compared with another retrained model"
    assert values["retrain"]["rmia"] != values["floor"]["rmia"]
    assert {"rmia_member_at_1", "rmia_member_at_01"} <= values["floor"].keys()
    again = score(job, (0,), cache, NAMES)["trained"]
    assert again == values["retrain"]


def test_each_seed_can_be_fixed_by_itself(tiny: ExperimentSpec) -> None:
    def seeds(experiment: ExperimentSpec, seed: int) -> tuple[int, int | None, int]:
        federation = experiment.federation_for(seed)
        return federation.data_seed, federation.init_seed, federation.recipe.seed

    assert seeds(tiny, 3) == (3, 3, 3)
    assert seeds(tiny.narrowed(data_seed=0), 3) == (0, 3, 3)
    assert seeds(tiny.narrowed(init_seed=8), 3) == (3, 8, 3)
    fixed = tiny.narrowed(data_seed=0, init_seed=8)
    assert seeds(fixed, 4) == (0, 8, 4)
    keys = {Job(e, Variant("original"), 3).key for e in (tiny, tiny.narrowed(data_seed=0), tiny.narrowed(init_seed=8))}
    assert len(keys) == 3


def test_the_seed_of_the_data_selects_the_forgotten_samples(tiny: ExperimentSpec) -> None:
    half = tiny.model_copy(update={"samples": SampleSelection(fraction=0.5), "data_seed": 5})
    first, second = (forgotten_by(Job(half, Variant("retrain"), seed, (0,))) for seed in (1, 2))
    assert first == second
    assert forgotten_by(retrain(half)) == forgotten_by(retrain(half).floor)


def test_every_experiment_has_a_floor_and_references(tiny: ExperimentSpec) -> None:
    jobs = list(jobs_of(tiny.model_copy(update={"references": 2})))
    assert [(job.variant.name, job.repeat) for job in jobs if job.targets == (1,) and job.kind == "retrain"] == [
        ("retrain", 0),
        ("retrain", 2),
        ("retrain", 3),
        ("floor", 1),
    ]
