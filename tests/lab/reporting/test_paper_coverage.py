"""Every number of the paper's tables has a setting, or an entry that says why there is none."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from puf_lab.paper import tables
from puf_lab.reporting import paper_coverage as coverage
from puf_lab.spec.settings_files import load_experiment, names


def test_every_number_of_the_paper_has_a_setting_or_a_reason() -> None:
    walked = list(coverage.numbers())
    assert len({(row.setting, row.method) for row, *_ in walked}) == len(tables.rows())
    without = [(row.setting, row.method, column) for row, column, setting in walked if setting is None]
    unexplained = [
        (row.setting, row.method, column)
        for row, column, setting in walked
        if setting is None and not any(m.concerns(row, column) for m in coverage.missing())
    ]
    assert unexplained == []
    # An entry for a number that a setting gives would hide a later loss.
    assert {(s, c) for s, _, c in without} == {("prostate", "computation")}


def test_a_cost_is_given_only_if_the_formulas_have_a_figure() -> None:
    full = load_experiment("cifar100-iid")
    costs = ("communication", "computation", "storage")
    assert all(coverage.gives(full, "PUF-Special", column) for column in costs)
    assert not coverage.gives(full, "Rapid", "communication"), "it is not compared in this setting"
    rapid = full.narrowed(methods=["rapid"])
    assert coverage.gives(rapid, "Rapid", "forget")
    assert not any(coverage.gives(rapid, "Rapid", column) for column in costs), "the appendix has no formula for it"
    assert not coverage.gives(load_experiment("prostate"), "Retrain", "computation")
    assert coverage.gives(load_experiment("prostate"), "Retrain", "communication")


def test_every_reason_concerns_a_number() -> None:
    for entry in coverage.missing():
        assert any(entry.concerns(row, column) for row, column, _ in coverage.numbers())
        assert entry.reason


def test_the_tuning_figures_have_settings() -> None:
    for name in ("cifar100-noniid", "cifar10-noniid", "cifar100-noniid-mitb0", "prostate"):
        labels = {v.name for v in load_experiment(f"{name}-tuning").variants}
        assert {"natural", "not", "pga", "puf-special"} <= labels


@pytest.mark.parametrize(
    ("setting", "profile", "batch_size", "stop_distance"),
    [
        ("cifar100-iid", "paper", "512", "9.0"),
        ("cifar100-noniid", "paper", "512", "6.5"),
        ("cifar10-noniid", "paper", "512", "6.5"),
        ("cifar100-noniid-mitb0", "paper", "512", "6.5"),
        ("prostate", "paper", "512", "6.5"),
        ("cifar100-iid", "author-code", "32", "6.0"),
        ("cifar100-noniid-mitb0", "author-code", "32", "6.0"),
    ],
)
def test_pga_has_the_values_of_the_appendix(setting: str, profile: str, batch_size: str, stop_distance: str) -> None:
    experiment = load_experiment(setting, profile=profile)
    options = next(dict(v.options) for v in experiment.variants if v.name == "pga")
    assert (options["batch_size"], options["stop_distance"]) == (batch_size, stop_distance)


def test_the_profile_of_the_authors_code_has_its_values() -> None:
    def values(setting: str, profile: str) -> tuple[str, ...]:
        experiment = load_experiment(setting, profile=profile)
        options = {v.name: dict(v.options) for v in experiment.variants}
        augmented = str(experiment.federation.data.options["rotate"])
        guided = options["mode"]["lr_guide_target"]
        return augmented, options["pga"]["clip"], guided, options.get("federaser", {}).get("epochs", "")

    assert values("cifar100-iid", "paper") == ("False", "5.0", "0.0005", "0.5")
    assert values("cifar100-iid", "author-code") == ("True", "5.0", "0.1", "1.0")
    # Images for MiT-B0 are not rotated, and the rate of training is another one. It has no FedEraser.
    assert values("cifar100-noniid-mitb0", "paper") == ("False", "5.0", "0.0005", "")
    assert values("cifar100-noniid-mitb0", "author-code") == ("False", "0.0", "0.0003", "")
    said = " ".join(load_experiment("prostate", profile="author-code").described()["readings"])
    assert "The authors' script for prostate has others: 7, 8 and 19 in Special, 120 in Regular." in said


class Size(NamedTuple):
    """What decides a row of the paper's tables beside the recipe."""

    partition: str
    classes: str
    targets: int
    leave: int
    flops: float
    head: int
    fraction: float | None = None


CIFAR = ("dirichlet:0.1", "100", 10, 1, 1.5e8, 51300)


@pytest.mark.parametrize(
    ("setting", "size"),
    [
        ("cifar100-iid", Size("iid", "100", 10, 1, 1.5e8, 51300)),
        ("cifar100-noniid", Size(*CIFAR)),
        ("cifar100-noniid-e10", Size(*CIFAR)),
        ("cifar10-noniid", Size("dirichlet:0.3", "10", 10, 1, 1.5e8, 5130)),
        ("cifar100-noniid-mitb0", Size("dirichlet:0.1", "100", 10, 1, 1.7e9, 25700)),
        ("cifar100-noniid-two", Size("dirichlet:0.1", "100", 5, 2, 1.5e8, 51300)),
        ("cifar100-noniid-mitb0-two", Size("dirichlet:0.1", "100", 5, 2, 1.7e9, 25700)),
        ("cifar100-iid-samples", Size("iid", "100", 10, 1, 1.5e8, 51300, 0.5)),
        ("cifar100-noniid-samples", Size(*CIFAR, 0.5)),
        ("prostate", Size("iid", "2", 6, 1, 0.0, 0)),
    ],
)
def test_full_size_settings_have_the_sizes_of_the_paper(setting: str, size: Size) -> None:
    experiment = load_experiment(setting)
    federation = experiment.federation
    assert federation.data.partition == size.partition
    assert str(federation.model.options.get("classes", "100")) == size.classes
    assert (federation.model.flops_per_sample, federation.model.head_parameters) == (size.flops, size.head)
    assert (len(experiment.targets), {len(targets) for targets in experiment.targets}) == (size.targets, {size.leave})
    assert (experiment.samples.fraction if experiment.samples else None) == size.fraction
    assert (federation.participation, federation.clients) == (1.0, 6 if setting == "prostate" else 10)
    assert federation.model.pretrained == ("mitb0" in setting)


@pytest.mark.parametrize(
    ("setting", "rounds", "recipe"),
    [
        ("cifar100-iid", 200, ("sgd", 0.1, 0.998, 32, 0.0, 1)),
        ("cifar100-noniid", 200, ("sgd", 0.1, 0.998, 32, 0.0, 1)),
        ("cifar100-noniid-e10", 200, ("sgd", 0.1, 0.998, 32, 0.0, 10)),
        ("cifar10-noniid", 200, ("sgd", 0.1, 0.998, 32, 0.0, 1)),
        ("cifar100-noniid-mitb0", 50, ("adamw", 3e-4, 0.998, 32, 1e-3, 1)),
        ("prostate", 500, ("adam", 1e-4, 1.0, 16, 1e-4, 1)),
    ],
)
def test_full_size_settings_train_as_the_paper_states(setting: str, rounds: int, recipe: tuple[object, ...]) -> None:
    experiment = load_experiment(setting)
    r = experiment.federation.recipe
    assert experiment.federation.rounds == rounds
    assert (r.optimizer, r.lr, r.lr_decay, r.batch_size, r.weight_decay, r.epochs) == recipe
    assert r.plain_unlearning == (setting != "prostate")
    assert experiment.defaults["puf-special"]["eta_u"] == 2.0
    # kappa = 2 for one of 10 equal clients, and of 6 in prostate, where the paper has no Regular.
    assert experiment.defaults["puf-regular"]["eta_u"] == 2.0 * experiment.federation.clients
    assert len(experiment.targets) == experiment.federation.clients


def test_the_other_baselines_have_the_values_of_the_appendix() -> None:
    appendix = {
        "federaser": {"delta_t": "1", "epochs": "0.5"},
        "mode": {
            "rounds": "10",
            "degrade_rounds": "6",
            "keep": "0.95",
            "lr_guide_target": "0.0005",
            "lr_guide_retain": "0.0005",
        },
        "fedau": {"epochs": "10.0", "alpha_aux": "0.96"},
    }
    found: dict[str, set[str]] = {name: set() for name in appendix}
    for setting in coverage.full_size():
        for variant in load_experiment(setting).variants:
            if variant.name in appendix:
                assert dict(variant.options) == appendix[variant.name], (setting, variant.name)
                found[variant.name].add(setting)
    assert found["federaser"] == {"cifar100-iid", "cifar100-noniid"}
    assert {"cifar100-noniid-e10", "cifar10-noniid", "cifar100-noniid-mitb0"} <= found["mode"] & found["fedau"]


def test_every_variant_of_puf_states_its_epochs() -> None:
    for name in names():
        experiment = load_experiment(name)
        assert all("epochs" in dict(v.options) for v in experiment.variants if v.is_puf)
        if experiment.paper == name:  # a row of the paper's tables: E_u is 1, and with E = 10 both readings are run
            epochs = {float(dict(v.options)["epochs"]) for v in experiment.variants if v.is_puf}
            assert epochs == {1.0, float(experiment.federation.recipe.epochs)}, name
    both = load_experiment("cifar100-noniid-e10-small")
    stated = {dict(v.options)["epochs"] for v in both.variants if v.name == "puf-regular"}
    assert stated == {"1", "10"}
    assert "E_u, the target's epochs in PUF's unlearning round: 1, 10 (E = 10)." in both.described()["readings"]


def test_the_profiles_read_the_forgetting_of_samples_differently() -> None:
    def variants(profile: str) -> dict[str, str]:
        experiment = load_experiment("cifar100-iid-samples", profile=profile)
        return {v.name: v.text for v in experiment.variants if v.is_puf}

    assert variants("paper") == {
        "puf-special": "puf-special epochs=1 eta_u=2.0",
        "puf-regular": "puf-regular epochs=1 kappa=2.0 rest=false",
    }
    assert variants("author-code") == {
        "puf-special": "puf-special epochs=1 eta_u=1.0",
        "puf-regular": "puf-regular epochs=1 eta_u=20.0 rest=true",
    }
    sentences = load_experiment("cifar100-iid-samples").described()["readings"]
    assert any("only its negated update, kappa = 2.0" in s for s in sentences)
    # Class unlearning has no other clients, and a setting of `puf-lab quality` measures the product.
    stated = {"digits-class", "quality-digits-half"}
    settings = [name for name in names() if load_experiment(name).samples is not None]
    assert len(settings) > 10
    assert stated < set(settings)
    for name in settings:
        for profile, rest in (("paper", "true" if name in stated else "false"), ("author-code", "true")):
            variants_here = load_experiment(name, profile=profile).variants
            found = {dict(v.options)["rest"] for v in variants_here if v.name == "puf-regular"}
            assert found <= {rest}, (name, profile)


def test_other_readings_are_stated() -> None:
    def said(profile: str) -> str:
        return " ".join(load_experiment("cifar100-iid", profile=profile).described()["readings"])

    assert "FedAU: the weight of the auxiliary head is 0.96; the model's own head has the rest." in said("paper")
    assert "PGA" not in said("paper").replace("PUF, PGA", "")
    assert "PGA follows its equations, not the authors' code, in" in said("author-code")
