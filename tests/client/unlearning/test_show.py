"""The texts about a request and its outcome."""

from __future__ import annotations

import pytest

from puf_client.routines.measure import ModelMeasurement
from puf_client.unlearning.show import show_outcome, show_request
from puf_common.receipts.evidence import Attack
from puf_common.receipts.ranks import RankComparison
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

DESCRIPTION = pb.DescribeReply(federation_id="f-1", title="clinics", forgetting=pb.ForgettingPolicy(deadline_days=30))
SAMPLES = tk.UnlearningRequest(scope=tk.SCOPE_SAMPLES, forget_samples=5, retain_samples=15)
CLIENT = tk.UnlearningRequest(scope=tk.SCOPE_CLIENT, mode=tk.MODE_SPECIAL, strength=tk.Strength(kappa=2, epochs=1))


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_request_for_samples_names_both_counts(capsys: pytest.CaptureFixture[str]) -> None:
    show_request("anna", DESCRIPTION, SAMPLES, None)
    text = printed(capsys)
    assert "5 samples; anna stays a member with the other 15" in text
    assert "30 days from receipt" in text


def test_special_mode_warns_about_the_leak(capsys: pytest.CaptureFixture[str]) -> None:
    show_request("anna", DESCRIPTION, CLIENT, None)
    text = printed(capsys)
    assert "special: only the targets train" in text
    assert "can compute this client's update exactly" in text
    assert "kappa 2, 1 epoch" in text


def test_a_filed_request_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    show_request("anna", DESCRIPTION, SAMPLES, tk.Ticket(id="t-1"))
    assert "already filed as t-1" in printed(capsys)


def test_another_method_has_no_mode(capsys: pytest.CaptureFixture[str]) -> None:
    description = pb.DescribeReply(federation_id="f-1", method="fedau")
    show_request("anna", description, SAMPLES, None)
    text = printed(capsys)
    assert "method fedau" in text
    assert "mode" not in text


def completed() -> tk.Ticket:
    ticket = tk.Ticket(
        id="t-1",
        client="anna",
        request=SAMPLES,
        state=tk.TICKET_STATE_COMPLETED,
        method="puf-regular",
        applied_round=7,
        recovery_rounds=1,
        recovered=True,
        version_before=6,
        version_recovered=8,
        deleted_versions=[1, 2],
        history=[tk.TicketStep(state=tk.TICKET_STATE_COMPLETED, note="recovered: the score is that of before")],
    )
    ticket.score_before.CopyFrom(tk.Score(accuracy=0.5))
    return ticket


def test_an_outcome_has_a_table_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    sums = tk.EvaluationSums(samples=4, loss_sum=2.0, score_sum=3.0)
    attack = Attack(threshold=1.0, forget_members=30, forget_samples=60, holdout_members=30, holdout_samples=60)
    before, after = (RankComparison(auc=a, forget_samples=60, unseen_samples=200) for a in (0.93, 0.5))
    measured = {
        6: ModelMeasurement(sums, pool=before),
        8: ModelMeasurement(sums, sums, attack, attack, pool=after),
    }
    show_outcome(completed(), measured)
    text = printed(capsys)
    for part in ("before (6)", "75.0 %", "0.500", "50.0 %", "50 / 50 %"):
        assert part in text
    assert "The request of anna for 5 samples was applied in round 7 by PUF-Regular." in text
    assert "After 1 round without them: recovered: the score is that of before." in text
    assert "Deleted: 2 older models." in text
    assert "Verdict: forgotten. Before, the model told the forgotten data from unseen data." in text
    assert "93 % before → 50 % after (43 to 57 %) → 50 % for unseen data" in text
    assert "the other clients' hold-outs, matched by label" in text


def test_equal_figures_before_and_after_are_not_called_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    sums = tk.EvaluationSums(samples=4, loss_sum=2.0, score_sum=3.0)
    same = ModelMeasurement(sums, own=RankComparison(auc=0.52, forget_samples=60, unseen_samples=200))
    show_outcome(completed(), {6: same, 8: same})
    text = printed(capsys)
    assert "Verdict: nothing measurable changed." in text
    assert "Verdict: forgotten" not in text


def test_models_that_were_not_measured_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    show_outcome(completed(), {})
    text = printed(capsys)
    assert "not measured" in text
    assert "Verdict: not measured." in text


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (tk.TICKET_STATE_WITHDRAWN, "t-1 was withdrawn: a note"),
        (tk.TICKET_STATE_FAILED, "Nothing was forgotten; run the same command to file the request again."),
    ],
)
def test_other_ends_state_the_reason(state: tk.TicketState, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    ticket = tk.Ticket(id="t-1", client="anna", request=SAMPLES, state=state)
    ticket.history.add(note="a note")
    show_outcome(ticket, {})
    assert says in printed(capsys)
