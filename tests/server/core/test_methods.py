"""Plans and equations of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from puf_common.audit_chain import EMPTY
from puf_common.errors import NotNow, StaleRound
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_server.core import methods, rounds, tickets
from puf_server.core.config import Forgetting
from puf_server.core.methods import comparison, federaser, layers
from puf_server.core.methods.blocks import TensorBlock, UpdateBlock
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import Combine, HistoryRecord, RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import receipt_content
from tests.server.core.builders import Federation, config, header
from tests.tickets import applied, outcome

EVERYONE = ("a", "b", "c", "d")
NET = Manifest(
    (
        TensorSpec("stem.weight", "f32", (2, 2)),
        TensorSpec("stem.bias", "f32", (2,)),
        TensorSpec("norm.running_mean", "f32", (2,), "buffer"),
        TensorSpec("head.weight", "f32", (3, 2)),
        TensorSpec("head.bias", "f32", (3,)),
    )
)


def trained(rounds: int = 3, **forgetting: Any) -> Federation:
    f = Federation(config(plan={"rounds": rounds}, forgetting=forgetting))
    f.join(*EVERYONE, holdout=0)
    f.train()
    return f


def block(w: Sequence[float], updates: Sequence[UpdateBlock] = (), name: str = "stem.weight") -> TensorBlock:
    spec = next(t for t in NET.tensors if t.name == name)
    return TensorBlock(tensor=spec, parameter=0, w=np.array(w, np.float32), others={}, updates=updates)


def update(client: str, samples: int, u: Sequence[float]) -> UpdateBlock:
    return UpdateBlock(client=client, samples=samples, u=np.array(u, np.float32), norms=(float(np.linalg.norm(u)),))


# -- equations ---------------------------------------------------------------------------------------------------------


def calibrated(stored: Mapping[str, Sequence[float]], fresh: Sequence[UpdateBlock], w: Sequence[float]) -> NDArray[Any]:
    lengths = {client: (float(np.linalg.norm(u)),) for client, u in stored.items()}
    method = methods.named("federaser")
    return method.rule(Combine(rule="calibrate", values=lengths), NET, fresh)(block(w, fresh))


def test_federaser_uses_the_stored_length_and_the_new_direction() -> None:
    one = calibrated({"a": (3, 4)}, [update("a", 1, (0, 0.5))], (0, 0))
    assert one.tolist() == [0.0, 5.0]
    both = calibrated({"a": (3, 4), "b": (0, 1)}, [update("a", 1, (0, 0.5)), update("b", 3, (2, 0))], (0, 0))
    assert both.tolist() == pytest.approx([0.75, 1.25])


@given(st.floats(0.01, 100.0), st.floats(-3, 3), st.floats(0.5, 3))
def test_federaser_ignores_the_length_of_a_new_update(c: float, x: float, y: float) -> None:
    once = calibrated({"a": (1, 2)}, [update("a", 1, (x, y))], (0, 0))
    scaled = calibrated({"a": (1, 2)}, [update("a", 1, (c * x, c * y))], (0, 0))
    assert scaled == pytest.approx(once, rel=1e-5, abs=1e-6)
    assert float(np.linalg.norm(once)) == pytest.approx(np.sqrt(5), rel=1e-5)


def test_federaser_with_the_same_updates_repeats_the_round() -> None:
    stored = {"a": (1.0, -2.0), "b": (0.5, 0.25)}
    again = calibrated(stored, [update("a", 1, stored["a"]), update("b", 1, stored["b"])], (1, 1))
    assert again == pytest.approx([1.75, 0.125])


def test_an_update_of_length_zero_has_no_direction_and_no_weight() -> None:
    assert federaser.factors((5.0,), (0.0,), per_tensor=False) is None
    one = calibrated({"a": (3, 4), "b": (1, 0)}, [update("a", 1, (0, 2)), update("b", 9, (0, 0))], (0, 0))
    assert one.tolist() == [0.0, 5.0]


def test_lengths_can_be_used_per_tensor() -> None:
    assert federaser.factors((3.0, 4.0), (1.0, 2.0), per_tensor=True) == (3.0, 2.0)
    whole = federaser.factors((3.0, 4.0), (0.0, 0.5), per_tensor=False)
    assert whole == (10.0, 10.0)


def test_not_negates_the_first_layer_only() -> None:
    rule = methods.named("not").rule(Combine(rule="negate"), NET, ())
    w = block((1.5, -2, 0, 3))
    once = rule(w)
    assert once.tolist() == [-1.5, 2, 0, -3]
    assert rule(replace(w, w=once)).tobytes() == w.w.tobytes()
    for name in ("stem.bias", "norm.running_mean", "head.weight"):
        other = block((1, 2), name=name)
        assert rule(other) is other.w
    with_bias = methods.named("not", {"include_bias": "true"}).rule(Combine(rule="negate"), NET, ())
    assert with_bias(block((1, 2), name="stem.bias")).tolist() == [-1, -2]


def test_layers_follow_the_order_of_the_model() -> None:
    assert layers.first_layer(NET) == {"stem.weight"}
    assert layers.last_layer(NET) == {"head.weight", "head.bias"}
    assert [t.name for t in layers.outputs(NET, ("@head",)).tensors] == ["head.weight", "head.bias"]
    assert layers.outputs(NET, ()) is NET


# -- plans -------------------------------------------------------------------------------------------------------------


def test_retrain_runs_all_rounds_again_and_the_model_stays_until_the_last() -> None:
    f = trained(method="retrain")
    ticket = f.file("b")
    for number in (1, 2, 3):
        current = f.round
        assert (current.base, current.step.stream, current.lr) == (
            0 if number == 1 else f.state.newest,
            number,
            f.config.recipe.lr_at(number),
        )
        assert [s.client for s in current.assignments] == ["a", "c", "d"]
        assert (f.state.version, f.ticket(ticket.id).state) == (3, TicketState.SCHEDULED)
        f.run_round(RoundKind.UNLEARN)
    done = f.ticket(ticket.id)
    assert (done.state, applied(done).method, applied(done).version_before, applied(done).version_unlearned) == (
        TicketState.COMPLETED,
        "retrain",
        3,
        6,
    )
    assert applied(done).recovery_rounds == 0
    assert [v for v, m in f.state.models.items() if m.status is not ModelStatus.DELETED] == [0, 6]
    assert f.state.records[4].tickets == f.state.records[6].tickets == (ticket.id,)


def test_a_step_with_too_few_answers_is_planned_again_with_alive_clients() -> None:
    f = trained(method="retrain")
    f.file("b")
    f.run_round(RoundKind.UNLEARN)
    f.submit("a")
    f.wait(61, "a")
    assert f.state.round is None
    assert f.state.job is not None
    assert f.state.job.step == 1
    f.wait(1, "a", "c", "d")
    assert (f.round.attempt, f.round.base) == (2, 4)
    f.run_round(RoundKind.UNLEARN)
    f.run_round(RoundKind.UNLEARN)
    assert f.state.version == 6


def test_a_client_that_asks_during_a_job_leaves_it_and_is_served_next() -> None:
    f = trained(method="retrain")
    first = f.file("b")
    f.run_round(RoundKind.UNLEARN)
    second = f.file("c")
    assert [s.client for s in f.round.assignments] == ["a", "d"]
    f.run_round(RoundKind.UNLEARN)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(first.id).state is TicketState.APPLIED
    for _ in range(3):
        assert [s.client for s in f.round.assignments] == ["a", "d"]
        f.run_round(RoundKind.UNLEARN)
    assert {f.ticket(t.id).state for t in (first, second)} == {TicketState.COMPLETED}


def test_a_job_without_retained_clients_ends() -> None:
    """All other clients ask for samples meanwhile: if the job continued, all would wait without end."""
    f = Federation(config(plan={"rounds": 1}, forgetting={"method": "retrain"}))
    f.join("a", "b", holdout=0)
    f.train()
    whole = f.file("a")
    some = f.file("b", scope="samples", forget_samples=4, retain_samples=6)
    assert f.ticket(whole.id).state is TicketState.PENDING
    f.join("b", samples=6, holdout=0)
    assert [(s.client, s.part) for s in f.round.assignments] == [("b", "retain")]
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(some.id).state is TicketState.COMPLETED
    f.wait(3600, "a", "b")
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(whole.id).state is TicketState.COMPLETED


def test_natural_runs_its_number_of_rounds() -> None:
    f = Federation(config(forgetting={"method": "natural", "method_options": {"rounds": "2"}}))
    f.join(*EVERYONE)
    f.train()
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    f.commit()
    for _ in range(2):
        f.answer_evaluation(0.9)
        f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(0.9)
    done = f.ticket(ticket.id)
    assert (done.state, applied(done).recovery_rounds, outcome(done).recovered) == (TicketState.COMPLETED, 2, True)


# -- fallback and refusals ---------------------------------------------------------------------------------------------


def test_the_fallback_serves_an_absent_target_at_its_deadline() -> None:
    f = trained(fallback="retrain", deadline_days=1.0)
    ticket = f.file("b", received_at=0.0)
    assert f.round.kind is RoundKind.UNLEARN
    f.wait(61, "a", "c", "d")
    f.wait(86400, "a", "c", "d")
    assert f.ticket(ticket.id).fallback == "absent"
    f.wait(3600, "a", "c", "d")
    for _ in range(3):
        f.run_round(RoundKind.UNLEARN)
    assert applied(f.ticket(ticket.id)).method == "retrain (fallback: absent)"
    assert f.state.members["b"].status is MemberStatus.FORGOTTEN


def test_without_a_fallback_it_fails() -> None:
    f = trained(deadline_days=1.0)
    ticket = f.file("b")
    f.wait(61, "a", "c", "d")
    f.wait(86400, "a", "c", "d")
    assert f.ticket(ticket.id).state is TicketState.FAILED


def test_a_request_of_the_operator_for_an_absent_client_uses_the_fallback_at_once() -> None:
    f = trained(fallback="not")
    f.wait(61, "a", "c", "d")
    ticket = f.file("b", by="operator")
    f.commit()
    assert applied(f.ticket(ticket.id)).method == "not (fallback: absent)"
    f = trained(fallback="not")
    assert f.file("b", by="operator").fallback is None


@pytest.mark.parametrize(
    "wish", [{"kappa": 2.0}, {"mode": "special"}, {"eta_u": 5.0}, {"epochs": 2}, {"flip": "server"}]
)
def test_other_methods_refuse_options_of_puf(wish: dict[str, Any]) -> None:
    f = trained(method="not")
    with pytest.raises(NotNow, match="belong to PUF"):
        f.file("b", **wish)


def test_a_method_without_sample_scope_refuses_samples() -> None:
    f = trained(method="retrain", also_remember=("federaser",))
    f.config = config(forgetting={"method": "federaser"})
    with pytest.raises(NotNow, match="ask for the whole client"):
        f.file("b", scope="samples", forget_samples=3, retain_samples=7)


def kept(f: Federation) -> State:
    """The history that folds of the training rounds would store."""
    entries = [
        HistoryRecord(key=f"norms/{n:08d}/{c}", kind="norms", client=c, membership=1, round=n, samples=10, norms=(2.0,))
        for n in (1, 2, 3)
        for c in EVERYONE
    ]
    entries += [
        HistoryRecord(
            key=f"first-updates/{c}/1", kind="first-updates", client=c, membership=1, round=1, samples=10, nbytes=8
        )
        for c in EVERYONE
    ]
    return replace(f.state, history={r.key: r for r in entries})


def test_federaser_without_its_history_is_refused() -> None:
    f = trained(method="federaser")
    with pytest.raises(NotNow, match="choose retrain, not or puf"):
        f.file("b")


def test_federaser_replays_its_history_and_deletes_that_of_the_target() -> None:
    f = trained(method="federaser")
    f.state = kept(f)
    ticket = f.file("b")
    assert f.round.step.combine.history == tuple(f"first-updates/{c}/1" for c in ("a", "c", "d"))
    assert (f.round.assignments, f.round.base) == ((), 0)
    f.commit()
    for number in (2, 3):
        assert (f.round.step.method_state, f.round.step.combine.rule) == ({"replayed": number}, "calibrate")
        assert f.round.step.combine.values == dict.fromkeys(("a", "c", "d"), (2.0,))
        assert {s.epochs for s in f.round.assignments} == {0.5}
        f.run_round(RoundKind.UNLEARN)
    done = f.ticket(ticket.id)
    assert (applied(done).deleted_records, applied(done).deleted_bytes) == (4, 8)
    assert {r.client for r in f.state.history.values()} == {"a", "c", "d"}


def test_every_second_round_is_replayed() -> None:
    f = trained(method="federaser", method_options={"delta_t": "2"})
    f.state = kept(f)
    f.file("b")
    f.commit()
    assert (f.round.step.method_state, f.round.step.last) == ({"replayed": 3}, True)


def test_a_sum_that_is_not_finite_sends_a_job_back_to_its_start() -> None:
    from puf_server.core import scheduler

    f = trained(method="retrain")
    ticket = f.file("b")
    f.run_round(RoundKind.UNLEARN)
    f.submit_all()
    f.apply(scheduler.fold_failed(f.state, "not finite", f.now))
    assert f.ticket(ticket.id).state is TicketState.PENDING
    assert f.state.models[4].status is ModelStatus.DELETED
    assert f.state.version == 3


def test_names_and_options_are_checked() -> None:
    for wrong, why in (
        ({"method": "nott"}, "choose one of puf"),
        ({"method": "natural", "method_options": {"rounds": "-1"}}, "options of natural: rounds"),
        ({"fallback": "puf"}, "needs the target"),
        ({"also_remember": ("nothing",)}, "no method"),
    ):
        with pytest.raises(ValueError, match=why):
            Forgetting(**wrong)


def test_the_table_has_a_row_for_every_method() -> None:
    assert [row[0] for row in comparison.rows()] == list(methods.known())
    assert all(len(row) == len(comparison.COLUMNS) for row in comparison.rows())


def test_an_update_for_a_step_is_checked_like_any_other() -> None:
    f = trained(method="retrain")
    f.file("b")
    stated = header(f.round, f.round.assignments[0])
    with pytest.raises(StaleRound, match="no update of b"):
        rounds.expected_assignment(f.state, "b", stated)
    with pytest.raises(NotNow):
        tickets.withdraw(f.state, "b", next(iter(f.state.tickets)), f.now)


def test_a_receipt_counts_every_step_and_names_only_requested_strengths() -> None:
    f = trained(method="federaser")
    f.state = kept(f)
    ticket = f.file("b")
    f.commit()
    f.run_round(RoundKind.UNLEARN)
    f.run_round(RoundKind.UNLEARN)
    while f.state.round is not None:
        f.run_round(RoundKind.RECOVER)
    content = receipt_content.build(
        f.state, f.config, f.ticket(ticket.id), head=EMPTY, now=f.now, software="1"
    ).as_json()
    assert content["method"]["name"] == "federaser"
    assert [content["method"][key] for key in ("mode", "flip", "kappa", "eta_u", "epochs")] == [None] * 5
    assert content["costs"]["unlearning"]["rounds"] == 3
    assert content["costs"]["unlearning"]["bytes_from_clients"] == 2 * 3 * 8
    assert content["deleted_history"] == {"records": 4, "bytes": 8}


def test_the_guide_shows_the_generated_table() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "methods.md").read_text()
    assert comparison.markdown() in guide


@pytest.mark.parametrize(("compat", "n", "kappa"), [("paper", 5, 2.0), ("author-code", 10, 1.0)])
def test_the_n_of_special_for_samples_is_the_papers_or_that_of_its_authors_code(
    compat: str, n: int, kappa: float
) -> None:
    f = trained(method_options={"compat": compat})
    f.file("b", scope="samples", mode="special", eta_u=2.0, forget_samples=5, retain_samples=5)
    [assignment] = f.round.assignments
    assert (f.round.denominator, assignment.scale) == (n, -2.0)
    assert -assignment.scale * assignment.samples / n == kappa


@pytest.mark.parametrize("compat", ["paper", "author-code"])
def test_the_effect_of_kappa_does_not_depend_on_n(compat: str) -> None:
    f = trained(method_options={"compat": compat})
    f.file("b", scope="samples", mode="special", kappa=2.0, forget_samples=5, retain_samples=5)
    [assignment] = f.round.assignments
    assert f.round.denominator is not None
    assert assignment.scale * assignment.samples / f.round.denominator == -2.0
    # In Regular a target also trains on its remaining samples: n is the same.
    f = trained(method_options={"compat": compat})
    f.file("b", scope="samples", mode="regular", eta_u=2.0, forget_samples=5, retain_samples=5)
    assert f.round.denominator == 40
