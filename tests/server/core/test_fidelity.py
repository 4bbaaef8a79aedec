"""Learning rates, epochs, augmentation and random streams of the methods, with worked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from puf_server.core import assignments, commits
from puf_server.core.methods import federaser, puf
from puf_server.core.methods.base import Step, View
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Mode, Scope
from tests.server.core.builders import Federation, config
from tests.server.core.test_methods import kept

# The rate of training round t: 0.1 * 0.5^(t-1).
RATES = {t: 0.1 * 0.5 ** (t - 1) for t in range(1, 8)}
SPECIAL: dict[str, Any] = {"mode": "special", "kappa": 2.0}


def trained(recipe: dict[str, Any] | None = None, **forgetting: Any) -> Federation:
    """Four clients after three rounds of training with the rates above. Recovery is ordinary training, as in the lab."""
    settings = {"lr": 0.1, "lr_decay": 0.5, "plain_unlearning": True, **(recipe or {})}
    policy = {"max_recovery_rounds": 0, "blind_recovery_rounds": 0, **forgetting}
    f = Federation(config(plan={"rounds": 3}, forgetting=policy, recipe=settings))
    f.join("a", "b", "c", "d", holdout=0)
    seen = [f.run_round(RoundKind.TRAIN).lr for _ in range(3)]
    assert seen == pytest.approx([RATES[t] for t in (1, 2, 3)])
    f.state = kept(f)
    return f


def forgotten(f: Federation, **request: Any) -> list[tuple[float, int | None]]:
    """Rate and stream of every step of b's request, and of the round of training after it."""
    f.file("b", **request)
    seen = []
    while f.state.job is not None:
        current = f.round
        seen.append((current.lr, current.step.stream))
        f.submit_all()
        f.commit()
    f.apply(replace(f.state, planned=f.state.trained + 1))
    assert f.round.kind is RoundKind.TRAIN
    return [*seen, (f.round.lr, f.round.step.stream)]


def test_only_rounds_of_training_lower_the_learning_rate() -> None:
    # PUF's round is round 4 of training, so recovery begins with round 5.
    assert [lr for lr, _ in forgotten(trained(), **SPECIAL)] == pytest.approx([RATES[4], RATES[5]])
    # NoT's step is work of the server, so recovery begins with round 4.
    assert forgotten(trained(method="not"))[-1][0] == pytest.approx(RATES[4])
    # FedEraser replays rounds 2 and 3 at their rates. Recovery goes on with round 4.
    replay = [lr for lr, _ in forgotten(trained(method="federaser"))]
    assert replay[1:] == pytest.approx([RATES[2], RATES[3], RATES[4]])


def test_rounds_of_recovery_lower_the_learning_rate() -> None:
    """The service's recovery is training. The round after it goes on with the next rate."""
    f = trained(blind_recovery_rounds=2)
    f.file("b", mode="special", kappa=2.0)
    f.submit_all()
    f.commit()
    assert [f.run_round(RoundKind.RECOVER).lr for _ in range(2)] == pytest.approx([RATES[5], RATES[6]])
    f.apply(replace(f.state, planned=f.state.trained + 1))
    assert (f.round.kind, f.round.lr) == (RoundKind.TRAIN, pytest.approx(RATES[7]))


def test_every_method_has_streams_of_its_own() -> None:
    runs = {
        "puf-special": forgotten(trained(), **SPECIAL),
        "puf-regular": forgotten(trained(), mode="regular", kappa=2.0),
        "not": forgotten(trained(method="not")),
        "federaser": forgotten(trained(method="federaser")),
        "pga": forgotten(trained(method="pga")),
    }
    streams = [stream for steps in runs.values() for _, stream in steps]
    assert None not in streams
    assert len(set(streams)) == len(streams)
    # The rounds' own numbers are the streams of training, and of a model that is trained again.
    assert not {1, 2, 3, 4, 5, 6} & set(streams)
    assert [stream for _, stream in forgotten(trained(method="retrain"))][:3] == [1, 2, 3]


def test_the_streams_of_a_method_are_the_same_in_every_run() -> None:
    assert forgotten(trained(), **SPECIAL) == forgotten(trained(), **SPECIAL)


def test_calibration_augments_as_training_does() -> None:
    f = trained(method="federaser")
    f.file("b")
    f.commit()
    work = assignments.work_for(f.state, f.config, "a", f.state.members["a"].session, f.now)
    assert isinstance(work, assignments.Train)
    assert not work.plain
    special = trained()
    special.file("b", **SPECIAL)
    work = assignments.work_for(special.state, special.config, "b", special.state.members["b"].session, special.now)
    assert isinstance(work, assignments.Train)
    assert work.plain


def test_the_target_trains_for_its_own_number_of_epochs() -> None:
    """With E = 10 both readings of E_u are possible, and the request states one."""
    for stated in (1, 10):
        f = trained(recipe={"epochs": 10}, max_epochs=10)
        f.file("b", mode="regular", kappa=2.0, epochs=stated)
        assert {a.client: a.epochs for a in f.round.assignments} == {"a": 10.0, "b": stated, "c": 10.0, "d": 10.0}


def test_samples_in_regular_with_and_without_an_update_of_the_rest() -> None:
    """Four clients of 10 samples; b forgets 5. Literal rate 20, and the same strength as Special."""
    parts = {}
    for rest in ("true", "false"):
        f = trained(method_options={"rest": rest}, max_eta_u=100.0)
        f.file("b", scope=Scope.SAMPLES, mode=Mode.REGULAR, eta_u=20.0, forget_samples=5, retain_samples=5)
        mine = [(a.part.value, a.samples, a.scale) for a in f.round.assignments if a.client == "b"]
        parts[rest] = (mine, f.round.step.denominator)
    assert parts["true"] == ([("retain", 5, 1.0), ("forget", 5, -20.0)], 40)
    assert parts["false"] == ([("forget", 5, -20.0)], 35)


def _lr_by_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    original = puf.planned_step
    monkeypatch.setattr(puf, "planned_step", lambda *given: replace(original(*given), decays=False))


def _lr_not_by_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    original = commits.commit

    def mutated(state: State, *given: Any, **named: Any) -> State:
        made = original(state, *given, **named)
        recovering = state.round is not None and state.round.kind is RoundKind.RECOVER
        return replace(made, decays=state.decays) if recovering else made

    monkeypatch.setattr("puf_server.core.scheduler.commit", mutated)


def _streams_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("puf_server.core.streams.number_of", lambda name, number: number)


def _plain_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    original = federaser.FedEraser.step

    def mutated(self: federaser.FedEraser, view: View) -> Step | None:
        step = original(self, view)
        return None if step is None else replace(step, plain=True)

    monkeypatch.setattr(federaser.FedEraser, "step", mutated)


def _epochs_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    original = puf.plan

    def mutated(*given: Any, **named: Any) -> puf.RoundPlan:
        made = original(*given, **named)
        return replace(made, assignments=tuple(replace(a, epochs=named["epochs"]) for a in made.assignments))

    monkeypatch.setattr(puf, "plan", mutated)


@pytest.mark.parametrize(
    ("mutation", "test"),
    [
        (_lr_by_every_round, test_only_rounds_of_training_lower_the_learning_rate),
        (_lr_not_by_recovery, test_rounds_of_recovery_lower_the_learning_rate),
        (_streams_of_the_round, test_every_method_has_streams_of_its_own),
        (_plain_calibration, test_calibration_augments_as_training_does),
        (_epochs_of_the_recipe, test_the_target_trains_for_its_own_number_of_epochs),
    ],
)
def test_a_mutation_is_found(mutation: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        test()
