"""Cost formulas compared with the consistent figures of the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from puf_lab.evaluation.costs import Shape, cost

RESNET = Shape(
    parameters=11_220_132,
    flops_per_sample=0.15e9,
    samples_per_client=5000,
    clients=10,
    targets=1,
    rounds=200,
    head_parameters=51_300,
)
MIT = replace(RESNET, parameters=3_319_392, flops_per_sample=1.7e9, rounds=50)


def test_bytes_of_a_model() -> None:
    assert RESNET.model_bytes == 44_880_528
    assert replace(RESNET, parameters=11_173_962).model_bytes == 44_695_848
    assert MIT.model_bytes == 13_277_568


@pytest.mark.parametrize(
    ("shape", "communication", "computation"),
    [(RESNET, 1.6157e11, 1.35e15), (MIT, 1.195e10, 3.825e15), (replace(RESNET, targets=2), 1.436e11, 1.2e15)],
)
def test_cost_of_retraining(shape: Shape, communication: float, computation: float) -> None:
    found = cost("Retrain", shape, 0)
    assert found.communication == pytest.approx(communication, rel=1e-3)
    assert found.computation == pytest.approx(computation, rel=1e-3)


def test_federaser_halves_the_computation_and_stores_all_updates() -> None:
    found = cost("FedEraser", RESNET, 0)
    assert (found.computation, found.storage) == (pytest.approx(6.75e14), pytest.approx(8.98e10, rel=1e-3))


def test_puf_special_moves_one_model_in_each_direction_per_target() -> None:
    assert cost("PUF-Special", RESNET, 0).communication == 2 * 11_220_132 * 4
    assert cost("PUF-Special", replace(RESNET, targets=3), 0).communication == 6 * 11_220_132 * 4
    # 4.1 recovery rounds are what the paper's figures imply for CIFAR-100 IID.
    found = cost("PUF-Special", RESNET, 4.1)
    assert found.communication == pytest.approx(3.40e9, rel=5e-3)
    assert cost("Retrain", RESNET, 0).communication / found.communication == pytest.approx(47.6, rel=5e-3)


def test_puf_regular_costs_one_ordinary_round() -> None:
    found = cost("PUF-Regular", RESNET, 5.2)
    assert found.communication == pytest.approx(5.10e9, rel=5e-3)
    assert found.computation == pytest.approx(4.26e13, rel=5e-3)
    assert found.storage == RESNET.model_bytes


def test_not_and_natural_cost_only_recovery() -> None:
    for method in ("NoT", "Natural"):
        assert cost(method, RESNET, 0).communication == 0
        assert cost(method, RESNET, 6.5).communication == pytest.approx(5.25e9, rel=5e-3)


def test_cost_of_mode_and_fedau() -> None:
    assert cost("MoDe", RESNET, 4.5).communication == pytest.approx(1.75e10, rel=1e-2)
    assert cost("FedAU", RESNET, 3.3).communication == pytest.approx(2.67e9, rel=1e-2)


def test_pga_at_ten_epochs_follows_the_formulas() -> None:
    shape = replace(RESNET, epochs=10)
    found = cost("PGA", shape, 4.4)
    assert found.communication == pytest.approx(3.64e9, rel=5e-3)
    assert found.computation == pytest.approx(3.0075e14, rel=5e-3)
    assert cost("Retrain", shape, 0).computation / found.computation == pytest.approx(44.9, rel=5e-3)


def test_targets_that_stay_take_part_in_recovery() -> None:
    """Sample unlearning costs 2PB * 10 per round. The paper's table counts 9 clients."""
    shape = Shape(
        parameters=11_220_132,
        flops_per_sample=0.15e9,
        samples_per_client=5000,
        clients=10,
        targets=1,
        targets_stay=True,
    )
    assert cost("Retrain", shape, 0).communication == pytest.approx(1.795e11, rel=1e-3)
    assert cost("NoT", shape, 7).communication == 7 * 2 * 44_880_528 * 10
    special = cost("PUF-Special", shape, 2)
    assert special.communication == 2 * 44_880_528 * (1 + 2 * 10)
