"""FUKD: sums of updates, and their subtraction from the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_client.routines.distill import DistillOptions
from puf_client.routines.inputs import options_from
from puf_common.errors import NotNow
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_server.core import methods
from puf_server.core.methods.blocks import TensorBlock, UpdateBlock
from puf_server.core.methods.fukd import FukdOptions, accumulate, erase
from puf_server.core.state.rounds import Combine, HistoryRecord, RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config
from tests.tickets import applied


def test_the_worked_erasure() -> None:
    total = np.zeros(2)
    for update in ([0.4, 0.0], [0.2, -0.2]):
        total = accumulate(total, np.array(update, "f4"), 1 / 4)
    assert erase(np.array([1, 1], "f4"), [total]) == pytest.approx([0.85, 1.05])


@settings(max_examples=50)
@given(
    rounds=st.lists(
        st.lists(st.tuples(st.integers(1, 500), st.floats(-2, 2, width=32)), min_size=3, max_size=3), max_size=6
    )
)
def test_the_initial_model_and_all_sums_are_the_model(rounds: list[list[tuple[int, float]]]) -> None:
    initial = np.array([0.5, -1.0])
    model, sums = initial.copy(), [np.zeros(2) for _ in range(3)]
    for contributions in rounds:
        n = sum(samples for samples, _ in contributions)
        for k, (samples, value) in enumerate(contributions):
            update = np.array([value, -2 * value], "f4")
            model = model + samples / n * update.astype("f8")
            sums[k] = accumulate(sums[k], update, samples / n)
    assert initial + np.sum(sums, axis=0) == pytest.approx(model, abs=1e-9)
    # Linear: one after the other equals both at once, and without all clients the initial model remains.
    assert erase(erase(model, sums[:1]), sums[1:2]) == pytest.approx(erase(model, sums[:2]), abs=1e-12)
    assert erase(model, sums) == pytest.approx(initial, abs=1e-9)


def test_without_sums_the_model_does_not_change() -> None:
    model = np.array([0.1, 3e7], "f4")
    assert np.array_equal(erase(model, []).astype("f4"), model)


def test_the_clients_routine_understands_the_methods_options() -> None:
    assert options_from(DistillOptions, FukdOptions(temperature=2).routine()) == DistillOptions(temperature=2)
    assert FukdOptions().temperature == DistillOptions().temperature


def federation(*, since: int = 1, distiller: bool = True) -> Federation:
    f = Federation(config(forgetting={"method": "fukd"}))
    f.join("a", "b", "c", holdout=0)
    f.train()
    kept = [
        HistoryRecord(
            key=f"sums/{c}/1", kind="sums", client=c, membership=1, round=2, since=since, samples=10, nbytes=8
        )
        for c in "abc"
    ]
    f.state = replace(f.state, history={r.key: r for r in kept})
    if distiller:
        bring(f)
    return f


def bring(f: Federation) -> None:
    f.join("public", samples=0, holdout=0, unlabeled=50)


def test_the_server_erases_and_the_distiller_repairs() -> None:
    f = federation()
    before = f.state.version
    ticket = f.file("b")
    assert (f.round.assignments, f.round.base) == ((), before)
    assert (f.round.step.combine.rule, f.round.step.combine.history) == ("erase", ("sums/b/1",))
    f.commit()
    [assignment] = f.round.assignments
    assert (assignment.client, assignment.routine, assignment.samples, assignment.aux) == (
        "public",
        "distill",
        50,
        before,
    )
    assert (f.round.base, f.round.lr) == (before + 1, 1e-3)
    f.run_round(RoundKind.UNLEARN)
    done = f.ticket(ticket.id)
    assert (applied(done).method, applied(done).deleted_records, applied(done).deleted_bytes) == ("fukd", 1, 8)
    assert {r.client for r in f.state.history.values()} == {"a", "c"}


def test_without_a_distiller_it_is_refused_and_while_one_is_away_it_waits() -> None:
    with pytest.raises(NotNow, match="as distiller"):
        federation(distiller=False).file("b")
    f = federation()
    f.wait(61, "a", "b", "c")
    ticket = f.file("b")
    assert ticket.state is TicketState.PENDING
    f.beat("public")
    f.apply(f.state)
    assert f.round.step.combine.rule == "erase"


def test_a_sum_that_begins_after_the_first_round_is_refused() -> None:
    with pytest.raises(NotNow, match="since round 1, which was stored only since round 2: choose retrain, not or puf"):
        federation(since=2).file("b")
    f = federation()
    f.state = replace(f.state, history={})
    with pytest.raises(NotNow, match="which was stored not at all"):
        f.file("b")
    with pytest.raises(NotNow, match="cannot forget single samples"):
        f.file("b", scope="samples", forget_samples=3, retain_samples=7)


def test_only_parameters_are_erased_and_the_distilled_model_is_installed() -> None:
    manifest = Manifest((TensorSpec("w", "f32", (2,)), TensorSpec("mean", "f32", (2,), "buffer")))
    w, total = np.array([1, 1], "f4"), np.array([0.15, -0.05], "f4")
    blocks = [
        TensorBlock(tensor=t, parameter=0, w=w, others={}, updates=[UpdateBlock(client="u", samples=1, u=total)])
        for t in manifest.tensors
    ]
    erased = methods.named("fukd").rule(Combine(rule="erase"), manifest, ())
    assert erased(blocks[0]) == pytest.approx([0.85, 1.05])
    assert erased(blocks[1]) is w
    installed = methods.named("fukd").rule(Combine(rule="install"), manifest, ())
    assert installed(blocks[0]) == pytest.approx([1.15, 0.95])
    assert installed(blocks[1]) == pytest.approx(total)
