"""PGA: which requests it serves, and the target's assignment."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np
import pytest

from puf_client.routines.ascent import AscentOptions
from puf_client.routines.inputs import options_from
from puf_common.errors import NotNow
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_server.core import methods
from puf_server.core.methods.blocks import TensorBlock, UpdateBlock
from puf_server.core.methods.pga import PgaOptions, share
from puf_server.core.state.rounds import Combine, RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config
from tests.tickets import applied


def trained(rounds: int = 2, plan: dict[str, Any] | None = None, **forgetting: Any) -> Federation:
    f = Federation(config(plan={"rounds": rounds, **(plan or {})}, forgetting={"method": "pga", **forgetting}))
    f.join("a", samples=30, holdout=0)
    f.join("b", samples=10, holdout=0)
    f.train()
    return f


def test_the_target_gets_its_share_of_the_round_that_made_the_model() -> None:
    f = trained()
    f.file("b")
    [assignment] = f.round.assignments
    assert (assignment.client, assignment.routine, assignment.lr, assignment.epochs) == ("b", "ascent", 0.01, 5.0)
    assert (assignment.options["share"], assignment.options["last_round"]) == (0.25, 2)
    f.run_round(RoundKind.UNLEARN)
    assert applied(f.state.tickets["t-0"]).method == "pga"


def test_an_open_round_is_abandoned_when_a_target_files() -> None:
    f = Federation(config(plan={"rounds": 5}, forgetting={"method": "pga"}))
    f.join("a", "b", "c", holdout=0)
    f.run_round(RoundKind.TRAIN)
    f.submit("a")
    f.file("b")
    assert (f.round.kind, f.round.base) == (RoundKind.UNLEARN, 1)
    f.run_round(RoundKind.UNLEARN)
    assert f.state.tickets["t-0"].state is TicketState.RECOVERING


def test_a_client_that_was_not_in_the_last_round_is_refused() -> None:
    f = Federation(config(plan={"rounds": 2, "quorum": 0.1}, forgetting={"method": "pga"}))
    f.join("a", "b", holdout=0)
    f.run_round(RoundKind.TRAIN)
    f.submit("a")
    f.wait(61, "a")
    f.commit()
    f.beat("b")
    with pytest.raises(
        NotNow, match=r"round that made the model \(2\); b last took part in round 1: ask again after another round"
    ):
        f.file("b")


def test_a_second_target_is_refused() -> None:
    f = Federation(config(forgetting={"method": "pga"}))
    f.join("a", "b", "c", holdout=0)
    f.train()
    f.file("a")
    with pytest.raises(NotNow, match="one client at a time, and ticket t-0 already waits"):
        f.file("b")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"scope": "samples", "forget_samples": 3, "retain_samples": 7}, "ask for the whole client"),
        ({"kappa": 2.0}, "belong to PUF"),
    ],
)
def test_unsupported_requests_are_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(NotNow, match=why):
        trained().file("b", **request_)


def test_a_server_learning_rate_other_than_1_is_refused() -> None:
    with pytest.raises(NotNow, match=r"plain averages, but this federation's server_lr is 0\.5"):
        trained(plan={"server_lr": 0.5}).file("b")


@pytest.mark.parametrize("fallback", ["", "retrain"])
def test_a_request_goes_to_the_fallback_or_fails_after_a_round_without_its_client(fallback: str) -> None:
    f = Federation(config(plan={"rounds": 3, "absent_seconds": 20}, forgetting={"method": "pga", "fallback": fallback}))
    f.join("a", "b", "c", holdout=0)
    f.run_round(RoundKind.TRAIN)
    ticket = f.file("b")
    assert f.round.kind is RoundKind.UNLEARN
    # The target goes away, and training continues without it.
    f.wait(21, "a", "c")
    f.run_round(RoundKind.TRAIN)
    now = f.ticket(ticket.id)
    if fallback:
        assert now.fallback == "too late"
        # At once: the pause was for the target to come back.
        assert (f.round.kind, f.round.base) == (RoundKind.UNLEARN, 0)
    else:
        assert now.state is TicketState.FAILED
        assert "b last took part in round 1" in now.history[-1].note


def test_the_share_counts_folded_samples() -> None:
    f = trained()
    assert share(f.state.members["a"], f.state) == 0.75
    assert share(f.state.members["b"], f.state) == 0.25


def test_the_update_is_installed_and_buffers_stay() -> None:
    manifest = Manifest((TensorSpec("w", "f32", (2,)), TensorSpec("mean", "f32", (2,), "buffer")))
    rule = methods.named("pga").rule(Combine(rule="install"), manifest, ())
    w = np.array([1, 1], "f4")
    update = UpdateBlock(client="u", samples=7, u=np.array([-1, 1], "f4"))
    weight, buffer = (TensorBlock(tensor=t, parameter=0, w=w, others={}, updates=[update]) for t in manifest.tensors)
    assert rule(weight).tolist() == [0, 2]
    assert rule(buffer) is w


def test_the_clients_routine_understands_the_methods_options() -> None:
    told = PgaOptions(delta_l2=2.5, squared_radius=True, batch_size=128).routine(0.25, 7)
    understood = options_from(AscentOptions, told)
    assert (understood.share, understood.delta_l2, understood.squared_radius) == (0.25, 2.5, True)
    assert (understood.batch_size, understood.last_round) == (128, 7)
    assert options_from(AscentOptions, PgaOptions().routine(0.1, 0)) == AscentOptions(share=0.1)
    assert (
        set(told) | {"random_models"} == {f.name for f in fields(AscentOptions)} == set(get_type_hints(AscentOptions))
    )
