"""Requests as the pages show them: next step, deadline, strength and measurements."""

from __future__ import annotations

import pytest

from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk
from puf_server.dashboard import requests as views

NOW = 1_800_000_000.0
DAY = 86400.0


def ticket(state: str = "PENDING", **fields: object) -> tk.Ticket:
    request = tk.UnlearningRequest(mode=tk.MODE_REGULAR, strength=tk.Strength(kappa=2, epochs=1), received_at=NOW - 60)
    usual: dict[str, object] = {"id": "t-1", "client": "anna", "deadline_at": NOW + 30 * DAY, "request": request}
    return tk.Ticket(**(usual | {"state": f"TICKET_STATE_{state}"} | fields))  # type: ignore[arg-type]


def status(kind: str = "", missing: tuple[str, ...] = (), tickets: tuple[str, ...] = ()) -> op.StatusReply:
    if not kind:
        return op.StatusReply()
    return op.StatusReply(round=op.RoundInfo(number=7, kind=kind, missing=missing, tickets=tickets))


@pytest.mark.parametrize(
    ("found", "server", "text"),
    [
        (ticket(), status(), "waits for anna to connect"),
        (ticket(worker_alive=True), status("train"), "waits for its turn"),
        (ticket(held="beyond the budget"), status(), "operator approval: beyond the budget"),
        (ticket("SCHEDULED"), status("train"), "clients measure the model before"),
        (
            ticket("SCHEDULED"),
            status("unlearn", ("a", "b", "c", "d", "e"), ("t-1",)),
            "unlearning round 7: waits for a, b, c and 2 more",
        ),
        (ticket("SCHEDULED"), status("unlearn", (), ("t-1",)), "unlearning round 7: the server sums the updates"),
        (ticket("RECOVERING"), status("recover", ("bert",)), "recovery round 7: waits for bert"),
        (ticket("APPLIED"), status(), "clients measure the model after"),
        (ticket("COMPLETED"), status(), "receipt is ready"),
        (ticket("FAILED", history=[tk.TicketStep(note="deadline passed")]), status(), "deadline passed"),
    ],
)
def test_the_next_step_names_who_is_waited_for(found: tk.Ticket, server: op.StatusReply, text: str) -> None:
    assert views.next_step(found, server) == text


@pytest.mark.parametrize(
    ("left", "text", "tone"),
    [(30 * DAY, "in 30 d", ""), (2 * DAY, "in 2 d", "open"), (-3600.0, "overdue by 1 h", "bad")],
)
def test_a_near_deadline_is_highlighted(left: float, text: str, tone: str) -> None:
    assert views.row(ticket(deadline_at=NOW + left), status(), NOW).deadline == (text, tone)
    assert views.row(ticket("RECOVERING", deadline_at=NOW + left), status(), NOW).deadline == ("", "")


def test_mode_and_strength_are_as_asked() -> None:
    assert views.strength(ticket()) == "regular, κ 2, 1 epoch"
    asked = tk.UnlearningRequest(mode=tk.MODE_SPECIAL, strength=tk.Strength(eta_u=6.5, epochs=2))
    assert views.strength(ticket(request=asked)) == "special, η_u 6.5, 2 epochs"


def test_the_subject_is_a_client_or_some_samples() -> None:
    asked = tk.UnlearningRequest(mode=tk.MODE_REGULAR, scope=tk.SCOPE_SAMPLES, forget_samples=1200)
    assert views.row(ticket(request=asked), status(), NOW).subject == "1,200 samples of anna"
    assert views.row(ticket(), status(), NOW).subject == "anna"


def test_measurements_have_intervals_and_stages_without_one_are_empty() -> None:
    attack = tk.MembershipAttack(forget_members=30, forget_samples=60, holdout_members=10, holdout_samples=40)
    sums = tk.EvaluationSums(samples=60, score_sum=54.0)
    measured = tk.Measurement(version=8, forget=sums, yeom=attack)
    found = ticket(
        "APPLIED",
        version_before=8,
        version_unlearned=9,
        measurements=[measured],
        score_before=tk.Score(accuracy=0.9, samples=200),
    )
    before, unlearned, recovered = views.stages(found)
    assert [(b.kind, b.share) for b in before.answers] == [("forgotten", 0.9)]
    assert [(b.kind, b.share) for b in before.by_loss] == [("forgotten", 0.5), ("unseen", 0.25)]
    assert before.by_confidence == []
    assert all(b.low < b.share < b.high for b in before.by_loss + before.others)
    assert (unlearned.version, unlearned.answers) == (9, [])
    assert (recovered.version, recovered.others) == (None, [])


def test_a_verdict_of_unknown_words_is_an_open_question() -> None:
    tones = [
        views.verdict_tone(v) for v in ("forgotten", "still known", "nothing measurable changed", "new words", None)
    ]
    assert tones == ["good", "bad", "open", "open", "open"]
