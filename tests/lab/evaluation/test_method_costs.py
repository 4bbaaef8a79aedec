"""What each method sends and computes, counted by the server, beside the appendix's formulas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from puf_common.tensors.manifest import MODEL, UPDATE
from puf_lab.evaluation.costs import Shape, cost
from puf_lab.experiments.setting import Setting
from puf_lab.federations.in_process import LocalFederation
from puf_server.core import methods
from puf_server.core.config import Forgetting, Recipe
from puf_server.core.methods.layers import outputs
from puf_server.core.state.rounds import RoundKind

CLIENTS, ROUNDS, SAMPLES, PUBLIC = 3, 2, 20, 20
HISTORIES = tuple(name for name, method in methods.known().items() if method.memory.words)
SETTING = Setting(
    title="costs",
    clients=CLIENTS,
    rounds=ROUNDS,
    # Nobody measures, so nothing is fetched but for work.
    data_options={"per_client": str(SAMPLES), "holdout": "0"},
    recipe=Recipe(lr=0.1, batch_size=10, seed=1),
    forgetting=Forgetting(also_remember=HISTORIES, blind_recovery_rounds=0, measure_seconds=0.0),
    public=True,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with LocalFederation(SETTING, tmp_path_factory.mktemp("costs") / "all") as federation:
        federation.train()
        yield federation


def spent(trained: LocalFederation, directory: Path, method: str, mode: str | None, **options: str) -> tuple[int, int]:
    """Bytes both ways and samples processed, of the method's own rounds."""
    policy = SETTING.forgetting.model_copy(update={"method": method, "method_options": options})
    with trained.copy(directory, forgetting=policy) as federation:
        federation.forget([1], mode=mode)
        records = [r for r in federation.state.records.values() if r.kind is RoundKind.UNLEARN]
        return sum(r.nbytes_up + r.nbytes_down for r in records), sum(r.samples_processed for r in records)


def shape(trained: LocalFederation) -> Shape:
    manifest = trained.engine.manifest
    head = outputs(manifest, ("@head",))
    assert manifest.nbytes(MODEL) == manifest.nbytes(UPDATE) == 4 * manifest.parameters
    return Shape(
        parameters=manifest.parameters,
        head_parameters=head.parameters,
        flops_per_sample=1.0,
        samples_per_client=SAMPLES,
        clients=CLIENTS,
        targets=1,
        rounds=ROUNDS,
    )


@pytest.mark.parametrize(
    ("formula", "method", "mode", "options", "formula_options"),
    [
        ("PUF-Regular", "puf", "regular", {}, {}),
        ("PUF-Special", "puf", "special", {}, {}),
        ("Retrain", "retrain", None, {}, {}),
        ("NoT", "not", None, {}, {}),
        # The first retained round is free.
        ("FedEraser", "federaser", None, {"epochs": "0.5"}, {"retained_rounds": ROUNDS - 1}),
        ("PGA", "pga", None, {"epochs": "2", "stop_distance": "0", "delta_l2": "1"}, {"ascent_epochs": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_counted_is_what_the_appendix_says(
    formula: str,
    method: str,
    mode: str | None,
    options: dict[str, str],
    formula_options: dict[str, float],
    trained: LocalFederation,
    tmp_path: Path,
) -> None:
    said = cost(formula, shape(trained), 0, **formula_options)
    assert spent(trained, tmp_path / "f", method, mode, **options) == (said.communication, said.computation)


def test_mode_also_sends_the_degradation_model_to_the_target_whenever_it_has_changed(
    trained: LocalFederation, tmp_path: Path
) -> None:
    degrade, guide = 2, 3
    s = shape(trained)
    said = cost("MoDe", s, 0, degradation_rounds=degrade, guidance_rounds=guide)
    options = {"rounds": str(guide), "degrade_rounds": str(degrade)}
    counted = spent(trained, tmp_path / "f", "mode", None, **options)
    assert counted == (said.communication + degrade * s.model_bytes, said.computation)


def test_fedau_sends_a_head_and_fetches_the_model_that_it_belongs_to(trained: LocalFederation, tmp_path: Path) -> None:
    s = shape(trained)
    communication, computation = spent(trained, tmp_path / "f", "fedau", None, epochs="3")
    assert communication == s.model_bytes + 4 * s.head_parameters
    # The paper calls it negligible: these pass through the head alone.
    assert computation == 3 * SAMPLES


def test_fukd_costs_the_distiller_two_models_and_an_update(trained: LocalFederation, tmp_path: Path) -> None:
    communication, computation = spent(trained, tmp_path / "f", "fukd", None, epochs="2")
    assert (communication, computation) == (3 * shape(trained).model_bytes, 2 * PUBLIC)


def test_rapid_retraining_costs_what_retraining_does(trained: LocalFederation, tmp_path: Path) -> None:
    said = cost("Retrain", shape(trained), 0)
    assert spent(trained, tmp_path / "f", "rapid", None) == (said.communication, said.computation)
