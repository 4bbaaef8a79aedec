"""Bytes and samples of each method, counted by the server, compared with the formulas of the appendix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from puf_common.tensors.manifest import MODEL, UPDATE
from puf_lab.evaluation.costs import Shape, cost
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.spec.federation import DataSpec, FederationSpec
from puf_server.core import methods
from puf_server.core.config import Forgetting, Recipe
from puf_server.core.methods.layers import outputs
from puf_server.core.state.rounds import RoundKind

CLIENTS, ROUNDS, SAMPLES, PUBLIC = 3, 2, 20, 20
HISTORIES = tuple(name for name, method in methods.known().items() if method.stores.words)
SETTING = FederationSpec(
    title="costs",
    # Without a hold-out no client measures, so models are fetched only for assignments.
    data=DataSpec(clients=CLIENTS, options={"per_client": SAMPLES, "holdout": 0}, public=True),
    rounds=ROUNDS,
    recipe=Recipe(lr=0.1, batch_size=10, seed=1),
    forgetting=Forgetting(also_remember=HISTORIES, blind_recovery_rounds=0),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessFederation]:
    with InProcessFederation(SETTING, tmp_path_factory.mktemp("costs") / "all") as federation:
        federation.train()
        yield federation


def spent(
    trained: InProcessFederation, directory: Path, method: str, mode: str | None, **options: str
) -> tuple[int, int]:
    """Bytes in both directions and samples processed, of the unlearning rounds."""
    policy = SETTING.forgetting.model_copy(update={"method": method, "method_options": options})
    with trained.copy(directory, forgetting=policy) as federation:
        federation.forget([1], mode=mode)
        records = [r for r in federation.state.records.values() if r.kind is RoundKind.UNLEARN]
        return sum(r.nbytes_up + r.nbytes_down for r in records), sum(r.samples_processed for r in records)


def shape(trained: InProcessFederation) -> Shape:
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
def test_counted_costs_equal_the_formulas(
    formula: str,
    method: str,
    mode: str | None,
    options: dict[str, str],
    formula_options: dict[str, float],
    trained: InProcessFederation,
    tmp_path: Path,
) -> None:
    formula_cost = cost(formula, shape(trained), 0, **formula_options)
    assert spent(trained, tmp_path / "f", method, mode, **options) == (
        formula_cost.communication,
        formula_cost.computation,
    )


def test_mode_also_sends_every_new_degradation_model_to_the_target(
    trained: InProcessFederation, tmp_path: Path
) -> None:
    degrade, guide = 2, 3
    s = shape(trained)
    formula_cost = cost("MoDe", s, 0, degradation_rounds=degrade, guidance_rounds=guide)
    options = {"rounds": str(guide), "degrade_rounds": str(degrade)}
    counted = spent(trained, tmp_path / "f", "mode", None, **options)
    assert counted == (formula_cost.communication + degrade * s.model_bytes, formula_cost.computation)


def test_fedau_fetches_the_model_and_sends_a_head(trained: InProcessFederation, tmp_path: Path) -> None:
    s = shape(trained)
    communication, computation = spent(trained, tmp_path / "f", "fedau", None, epochs="3")
    assert communication == s.model_bytes + 4 * s.head_parameters
    # The paper calls this negligible, because the samples pass through the head only.
    assert computation == 3 * SAMPLES


def test_fukd_costs_the_distiller_two_models_and_an_update(trained: InProcessFederation, tmp_path: Path) -> None:
    communication, computation = spent(trained, tmp_path / "f", "fukd", None, epochs="2")
    assert (communication, computation) == (3 * shape(trained).model_bytes, 2 * PUBLIC)


def test_rapid_retraining_costs_as_much_as_retraining(trained: InProcessFederation, tmp_path: Path) -> None:
    formula_cost = cost("Retrain", shape(trained), 0)
    assert spent(trained, tmp_path / "f", "rapid", None) == (formula_cost.communication, formula_cost.computation)
