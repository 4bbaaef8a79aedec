"""Settings as files: what they may say, how they build on each other, and that every one of ours is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_common.errors import UsageError
from puf_lab import paper
from puf_lab.experiments.spec import PROFILES, Experiment, load_experiment, names, target_sets
from puf_lab.experiments.variants import METHODS, Variant


@pytest.mark.parametrize("name", names())
def test_every_setting_of_ours_is_sound(name: str) -> None:
    for profile in PROFILES:
        e = load_experiment(name, profile=profile)
        assert e.title
        assert e.paper in ("", *(row.setting for row in paper.rows()))
        assert e.setting(3, None).federation().recipe.seed == 3
        # What is smaller than the paper's says so in every output.
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
        setting = e.setting(1, tmp_path)
        assert (e.name, e.title, e.rounds, e.targets) == ("again", "Mine", 7, ((1,), (2, 3)))
        assert (setting.recipe.lr, setting.recipe.batch_size, setting.recipe.weight_decay) == (0.1, 8, decay)
        assert setting.recipe.plain_unlearning == (profile == "paper")
        assert setting.data_options == {"holdout": "0", "classes": "5", "rotate": rotate}
        assert setting.partition == "dirichlet:0.1"


def test_strengths_by_profile_and_by_setting() -> None:
    for profile, rate in (("paper", 2.0), ("author-code", 1.0)):
        e = load_experiment("cifar100-iid-samples", profile=profile)
        assert Variant.parse("puf-special", e.defaults).strength() == {"eta_u": rate}
        assert Variant.parse("puf-regular", e.defaults).strength() == {"eta_u": 20.0}
    small = load_experiment("cifar100-noniid-small")
    assert Variant.parse("puf-regular", small.defaults).strength() == {"kappa": 2.0}, "kappa replaces the base's eta_u"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('title = "x"', "targets must name at least one client"),
        ('title = "x"\ntargets = [10]', r"targets \[10\] must be different clients from 0 to 9"),
        ('title = "x"\ntargets = [[0, 0]]', "must be different clients"),
        ('title = "x"\ntargets = [0]\nroundz = 3', "roundz is not a known key"),
        ('title = "x"\ntargets = [0]\nmethods = ["puff"]', "there is no method 'puff'; use one of original, retrain"),
        ('title = "x"\ntargets = [0]\nmethods = ["puf-special 3"]', "options are written as key=value"),
        ('title = "x"\ntargets = [0]\n[recipe]\nlr = -1', "recipe.lr must be above 0"),
        (
            'title = "x"\ntargets = [0]\n[defaults]\npuf-special = { kappa = 1, eta_u = 1 }',
            "defaults of puf-special: kappa and eta_u are two ways to say the same",
        ),
        ("title = ", "is not TOML"),
        ('base = "bad.toml"', "builds on itself"),
        ('base = "nothing"', "there is no setting 'nothing'; `puf-lab list` shows them"),
        ("title = 't'\ntargets = [0]\nmethods = ['fukd']", "set public = true under"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        load_experiment(str(path))
    with pytest.raises(UsageError, match="no profile 'papers'; use one of paper, author-code"):
        load_experiment("digits", profile="papers")


def test_narrowing(tiny: Experiment) -> None:
    narrow = tiny.narrowed(targets=[(2,)], methods=["natural"], seeds=[4, 5])
    assert (narrow.targets, narrow.seeds, [v.name for v in narrow.variants]) == (
        ((2,),),
        (4, 5),
        ["original", "retrain", "natural"],
    )
    with pytest.raises(UsageError, match="must be different clients from 0 to 2"):
        tiny.narrowed(targets=[(3,)])
    assert list(target_sets(["0,2+1"])) == [(0,), (2, 1)]
    with pytest.raises(UsageError, match=r"0,3 in turn, 0\+3 together"):
        list(target_sets(["a"]))


def test_methods_with_options() -> None:
    defaults = {"puf-special": {"eta_u": 2.0}}
    assert Variant.parse("puf-special", defaults).strength() == {"eta_u": 2.0}
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
