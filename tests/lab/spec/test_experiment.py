"""Settings as files: their content, how they build on each other, and that every built-in one is valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_common.errors import UsageError
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.paper import tables as paper
from puf_lab.spec.code_digest import code_digest
from puf_lab.spec.experiment import ExperimentSpec, target_sets
from puf_lab.spec.settings_files import PROFILES, QUALITY, load_experiment, names
from puf_lab.spec.variants import METHODS, Variant


@pytest.mark.parametrize("name", names())
def test_every_built_in_setting_is_valid(name: str, tmp_path: Path) -> None:
    for profile in PROFILES:
        e = load_experiment(name, profile=profile).placed(weights=tmp_path / "weights.safetensors")
        assert e.title
        assert e.paper in ("", *(row.setting for row in paper.rows()))
        assert e.federation_for(3).server_config().recipe.seed == 3
        # A setting that is smaller than the paper's states the difference in every output.
        assert e.note or not (name.endswith("-small") or name.startswith("digits"))


def test_every_row_of_the_paper_has_a_setting_and_a_small_one() -> None:
    settings = {load_experiment(name).paper: name for name in names() if not name.endswith("-small")}
    small = {load_experiment(name).paper for name in names() if name.endswith("-small")}
    rows = {row.setting for row in paper.rows()}
    assert rows <= set(settings)
    assert rows <= small


def test_a_file_builds_on_another_and_a_profile_on_both(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'base = "cifar100-noniid"\ntitle = "Mine"\nrounds = 7\n[recipe]\nbatch_size = 8\n[data]\noptions = { classes = 5 }\n'
    )
    (tmp_path / "again.toml").write_text('base = "mine.toml"\ntargets = [1, [2, 3]]\n')
    for profile, decay, rotate in (("paper", 0.0, "false"), ("author-code", 1e-3, "true")):
        e = load_experiment(str(tmp_path / "again.toml"), profile=profile)
        federation = e.federation_for(1)
        recipe, context = federation.recipe, federation.context(0)
        assert (e.name, e.title, federation.rounds, e.targets) == ("again", "Mine", 7, ((1,), (2, 3)))
        assert (recipe.lr, recipe.batch_size, recipe.weight_decay) == (0.1, 8, decay)
        assert recipe.plain_unlearning == (profile == "paper")
        assert context.options == {"holdout": "0", "classes": "5", "rotate": rotate}
        assert context.partition == "dirichlet:0.1"


def test_strengths_by_profile_and_by_setting() -> None:
    # The same strength in both modes under the paper's reading, the literal rates of the code under the other.
    for profile, rate, regular in (("paper", 2.0, {"kappa": 2.0}), ("author-code", 1.0, {"eta_u": 20.0})):
        e = load_experiment("cifar100-iid-samples", profile=profile)
        assert Variant.parse("puf-special", e.defaults).strength() == {"eta_u": rate, "epochs": 1}
        assert Variant.parse("puf-regular", e.defaults).strength() == {**regular, "epochs": 1}
    small = load_experiment("cifar100-noniid-small")
    assert Variant.parse("puf-regular", small.defaults).strength() == {"kappa": 2.0, "epochs": 1}, (
        "kappa replaces the base's eta_u"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('title = "x"', "targets must name at least one client"),
        ('title = "x"\ntargets = [10]', r"targets \[10\] must be different clients from 0 to 9"),
        ('title = "x"\ntargets = [[0, 0]]', "must be different clients"),
        ('title = "x"\ntargets = [0]\nroundz = 3', "roundz is not a known key"),
        ('title = "x"\ntargets = [0]\ndevice = "cuda"', "device is not a known key"),
        ('title = "x"\ntargets = [0]\nmethods = ["puff"]', "there is no method 'puff'; use one of original, retrain"),
        ('title = "x"\ntargets = [0]\nmethods = ["puf-special 3"]', "options are written as key=value"),
        ('title = "x"\ntargets = [0]\nmethods = ["puf-special kappa=2 eta_u=3"]', "give one of them"),
        ('title = "x"\ntargets = [0]\n[recipe]\nlr = -1', "setting .*bad.toml: recipe.lr must be above 0"),
        (
            'title = "x"\ntargets = [0]\n[plan]\nrounds = 3',
            "setting .*bad.toml: plan: rounds is stated at the top level",
        ),
        ('title = "x"\ntargets = [0]\n[plan]\nserver_optimizer = "lamb"', "setting .*bad.toml: plan"),
        (
            'title = "x"\ntargets = [0]\nmethods = ["federaser"]\n[plan]\nserver_optimizer = "adam"',
            "federaser needs models that are plain averages, but server_optimizer is adam",
        ),
        (
            'title = "x"\ntargets = [0]\n[defaults]\npuf-special = { kappa = 1, eta_u = 1 }',
            "defaults of puf-special: kappa and eta_u both state the strength",
        ),
        ("title = ", "is not TOML"),
        ('base = "bad.toml"', "builds on itself"),
        ('base = "nothing"', "there is no setting 'nothing'; `puf-lab list` shows them"),
        ("title = 't'\ntargets = [0]\nmethods = ['fukd']", "set public = true under"),
    ],
)
def test_an_invalid_file_is_refused_with_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_experiment(str(path))


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="no profile 'papers'; use one of paper, author-code"):
        load_experiment("digits", profile="papers")


def test_narrowing_replaces_targets_methods_and_seeds(tiny: ExperimentSpec) -> None:
    narrow = tiny.narrowed(targets=[(2,)], methods=["natural"], seeds=[4, 5])
    assert (narrow.targets, narrow.seeds, [v.name for v in narrow.variants]) == (
        ((2,),),
        (4, 5),
        ["original", "retrain", "floor", "natural"],
    )
    with pytest.raises(UsageError, match="must be different clients from 0 to 2"):
        tiny.narrowed(targets=[(3,)])
    assert list(target_sets(["0,2+1"])) == [(0,), (2, 1)]
    with pytest.raises(UsageError, match=r"0,3 in turn, 0\+3 together"):
        list(target_sets(["a"]))


def test_methods_with_options() -> None:
    defaults = {"puf-special": {"eta_u": 2.0}}
    assert Variant.parse("puf-special", defaults).strength() == {"eta_u": 2.0, "epochs": 1}
    other = Variant.parse("puf-special kappa=3 epochs=2", defaults)
    assert other.strength() == {"kappa": 3.0, "epochs": 2.0}
    assert other.label(defaults) == "PUF-Special epochs=2 kappa=3"
    assert Variant.parse("puf-special", defaults).label(defaults) == "PUF-Special"
    assert Variant.parse("not include_bias=true", {}).policy() == {
        "method": "not",
        "method_options": {"include_bias": "true"},
    }
    with pytest.raises(UsageError, match="puf-regular has no option 'power'; it takes kappa, eta_u, epochs"):
        Variant.parse("puf-regular power=1", {}).strength()
    assert {row.method for row in paper.rows()} <= {method.label for method in METHODS.values()}


def test_a_runs_name_states_code_and_initial_weights() -> None:
    first, second = (Job(load_experiment("digits"), Variant("original"), seed)._facts() for seed in (1, 2))
    assert first["code"] == second["code"] == code_digest("training")
    assert first["initial_weights"] != second["initial_weights"]
    forgets = Job(load_experiment("digits"), Variant("puf-special"), 1, (0,))._facts()
    assert forgets["code"] == code_digest("forgetting") != first["code"]
    remembers = Job(load_experiment("digits-all"), Variant("original"), 1)._facts()
    assert remembers["code"] == forgets["code"], "an original that stores history runs the methods' code"


def test_quality_settings_share_methods_and_goals() -> None:
    found = {name: load_experiment(name) for name in names() if name.startswith(QUALITY)}
    assert len(found) == 10
    assert len({e.methods for e in found.values()}) == 1, "one line adds a method to all of them"
    for name, e in found.items():
        assert (e.stop, e.persistence, e.paper) == ("product", (8,), "")
        assert e.federation_for(1).forgetting.max_recovery_rounds == 20, "the service's own limit"
        assert e.federation.data.options["holdout"] == 0.2
        strict = name in ("quality-digits", "quality-cifar100-iid", "quality-cifar100-noniid")
        assert e.goals is not None
        assert (e.goals.forget, e.goals.rmia, e.goals.dip) == ((2.0, 4.0, 8.0) if strict else (4.0, 6.0, None))
        assert len(e.targets) * len(e.seeds) >= 20
        for text in e.methods:
            if text != "puf-auto":
                assert Variant.parse(text, e.defaults).strength() == {"kappa": 2.0, "epochs": 1}
    assert found["quality-digits-decay"].federation.recipe.lr_decay == 0.97
    assert found["quality-digits-20"].federation.data.options["per_client"] == 40


def test_the_split_of_the_demo_does_not_depend_on_the_seed() -> None:
    demo = load_experiment("demo")
    first, second = (demo.federation_for(seed) for seed in (1, 2))
    assert (first.data_seed, second.data_seed, second.recipe.seed) == (0, 0, 2)
    assert demo.federation.data_seed == 0, "as in `puf-lab demo`"
    other = demo.model_copy(update={"data_seed": 5})
    assert not {job.key for job in jobs_of(demo)} & {job.key for job in jobs_of(other)}


def test_the_machine_is_not_part_of_a_runs_name(tiny: ExperimentSpec, tmp_path: Path) -> None:
    elsewhere = tiny.placed(kind="processes", device="cuda", data_dir=tmp_path, weights=tmp_path / "file")
    assert [job.key for job in jobs_of(elsewhere)] == [job.key for job in jobs_of(tiny)]


def test_the_plan_of_a_setting_reaches_the_server_and_the_name_of_the_runs() -> None:
    plain, yogi = load_experiment("digits"), load_experiment("digits-yogi")
    assert yogi.federation_for(1).server_config().plan.server_optimizer == "yogi"
    keys = [next(iter(jobs_of(e))).key for e in (plain, yogi)]
    assert keys[0] != keys[1]
    assert yogi.described()["plan"] == {"server_optimizer": "yogi", "server_lr": 0.01}
    assert "plan" not in plain.described(), "files of older versions have no plan, and are combined with newer ones"


def test_a_method_has_the_rounds_that_its_options_state() -> None:
    rounds = {text: Variant.parse(text, {}).own_rounds(30, 8) for text in ("fedosd rounds=4", "sifu", "sifu rounds=5")}
    assert rounds == {"fedosd rounds=4": 4, "sifu": 31, "sifu rounds=5": 6}


def test_only_methods_with_own_rounds_of_recovery_recover_by_them() -> None:
    own = {name for name, method in METHODS.items() if method.kind == "forget" and Variant(name).recovers}
    assert own == {"fedosd", "sifu"}
    assert Variant.parse("fedquit recovery_lr=0.1", {}).recovers
    with pytest.raises(UsageError, match="'rapid lr=x': method option lr"):
        Variant.parse("rapid lr=x", {}).own_rounds(30, 8)
