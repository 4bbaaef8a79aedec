"""Server optimizers of FedOpt: their equations, and which methods they exclude."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from puf_server.core import methods
from puf_server.core.config import Plan
from puf_server.core.server_optimizer import stepped
from tests.server.core.builders import config


def plan(optimizer: Any) -> Plan:
    return Plan(server_optimizer=optimizer, server_lr=0.1, server_beta1=0.9, server_beta2=0.99, server_tau=0.01)


def test_the_first_step_of_adam() -> None:
    change, m, v = stepped(plan("adam"), np.array([2.0, 0.0]), None, None)
    assert m == pytest.approx([0.2, 0.0])
    assert v == pytest.approx([0.99e-4 + 0.01 * 4, 0.99e-4])
    assert change == pytest.approx([0.1 * 0.2 / (0.040099**0.5 + 0.01), 0.0])


def test_yogi_moves_the_square_by_a_bounded_amount() -> None:
    m, v = np.array([0.2, 0.2], np.float32), np.array([1.0, 9.0], np.float32)
    change, new_m, new_v = stepped(plan("yogi"), np.array([2.0, 2.0]), m, v)
    assert new_m == pytest.approx([0.38, 0.38])
    # v rises where d^2 is larger and falls where it is smaller, each by (1 - beta2) * d^2.
    assert new_v == pytest.approx([1.04, 8.96])
    assert change == pytest.approx([0.1 * 0.38 / (1.04**0.5 + 0.01), 0.1 * 0.38 / (8.96**0.5 + 0.01)])


@pytest.mark.parametrize("method", [name for name, kind in methods.known().items() if kind.plain_averages])
def test_methods_that_need_plain_averages_are_refused(method: str) -> None:
    with pytest.raises(ValidationError, match=f"{method} needs models that are plain averages.*use sgd, or one of puf"):
        config(plan={"server_optimizer": "adam"}, forgetting={"method": method})
    if not methods.named(method).requires.target_takes_part:
        with pytest.raises(ValidationError, match="needs models that are plain averages"):
            config(plan={"server_optimizer": "yogi"}, forgetting={"fallback": method})
    assert config(forgetting={"method": method}).plan.server_optimizer == "sgd"


def test_methods_that_rebuild_the_model_are_marked() -> None:
    assert {name for name, kind in methods.known().items() if kind.plain_averages} >= {
        name for name, kind in methods.known().items() if kind.rewrites or kind.stores.sums
    }
