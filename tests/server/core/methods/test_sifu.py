"""SIFU: the bound, the checkpoint that follows from it, the noise, and the history after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from puf_common.errors import NotNow
from puf_common.tensors.manifest import TensorSpec
from puf_server.core import methods
from puf_server.core.methods.blocks import TensorBlock
from puf_server.core.methods.sifu import Sifu, SifuOptions, bound, training_rounds
from puf_server.core.state.rounds import Combine, HistoryRecord, RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation
from tests.server.core.test_methods import EVERYONE, trained
from tests.tickets import applied


def stored(f: Federation, values: dict[int, float]) -> None:
    """Gives every client these distances by round."""
    records = [
        HistoryRecord(
            key=f"spreads/{n:08d}/{c}", kind="spreads", client=c, membership=1, round=n, samples=10, norms=(v,)
        )
        for n, v in values.items()
        for c in EVERYONE
    ]
    f.state = replace(f.state, history={**f.state.history, **{r.key: r for r in records}})


def federation(sigma: float) -> Federation:
    # sqrt(2 (ln 1.25 - ln 0.1)) = 2.2475, so that Psi* = sigma * epsilon / 2.2475.
    options = {"epsilon": "2.2475", "delta": "0.1", "sigma": str(sigma)}
    f = trained(4, method="sifu", method_options=options)
    stored(f, dict.fromkeys(f.state.records, 1.0))
    return f


def test_the_bound_grows_by_the_distances_of_the_client() -> None:
    of_client, rounds = {1: 0.5, 3: 0.25}, [1, 2, 3, 4]
    assert [bound(of_client, rounds, n, 1.0) for n in range(5)] == [0, 0.5, 0.5, 0.75, 0.75]
    # The distance of round 1 doubles in rounds 2, 3 and 4.
    assert bound(of_client, rounds, 4, 2.0) == 0.5 * 8 + 0.25 * 2


def test_the_budget_follows_from_the_gaussian_mechanism() -> None:
    options = SifuOptions(epsilon=10, delta=0.01, sigma=0.1)
    assert options.budget == pytest.approx(0.1 * 10 / 3.1075, rel=1e-4)


@pytest.mark.parametrize(("sigma", "checkpoint"), [(0.5, 0), (1.01, 1), (2.5, 2), (9.0, 4)])
def test_the_job_goes_back_to_the_last_model_within_the_budget(sigma: float, checkpoint: int) -> None:
    f = federation(sigma)
    ticket = f.file("b")
    assert f.round.assignments == ()
    assert f.state.models[f.round.base].round == checkpoint
    f.commit()
    for _ in range(4 - checkpoint):
        assert f.round.kind is RoundKind.RECOVER
        f.run_round(RoundKind.RECOVER)
    done = f.ticket(ticket.id)
    assert (done.state, applied(done).recovery_rounds) == (TicketState.COMPLETED, 4 - checkpoint)
    # The distances of rounds that are no longer in the model are gone, and all of the target's.
    assert {r.round for r in f.state.history.values()} == set(range(1, checkpoint + 1))
    assert {r.client for r in f.state.history.values()} <= {"a", "c", "d"}


def test_a_second_request_repeats_as_many_rounds_as_it_loses() -> None:
    """The first one goes back to round 1 of 4. The model is then of rounds 1, 5 (the noise) and 6 to 8 (recovery)."""
    f = federation(1.01)
    f.file("b")
    f.commit()
    for _ in range(3):
        f.run_round(RoundKind.RECOVER)
    assert training_rounds(f.state) == [1, 6, 7, 8]
    # c joined in round 2, which is no longer in the model. Its first round that counts is 6.
    assert f.state.members["c"].first_round == 2
    stored(f, {6: 0.004, 7: 0.004, 8: 0.4})
    ticket = f.file("c")
    assert f.round.base == 7, "round 8 exceeds the budget"
    f.commit()
    f.run_round(RoundKind.RECOVER)
    done = f.ticket(ticket.id)
    assert (done.state, applied(done).recovery_rounds) == (TicketState.COMPLETED, 1)


def test_a_round_without_distances_that_made_the_model_is_refused() -> None:
    f = federation(1.01)
    f.state = replace(f.state, history={k: r for k, r in f.state.history.items() if r.round != 3})
    with pytest.raises(NotNow, match="the distances of b in round 3"):
        f.file("b")


def test_models_that_contain_a_forgotten_client_are_no_checkpoints() -> None:
    f = federation(9.0)
    f.file("b")
    f.commit()
    method = methods.named("sifu", {"sigma": "1e6"})
    assert isinstance(method, Sifu)
    # All models from round 1 on contained b without noise. The one of round 5 has the noise.
    assert method.checkpoint(f.state, f.state.members["c"]) == 5
    tight = methods.named("sifu", {"sigma": "1e-6"})
    assert isinstance(tight, Sifu)
    assert tight.checkpoint(f.state, f.state.members["c"]) == 0


def test_rounds_of_another_method_are_not_bounded() -> None:
    f = federation(9.0)
    unlearning = replace(f.state.records[3], kind=RoundKind.UNLEARN)
    f.state = replace(f.state, records={**f.state.records, 3: unlearning})
    method = methods.named("sifu", {"sigma": "1e6"})
    assert isinstance(method, Sifu)
    assert method.checkpoint(f.state, f.state.members["c"]) == 2


def test_missing_distances_are_refused() -> None:
    f = trained(method="sifu")
    with pytest.raises(NotNow, match="sifu needs the distances of b in round 1, which were not stored"):
        f.file("b")


def test_noise_enters_parameters_only() -> None:
    rule = methods.named("sifu").rule(Combine(rule="noise", options={"sigma": 0.5}), None, ())  # type: ignore[arg-type]
    w = np.array([1.0, 2.0], np.float32)
    block = TensorBlock(
        tensor=TensorSpec("t", "f32", (2,)), parameter=0, w=w, others={}, updates=(), noise=np.array([2.0, -4.0])
    )
    assert rule(block).tolist() == [2.0, 0.0]
    assert rule(replace(block, noise=None)) is w
