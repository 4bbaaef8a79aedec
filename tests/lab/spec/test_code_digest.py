"""The digest of the code in a run's name: what counts as a change, and which runs it concerns."""

from __future__ import annotations

from puf_lab.evaluation.metrics import stamps
from puf_lab.spec.code_digest import code_digest, digest_of, sources

METHOD = '''"""A module."""

def scale(kappa: float) -> float:
    """Negates."""
    return -kappa
'''


def test_only_code_counts() -> None:
    documented = METHOD.replace("Negates.", "Negates and scales.").replace("return", "# the sign\n    return")
    assert digest_of({"a.py": METHOD}) == digest_of({"a.py": documented})
    assert digest_of({"a.py": METHOD}) != digest_of({"a.py": METHOD.replace("-kappa", "kappa")})
    assert digest_of({"a.py": METHOD}) != digest_of({"b.py": METHOD})


def test_an_edited_method_concerns_runs_that_forget_and_no_others() -> None:
    training, forgetting = sources("training"), sources("forgetting")
    assert training.keys() < forgetting.keys()
    only = forgetting.keys() - training.keys()
    assert {"puf_server/core/methods/puf.py", "puf_server/core/unlearning/recovery.py"} <= only
    for name in (
        "client/routines/train.py",
        "client/data/datasets.py",
        "server/aggregation/fold.py",
        "server/core/rounds.py",
    ):
        assert f"puf_{name}" in training
    for name in ("puf_lab/experiments/perform.py", "puf_lab/experiments/stages.py", "puf_common/seeds.py"):
        assert name in training
    assert digest_of(training) == code_digest("training")
    name = "puf_server/core/methods/puf.py"
    edited = {**forgetting, name: forgetting[name] + "\nSIGN = -1\n"}
    assert digest_of(edited) != code_digest("forgetting")


def test_edited_metrics_concern_no_runs() -> None:
    measuring = sources("measuring")
    for name in ("puf_lab/evaluation/attacks.py", "puf_lab/evaluation/metrics.py", "puf_lab/experiments/measuring.py"):
        assert name in measuring
        assert name not in sources("forgetting")
    before = stamps(["test", "rmia"])
    assert before == [f"test {code_digest('measuring')}", f"rmia {code_digest('measuring')}"]
