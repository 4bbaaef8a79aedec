"""The content of a receipt, built from the state."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.core.builders import Federation, config
from tests.tables import by_class

from puf_common.audit_chain import AuditEntry, Head
from puf_common.errors import NotNow
from puf_common.receipts.content import canonical
from puf_common.receipts.evidence import BINS, Z9875, Attack
from puf_common.receipts.ranks import RankComparison
from puf_server.core import tickets
from puf_server.core.state.measurements import Measurement, Sums
from puf_server.core.state.rounds import RoundKind
from puf_server.core.unlearning import evaluation, model_versions, request_verdict
from puf_server.core.unlearning.receipt_content import build, known_versions

HEAD = Head(41, bytes(32))
BINNED = tuple([0] * (BINS - 1) + [10])


def answer(f: Federation, score: float) -> None:
    """Answers the open evaluation, with the training side that it asks for."""
    asked = f.state.evaluation
    assert asked is not None
    assert asked.training_side
    for name in asked.missing:
        holdout = Sums(samples=10, loss_sum=1.0, score_sum=10 * score)
        training = Sums(samples=10, loss_sum=2.0, score_sum=9.0, confidences=BINNED)
        f.apply(evaluation.answer(f.state, name, asked.id, asked.version, holdout, training))


def measured(f: Federation, ticket_id: str, version: int, *, members: int) -> None:
    attack = Attack(threshold=0.2, forget_members=members, forget_samples=100, holdout_members=50, holdout_samples=100)
    found = Measurement(
        forget=Sums(samples=100, loss_sum=40.0, score_sum=90.0),
        holdout=Sums(samples=100, loss_sum=50.0, score_sum=60.0),
        yeom=attack,
    )
    f.apply(tickets.measure(f.state, "b", ticket_id, version, found, f.now)[0])


def forgotten(**request: Any) -> tuple[Federation, str]:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    ticket = f.file("b", reference="case 7", **request)
    answer(f, 0.8)
    f.run_round(RoundKind.UNLEARN)
    measured(f, ticket.id, 2, members=95)
    measured(f, ticket.id, 3, members=0)
    answer(f, 0.5)
    f.run_round(RoundKind.RECOVER)
    answer(f, 0.8)
    return f, ticket.id


def receipt(f: Federation, ticket_id: str, lines: tuple[AuditEntry, ...] = ()) -> dict[str, Any]:
    ticket = f.ticket(ticket_id)
    return build(f.state, f.config, ticket, head=HEAD, lines=lines, now=f.now, software="1.2").as_json()


def test_an_open_ticket_has_no_receipt() -> None:
    f = Federation(config())
    f.join("a", "b", "c")
    f.train()
    ticket = f.file("b")
    with pytest.raises(NotNow, match="scheduled"):
        receipt(f, ticket.id)


def test_a_receipt_has_all_facts_of_its_ticket() -> None:
    f, ticket_id = forgotten()
    measured(f, ticket_id, 4, members=55)
    told = receipt(f, ticket_id)
    assert told["statement"] == "Forgetting by this method is approximate, not a proof of erasure."
    assert told["federation"]["id"] == "f"
    assert told["ticket"]["reference"] == "case 7"
    assert [step["state"] for step in told["ticket"]["history"]] == [
        "pending",
        "scheduled",
        "applied",
        "recovering",
        "completed",
    ]
    assert told["method"]["name"] == "puf-regular"
    assert told["method"]["scale"] == -8.0
    assert told["rounds"] == {"applied": 3, "recovery": 1, "recovered": True, "ended": "equal"}
    assert {stage: m["version"] for stage, m in told["models"].items()} == {
        "before": 2,
        "unlearned": 3,
        "recovered": 4,
    }
    assert told["models"]["before"]["digest"] == "02"
    assert [m["version"] for m in told["deleted_models"]] == [1, 2]
    assert told["costs"]["unlearning"] == {
        "rounds": 1,
        "bytes_to_clients": 0,
        "bytes_from_clients": 32,
        "samples_trained": 40,
    }
    assert told["costs"]["recovery"]["bytes_from_clients"] == 24
    assert told["measured_by_others"]["unlearned"]["accuracy"] == 0.5
    assert told["audit"] == {"line": 41, "hash": "00" * 32}
    assert told["issued_at"] == "1970-01-01T00:16:40Z"
    # Other clients appear only as numbers.
    text = canonical(told).decode()
    assert not any(f'"{name}"' in text for name in ("a", "c", "d"))


def test_a_receipt_has_the_clients_measurements_and_a_verdict_on_the_newest_model() -> None:
    f, ticket_id = forgotten()
    before = receipt(f, ticket_id)["measured_by_client"]
    # The recovered model is not measured yet: null, and the verdict is on the last measured one.
    assert before["recovered"] is None
    assert before["verdict"] == "not like unseen data"
    measured(f, ticket_id, 4, members=55)
    mine = receipt(f, ticket_id)["measured_by_client"]
    assert "the client itself" in mine["by"]
    assert mine["verdict"] == "like unseen data"
    assert mine["before"]["verdict"] == "not like unseen data"
    assert mine["before"]["forget"]["accuracy"] == 0.9
    found = mine["recovered"]["yeom"]["forget"]
    assert found.pop("interval") == pytest.approx([0.4524, 0.6439], abs=5e-5)
    assert found == {
        "members": 55,
        "samples": 100,
        "share": 0.55,
    }
    assert mine["recovered"]["song"] is None


def ranked(f: Federation, ticket_id: str, version: int, auc: float, *, members: int = 50) -> None:
    """The target measures a model with ranks against the pool, and with one attack."""
    attack = Attack(threshold=0.2, forget_members=members, forget_samples=100, holdout_members=50, holdout_samples=100)
    found = Measurement(
        forget=Sums(samples=100, loss_sum=40.0, score_sum=90.0),
        yeom=attack,
        pool=RankComparison(auc=auc, forget_samples=60, unseen_samples=60),
    )
    f.apply(tickets.measure(f.state, "b", ticket_id, version, found, f.now)[0])


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (0.9, 0.5, "forgotten"),
        (0.9, 0.9, "still known"),
        (0.52, 0.52, "nothing measurable changed"),
        (0.9, 0.585, "too few samples to tell"),
    ],
)
def test_with_ranks_the_verdict_compares_before_and_after(before: float, after: float, verdict: str) -> None:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    ticket = f.file("b")
    answer(f, 0.8)
    f.run_round(RoundKind.UNLEARN)
    ranked(f, ticket.id, 2, before, members=95)
    ranked(f, ticket.id, 3, 0.2)
    answer(f, 0.5)
    f.run_round(RoundKind.RECOVER)
    assert request_verdict.verdict(f.ticket(ticket.id)) is None
    answer(f, 0.8)
    # Completed, and the model in use is not measured yet: there is no verdict on another one.
    assert receipt(f, ticket.id)["measured_by_client"]["verdict"] is None
    ranked(f, ticket.id, 4, after)
    assert request_verdict.verdict(f.ticket(ticket.id)) == verdict
    mine = receipt(f, ticket.id)["measured_by_client"]
    assert mine["verdict"] == verdict
    comparison = mine["comparison"]
    assert (comparison["before"], comparison["after"]) == (before, after)
    assert comparison["source"] == "the other clients' hold-outs, matched by label"
    assert mine["before"]["pool"]["auc"] == before
    assert "own" not in mine["before"]
    # With ranks, the interval of an attack is at 98.75 %.
    attack = Attack(threshold=0.2, forget_members=95, forget_samples=100, holdout_members=50, holdout_samples=100)
    assert mine["before"]["yeom"]["difference"] == pytest.approx(attack.difference(Z9875), abs=1e-6)


def test_the_pool_needs_two_clients_and_is_deleted_with_the_model() -> None:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    f.file("b")
    asked = f.state.evaluation
    assert asked is not None
    for number, name in enumerate(asked.missing):
        # A client that counts other classes than the rest does not count.
        table = by_class((number, 1), (0.5, 0.25), (0.25, 0.125)) if number else by_class((9,), (1.0,), (1.0,))
        holdout = Sums(samples=10, loss_sum=1.0, score_sum=8.0, classes=table)
        f.apply(evaluation.answer(f.state, name, asked.id, asked.version, holdout))
    score = f.state.models[2].score
    assert score is not None
    assert score.classes == by_class((3, 2), (1.0, 0.5), (0.5, 0.25))
    deleted = model_versions.delete(f.state, [2]).models[2].score
    assert deleted is not None
    assert deleted.classes is None


def test_the_labels_of_a_single_client_are_not_passed_on() -> None:
    f = Federation(config())
    f.join("a", "b", "c")
    f.train()
    f.file("b")
    asked = f.state.evaluation
    assert asked is not None
    for name in asked.missing:
        table = by_class((9,), (1.0,), (1.0,)) if name == "a" else None
        holdout = Sums(samples=10, loss_sum=1.0, score_sum=8.0, classes=table)
        f.apply(evaluation.answer(f.state, name, asked.id, asked.version, holdout))
    score = f.state.models[2].score
    assert score is not None
    assert score.classes is None


def test_without_measurements_there_are_nulls_and_no_verdict() -> None:
    f = Federation(config())
    f.join("a", "b", "c")
    f.train()
    ticket = f.file("b")
    answer(f, 0.8)
    f.run_round(RoundKind.UNLEARN)
    answer(f, 0.8)
    told = receipt(f, ticket.id)["measured_by_client"]
    assert {told[stage] for stage in ("before", "unlearned", "recovered", "verdict")} == {None}


def test_a_receipt_lists_exports_and_backups_of_models_that_contain_the_client() -> None:
    f, ticket_id = forgotten()
    assert known_versions(f.state, f.ticket(ticket_id)) == {1, 2}
    lines = (
        AuditEntry(5, 1000.0, "model.exported", '{"digest":"d1","status":"ready","version":1}', b""),
        AuditEntry(6, 1000.0, "model.exported", '{"digest":"d4","status":"ready","version":4}', b""),
        AuditEntry(7, 1001.0, "backup.made", '{"digest":"b1","line":6,"versions":[0,2]}', b""),
        AuditEntry(8, 1002.0, "backup.made", '{"digest":"b2","line":7,"versions":[0,4]}', b""),
    )
    told = receipt(f, ticket_id, lines)
    assert told["exports"] == [{"at": "1970-01-01T00:16:40Z", "version": 1, "digest": "d1"}]
    assert told["backups"] == [{"at": "1970-01-01T00:16:41Z", "digest": "b1", "versions": [2]}]


def test_a_client_without_updates_gets_a_receipt_too() -> None:
    f = Federation(config(plan={"rounds": 0}))
    f.join("a", "b")
    ticket = f.file("b")
    told = receipt(f, ticket.id)
    assert told["method"]["name"] == "none"
    assert told["rounds"]["applied"] is None
    assert told["models"] == {"before": None, "unlearned": None, "recovered": None}
    assert told["costs"]["unlearning"]["rounds"] == 0


def test_a_receipt_names_samples_and_a_request_of_the_operator() -> None:
    f, ticket_id = forgotten(scope="samples", forget_samples=3, retain_samples=7)
    told = receipt(f, ticket_id)["ticket"]
    assert (told["scope"], told["forget_samples"], told["retain_samples"]) == ("samples", 3, 7)
    assert told["filed_by"] == "client"


def test_sums_of_retained_clients_are_recorded_before_the_target_needs_them() -> None:
    f, _ = forgotten()
    assert f.state.models[2].training == Sums(samples=30, loss_sum=6.0, score_sum=27.0, confidences=(*BINNED[:-1], 30))
    assert f.state.models[4].training is not None
